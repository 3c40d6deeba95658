//! What is shown while an image comes in: bars on a terminal, a line for each step elsewhere, or nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold_core::digest::Digest;
use leasehold_image::store::{Progress, Watch};

use crate::voice;

/// Digits of a digest beside a bar.
const DIGITS: usize = 12;
/// Bars at one time; an image of more layers shows the first of them.
const BARS_MAX: usize = 32;

/// Somebody who watches, and is told when it is over.
pub(super) trait Shown: Watch {
    /// Nothing more comes.
    fn over(&self);
}

/// How it is shown here.
pub(super) fn watch(silent: bool) -> Box<dyn Shown> {
    if silent {
        return Box::new(Nothing);
    }
    match rustix::termios::isatty(std::io::stderr()) {
        true => Box::new(Bars::new()),
        false => Box::new(Lines),
    }
}

struct Nothing;

impl Watch for Nothing {
    fn tell(&self, _: Progress) {}
}

impl Shown for Nothing {
    fn over(&self) {}
}

struct Lines;

impl Watch for Lines {
    fn tell(&self, progress: Progress) {
        let text = match progress {
            Progress::Resolved(digest) => format!("image {digest}"),
            Progress::Waiting(digest) => format!("{digest}: somebody else brings it"),
            Progress::Again(digest, bytes) => format!("{digest}: goes on after {bytes} bytes"),
            Progress::Unpacked(digest) => format!("{digest}: unpacked"),
            Progress::Layer(..)
            | Progress::Here(_)
            | Progress::Bytes(..)
            | Progress::Unpacking(_) => return,
        };
        voice::note(&text);
    }
}

impl Shown for Lines {
    fn over(&self) {}
}

struct Bars {
    all: MultiProgress,
    bars: Mutex<BTreeMap<Digest, ProgressBar>>,
}

impl Bars {
    fn new() -> Self {
        Self {
            all: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(8)),
            bars: Mutex::new(BTreeMap::new()),
        }
    }

    fn with(&self, digest: &Digest, act: impl FnOnce(&ProgressBar)) {
        let bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = bars.get(digest) {
            act(bar);
        }
    }

    fn add(&self, digest: Digest, bytes: u64) {
        let mut bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        if bars.len() >= BARS_MAX || bars.contains_key(&digest) {
            return;
        }
        let bar = self.all.add(ProgressBar::new(bytes));
        let form = "{prefix} [{bar:30}] {binary_bytes:>11} of {binary_total_bytes:11} {msg}";
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(digest.hex()[..DIGITS].to_owned());
        bars.insert(digest, bar);
    }
}

impl Watch for Bars {
    fn tell(&self, progress: Progress) {
        match progress {
            Progress::Resolved(_) => {}
            Progress::Layer(digest, bytes) => self.add(digest, bytes),
            Progress::Here(digest) => self.with(&digest, |bar| {
                bar.set_position(bar.length().unwrap_or_default());
                bar.set_message("here already");
            }),
            Progress::Waiting(digest) => {
                self.with(&digest, |bar| bar.set_message("somebody else brings it"));
            }
            Progress::Bytes(digest, bytes) => self.with(&digest, |bar| {
                bar.set_position(bytes);
                bar.set_message("");
            }),
            Progress::Again(digest, bytes) => self.with(&digest, |bar| {
                bar.set_position(bytes);
                bar.set_message("goes on");
            }),
            Progress::Unpacking(digest) => self.with(&digest, |bar| bar.set_message("unpacking")),
            Progress::Unpacked(digest) => self.with(&digest, |bar| bar.finish_with_message("done")),
        }
    }
}

impl Shown for Bars {
    fn over(&self) {
        let bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        for bar in bars.values().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}
