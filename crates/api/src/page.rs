//! Pages of lists: an opaque cursor that says after which run the next page begins.
//!
//! A cursor carries no right: whoever alters one sees another place of their own list, never another's.

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::id::RunId;

use crate::error::Refusal;

/// Runs on a page when nobody says how many.
pub(crate) const DEFAULT: u32 = 50;
/// Most runs on a page.
pub(crate) const MAX: u32 = 500;

/// Writes the cursor behind a run.
pub(crate) fn write(accepted_unix_ms: u64, run: &RunId) -> String {
    format!("{accepted_unix_ms:x}.{run}")
}

/// Reads a cursor.
pub(crate) fn read(text: &str) -> Result<(u64, RunId), Refusal> {
    let parsed = text.split_once('.').and_then(|(time, run)| {
        let digits = (1..=16).contains(&time.len()) && !time.starts_with('+');
        let time = digits
            .then(|| u64::from_str_radix(time, 16).ok())
            .flatten()?;
        Some((time, RunId::parse(run).ok()?))
    });
    parsed.ok_or_else(|| {
        PublicError::new(
            ErrorKind::Invalid,
            "`cursor` was not given by an earlier page",
        )
        .hint("leave it out to begin with the newest run")
        .into()
    })
}

/// Checks how many are wanted.
pub(crate) fn limit(wanted: Option<u32>) -> Result<u32, Refusal> {
    match wanted {
        None => Ok(DEFAULT),
        Some(wanted) if (1..=MAX).contains(&wanted) => Ok(wanted),
        Some(wanted) => Err(PublicError::new(
            ErrorKind::Invalid,
            format!("`limit` is {wanted}: 1 to {MAX}"),
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_nothing_else_does() {
        let run = RunId::from_entropy(&[3; 13]);
        let text = write(0x1234, &run);
        assert_eq!(read(&text).unwrap(), (0x1234, run.clone()));
        for bad in [
            "",
            ".",
            "1",
            "+1.x",
            &format!(".{run}"),
            &format!("zz.{run}"),
            "1.r",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        assert!(limit(Some(0)).is_err() && limit(Some(MAX + 1)).is_err());
    }
}
