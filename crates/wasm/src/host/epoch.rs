//! The clock of the engines: a thread that advances their epochs, so that a program that computes lets go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wasmtime::Engine;

/// Time between two ticks.
pub const TICK: Duration = Duration::from_millis(5);
/// Ticks without a run after which the thread sleeps: waking it costs each run more than some ticks do.
const IDLE_TICKS: u32 = 40;

/// A running clock. It ends when it is dropped.
#[derive(Debug)]
pub struct Epochs {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    runs: AtomicUsize,
    asleep: AtomicBool,
    over: AtomicBool,
}

/// A run that needs the clock.
#[derive(Debug)]
pub struct Running<'a> {
    epochs: &'a Epochs,
}

impl Epochs {
    /// Starts the clock of these engines.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(engines: Vec<Engine>) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("epochs".to_owned())
            .stack_size(128 << 10)
            .spawn(move || tick(&engines, &own))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Says that a run begins; it needs the clock until the answer is dropped.
    #[must_use]
    pub fn run(&self) -> Running<'_> {
        self.shared.runs.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.load(Ordering::SeqCst) {
            self.wake();
        }
        Running { epochs: self }
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.epochs.shared.runs.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // It holds nothing of ours and cannot panic.
            let _ = thread.join();
        }
    }
}

fn tick(engines: &[Engine], shared: &Shared) {
    let mut idle = 0;
    while !shared.over.load(Ordering::SeqCst) {
        thread::sleep(TICK);
        for engine in engines {
            engine.increment_epoch();
        }
        idle = match shared.runs.load(Ordering::SeqCst) {
            0 => idle + 1,
            _ => 0,
        };
        if idle > IDLE_TICKS {
            shared.asleep.store(true, Ordering::SeqCst);
            // A run that began between the two is seen here, one that begins now wakes us.
            while shared.runs.load(Ordering::SeqCst) == 0 && !shared.over.load(Ordering::SeqCst) {
                thread::park();
            }
            shared.asleep.store(false, Ordering::SeqCst);
            idle = 0;
        }
    }
}
