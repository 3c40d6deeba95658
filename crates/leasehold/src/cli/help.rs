//! The first page of help: every command once, below the heading of what it is for.
//!
//! The parser knows no headings for commands, so that this page is written here, from the parser's own words.

use clap::CommandFactory;

use super::Cli;

/// What the commands are for, in the order in which somebody new needs them.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Run and look",
        &[
            "run",
            "runs",
            "show",
            "logs",
            "artifacts",
            "attach",
            "evidence",
            "verify",
            "explain",
        ],
    ),
    (
        "Service",
        &["serve", "ps", "cancel", "tool", "policy", "tenant", "key"],
    ),
    ("Host", &["doctor", "bench", "pool", "image", "template"]),
    ("Upkeep", &["sweep", "prune", "stop", "completion"]),
];

/// The parser of the command line, with that page.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let page = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}\n\n{{after-help}}\n",
        commands(&command)
    );
    command.help_template(page)
}

/// The commands below their headings, one a line.
fn commands(parser: &clap::Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text.push_str(&format!("{heading}:\n"));
        for name in names {
            let about = parser
                .find_subcommand(name)
                .and_then(clap::Command::get_about)
                .map_or_else(String::new, ToString::to_string);
            text.push_str(&format!("  {name:<11} {about}\n"));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_below_one_heading() {
        let parser = Cli::command();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        grouped.sort_unstable();
        let mut known: Vec<&str> = parser
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        known.sort_unstable();
        assert_eq!(grouped, known);
    }

    #[test]
    fn no_line_of_the_page_is_broken() {
        let page = command().render_help().to_string();
        for (heading, names) in GROUPS {
            assert!(page.contains(&format!("{heading}:\n")), "{page}");
            for name in names {
                assert!(page.contains(&format!("\n  {name:<11} ")), "{page}");
            }
        }
        let long: Vec<&str> = page
            .lines()
            .filter(|line| line.chars().count() > 100)
            .collect();
        assert!(long.is_empty(), "{long:?}");
    }
}
