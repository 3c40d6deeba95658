//! A folder of built templates: `NAME.wasm` and `NAME.json`, as [`crate::build`] leaves them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{file, read};
use crate::{BuildError, COMPONENT_BYTES_MAX, Manifest, check_name, manifest};

/// Longest manifest in bytes.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Most templates that are listed.
const TEMPLATES_MAX: usize = 1_000;

/// A folder of built templates. It need not be there.
#[derive(Debug, Clone)]
pub struct Shelf {
    folder: PathBuf,
}

/// A template that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// What it is.
    pub manifest: Manifest,
    /// Its component.
    pub component: PathBuf,
}

impl Template {
    /// Opens its component. What is read must have the digest of the manifest; that is for the reader to see.
    ///
    /// # Errors
    /// When it cannot be opened, or is no file of the length that the manifest names.
    pub fn open(&self) -> io::Result<File> {
        let file = File::open(&self.component)?;
        let seen = file.metadata()?;
        if !seen.is_file() || seen.len() != self.manifest.component.bytes {
            let why = format!(
                "it is no file of the {} bytes that its manifest names",
                self.manifest.component.bytes
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(file)
    }
}

impl Shelf {
    /// The templates in `folder`.
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Where they are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The template of this name, if it is there.
    ///
    /// # Errors
    /// When the name can be none, or what is there is no template.
    pub fn find(&self, name: &str) -> Result<Option<Template>, BuildError> {
        check_name(name)?;
        let path = self.folder.join(format!("{name}.json"));
        let bytes = match read(&path, MANIFEST_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(BuildError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let odd = |what: String| BuildError::Odd {
            path: path.clone(),
            what,
        };
        let manifest: Manifest =
            serde_json::from_slice(&bytes).map_err(|error| odd(error.to_string()))?;
        if manifest.format != manifest::FORMAT {
            return Err(odd(format!(
                "format {}: this build reads {}",
                manifest.format,
                manifest::FORMAT
            )));
        }
        if manifest.name != name || manifest.component.bytes > COMPONENT_BYTES_MAX {
            return Err(odd("it is of another template".to_owned()));
        }
        let component = self.folder.join(format!("{name}.wasm"));
        Ok(component.is_file().then_some(Template {
            manifest,
            component,
        }))
    }

    /// Every template, by name, and what looks like one and is none.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub fn all(&self) -> Result<(Vec<Template>, Vec<BuildError>), BuildError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((Vec::new(), Vec::new()));
            }
            Err(error) => return Err(file("list", &self.folder)(error)),
        };
        let mut names = Vec::new();
        for entry in entries.take(TEMPLATES_MAX * 2) {
            let entry = entry.map_err(file("list", &self.folder))?;
            let path = PathBuf::from(entry.file_name());
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if path.extension().is_some_and(|ending| ending == "json")
                && let Some(name) = stem.filter(|name| check_name(name).is_ok())
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        let (mut found, mut odd) = (Vec::new(), Vec::new());
        for name in names {
            match self.find(&name) {
                Ok(template) => found.extend(template),
                Err(error) => odd.push(error),
            }
        }
        Ok((found, odd))
    }

    /// Puts a copy of a template into another folder, which is made where it is not there; false where there is
    /// no such template.
    ///
    /// # Errors
    /// When the name can be none, or it cannot be copied.
    pub fn lend(&self, name: &str, to: &Self) -> Result<bool, BuildError> {
        if self.find(name)?.is_none() {
            return Ok(false);
        }
        fs::create_dir_all(&to.folder).map_err(file("create", &to.folder))?;
        // The manifest last: without it there is no template.
        for ending in ["wasm", "json"] {
            let name = format!("{name}.{ending}");
            let target = to.folder.join(&name);
            fs::copy(self.folder.join(&name), &target).map_err(file("copy to", &target))?;
        }
        Ok(true)
    }

    /// Removes the template of this name; whether there was one, or a part of one. Runs that have it go on.
    ///
    /// # Errors
    /// When the name can be none, or it cannot be removed.
    pub fn remove(&self, name: &str) -> Result<bool, BuildError> {
        check_name(name)?;
        let mut was = false;
        // The manifest first: without it there is no template.
        for ending in ["json", "wasm"] {
            let path = self.folder.join(format!("{name}.{ending}"));
            match fs::remove_file(&path) {
                Ok(()) => was = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(file("remove", &path)(error)),
            }
        }
        Ok(was)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Component;
    use crate::scratch::Scratch;

    fn put(folder: &Path, name: &str, bytes: &[u8]) -> Manifest {
        let manifest = Manifest {
            format: manifest::FORMAT,
            name: name.to_owned(),
            interpreter: "python".to_owned(),
            interpreter_version: "3".to_owned(),
            component: Component {
                sha256: crate::digest::of(bytes),
                bytes: bytes.len() as u64,
            },
            inputs: Vec::new(),
            packages: Vec::new(),
            modules: Vec::new(),
            left: Vec::new(),
        };
        fs::write(folder.join(format!("{name}.wasm")), bytes).unwrap();
        let text = serde_json::to_vec(&manifest).unwrap();
        fs::write(folder.join(format!("{name}.json")), text).unwrap();
        manifest
    }

    #[test]
    fn what_is_there_is_found_listed_and_removed() {
        let folder = Scratch::new();
        let shelf = Shelf::new(folder.path().join("not-there"));
        assert_eq!(shelf.find("python").unwrap(), None);
        assert!(shelf.all().unwrap().0.is_empty());
        assert!(!shelf.remove("python").unwrap());

        let shelf = Shelf::new(folder.path().to_owned());
        let manifest = put(folder.path(), "b", b"\0asm");
        put(folder.path(), "a", b"\0asm");
        let found = shelf.find("b").unwrap().unwrap();
        assert_eq!(found.manifest, manifest);
        assert_eq!(found.open().unwrap().metadata().unwrap().len(), 4);
        let names = |shelf: &Shelf| -> Vec<String> {
            let all = shelf.all().unwrap().0;
            all.into_iter().map(|each| each.manifest.name).collect()
        };
        assert_eq!(names(&shelf), ["a", "b"]);
        let other = Shelf::new(folder.path().join("other"));
        assert!(shelf.lend("a", &other).unwrap() && !shelf.lend("none", &other).unwrap());
        assert_eq!(names(&other), ["a"]);
        assert!(shelf.remove("a").unwrap());
        assert_eq!(names(&shelf), ["b"]);
        // What was cut is not given out.
        fs::write(&found.component, b"\0as").unwrap();
        assert!(found.open().is_err());
    }

    #[test]
    fn what_is_no_template_is_told_and_hides_no_other() {
        let folder = Scratch::new();
        let shelf = Shelf::new(folder.path().to_owned());
        put(folder.path(), "good", b"\0asm");
        fs::write(folder.path().join("broken.json"), "{").unwrap();
        let mut other = put(folder.path(), "newer", b"\0asm");
        other.format += 1;
        let text = serde_json::to_vec(&other).unwrap();
        fs::write(folder.path().join("newer.json"), &text).unwrap();
        // One that was renamed by hand is not what it says.
        put(folder.path(), "name", b"\0asm");
        fs::rename(
            folder.path().join("name.json"),
            folder.path().join("renamed.json"),
        )
        .unwrap();
        let (found, odd) = shelf.all().unwrap();
        assert_eq!(found.len(), 1);
        let told: Vec<String> = odd.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(
            told.iter()
                .any(|text| text.contains("newer.json: format 2"))
        );
        assert!(matches!(shelf.find("../good"), Err(BuildError::Name(_))));
    }
}
