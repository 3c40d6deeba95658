//! `leasehold policy check`: needs no daemon.

use std::path::Path;

use leasehold_control::policies;
use leasehold_core::policy::Scope;

use crate::fault::Fault;
use crate::remote::read_text;
use crate::voice::{self, clean};

/// Checks a policy document and tells everything that is wrong with it, one mistake a line; status 2
/// then. It is checked for one scope: a narrower one refuses a few numbers more.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn check(path: &Path, scope: &str) -> Result<u8, Fault> {
    let scope = Scope::parse(scope).map_err(|error| Fault::usage(error.to_string()))?;
    let text = read_text(path)?;
    match policies::check(&scope, text.as_bytes()) {
        Ok(_) => {
            voice::data(format!("{} is good\n", path.display()).as_bytes())?;
            Ok(0)
        }
        Err(mistakes) => {
            for mistake in &mistakes.0 {
                voice::note(&format!(
                    "{}: {}",
                    path.display(),
                    clean(&mistake.to_string())
                ));
            }
            Ok(2)
        }
    }
}
