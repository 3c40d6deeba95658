//! Standard input of a run: fed from outside in pieces, taken by the program when it likes.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncRead;
use wasmtime_wasi::cli::{IsTerminal, StdinStream};
use wasmtime_wasi::p2::{InputStream, Pollable, StreamError, StreamResult};

/// A stream. Clones share it. It holds what it is fed: whoever feeds it keeps count of what was taken.
#[derive(Debug, Clone, Default)]
pub struct Input {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    held: BytesMut,
    over: bool,
    taken: u64,
    readers: Vec<Waker>,
    feeder: Option<Waker>,
}

impl Input {
    /// One that holds all there will be.
    #[must_use]
    pub fn whole(bytes: &[u8]) -> Self {
        let input = Self::default();
        input.feed(bytes);
        input.end();
        input
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Nothing panics while it holds this lock.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are held and not taken.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared().held.len()
    }

    /// Adds bytes.
    pub fn feed(&self, bytes: &[u8]) {
        let mut shared = self.shared();
        if !shared.over {
            shared.held.extend_from_slice(bytes);
        }
        shared.wake();
    }

    /// Nothing more comes.
    pub fn end(&self) {
        let mut shared = self.shared();
        shared.over = true;
        shared.wake();
        if let Some(feeder) = shared.feeder.take() {
            feeder.wake();
        }
    }

    /// Waits until bytes were taken, and says how many since the last time; `None` when nothing more is to
    /// come and all was taken.
    pub async fn taken(&self) -> Option<u64> {
        poll_fn(|context| {
            let mut shared = self.shared();
            if shared.taken > 0 {
                return Poll::Ready(Some(std::mem::take(&mut shared.taken)));
            }
            if shared.over {
                return Poll::Ready(None);
            }
            shared.feeder = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Shared {
    fn wake(&mut self) {
        for reader in self.readers.drain(..) {
            reader.wake();
        }
    }
}

#[async_trait::async_trait]
impl Pollable for Input {
    async fn ready(&mut self) {
        poll_fn(|context| {
            let mut shared = self.shared();
            if shared.over || !shared.held.is_empty() {
                return Poll::Ready(());
            }
            let known = |waker: &Waker| waker.will_wake(context.waker());
            if !shared.readers.iter().any(known) {
                shared.readers.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl InputStream for Input {
    fn read(&mut self, size: usize) -> StreamResult<Bytes> {
        let mut shared = self.shared();
        if shared.held.is_empty() {
            return match shared.over {
                true => Err(StreamError::Closed),
                false => Ok(Bytes::new()),
            };
        }
        let count = size.min(shared.held.len());
        let bytes = shared.held.split_to(count).freeze();
        shared.taken += count as u64;
        if let Some(feeder) = shared.feeder.take() {
            feeder.wake();
        }
        Ok(bytes)
    }
}

impl IsTerminal for Input {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdinStream for Input {
    fn p2_stream(&self) -> Box<dyn InputStream> {
        Box::new(self.clone())
    }

    /// Of WASI 0.3 alone, which nothing here links.
    fn async_stream(&self) -> Box<dyn AsyncRead + Send + Sync> {
        Box::new(tokio::io::empty())
    }
}
