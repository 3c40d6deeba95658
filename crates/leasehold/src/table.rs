//! Columns for people. Pure.

/// Lines with a heading; every column but the last is as wide as its widest cell.
pub(crate) fn lines<const N: usize>(heading: [&str; N], rows: Vec<[String; N]>) -> String {
    let heading = heading.map(str::to_owned);
    let mut widths = [0; N];
    for row in std::iter::once(&heading).chain(&rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in std::iter::once(&heading).chain(&rows) {
        for (at, (width, cell)) in widths.iter().zip(row).enumerate() {
            text.push_str(cell);
            if at + 1 < N {
                let gap = 2 + width - cell.chars().count();
                text.extend(std::iter::repeat_n(' ', gap));
            }
        }
        text.push('\n');
    }
    text
}

/// A text cut to so many characters, with a mark where it was.
pub(crate) fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(most.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let rows = vec![
            ["é".to_owned(), "1".to_owned()],
            ["abc".to_owned(), String::new()],
        ];
        assert_eq!(lines(["A", "B"], rows), "A    B\né    1\nabc  \n");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
