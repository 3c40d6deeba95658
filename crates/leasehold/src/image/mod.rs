//! `leasehold image`: pull, load, look at, remove, free and check images. The work is of the crate `image`.

mod bars;
mod look;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold_core::quantity::{format_bytes, parse_duration};
use leasehold_image::ImageError;
use leasehold_image::archive::LoadOptions;
use leasehold_image::document::Platform;
use leasehold_image::limits::Limits;
use leasehold_image::reference::Reference;
use leasehold_image::registry::{Credentials, PullOptions};
use leasehold_image::store::records::Image;
use leasehold_image::store::{Scope, Store};
use leasehold_image::unpack::worker::Worker;

use crate::cli::image::{ImageCommand, LoadFlags, PullFlags};
use crate::fault::Fault;
use crate::voice::clean;
use crate::{place, voice};

/// First word of a command line that is the process which unpacks.
pub(crate) const UNPACK: &str = "image-unpack";

/// Longest password or token.
const PASSWORD_MAX: u64 = 64 << 10;
/// Most named differences in one line of an error.
const ALTERED_MAX: usize = 32;

/// `leasehold image`.
///
/// # Errors
/// When a flag is wrong, an image cannot be had, or the store cannot be used.
pub(crate) fn main(command: &ImageCommand) -> Result<u8, Fault> {
    match command {
        ImageCommand::Pull(flags) => pull(flags),
        ImageCommand::Load(flags) => load(flags),
        ImageCommand::Ls { json } => look::list(&store()?, *json),
        ImageCommand::Show { image, json } => look::show(&store()?, image, *json),
        ImageCommand::Rm { images } => remove(&store()?, images),
        ImageCommand::Gc { dry_run, json } => collect(&store()?, *dry_run, *json),
        ImageCommand::Verify { images, drop, json } => verify(&store()?, images, *drop, *json),
    }
}

/// The store of this user.
fn store() -> Result<Store, Fault> {
    let paths = place::paths()?;
    place::make(&paths)?;
    below(paths.state())
}

/// The store below a state directory.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn below(state: &Path) -> Result<Store, Fault> {
    // Still there when this program was replaced while it runs, and never another one.
    let worker = Worker::new(PathBuf::from("/proc/self/exe"), vec![UNPACK.into()]);
    Store::open(state.join("images"), worker, Limits::default()).map_err(|error| fault(&error))
}

/// A failure of the crate as ours.
pub(crate) fn fault(error: &ImageError) -> Fault {
    use leasehold_core::error::PublicError;
    let public = PublicError::new(error.kind(), error.to_string());
    let mut fault = Fault::from(public);
    if let Some(cause) = std::error::Error::source(error) {
        fault = fault.because(cause);
    }
    match error.hint() {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

fn pull(flags: &PullFlags) -> Result<u8, Fault> {
    let reference = Reference::parse(&flags.name).map_err(|error| fault(&error))?;
    let mut options = PullOptions {
        ca: flags.ca.clone(),
        plain_http: flags.plain_http,
        ..PullOptions::default()
    };
    if let Some(platform) = platform(flags.platform.as_deref())? {
        options.platform = platform;
    }
    if let Some(text) = &flags.stall {
        let stall =
            parse_duration(text).map_err(|error| Fault::usage(format!("`--stall`: {error}")))?;
        let most = Duration::from_secs(3_600);
        if !(Duration::from_millis(100)..=most).contains(&stall) {
            return Err(Fault::usage("`--stall` is beyond 100ms to 1h"));
        }
        options.stall = stall;
    }
    if let (Some(user), Some(file)) = (&flags.user, &flags.password_file) {
        // Whoever gets both takes what is before the first one for the name.
        if user.contains(':') || user.contains(char::is_control) {
            return Err(Fault::usage(
                "`--user` has a `:` or what is no letter in it, which no name of a registry has",
            )
            .hint("--user NAME with --password-file FILE"));
        }
        options.credentials = Some(Credentials {
            user: user.clone(),
            password: password(file)?,
        });
    }
    let store = store()?;
    let watch = bars::watch(flags.json || flags.quiet);
    let image = store.pull(&Scope::host(), &reference, &options, &*watch);
    watch.over();
    let image = image.map_err(|error| fault(&error))?;
    told(
        &image,
        Some(&reference.to_string()),
        flags.json,
        flags.quiet,
    )
}

fn load(flags: &LoadFlags) -> Result<u8, Fault> {
    let name = match &flags.name {
        Some(name) => {
            let name = Reference::parse(name).map_err(|error| fault(&error))?;
            if name.digest().is_some() {
                return Err(Fault::usage(
                    "`--name` has a digest, which the image gives itself",
                ));
            }
            Some(name.to_string())
        }
        None => None,
    };
    let options = LoadOptions {
        which: flags.which.clone(),
        platform: platform(flags.platform.as_deref())?,
        name,
    };
    if flags.path.as_os_str() != "-" && !flags.path.exists() {
        let path = flags.path.to_string_lossy();
        return Err(
            Fault::usage(format!("`PATH` is `{}`, which is not there", clean(&path)))
                .hint("a file or directory, or - for standard input"),
        );
    }
    let store = store()?;
    let watch = bars::watch(flags.json || flags.quiet);
    let image = store.load(&Scope::host(), &flags.path, &options, &*watch);
    watch.over();
    let image = image.map_err(|error| fault(&error))?;
    told(&image, options.name.as_deref(), flags.json, flags.quiet)
}

fn platform(text: Option<&str>) -> Result<Option<Platform>, Fault> {
    let Some(text) = text else {
        return Ok(None);
    };
    match Platform::parse(text) {
        Some(platform) => Ok(Some(platform)),
        None => Err(Fault::usage(format!(
            "`--platform` is `{}`, which is not such as linux/amd64",
            clean(text)
        ))),
    }
}

fn password(file: &Path) -> Result<String, Fault> {
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin()
            .take(PASSWORD_MAX)
            .read_to_string(&mut text),
        false => std::fs::File::open(file)
            .and_then(|file| file.take(PASSWORD_MAX).read_to_string(&mut text)),
    };
    read.map_err(|error| Fault::usage("cannot read `--password-file`").because(&error))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// What there is now.
fn told(image: &Image, name: Option<&str>, json: bool, quiet: bool) -> Result<u8, Fault> {
    if json {
        voice::json(image)?;
        return Ok(0);
    }
    if !quiet {
        let name = name.map_or_else(String::new, |name| format!("{} is ", clean(name)));
        voice::note(&format!(
            "{name}{}: {} layers, {}",
            image.digest,
            image.layers.len(),
            format_bytes(image.bytes)
        ));
    }
    voice::data(format!("{}\n", image.digest).as_bytes())?;
    Ok(0)
}

fn remove(store: &Store, images: &[String]) -> Result<u8, Fault> {
    for image in images {
        let gone = store
            .remove(&Scope::host(), image)
            .map_err(|error| fault(&error))?;
        for gone in gone {
            voice::data(format!("removed {}\n", clean(&gone)).as_bytes())?;
        }
    }
    voice::hint("leasehold image gc frees the space");
    Ok(0)
}

fn collect(store: &Store, dry_run: bool, json: bool) -> Result<u8, Fault> {
    let done = store.collect(dry_run).map_err(|error| fault(&error))?;
    if json {
        voice::json(&done)?;
        return Ok(0);
    }
    let word = if dry_run { "would be freed" } else { "freed" };
    let text = format!(
        "{} blobs, {} layers and {} broken downloads {word}, {} in all; {} leases hold images\n",
        done.blobs,
        done.layers,
        done.partial,
        format_bytes(done.bytes),
        done.leases
    );
    voice::data(text.as_bytes())?;
    Ok(0)
}

fn verify(store: &Store, images: &[String], drop: bool, json: bool) -> Result<u8, Fault> {
    let scope = Scope::host();
    let all: Vec<(String, Result<Image, ImageError>)> = match images {
        [] => {
            let all = store.images(&scope).map_err(|error| fault(&error))?;
            all.into_iter()
                .map(|image| (image.digest.to_string(), Ok(image)))
                .collect()
        }
        named => named
            .iter()
            .map(|name| (name.clone(), store.find(&scope, name)))
            .collect(),
    };
    let mut rows = Vec::new();
    let (mut altered, mut failed) = (false, false);
    for (name, image) in all {
        // One that cannot be read keeps nobody from the others.
        let read = image.and_then(|image| {
            let found = store.verify(&image)?;
            if drop && !found.is_empty() {
                store.drop_altered(&image, &found)?;
            }
            Ok((found, image))
        });
        let (found, image) = match read {
            Ok(read) => read,
            Err(error) => {
                failed = true;
                let fault = fault(&error).about(format!("cannot verify {}", clean(&name)));
                if json {
                    rows.push(serde_json::json!({ "image": name, "error": fault.chain() }));
                }
                voice::fault(&fault);
                continue;
            }
        };
        altered |= !found.is_empty();
        if json {
            rows.push(serde_json::json!({ "image": image.digest, "altered": found }));
            continue;
        }
        let word = if found.is_empty() {
            "as it came"
        } else {
            "ALTERED"
        };
        let mut text = format!("{} {word}\n", image.digest);
        for one in found.iter().take(ALTERED_MAX) {
            text.push_str(&format!("  {}: {}\n", clean(&one.part), clean(&one.what)));
        }
        voice::data(text.as_bytes())?;
    }
    if json {
        voice::json(&rows)?;
    }
    if altered {
        voice::hint(match drop {
            true => "what was altered is gone: pull or load these images again",
            false => {
                "leasehold image verify --drop removes what is altered; then pull or load these images again"
            }
        });
    }
    Ok(u8::from(altered || failed))
}
