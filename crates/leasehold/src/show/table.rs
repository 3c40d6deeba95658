//! The table of `leasehold runs`. Pure.

use leasehold_core::quantity::format_micros;
use leasehold_core::record::RunRecord;

use crate::table::short;
use crate::voice::clean;

/// Characters of a command in the table.
const COMMAND_MAX: usize = 48;

/// One line per record, with a heading.
pub(crate) fn table(records: &[RunRecord]) -> String {
    let rows = records.iter().map(row).collect();
    crate::table::lines(["RUN", "WHEN", "TOOK", "END", "COMMAND"], rows)
}

fn row(record: &RunRecord) -> [String; 5] {
    let end = record.end.as_ref().map_or_else(
        || "running".to_owned(),
        |end| clean(&end.phrase()).chars().take(40).collect(),
    );
    let command = record.contract.as_ref().map_or_else(
        || "-".to_owned(),
        |contract| short(&clean(&contract.argv.join(" ")), COMMAND_MAX),
    );
    [
        record.run.to_string(),
        when(record.accepted_unix_ms),
        format_micros(record.usage.wall_micros),
        end,
        command,
    ]
}

/// A moment as `2026-01-31 23:59:59` in UTC.
pub(crate) fn when(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// Days since 1970 as year, month and day of the Gregorian calendar, counted in years that begin in
/// March so that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::summary::tests::record;
    use leasehold_core::end::EndReason;

    #[test]
    fn moments() {
        for (seconds, want) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_767_225_599, "2025-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(when(seconds * 1000), want);
        }
    }

    #[test]
    fn columns_line_up_and_a_running_one_says_so() {
        let text = table(&[record(Some(EndReason::Completed)), record(None)]);
        let lines: Vec<&str> = text.lines().collect();
        let at = lines[0].find("END").unwrap();
        let column = |line: &str| line.chars().skip(at).collect::<String>();
        assert!(column(lines[1]).starts_with("completed"), "{text}");
        assert!(column(lines[2]).starts_with("running"), "{text}");
    }
}
