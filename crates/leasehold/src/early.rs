//! A supervisor that is begun before the command line is understood.
//!
//! A run without a supervisor waits for it, and understanding the flags would come first and be time lost. So
//! where a first look says that this is a run here, and no supervisor listens, one is started at once. Nothing
//! depends on it: whatever is wrong is found and told where it always is, and a supervisor nobody comes to
//! leaves by itself.

use std::ffi::{OsStr, OsString};

use leasehold_backend::process::start::{Begun, begin};

use crate::{env, place};

/// Starts one, if this looks like a run that will want it.
pub(crate) fn supervisor() -> Option<Begun> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !is_run_here(&words) || env::read(env::URL.name).is_some() {
        return None;
    }
    // What is refused here is refused again, in words.
    env::scope_wanted().ok()?;
    env::retention().ok()?;
    let paths = place::paths().ok()?;
    if crate::remote::Remote::noticed(&paths) {
        return None;
    }
    paths.create().ok()?;
    begin(&place::endpoint(&paths).ok()?)
}

/// Whether these are words of a run of a command, as far as can be told without understanding the flags.
fn is_run_here(words: &[OsString]) -> bool {
    let Some((first, rest)) = words.split_first() else {
        return false;
    };
    let Some(dashes) = rest.iter().position(|word| word == "--") else {
        return false;
    };
    let other = |word: &OsString| {
        let word: &OsStr = word;
        let asks = ["-h", "--help", "--tool"].iter().any(|flag| word == *flag);
        asks || word.as_encoded_bytes().starts_with(b"--tool=")
    };
    first == "run" && dashes + 1 < rest.len() && !rest[..dashes].iter().any(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_here(text: &str) -> bool {
        let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        is_run_here(&words)
    }

    #[test]
    fn a_run_is_told_from_all_else_by_its_words() {
        assert!(run_here("run -- true"));
        assert!(run_here("run --memory 64M --quiet -- sh -c --help"));
        for text in [
            "",
            "run",
            "run --",
            "run true",
            "run --help -- true",
            "run -h -- true",
            "run --tool x -- y",
            "run --tool=x -- y",
            "show -- x",
            "help run -- x",
        ] {
            assert!(!run_here(text), "{text}");
        }
    }
}
