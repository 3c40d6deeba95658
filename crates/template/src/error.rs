//! Why a template is not built, and reading files with that in mind.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Why a template is not built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The name would not do as a file name.
    #[error("template name {0:?}: use 1 to 64 letters, digits, `-` and `_`")]
    Name(String),
    /// Packages for an interpreter that takes none.
    #[error(
        "packages are baked into Python only; a JavaScript program finds its own in node_modules of the directories it is given"
    )]
    NoPackages,
    /// A package that a snapshot cannot hold.
    #[error("{0}: a file of machine code; only pure Python packages can be baked into a template")]
    Native(PathBuf),
    /// A tree of packages that is larger than a template may be.
    #[error("{path}: more than {max} {what} of packages")]
    TooMuch {
        /// The tree.
        path: PathBuf,
        /// Most there may be.
        max: u64,
        /// Of what.
        what: &'static str,
    },
    /// A program that is needed is not on this machine.
    #[error("`{program}` cannot be started; install {package}")]
    Missing {
        /// The program.
        program: String,
        /// The package that brings it.
        package: &'static str,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// A program is there and too old.
    #[error("`{program}` is {found:?}: {least} or newer is needed; install a newer {package}")]
    TooOld {
        /// The program.
        program: &'static str,
        /// What it says it is.
        found: String,
        /// The oldest that will do.
        least: u32,
        /// The package that brings it.
        package: &'static str,
    },
    /// The Python of this machine has no pip.
    #[error("`python3` has no pip; install python3-pip")]
    NoPip,
    /// A program did not do what it was for.
    #[error("{what} failed ({status}):\n{log}")]
    Failed {
        /// What it was for.
        what: &'static str,
        /// How it ended.
        status: String,
        /// The end of what it printed.
        log: String,
    },
    /// Something of this machine is in the result.
    #[error("the template would hold {0:?}, which is of this machine")]
    Leak(String),
    /// The tool chain's result is not what it should be.
    #[error("{path}: {what}")]
    Odd {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file or folder cannot be used.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// With which.
        path: PathBuf,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

/// What pip and npm print when they do not reach their registry.
const UNREACHED: [&str; 9] = [
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ENETUNREACH",
    "ETIMEDOUT",
];

impl BuildError {
    /// Whether the machine lacks what building needs, a program or the way to a registry, and nothing is wrong with
    /// what was to be built.
    #[must_use]
    pub fn is_of_machine(&self) -> bool {
        match self {
            Self::Failed { what, log, .. } => {
                matches!(*what, "pip" | "npm") && UNREACHED.iter().any(|sign| log.contains(sign))
            }
            error => error.mend().is_some(),
        }
    }

    /// The command that mends it on Debian and Ubuntu, where one does.
    #[must_use]
    pub fn mend(&self) -> Option<String> {
        let packages = match self {
            Self::Missing { package, .. } | Self::TooOld { package, .. } => package,
            Self::NoPip => "python3-pip",
            _ => return None,
        };
        let packages = packages.replace(" and ", " ");
        Some(format!("apt-get install {packages}"))
    }
}

/// For `map_err`: a failure with a file.
pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::File {
        action,
        path,
        source,
    }
}

/// The bytes of a file of at most `max`.
pub(crate) fn read(path: &Path, max: u64) -> Result<Vec<u8>, BuildError> {
    let mut bytes = Vec::new();
    let opened = File::open(path).map_err(file("open", path))?;
    opened
        .take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(file("read", path))?;
    if bytes.len() as u64 > max {
        return Err(BuildError::Odd {
            path: path.to_owned(),
            what: format!("larger than {max} bytes"),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_registry_that_is_not_reached_is_told_from_a_package_that_is_wrong() {
        let failed = |what, log: &str| BuildError::Failed {
            what,
            status: "exit status: 1".to_owned(),
            log: log.to_owned(),
        };
        let pip = "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)'\n\
                   ERROR: No matching distribution found for componentize-py";
        assert!(failed("pip", pip).is_of_machine());
        assert!(failed("npm", "npm error code ECONNREFUSED").is_of_machine());
        let hash = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.";
        assert!(!failed("pip", hash).is_of_machine());
        assert!(!failed("npm", "npm error code EINTEGRITY").is_of_machine());
        assert!(!failed("componentize-py", pip).is_of_machine());
        assert!(BuildError::NoPip.is_of_machine());
        assert!(!BuildError::Leak("a folder".to_owned()).is_of_machine());
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        let folder = Scratch::new();
        let path = folder.path().join("f");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(matches!(read(&path, 4), Err(BuildError::Odd { .. })));
    }
}
