//! `leasehold tool check`, and what `tool publish` sends: a manifest and the files beside it. Needs no
//! daemon.
//!
//! Every regular file of the manifest's folder and below it goes along, but for the manifest itself, names
//! that start with a dot, and `__pycache__`. Links are refused, since what they point to is not the tool's.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_control::archive::{self, TOOL_DIR};
use leasehold_control::manifest::Manifest;
use leasehold_control::tools::{self, Publication};
use leasehold_core::document::{DOCUMENT_MAX, Mistake};
use leasehold_core::quantity::format_bytes;
use serde_json::{Value, json};

use crate::fault::Fault;
use crate::gather::Gathering;
use crate::voice::{self, clean};

/// Name of the manifest in its folder.
const MANIFEST: &str = "tool.yaml";

/// A tool as it lies in its folder.
struct Source {
    path: PathBuf,
    manifest: Vec<u8>,
    package: Option<Vec<u8>>,
    files: usize,
}

/// Checks a tool and tells everything that is wrong with it, one mistake a line; status 2 then.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn check(path: &Path, as_json: bool) -> Result<u8, Fault> {
    let source = read(path)?;
    let (mistakes, publication) = match Manifest::parse(&source.manifest) {
        Err(mistakes) => (mistakes.0, None),
        Ok(_) => match tools::check(&source.manifest, source.package.as_deref()) {
            Ok(publication) => (Vec::new(), Some(publication)),
            Err(error) => {
                let message = error.message.trim_start_matches("tool: ").to_owned();
                let mistake = Mistake {
                    path: String::new(),
                    line: None,
                    message,
                };
                (vec![mistake], None)
            }
        },
    };
    let status = if mistakes.is_empty() { 0 } else { 2 };
    if as_json {
        voice::json(&as_value(&mistakes, publication.as_ref()))?;
        return Ok(status);
    }
    tell(&source, &mistakes);
    if let Some(publication) = &publication {
        for warning in &publication.warnings {
            voice::note(&format!("warning: {}", clean(warning)));
        }
        let files = match &source.package {
            None => "no files of its own".to_owned(),
            Some(bytes) => {
                let size = format_bytes(bytes.len() as u64);
                format!("{} files, {size} packed", source.files)
            }
        };
        let line = format!("{} is good: {files}\n", publication.manifest.tool());
        voice::data(line.as_bytes())?;
    }
    Ok(status)
}

fn tell(source: &Source, mistakes: &[Mistake]) {
    for mistake in mistakes {
        voice::note(&format!(
            "{}: {}",
            source.path.display(),
            clean(&mistake.to_string())
        ));
    }
}

fn as_value(mistakes: &[Mistake], publication: Option<&Publication>) -> Value {
    json!({
        "good": mistakes.is_empty(),
        "mistakes": mistakes,
        "tool": publication.map(|publication| publication.manifest.tool()),
        "digest": publication.map(|publication| publication.digest),
        "warnings": publication.map(|publication| publication.warnings.as_slice()).unwrap_or_default(),
    })
}

/// The body of a request that publishes a tool; `None` when it was told what is wrong with the manifest, one mistake
/// a line. The rest the daemon says.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn publish_request(path: &Path) -> Result<Option<Value>, Fault> {
    let source = read(path)?;
    if let Err(mistakes) = Manifest::parse(&source.manifest) {
        tell(&source, &mistakes.0);
        return Ok(None);
    }
    let manifest = String::from_utf8(source.manifest)
        .map_err(|_| Fault::usage(format!("{} is not UTF-8", source.path.display())))?;
    let package = source.package.map(|bytes| BASE64.encode(bytes));
    Ok(Some(json!({ "manifest": manifest, "package": package })))
}

fn read(path: &Path) -> Result<Source, Fault> {
    let path = match path.is_dir() {
        true => path.join(MANIFEST),
        false => path.to_owned(),
    };
    let manifest = read_file(&path, DOCUMENT_MAX)?;
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let gathering = Gathering {
        what: "a tool",
        folders: false,
        leave_out: &|place, name| place == path || name.starts_with('.') || name == "__pycache__",
    };
    let tree = gathering.gather(folder, TOOL_DIR)?;
    let files = tree.len();
    let package = match files {
        0 => None,
        _ => Some(archive::pack(&tree).map_err(|error| {
            Fault::usage(format!("{} cannot be packed", folder.display())).because(&error)
        })?),
    };
    Ok(Source {
        path,
        manifest,
        package,
        files,
    })
}

fn read_file(path: &Path, most: usize) -> Result<Vec<u8>, Fault> {
    let failed = |error: &std::io::Error| {
        Fault::usage(format!("cannot read {}", path.display())).because(error)
    };
    let length = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if length > most as u64 {
        return Err(Fault::usage(format!(
            "{} has {length} bytes: most is {most}",
            path.display()
        )));
    }
    fs::read(path).map_err(|error| failed(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("leasehold-tool-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn the_example_tools_are_good() {
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tools");
        let mut seen = 0;
        for entry in fs::read_dir(examples).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(check(&path, false).unwrap(), 0, "{}", path.display());
            seen += 1;
        }
        assert!(seen >= 2);
    }

    #[test]
    fn what_is_wrong_with_a_manifest_is_told_before_it_is_sent() {
        let path = folder("unsent");
        let request = |manifest: &str| {
            fs::write(path.join(MANIFEST), manifest).unwrap();
            publish_request(&path).unwrap()
        };
        assert_eq!(request("id: a\nversion: 1\n"), None);
        let good = "id: a\nversion: 1.0.0\nentrypoint: {runtime: command, argv: [\"true\"]}\n";
        assert_eq!(request(good).unwrap()["manifest"], good);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_folder_packs_its_files_and_nothing_that_is_not_one() {
        let path = folder("pack");
        let manifest = "id: a\nversion: 1.0.0\nentrypoint: {runtime: python, file: main.py}\n";
        fs::write(path.join(MANIFEST), manifest).unwrap();
        fs::write(path.join("main.py"), "print(1)\n").unwrap();
        fs::write(path.join(".secret"), "x").unwrap();
        fs::create_dir(path.join("lib")).unwrap();
        fs::write(path.join("lib/b.py"), "").unwrap();
        let source = read(&path).unwrap();
        let tree = archive::unpack(source.package.as_deref().unwrap()).unwrap();
        let names: Vec<&str> = tree.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [".tool", ".tool/lib", ".tool/lib/b.py", ".tool/main.py"]
        );
        assert_eq!(check(&path, true).unwrap(), 0);
        // The file alone is the same tool.
        assert_eq!(read(&path.join(MANIFEST)).unwrap().package, source.package);
        std::os::unix::fs::symlink("/etc/passwd", path.join("link")).unwrap();
        assert!(
            read(&path)
                .err()
                .unwrap()
                .chain()
                .contains("no regular file")
        );
        fs::remove_file(path.join("link")).unwrap();
        fs::remove_file(path.join("main.py")).unwrap();
        assert_eq!(check(&path, false).unwrap(), 2);
        fs::write(path.join(MANIFEST), "id: A\n").unwrap();
        assert_eq!(check(&path, false).unwrap(), 2);
        fs::remove_dir_all(&path).unwrap();
    }
}
