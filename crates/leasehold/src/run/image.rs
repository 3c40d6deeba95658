//! `--image`: the name is resolved to a digest once, in the store of this user, and what the supervisor needs of
//! the image is put together. The layers go to it as one directory by descriptor, and the lease that keeps them.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use leasehold_backend::seam::ImageFiles;
use leasehold_core::digest::Digest;
use leasehold_core::image::{ImageSpec, RootDirectory, User};
use leasehold_core::spec::{EXEC_BYTES_MAX, base_environment};
use leasehold_image::ImageError;
use leasehold_image::document::Process;
use leasehold_image::store::plan::{At, Lease, MountPlan};
use leasehold_image::store::{Scope, Store};
use leasehold_supervisor::paths::Paths;

use crate::fault::Fault;
use crate::voice::clean;
use crate::{image, place, voice};

/// Who a command is where the image names nobody.
const OTHERWISE: User = User {
    uid: 1_000,
    gid: 1_000,
};

/// What of an image a request is made of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Start {
    /// For the sandbox.
    pub(crate) spec: ImageSpec,
    /// How the image is started.
    pub(crate) process: Process,
    /// Where its command is at home.
    pub(crate) home: String,
}

impl Start {
    /// The environment that the image declares, over what every command has.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let path = base_environment().remove_entry("PATH");
        let home = ("HOME".to_owned(), self.home.clone());
        let own = self.process.env.iter().filter_map(|entry| {
            let (name, value) = entry.split_once('=')?;
            (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
        });
        path.into_iter().chain([home]).chain(own).collect()
    }

    /// What it runs where nobody names a command.
    ///
    /// # Errors
    /// When it names none.
    pub(crate) fn command(&self) -> Result<Vec<String>, Fault> {
        let own = self.process.entrypoint.iter().chain(&self.process.cmd);
        let argv: Vec<String> = own.cloned().collect();
        if argv.first().is_some_and(String::is_empty) {
            return Err(Fault::usage(
                "the image's `Entrypoint` and `Cmd` begin with an empty word, which is no program",
            )
            .hint("name one: leasehold run --image IMAGE -- CMD"));
        }
        match argv.is_empty() {
            true => Err(Fault::usage("the image names no command of its own")
                .hint("name one: leasehold run --image IMAGE -- CMD")),
            false => Ok(argv),
        }
    }

    /// Where its command begins, if it says so.
    pub(crate) fn directory(&self) -> Option<String> {
        let directory = &self.process.working_dir;
        (!directory.is_empty()).then(|| directory.clone())
    }
}

/// An image that is in use.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// What the request is made of.
    pub(crate) start: Start,
    layers: OwnedFd,
    lease: Lease,
}

impl Chosen {
    /// What goes to a backend, for good.
    ///
    /// # Errors
    /// When the lease cannot be passed on.
    pub(crate) fn into_files(self) -> std::io::Result<ImageFiles> {
        Ok(ImageFiles {
            layers: self.layers,
            lease: self.lease.as_fd().try_clone_to_owned()?,
        })
    }

    /// What goes with the request, in its order.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.layers.as_fd(), self.lease.as_fd()]
    }
}

/// Finds the image of a name, a digest, or the first digits of one, and takes a lease on it.
///
/// # Errors
/// When it is not here, or names a user that it does not know.
pub(crate) fn find(paths: &Paths, name: &str, talk: bool) -> Result<Chosen, Fault> {
    place::make(paths)?;
    let store = image::below(paths.state())?;
    let scope = Scope::host();
    let found = store.find(&scope, name);
    let digest = found.map_err(|error| absent(&error, name))?.digest;
    take(&store, &scope, digest, name, talk)
}

/// Takes a lease on an image of a scope and puts together what a sandbox needs of it.
///
/// # Errors
/// When it is not here, or names a user that it does not know.
pub(crate) fn take(
    store: &Store,
    scope: &Scope,
    digest: Digest,
    name: &str,
    talk: bool,
) -> Result<Chosen, Fault> {
    let plan = store.mount_plan(scope, &digest);
    let plan = plan.map_err(|error| absent(&error, name))?;
    odd(&plan).map_or(Ok(()), |what| {
        Err(Fault::usage(what)
            .about(about(name))
            .hint("make `/etc` a directory in the image, and `hosts`, `hostname` and `resolv.conf` in it files"))
    })?;
    declared(&plan.config.process).map_err(|fault| fault.about(about(name)))?;
    let told = |error: ImageError| image::fault(&error).about(about(name));
    let account = plan.account(OTHERWISE).map_err(told)?;
    let (user, home) = match plan.owners {
        true => (account.user, account.home),
        // All files are the caller's, and so is the command.
        false => (OTHERWISE, None),
    };
    if talk && user.uid != account.user.uid {
        voice::note(&format!(
            "without root the command is user 1000, as all files of the image are, and not {}",
            account.user.uid
        ));
    }
    if home.is_none() {
        let at = |place: &str| plan.facts.iter().find(|fact| fact.path == place);
        if let Some(what) = at("home").and_then(|fact| homeless(&fact.at)) {
            return Err(Fault::usage(what).about(about(name)).hint(
                "make `/home` a directory in the image, or name a user in its `/etc/passwd` that has a home elsewhere",
            ));
        }
    }
    let spec = ImageSpec {
        digest: plan.image,
        layers: plan.layers,
        root: RootDirectory {
            mode: plan.root.mode,
            uid: plan.root.uid,
            gid: plan.root.gid,
        },
        owners: plan.owners,
        user,
        home: home.is_none(),
    };
    Ok(Chosen {
        start: Start {
            spec,
            process: plan.config.process,
            home: home.unwrap_or_else(|| "/home/user".to_owned()),
        },
        layers: store.layers().map_err(told)?,
        lease: plan.lease,
    })
}

/// What of an image's root cannot be made good in the sandbox's own layer without hiding what is the image's. A link
/// at another place of ours makes room for a directory.
fn odd(plan: &MountPlan) -> Option<String> {
    plan.facts.iter().find_map(|fact| {
        let path = fact.path.as_str();
        match (path, &fact.at) {
            ("etc", At::Link(to)) => Some(format!("its `/etc` is a link to `{}`", clean(to))),
            ("etc", At::File) => Some("its `/etc` is no directory".to_owned()),
            ("etc/hosts" | "etc/hostname" | "etc/resolv.conf", At::Directory) => {
                Some(format!("its `/{path}` is a directory"))
            }
            _ => None,
        }
    })
}

/// Why no home can be made below `/home`.
fn homeless(at: &At) -> Option<String> {
    match at {
        At::Link(to) => Some(format!("its `/home` is a link to `{}`", clean(to))),
        At::File => Some("its `/home` is no directory".to_owned()),
        At::Nothing | At::Directory | At::BehindLink => None,
    }
}

/// What an image's configuration says of a command is within bounds and makes sense.
fn declared(process: &Process) -> Result<(), Fault> {
    let bytes: usize = process.env.iter().map(|entry| entry.len() + 1).sum();
    if bytes > EXEC_BYTES_MAX {
        return Err(Fault::usage(format!(
            "the image's `Env` has {bytes} bytes: most is {EXEC_BYTES_MAX}"
        ))
        .hint("build the image with less in `Env`: what is large belongs in a file"));
    }
    let directory = &process.working_dir;
    if !directory.is_empty() && !directory.starts_with('/') {
        return Err(Fault::usage(format!(
            "the image's `WorkingDir` is `{}`: an absolute path is wanted",
            clean(directory)
        ))
        .hint("build the image with an absolute one"));
    }
    Ok(())
}

fn about(name: &str) -> String {
    format!("cannot run in image `{}`", clean(name))
}

/// An image that is not here is brought by one command.
fn absent(error: &ImageError, name: &str) -> Fault {
    let fault = image::fault(error).about(about(name));
    match error {
        ImageError::Absent(_) => fault.hint(format!(
            "`leasehold image pull {}` brings it, `leasehold image load` takes it from a file",
            clean(name)
        )),
        _ => fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(process: Process) -> Start {
        let spec = ImageSpec {
            digest: Digest::of(b"manifest"),
            layers: Vec::new(),
            root: RootDirectory {
                mode: 0o755,
                uid: 0,
                gid: 0,
            },
            owners: true,
            user: OTHERWISE,
            home: true,
        };
        Start {
            spec,
            process,
            home: "/home/user".to_owned(),
        }
    }

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn what_makes_no_sense_in_a_configuration_is_told_by_its_field() {
        let with = |change: fn(&mut Process)| {
            let mut process = Process::default();
            change(&mut process);
            process
        };
        assert!(declared(&with(|_| {})).is_ok());
        assert!(declared(&with(|process| process.working_dir = "/srv".to_owned())).is_ok());
        let relative = with(|process| process.working_dir = "srv".to_owned());
        let large = with(|process| process.env = vec![format!("A={}", "x".repeat(3 << 20))]);
        for (process, word) in [
            (relative, "`WorkingDir` is `srv`"),
            (large, "`Env` has 3145731"),
        ] {
            let fault = declared(&process).unwrap_err();
            assert!(fault.chain().contains(word), "{}", fault.chain());
            assert!(fault.mend().is_some());
        }
        let empty = start(with(|process| process.entrypoint = vec![String::new()]));
        let fault = empty.command().unwrap_err();
        assert!(fault.chain().contains("`Entrypoint`"), "{}", fault.chain());
        assert!(homeless(&At::Directory).is_none());
        let link = homeless(&At::Link("/srv".to_owned()));
        assert_eq!(link.as_deref(), Some("its `/home` is a link to `/srv`"));
    }

    #[test]
    fn what_an_image_declares_goes_over_what_every_command_has() {
        let bare = start(Process::default());
        let names: Vec<String> = bare.environment().into_keys().collect();
        assert_eq!(names, ["HOME", "PATH"]);
        assert_eq!((bare.command().is_err(), bare.directory()), (true, None));
        let full = start(Process {
            env: texts(&["PATH=/opt", "A=b=c", "HOME=/srv", "broken", "=x", "EMPTY="]),
            entrypoint: texts(&["tool"]),
            cmd: texts(&["--help"]),
            working_dir: "/srv".to_owned(),
            user: String::new(),
        });
        let env: Vec<(String, String)> = full.environment().into_iter().collect();
        let right = [
            ("A", "b=c"),
            ("EMPTY", ""),
            ("HOME", "/srv"),
            ("PATH", "/opt"),
        ];
        let right = right.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(env, right);
        assert_eq!(full.command().unwrap(), ["tool", "--help"]);
        assert_eq!(full.directory().as_deref(), Some("/srv"));
    }
}
