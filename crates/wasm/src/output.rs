//! One output stream of a run: bounded in what is kept, exact in what is counted.
//!
//! The program writes at one end; whoever carries the bytes away takes them at the other. Between them is at
//! most [`HELD_MAX`]: a slow reader holds the program up, and nothing else.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use leasehold_core::end::LimitHit;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::Counted;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use crate::limiter::Breach;

/// Most bytes between the program and whoever takes them.
pub const HELD_MAX: usize = 256 << 10;
/// Most bytes of one write.
const WRITE_MAX: usize = 64 << 10;

/// A stream. Clones share it.
#[derive(Debug, Clone)]
pub struct Output {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    held: BytesMut,
    counted: Counted,
    limit: u64,
    kill: bool,
    /// Nobody writes any more.
    over: bool,
    reader: Option<Waker>,
    writers: Vec<Waker>,
}

impl Output {
    /// A stream of which `limit` bytes are kept; more ends the run, or is counted and dropped.
    #[must_use]
    pub fn new(limit: u64, kill: bool) -> Self {
        Self {
            shared: Arc::new(Mutex::new(Shared {
                held: BytesMut::new(),
                counted: Counted::default(),
                limit,
                kill,
                over: false,
                reader: None,
                writers: Vec::new(),
            })),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Nothing panics while it holds this lock.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much was written and kept.
    #[must_use]
    pub fn counted(&self) -> Counted {
        self.shared().counted
    }

    /// Says that the run is over: [`Output::next`] ends when everything was taken.
    pub fn finish(&self) {
        let mut shared = self.shared();
        shared.over = true;
        if let Some(reader) = shared.reader.take() {
            reader.wake();
        }
    }

    /// What is there now.
    #[must_use]
    pub fn take(&self) -> Bytes {
        let mut shared = self.shared();
        for writer in shared.writers.drain(..) {
            writer.wake();
        }
        shared.held.split().freeze()
    }

    /// Waits for bytes; `None` when the run is over and everything was taken.
    pub async fn next(&self) -> Option<Bytes> {
        poll_fn(|context| {
            let mut shared = self.shared();
            if shared.held.is_empty() {
                if shared.over {
                    return Poll::Ready(None);
                }
                shared.reader = Some(context.waker().clone());
                return Poll::Pending;
            }
            drop(shared);
            Poll::Ready(Some(self.take()))
        })
        .await
    }
}

#[async_trait::async_trait]
impl Pollable for Output {
    async fn ready(&mut self) {
        poll_fn(|context| {
            let mut shared = self.shared();
            if shared.held.len() < HELD_MAX {
                return Poll::Ready(());
            }
            let known = |waker: &Waker| waker.will_wake(context.waker());
            if !shared.writers.iter().any(known) {
                shared.writers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl OutputStream for Output {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut shared = self.shared();
        let length = bytes.len() as u64;
        let room = shared.limit - shared.counted.kept;
        let kept = length.min(room);
        shared.counted.total += length;
        shared.counted.kept += kept;
        // At most the length of a slice.
        shared.held.extend_from_slice(&bytes[..kept as usize]);
        if kept > 0
            && let Some(reader) = shared.reader.take()
        {
            reader.wake();
        }
        if shared.kill && length > room {
            let breach = Breach(LimitHit {
                which: Resource::Output,
                limit: shared.limit,
                observed: shared.counted.total,
            });
            return Err(StreamError::Trap(breach.into()));
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        let held = self.shared().held.len();
        Ok(HELD_MAX.saturating_sub(held).min(WRITE_MAX))
    }
}

impl IsTerminal for Output {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Output {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    /// Of WASI 0.3 alone, which nothing here links.
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }
}
