//! A run's words read without the parser of all commands. The supervisor of a cold run waits for the end of the reading,
//! and making that parser would be half of it.

use std::ffi::OsString;

use clap::{Args as _, FromArgMatches as _};

use super::RunFlags;

/// The flags of a run, where the words after the program's name are those of one and are understood. Anything else is
/// for the parser of all commands, which explains it.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> Option<RunFlags> {
    let mut words = words.peekable();
    if words.peek().is_none_or(|word| word != "run") {
        return None;
    }
    let parser = RunFlags::augment_args(clap::Command::new("run"));
    let matches = parser.try_get_matches_from(words).ok()?;
    RunFlags::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command, help};
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    /// What the parser of all commands makes of the same words.
    fn whole(line: &str) -> Option<RunFlags> {
        let all = std::iter::once("leasehold".into()).chain(words(line));
        let matches = help::command().try_get_matches_from(all).ok()?;
        match Cli::from_arg_matches(&matches).ok()?.command {
            Command::Run(flags) => Some(*flags),
            _ => None,
        }
    }

    #[test]
    fn a_run_is_read_as_by_the_parser_of_all_commands() {
        for line in [
            "run -- true",
            "run -q -- sh -c x",
            "run --cpu 0.5 --memory 256M --timeout 30s --workspace .:ro --artifact out/* --out . -- make all",
            "run --env A=b --env C --json --stdin -- cat",
            "run --image alpine",
            "run --image alpine --pull never --priority -5 --max-wait 5s -- true",
            "run --tool greet",
            "run --isolation wasm --interpreter python -- -c print(1)",
            "run --trust untrusted -- true",
        ] {
            let quick = run(words(line).into_iter());
            assert!(quick.is_some(), "{line}");
            assert_eq!(format!("{quick:?}"), format!("{:?}", whole(line)), "{line}");
        }
    }

    #[test]
    fn what_is_not_understood_is_for_the_other_parser() {
        for line in [
            "",
            "runs",
            "stop",
            "run --help",
            "run -h",
            "run --version",
            "run --nope -- true",
            "run true",
            "run --image a --tool b",
        ] {
            assert!(run(words(line).into_iter()).is_none(), "{line}");
            assert!(whole(line).is_none(), "{line}");
        }
    }
}
