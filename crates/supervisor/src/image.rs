//! The image of a sandbox: what came with the call is taken and checked here, and kept as long as the sandbox is
//! there.
//!
//! The lease is a file that its holders keep locked in common, so that the image store's collection leaves the
//! layers alone. Ours is closed when the sandbox was seen gone; when this process dies the kernel closes it.

use std::os::fd::OwnedFd;

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::image::{ImageSpec, User};
use leasehold_core::spec::SandboxSpec;
use leasehold_jail::spawn::{MakeStep, SpawnError};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::admit::Host;
use crate::connection::Connection;

/// Descriptors of an image.
#[derive(Debug)]
pub(crate) struct ImageFds {
    /// The directory of the unpacked layers, until the sandbox is made.
    pub(crate) layers: Option<OwnedFd>,
    /// What keeps them.
    _lease: OwnedFd,
}

/// Who a command is where no image says otherwise, and always as an ordinary user, whose own files the workload's
/// are.
pub(crate) const WORKLOAD: User = User {
    uid: 1_000,
    gid: 1_000,
};

fn invalid(message: impl Into<String>) -> PublicError {
    PublicError::new(ErrorKind::Invalid, message)
}

/// Takes the descriptors of an image from a call, even if it is refused later.
///
/// # Errors
/// When they did not come, or are no directory and no file.
pub(crate) fn take(
    caller: Option<&mut Connection>,
    spec: &SandboxSpec,
) -> Result<Option<ImageFds>, PublicError> {
    if spec.image.is_none() {
        return Ok(None);
    }
    let mut came = caller.map_or_else(Vec::new, |caller| {
        (0..2).map_while(|_| caller.take_fd()).collect()
    });
    let (Some(lease), Some(layers)) = (came.pop(), came.pop()) else {
        return Err(invalid(
            "`image` needs the directory of its layers and its lease, and they did not come with the request",
        ));
    };
    let is = |fd: &OwnedFd, kind| {
        rustix::fs::fstat(fd).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == kind)
    };
    if !is(&layers, FileType::Directory) || !is(&lease, FileType::RegularFile) {
        return Err(invalid(
            "`image` came with something else than the directory of its layers and its lease",
        ));
    }
    Ok(Some(ImageFds {
        layers: Some(layers),
        _lease: lease,
    }))
}

/// Checks an image against its bounds and what this host can do with it.
///
/// # Errors
/// Names the field and the mend.
pub(crate) fn admit(host: &Host, spec: &SandboxSpec) -> Result<(), PublicError> {
    let Some(image) = &spec.image else {
        return Ok(());
    };
    image.check()?;
    if spec.warm.is_some() {
        return Err(invalid(
            "`warm` and `image` exclude each other: what waits is an interpreter of this host",
        ));
    }
    let root = host.posture.maker == "root";
    match (root, image.owners) {
        (true, true) => Ok(()),
        (true, false) => Err(PublicError::new(
            ErrorKind::Unsupported,
            "the image's files have lost their owners: it was unpacked by a process that may not give files away",
        )
        .hint("remove the image, free its layers with `leasehold image gc`, and pull or load it again as root")),
        (false, true) => Err(PublicError::new(
            ErrorKind::Unsupported,
            "the image's files have owners of their own, which only root can map onto a sandbox",
        )),
        (false, false) if image.user == WORKLOAD => Ok(()),
        (false, false) => Err(PublicError::new(
            ErrorKind::Unsupported,
            format!(
                "`image.user` is {}:{}: without root a command in an image is 1000:1000, as all files of it are",
                image.user.uid, image.user.gid
            ),
        )),
    }
}

/// Why an image cannot be a root here, in words that name the mend; nothing for any other failure.
pub(crate) fn refusal(error: &SpawnError) -> Option<String> {
    if error.errno() != Some(Errno::INVAL.raw_os_error()) {
        return None;
    }
    let why = match error.step()? {
        MakeStep::LayerOwners => {
            "the image store is on a file system where this kernel cannot map owners, which an image needs as root: \
             a state directory on ext4, xfs, btrfs or tmpfs can"
        }
        MakeStep::ImageRoot => {
            "this kernel cannot stack the image's layers: that needs Linux 5.19 as root, 5.11 as an ordinary user"
        }
        _ => return None,
    };
    Some(why.to_owned())
}

/// Refuses an image where a sandbox is to wait for its command.
///
/// # Errors
/// When there is one.
pub(crate) fn refuse_parked(spec: &SandboxSpec) -> Result<(), PublicError> {
    match spec.image {
        None => Ok(()),
        Some(_) => Err(PublicError::new(
            ErrorKind::Unsupported,
            "`image` is for one run: no sandbox with an image is made ahead yet",
        )),
    }
}

/// Who the command of such a sandbox is inside.
pub(crate) fn user(spec: &SandboxSpec) -> User {
    let of = |image: &ImageSpec| image.user;
    spec.image.as_ref().map_or(WORKLOAD, of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_core::digest::Digest;
    use leasehold_core::image::{LayerName, RootDirectory};
    use leasehold_core::spec::Warm;

    fn spec(owners: bool, user: User) -> SandboxSpec {
        let digest = Digest::of(b"layer");
        SandboxSpec {
            image: Some(ImageSpec {
                digest,
                layers: vec![LayerName {
                    digest,
                    leans: false,
                }],
                root: RootDirectory {
                    mode: 0o755,
                    uid: 0,
                    gid: 0,
                },
                owners,
                user,
                home: false,
            }),
            ..SandboxSpec::default()
        }
    }

    fn host(maker: &str) -> Host {
        let mut host = Host::default();
        host.posture.maker = maker.to_owned();
        host
    }

    #[test]
    fn an_image_is_admitted_where_its_owners_can_be_held() {
        let nobody = User { uid: 33, gid: 33 };
        for (maker, owners, user, word) in [
            ("root", true, nobody, ""),
            ("root", false, WORKLOAD, "lost their owners"),
            ("user", true, WORKLOAD, "only root"),
            ("user", false, WORKLOAD, ""),
            ("user", false, nobody, "33:33"),
        ] {
            let told = admit(&host(maker), &spec(owners, user));
            let told = told.err().map(|error| error.message).unwrap_or_default();
            assert!(
                told.contains(word) && told.is_empty() == word.is_empty(),
                "{told}"
            );
        }
        let mut warm = spec(true, nobody);
        warm.warm = Some(Warm::Python);
        assert!(admit(&host("root"), &warm).is_err());
        let mut bad = spec(true, nobody);
        bad.image.as_mut().unwrap().layers.clear();
        assert!(admit(&host("root"), &bad).is_err());
    }

    #[test]
    fn what_this_kernel_cannot_do_is_told_with_the_mend() {
        let failed = |step, errno: Errno| SpawnError::Step {
            step,
            source: std::io::Error::from_raw_os_error(errno.raw_os_error()),
        };
        for (step, word) in [
            (MakeStep::LayerOwners, "file system"),
            (MakeStep::ImageRoot, "Linux 5.19"),
        ] {
            let told = refusal(&failed(step, Errno::INVAL)).unwrap();
            assert!(told.contains(word), "{told}");
            assert_eq!(refusal(&failed(step, Errno::NOSPC)), None);
        }
        assert_eq!(refusal(&failed(MakeStep::Proc, Errno::INVAL)), None);
    }

    #[test]
    fn i5_no_sandbox_waits_with_an_image() {
        assert!(refuse_parked(&spec(true, WORKLOAD)).is_err());
        assert!(refuse_parked(&SandboxSpec::default()).is_ok());
    }

    #[test]
    fn an_image_without_its_descriptors_is_refused() {
        assert!(take(None, &spec(true, WORKLOAD)).is_err());
        assert!(take(None, &SandboxSpec::default()).unwrap().is_none());
    }
}
