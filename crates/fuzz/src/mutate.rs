//! A plain driver, for where cargo-fuzz is not there: changes seeds in the ways that break readers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::time::ClockId;

use crate::Target;
use crate::numbers::Numbers;

/// Longest that a reader may compute over one input.
const SLOW: Duration = Duration::from_secs(10);
/// Longest input.
const BYTES_MAX: usize = 1 << 16;
/// Inputs that are tried however long that takes: a slow machine tests something too.
const INPUTS_MIN: u64 = 100;
/// Inputs that are kept to be changed further.
const KEPT_MAX: usize = 256;

/// An input that a reader does not bear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The bytes.
    pub input: Vec<u8>,
    /// What it did: the words of a panic, or how long it took.
    pub what: String,
}

/// Values at the edges of what readers count with.
const EDGES: [u64; 10] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Changes it in one way.
fn change(input: &mut Vec<u8>, other: &[u8], numbers: &mut Numbers) {
    let at = numbers.below(input.len());
    let length = 1 + numbers.below(16);
    let end = (at + length).min(input.len());
    match numbers.below(9) {
        0 if !input.is_empty() => input[at] ^= 1 << numbers.below(8),
        1 if !input.is_empty() => input[at] = numbers.next() as u8,
        2 => input.truncate(at),
        3 => drop(input.drain(at..end)),
        4 => {
            let piece = input[at..end].to_vec();
            let times = 1 + numbers.below(40);
            input.splice(at..at, piece.repeat(times));
        }
        5 => {
            let value = EDGES[numbers.below(EDGES.len())];
            let bytes = match numbers.below(2) {
                0 => value.to_le_bytes(),
                _ => value.to_be_bytes(),
            };
            let width = 1 << numbers.below(4);
            let end = (at + width).min(input.len());
            input.splice(at..end, bytes[..width].iter().copied());
        }
        6 => {
            let digits = EDGES[numbers.below(EDGES.len())].to_string();
            input.splice(at..end, digits.bytes());
        }
        7 => {
            let from = numbers.below(other.len());
            let to = (from + 1 + numbers.below(64)).min(other.len());
            input.splice(at..at, other[from.min(to)..to].iter().copied());
        }
        _ => {
            let words: [&[u8]; 8] = [
                b"\"",
                b"\\u0000",
                b"{",
                b"[[",
                b"..",
                b"\0",
                b": *a",
                b"\xff\xfe",
            ];
            let word = words[numbers.below(words.len())];
            input.splice(at..at, word.iter().copied());
        }
    }
    input.truncate(BYTES_MAX);
}

/// What the processor did for this thread.
fn spent() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn tried(target: Target, input: &[u8]) -> Result<(), Found> {
    let found = |what| {
        Err(Found {
            input: input.to_vec(),
            what,
        })
    };
    let before = spent();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.body)(input))) {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
        return found(said.unwrap_or_else(|| "a panic without words".to_owned()));
    }
    let took = spent() - before;
    if took > SLOW {
        return found(format!("it computed for {took:?}"));
    }
    Ok(())
}

/// Runs a target over its seeds and changes of them, the same ones for the same `seed`, for so long and at least
/// a hundred times. Returns how many inputs that were.
///
/// # Errors
/// The first input that the target does not bear.
pub fn drive(target: Target, time: Duration, seed: u64) -> Result<u64, Found> {
    let end = Instant::now() + time;
    let mut kept = (target.seeds)();
    let seeds = kept.len();
    let mut numbers = Numbers(seed | 1);
    let mut count = 0;
    for input in &kept {
        tried(target, input)?;
        count += 1;
    }
    while Instant::now() < end || count < INPUTS_MIN {
        let mut input = kept[numbers.below(kept.len())].clone();
        let other = kept[numbers.below(kept.len())].clone();
        for _ in 0..1 + numbers.below(4) {
            change(&mut input, &other, &mut numbers);
        }
        tried(target, &input)?;
        count += 1;
        // Now and then what was changed is changed further; the seeds stay.
        if numbers.below(16) == 0 {
            match kept.len() < KEPT_MAX {
                true => kept.push(input),
                false => {
                    let at = seeds + numbers.below(KEPT_MAX - seeds);
                    kept[at] = input;
                }
            }
        }
    }
    Ok(count)
}
