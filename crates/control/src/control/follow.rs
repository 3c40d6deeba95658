//! Following a run: a reader at its own pace, over what is kept.
//!
//! Nothing is queued for a reader. It has a place in each stream and in the list of what happened, looks at
//! the run's present and takes what is past its place, from the spool while the run goes on and from the
//! object store afterwards. So a slow or vanished reader holds up nobody, and one that comes back goes on
//! where it was.
//!
//! Lines of standard error that begin with `leasehold:progress ` and a JSON object, or `leasehold:log ` and a
//! text, are a tool's own words to its caller and are given as such. They are not trusted in any way. The
//! stream that is kept has them unaltered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use leasehold_core::error::PublicError;
use leasehold_core::event::RunFact;
use leasehold_core::stage::StageTime;
use leasehold_store::seam::{PAGE_MAX, RunRow};
use serde_json::Value;
use tokio::sync::watch;

use super::{Cursor, Update};
use crate::engine::{Engine, Live, Note, Seen};

/// Most bytes of one update.
const PIECE: usize = 64 << 10;
/// Longest line that is taken for a tool's words, in bytes.
const WORDS_MAX: usize = 8 << 10;
const PROGRESS: &[u8] = b"leasehold:progress ";
const LOG: &[u8] = b"leasehold:log ";
/// Pause before a run that nobody carries for now is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A run being followed.
#[derive(Debug)]
pub struct Follower {
    engine: Arc<Engine>,
    seen: Seen,
    carried: Option<(Arc<Live>, watch::Receiver<Seen>)>,
    leaving: watch::Receiver<bool>,
    cursor: Cursor,
    ready: VecDeque<(Update, Cursor)>,
    /// Bytes of standard error that were looked at although they were not given.
    examined: u64,
    done: bool,
}

/// Reads what happened in a run that nobody carries any more.
async fn notes(engine: &Engine, row: &RunRow) -> Result<Vec<Note>, PublicError> {
    let mut notes = Vec::new();
    let mut from = 0;
    loop {
        let events = engine.parts.store.events(row.run.clone(), from).await;
        let events = events.map_err(|error| error.public())?;
        let more = events.len() == PAGE_MAX as usize;
        from += events.len() as u64;
        notes.extend(events.into_iter().filter_map(|event| match event.fact {
            RunFact::Queued { ahead } => Some(Note::Queued { ahead }),
            RunFact::Compiling { module } => Some(Note::Compiling { module }),
            RunFact::Compiled { module, micros } => Some(Note::Compiled { module, micros }),
            RunFact::Pulling { image } => Some(Note::Pulling { image }),
            RunFact::Pulled { image, micros } => Some(Note::Pulled { image, micros }),
            RunFact::Allocated { sandbox, warm, .. } => Some(Note::Start { sandbox, warm }),
            RunFact::Stage { stage, micros } => Some(Note::Stage(StageTime { stage, micros })),
            _ => None,
        }));
        if !more {
            return Ok(notes);
        }
    }
}

impl Follower {
    pub(super) async fn new(
        engine: Arc<Engine>,
        row: RunRow,
        cursor: Cursor,
    ) -> Result<Self, PublicError> {
        let mut follower = Self {
            leaving: engine.leaving(),
            engine,
            seen: Seen {
                row,
                notes: Vec::new(),
                output: [0; 2],
                left: true,
            },
            carried: None,
            cursor,
            ready: VecDeque::new(),
            examined: 0,
            done: false,
        };
        follower.find().await?;
        Ok(follower)
    }

    /// Looks who carries the run now, or what its rows say where nobody does.
    async fn find(&mut self) -> Result<(), PublicError> {
        let run = self.seen.row.run.clone();
        if let Some(live) = self.engine.live(&run) {
            let receiver = live.seen.subscribe();
            self.carried = Some((live, receiver));
            return Ok(());
        }
        self.carried = None;
        let row = self.engine.parts.store.run(None, run).await;
        let row = row.map_err(|error| error.public())?;
        self.seen.notes = notes(&self.engine, &row).await?;
        if let Some(outcome) = &row.outcome {
            let kept = |stream: &Option<leasehold_core::outcome::StoredStream>| {
                stream.map_or(0, |stored| stored.stream.kept)
            };
            self.seen.output = [kept(&outcome.stdout), kept(&outcome.stderr)];
        }
        self.seen.row = row;
        Ok(())
    }

    /// The next update and where it leaves the follower; `None` after `Over` and `Leaving`.
    pub async fn next(&mut self) -> Option<(Update, Cursor)> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            if self.done {
                return None;
            }
            if let Some((_, receiver)) = &mut self.carried {
                self.seen = receiver.borrow_and_update().clone();
            }
            if self.tell_note() || self.tell_stdout().await || self.tell_stderr().await {
                continue;
            }
            if self.seen.row.state.is_over() {
                self.done = true;
                let row = Box::new(self.seen.row.clone());
                return Some((Update::Over(row), self.cursor));
            }
            if *self.leaving.borrow() {
                self.done = true;
                return Some((Update::Leaving, self.cursor));
            }
            let mut leaving = self.leaving.clone();
            tokio::select! {
                // A sender that is gone is an engine that is.
                _ = leaving.wait_for(|leaving| *leaving) => {}
                () = self.rest() => {}
            }
        }
    }

    /// Waits until something may have changed.
    async fn rest(&mut self) {
        let left = match &mut self.carried {
            Some((_, receiver)) => self.seen.left || receiver.changed().await.is_err(),
            None => true,
        };
        if left {
            tokio::time::sleep(LOOK_AGAIN).await;
            // A store that cannot be read now is asked again at the next look.
            let _ = self.find().await;
        }
    }

    /// Tells what happened next and is no output. Sealing adds more after the end, which nobody waits for.
    fn tell_note(&mut self) -> bool {
        let place = usize::try_from(self.cursor.updates).unwrap_or(usize::MAX);
        let Some(note) = self.seen.notes.get(place) else {
            return false;
        };
        let update = match note.clone() {
            Note::Queued { ahead } => Update::Queued { ahead },
            Note::Compiling { module } => Update::Compiling { module },
            Note::Compiled { module, micros } => Update::Compiled { module, micros },
            Note::Pulling { image } => Update::Pulling { image },
            Note::Pulled { image, micros } => Update::Pulled { image, micros },
            Note::Start { sandbox, warm } => Update::Start { sandbox, warm },
            Note::Stage(time) => Update::Stage(time),
        };
        self.cursor.updates += 1;
        self.ready.push_back((update, self.cursor));
        true
    }

    async fn tell_stdout(&mut self) -> bool {
        let offset = self.cursor.stdout;
        if offset >= self.seen.output[0] {
            return false;
        }
        let bytes = self.read(0, offset, self.seen.output[0]).await;
        if bytes.is_empty() {
            self.cursor.stdout = self.seen.output[0];
            return false;
        }
        self.cursor.stdout += bytes.len() as u64;
        self.ready.push_back((Update::Stdout(bytes), self.cursor));
        true
    }

    async fn tell_stderr(&mut self) -> bool {
        let (offset, end) = (self.cursor.stderr, self.seen.output[1]);
        let over = self.seen.row.state.is_over();
        if offset >= end || end <= self.examined && !over {
            return false;
        }
        let bytes = self.read(1, offset, end).await;
        if bytes.is_empty() {
            self.cursor.stderr = end;
            return false;
        }
        let fresh = match offset.checked_sub(1) {
            None => true,
            Some(before) => self.read(1, before, offset).await == b"\n",
        };
        let all = offset + bytes.len() as u64 == end;
        let pieces = split(&bytes, fresh, all && over || bytes.len() == PIECE);
        if all {
            self.examined = end;
        }
        for (piece, length) in pieces {
            self.cursor.stderr += length as u64;
            self.ready.push_back((piece, self.cursor));
        }
        !self.ready.is_empty()
    }

    /// Bytes of a stream from `from` to `to`, at most one piece; none where they are gone.
    async fn read(&self, which: usize, from: u64, to: u64) -> Vec<u8> {
        let most = usize::try_from(to - from).unwrap_or(PIECE).min(PIECE);
        let live = self.carried.as_ref().map(|(live, _)| live);
        let read = self
            .engine
            .read_output(live, &self.seen.row, which, from, most);
        read.await.unwrap_or_default()
    }
}

/// Cuts a piece of standard error into a tool's words and everything else. Gives the bytes each stands for.
/// The end of a line that may be words is left for later, unless nothing more comes.
fn split(bytes: &[u8], fresh: bool, last: bool) -> Vec<(Update, usize)> {
    let mut pieces: Vec<(Update, usize)> = Vec::new();
    let mut plain = 0;
    let mut at = 0;
    let mut fresh = fresh;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = rest.iter().position(|byte| *byte == b'\n');
        let line = &rest[..end.unwrap_or(rest.len())];
        if fresh && end.is_none() && !last && line.len() <= WORDS_MAX && may_be_words(line) {
            break;
        }
        let length = end.map_or(rest.len(), |end| end + 1);
        let told = words(line).filter(|_| fresh && (end.is_some() || last));
        if let Some(update) = told {
            if plain < at {
                pieces.push((Update::Stderr(bytes[plain..at].to_vec()), at - plain));
            }
            pieces.push((update, length));
            plain = at + length;
        }
        at += length;
        fresh = end.is_some();
    }
    if plain < at {
        pieces.push((Update::Stderr(bytes[plain..at].to_vec()), at - plain));
    }
    pieces
}

fn may_be_words(line: &[u8]) -> bool {
    [PROGRESS, LOG].iter().any(|mark| {
        let shorter = mark.len().min(line.len());
        line[..shorter] == mark[..shorter]
    })
}

fn words(line: &[u8]) -> Option<Update> {
    if line.len() > WORDS_MAX {
        return None;
    }
    if let Some(text) = line.strip_prefix(PROGRESS) {
        let value: Value = serde_json::from_slice(text).ok()?;
        return value.is_object().then_some(Update::Progress(value));
    }
    let text = std::str::from_utf8(line.strip_prefix(LOG)?).ok()?;
    Some(Update::Log(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[(Update, usize)]) -> Vec<String> {
        let show = |(update, length): &(Update, usize)| match update {
            Update::Stderr(bytes) => format!("{length} {}", String::from_utf8_lossy(bytes)),
            Update::Progress(value) => format!("{length} progress {value}"),
            Update::Log(text) => format!("{length} log {text}"),
            other => format!("{length} {other:?}"),
        };
        pieces.iter().map(show).collect()
    }

    #[test]
    fn a_tools_words_are_told_apart_and_every_byte_is_counted() {
        let text =
            b"a\nleasehold:progress {\"done\":1}\nb\nleasehold:log hello\nleasehold:progress 7\n";
        let pieces = split(text, true, false);
        assert_eq!(
            shown(&pieces),
            [
                "2 a\n",
                "30 progress {\"done\":1}",
                "2 b\n",
                "20 log hello",
                "21 leasehold:progress 7\n"
            ]
        );
        assert_eq!(
            pieces.iter().map(|(_, length)| length).sum::<usize>(),
            text.len()
        );
    }

    #[test]
    fn half_a_line_waits_only_where_it_may_be_words() {
        assert_eq!(shown(&split(b"x\nleasehold:lo", true, false)), ["2 x\n"]);
        assert_eq!(
            shown(&split(b"x\nleasehold:lo", true, true)),
            ["14 x\nleasehold:lo"]
        );
        assert_eq!(
            shown(&split(b"x\nleaseholx", true, false)),
            ["11 x\nleaseholx"]
        );
        assert_eq!(shown(&split(b"leasehold:log a", true, true)), ["15 log a"]);
        // In the middle of a line they are nobody's words.
        assert_eq!(
            shown(&split(b"leasehold:log a\n", false, false)),
            ["16 leasehold:log a\n"]
        );
    }

    #[test]
    fn words_are_bounded() {
        let long = [LOG, &[b'x'; WORDS_MAX], b"\n"].concat();
        let pieces = split(&long, true, false);
        assert!(matches!(&pieces[..], [(Update::Stderr(bytes), _)] if bytes.len() == long.len()));
        let endless = [LOG, &[b'x'; WORDS_MAX]].concat();
        assert_eq!(split(&endless, true, false).len(), 1);
        assert!(split(&[], true, true).is_empty());
    }
}
