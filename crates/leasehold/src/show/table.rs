//! The table of `leasehold runs`. Pure.

use leasehold_core::quantity::{format_micros, format_moment};
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
        format_moment(record.accepted_unix_ms),
        format_micros(record.usage.wall_micros),
        end,
        command,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::summary::tests::record;
    use leasehold_core::end::EndReason;

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
