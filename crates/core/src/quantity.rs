//! Reading and writing quantities: bytes, durations, processor shares.
//!
//! One parser each, so that the command line, manifests and the API agree on every unit.

use std::time::Duration;

/// A text that is not the quantity asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {wanted}")]
pub struct QuantityError {
    /// What was read, cut to 64 characters.
    pub text: String,
    /// What would have been right, with an example.
    pub wanted: &'static str,
}

const BYTES: &str =
    "a size: a whole number with an optional K, M, G or T (powers of 1024), such as 512M";
const DURATION: &str = "a duration: a number with ms, s, m, h or d, such as 30s";
const CPU: &str = "a processor share: cores as a number from 0.01 to 1024, such as 0.5 or 2";

fn refuse(text: &str, wanted: &'static str) -> QuantityError {
    QuantityError {
        text: text.chars().take(64).collect(),
        wanted,
    }
}

/// Reads a size in bytes. `K`, `M`, `G`, `T` (also `KiB`, `MB`, … in either case) are powers of 1024.
///
/// # Errors
/// When the text is not a whole number with a known unit, or does not fit 63 bits.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" | "ki" => 10,
        "m" | "mb" | "mib" | "mi" => 20,
        "g" | "gb" | "gib" | "gi" => 30,
        "t" | "tb" | "tib" | "ti" => 40,
        _ => return Err(refuse(text, BYTES)),
    };
    let number: u64 = digits.parse().map_err(|_| refuse(text, BYTES))?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| refuse(text, BYTES))
}

/// Reads a duration. A bare number is seconds; decimals are allowed.
///
/// # Errors
/// When the text is not a non-negative number with a known unit, or exceeds ten years.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(refuse(text, DURATION)),
    };
    let number: f64 = digits.parse().map_err(|_| refuse(text, DURATION))?;
    let seconds = number * scale;
    if !(0.0..=315_360_000.0).contains(&seconds) {
        return Err(refuse(text, DURATION));
    }
    Ok(Duration::from_millis((seconds * 1000.0).round() as u64))
}

/// Reads a processor share in cores, returned in thousandths of a core.
///
/// # Errors
/// When the text is not a decimal number from 0.01 to 1024.
pub fn parse_cpu(text: &str) -> Result<u32, QuantityError> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let cores: f64 = text.parse().map_err(|_| refuse(text, CPU))?;
    if !plain || !(0.01..=1024.0).contains(&cores) {
        return Err(refuse(text, CPU));
    }
    Ok((cores * 1000.0).round() as u32)
}

/// Writes a size for people: exact in the largest unit that divides it, else one decimal.
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut whole = bytes;
    let mut scaled = bytes as f64;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        whole /= 1024;
        unit += 1;
    }
    let exact = whole.checked_mul(1 << (10 * unit)) == Some(bytes);
    if exact {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{scaled:.1} {}", UNITS[unit])
    }
}

/// Writes a size as [`parse_bytes`] reads it, in the largest unit that divides it: `512M`.
#[must_use]
pub fn write_bytes(bytes: u64) -> String {
    for (unit, shift) in [("T", 40), ("G", 30), ("M", 20), ("K", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Writes a duration in milliseconds as [`parse_duration`] reads it, in the largest unit that divides
/// it: `30s`.
#[must_use]
pub fn write_millis(millis: u64) -> String {
    for (unit, scale) in [("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
        if millis != 0 && millis.is_multiple_of(scale) {
            return format!("{}{unit}", millis / scale);
        }
    }
    format!("{millis}ms")
}

/// Writes a duration given in microseconds for people.
#[must_use]
pub fn format_micros(micros: u64) -> String {
    match micros {
        0..=999 => format!("{micros} µs"),
        1_000..=9_999 => format!("{:.1} ms", micros as f64 / 1e3),
        10_000..=999_999 => format!("{:.0} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

/// A moment as `2026-01-31 23:59:59` in UTC.
#[must_use]
pub fn format_moment(unix_ms: u64) -> String {
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

    #[test]
    fn sizes() {
        for (text, want) in [
            ("0", 0),
            ("512", 512),
            ("1k", 1024),
            ("64M", 64 << 20),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(parse_bytes(text), Ok(want), "{text}");
        }
        for text in [
            "",
            "M",
            "-1",
            "1.5G",
            "1 M",
            "1Q",
            "9223372036854775808",
            "99999999T",
            "0x10",
        ] {
            assert!(parse_bytes(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn durations() {
        for (text, want) in [
            ("250ms", 250),
            ("5", 5_000),
            ("1.5s", 1_500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(want)),
                "{text}"
            );
        }
        for text in ["", "s", "-1s", "1w", "NaN", "inf", "1e3s", "..s", "999999h"] {
            assert!(parse_duration(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn processor_shares() {
        for (text, want) in [("0.5", 500), ("2", 2000), ("0.01", 10)] {
            assert_eq!(parse_cpu(text), Ok(want), "{text}");
        }
        for text in ["", "0", "-1", "NaN", "inf", "1e2", "2000", "+1"] {
            assert!(parse_cpu(text).is_err(), "{text} was taken");
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        for bytes in [0, 1, 1023, 1024, 1536, 512 << 20, 1 << 50] {
            assert_eq!(parse_bytes(&write_bytes(bytes)), Ok(bytes));
        }
        assert_eq!(write_bytes(512 << 20), "512M");
        for millis in [0, 1, 999, 1000, 1500, 60_000, 3_600_000] {
            let read = parse_duration(&write_millis(millis)).unwrap();
            assert_eq!(read.as_millis(), u128::from(millis));
        }
        assert_eq!(write_millis(90_000), "90s");
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(format_bytes(512 << 20), "512 MiB");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(7), "7 B");
    }

    #[test]
    fn moments() {
        for (seconds, want) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_767_225_599, "2025-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(format_moment(seconds * 1000), want);
        }
    }
}
