//! A tool in Rust for WASI 0.2: reads `{"date": "2024-02-28", "days": 2}` from its input and tells what day that is.
//!
//! It uses the standard library alone, so that any Rust of the last years builds it; `build.sh` makes a component
//! of it. What its input may be is said by the schema in `tool.yaml`, and checked before it is started.

use std::io::Read;

const WEEKDAYS: [&str; 7] = [
    "monday",
    "tuesday",
    "wednesday",
    "thursday",
    "friday",
    "saturday",
    "sunday",
];

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: usize) -> i64 {
    match month {
        2 if leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days before the first of January of a year, counted from that of the year 1.
fn before(year: i64) -> i64 {
    let years = year - 1;
    years * 365 + years / 4 - years / 100 + years / 400
}

struct Date {
    year: i64,
    month: usize,
    day: i64,
}

impl Date {
    fn parse(text: &str) -> Option<Date> {
        let mut parts = text.split('-');
        let year = parts.next()?.parse().ok()?;
        let month = parts.next()?.parse().ok()?;
        let day = parts.next()?.parse().ok()?;
        let good = year >= 1 && (1..=12).contains(&month) && day >= 1 && day <= days_of(year, month);
        if good && parts.next().is_none() {
            Some(Date { year, month, day })
        } else {
            None
        }
    }

    fn day_of_year(&self) -> i64 {
        (1..self.month).map(|month| days_of(self.year, month)).sum::<i64>() + self.day
    }

    /// Days since the first of January of the year 1, which is day 1 and a Monday.
    fn number(&self) -> i64 {
        before(self.year) + self.day_of_year()
    }

    /// The day with this number, which is at least 1.
    fn of(number: i64) -> Date {
        // A year has at most 366 days, so this is not too late, and it is early by a few years at most.
        let mut year = 1 + (number - 1) / 366;
        while before(year + 1) < number {
            year += 1;
        }
        let (mut month, mut day) = (1, number - before(year));
        while day > days_of(year, month) {
            day -= days_of(year, month);
            month += 1;
        }
        Date { year, month, day }
    }
}

/// The value of a field in a flat JSON object: what is between its colon and the next comma or brace. Neither a
/// date nor a number has one of these in it.
fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let quoted = format!("\"{}\"", name);
    let rest = &object[object.find(&quoted)? + quoted.len()..];
    let rest = rest.trim_start().strip_prefix(':')?;
    let end = rest.find(|c| c == ',' || c == '}')?;
    Some(rest[..end].trim())
}

fn answer(input: &str) -> Result<String, String> {
    let date = field(input, "date").ok_or("`date` is missing")?;
    let date = Date::parse(date.trim_matches('"')).ok_or_else(|| format!("{} is no day", date))?;
    let days = field(input, "days").map_or(Ok(0), str::parse::<i64>);
    let days = days.map_err(|error| format!("`days`: {}", error))?;
    let number = date.number() + days;
    if number < 1 {
        return Err("that is before the year 1".to_owned());
    }
    let then = Date::of(number);
    Ok(format!(
        "{{\"date\": \"{:04}-{:02}-{:02}\", \"weekday\": \"{}\", \"day_of_year\": {}, \"leap_year\": {}}}",
        then.year,
        then.month,
        then.day,
        WEEKDAYS[((number - 1) % 7) as usize],
        then.day_of_year(),
        leap(then.year)
    ))
}

fn main() {
    let mut input = String::new();
    if let Err(error) = std::io::stdin().read_to_string(&mut input) {
        eprintln!("calendar: {}", error);
        std::process::exit(1);
    }
    match answer(&input) {
        Ok(said) => println!("{}", said),
        Err(error) => {
            eprintln!("calendar: {}", error);
            std::process::exit(1);
        }
    }
}
