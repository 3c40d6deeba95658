//! The folder of one build. It goes when the build ends, however it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::file;
use crate::{BuildError, Embedded, Manifest};

/// The folder of one build.
pub(crate) struct Work {
    path: PathBuf,
}

impl Work {
    /// A new folder inside of `output`, so that results can be renamed into place.
    pub(crate) fn new(output: &Path) -> Result<Self, BuildError> {
        fs::create_dir_all(output).map_err(file("create", output))?;
        let output = output.canonicalize().map_err(file("find", output))?;
        let path = output.join(format!(".build-{}", std::process::id()));
        fs::create_dir(&path).map_err(file("create", &path))?;
        let work = Self { path };
        work.folder("tmp")?;
        Ok(work)
    }

    /// Where it is, without symbolic links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A folder in it, made if it is not there.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, BuildError> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(file("create", &path))?;
        Ok(path)
    }

    /// Writes texts of ours below the folder `name` of it.
    pub(crate) fn write(&self, name: &str, files: &[Embedded]) -> Result<PathBuf, BuildError> {
        let folder = self.folder(name)?;
        for embedded in files {
            let path = folder.join(embedded.path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(file("create", parent))?;
            }
            fs::write(&path, embedded.text).map_err(file("write", &path))?;
        }
        Ok(folder)
    }

    /// A program that runs in it and sees nothing of our environment but the search path.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command
            .current_dir(&self.path)
            .env_clear()
            .env("HOME", &self.path)
            .env("LANG", "C.UTF-8")
            .env("TMPDIR", self.path.join("tmp"));
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
    }

    /// Puts the results into `output`, the manifest last.
    pub(crate) fn publish(
        &self,
        name: &str,
        component: &[u8],
        manifest: &Manifest,
        output: &Path,
    ) -> Result<(), BuildError> {
        let mut text = serde_json::to_vec_pretty(manifest).map_err(|error| BuildError::Odd {
            path: self.path.clone(),
            what: error.to_string(),
        })?;
        text.push(b'\n');
        for (ending, bytes) in [("wasm", component), ("json", &text)] {
            let made = self.path.join(format!("result.{ending}"));
            fs::write(&made, bytes).map_err(file("write", &made))?;
            let place = output.join(format!("{name}.{ending}"));
            fs::rename(&made, &place).map_err(file("put into place", &place))?;
        }
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.path).ok();
    }
}
