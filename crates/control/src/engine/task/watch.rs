//! Following a run while it has a computer: what it says, who wants its end, whether the lease still holds.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold_backend::execution::{Execution, RunEvent};
use leasehold_core::end::{CancelledBy, EndReason, LeaseExpiry};
use leasehold_core::event::RunFact;
use leasehold_core::stage::StageTime;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::super::live::{Cancel, Note};
use super::super::metrics::count;
use super::super::pen::{Stop, Write};
use super::launch::Found;
use super::{Task, Watched};

/// How often the lease is looked at, at most and at least.
const BEAT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Pause before an order that did not arrive is given again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a worker may leave the order to end a run unanswered until it counts as lost: the run is over for us
/// then, whatever that worker does once it answers again.
const UNANSWERED_MAX: Duration = Duration::from_secs(20);

/// What is to be done while it runs.
struct Watch {
    /// Stages told by this execution.
    stages: usize,
    /// A caller's wish was passed on.
    cancel_sent: bool,
    /// When an order of the engine's own is given (again).
    order_at: Option<Instant>,
    /// Since when such an order has had no answer.
    unanswered: Option<Instant>,
    /// When the lease was last seen to hold.
    held_at: Instant,
    beat: Duration,
    input: Option<JoinHandle<io::Result<u64>>>,
}

/// What happened next.
enum Next {
    Event(Option<Result<RunEvent, leasehold_backend::error::BackendError>>),
    Wish(Cancel),
    Deadline,
    Order,
    Beat,
    Input(io::Result<u64>),
}

impl Task {
    /// Follows it to its end.
    pub(super) async fn watch(&mut self, execution: &mut Execution) -> Result<Watched, Stop> {
        let lease = Duration::from_millis(self.plan.contract.authority.lease_ms);
        let mut watch = Watch {
            stages: 0,
            cancel_sent: false,
            order_at: self.verdict.is_some().then(Instant::now),
            unanswered: None,
            held_at: Instant::now(),
            beat: (lease / 3).clamp(BEAT.0, BEAT.1),
            input: self.feed(execution.input.take()),
        };
        let watched = self.follow(execution, &mut watch).await;
        if let Some(input) = watch.input {
            input.abort();
        }
        watched
    }

    async fn follow(
        &mut self,
        execution: &mut Execution,
        watch: &mut Watch,
    ) -> Result<Watched, Stop> {
        let mut wish = self.live.cancel.subscribe();
        let mut next_beat = Instant::now() + watch.beat;
        loop {
            let order_at = watch.order_at.unwrap_or(self.deadline);
            let next = tokio::select! {
                biased;
                event = execution.next() => Next::Event(event),
                wish = wish.wait_for(Option::is_some), if !watch.cancel_sent => {
                    match wish.ok().and_then(|wish| wish.clone()) {
                        Some(wish) => Next::Wish(wish),
                        None => continue,
                    }
                }
                fed = fed(&mut watch.input), if watch.input.is_some() => Next::Input(fed),
                () = tokio::time::sleep_until(self.deadline), if self.verdict.is_none() => Next::Deadline,
                () = tokio::time::sleep_until(order_at), if watch.order_at.is_some() => Next::Order,
                () = tokio::time::sleep_until(next_beat) => Next::Beat,
            };
            match next {
                Next::Event(event) => {
                    if let Some(watched) = self.on_event(event, execution, watch).await {
                        return Ok(watched);
                    }
                }
                Next::Wish(wish) => self.on_wish(&wish, watch).await?,
                Next::Deadline => {
                    self.verdict = Some(EndReason::LeaseExpired {
                        cause: LeaseExpiry::Deadline,
                    });
                    watch.order_at = Some(Instant::now());
                }
                Next::Order => {
                    if !self.order(watch).await {
                        return Ok(Watched::Lost);
                    }
                }
                Next::Beat => {
                    self.beat(watch).await?;
                    next_beat = Instant::now() + watch.beat;
                }
                Next::Input(fed) => {
                    watch.input = None;
                    if let Ok(bytes) = fed {
                        let fact = RunFact::InputGiven { bytes };
                        self.pen.write(Write::Append, vec![fact]).await?;
                        self.engine.failpoints().after("input");
                    }
                }
            }
        }
    }

    async fn on_event(
        &mut self,
        event: Option<Result<RunEvent, leasehold_backend::error::BackendError>>,
        execution: &mut Execution,
        watch: &mut Watch,
    ) -> Option<Watched> {
        match event {
            Some(Ok(RunEvent::Stage(time))) => self.on_stage(time, watch),
            Some(Ok(RunEvent::Output { stdout, stderr })) => {
                self.live.see(|seen| {
                    seen.output = [seen.output[0].max(stdout), seen.output[1].max(stderr)];
                });
            }
            Some(Ok(RunEvent::Ended(record) | RunEvent::Cleaned(record))) => {
                return Some(Watched::Ended(record));
            }
            Some(Err(_)) | None => {
                count(&self.engine.metrics.backend_errors);
                match self.find(&self.id(), true).await {
                    Found::There(found) => {
                        *execution = self.take_up(*found);
                        watch.stages = 0;
                        watch.cancel_sent = false;
                    }
                    Found::Never | Found::Unreachable => return Some(Watched::Lost),
                }
            }
        }
        None
    }

    /// A run that is taken up tells its stages again.
    fn on_stage(&self, time: StageTime, watch: &mut Watch) {
        watch.stages += 1;
        let told = watch.stages;
        self.live.see(|seen| {
            let stage = |note: &&Note| matches!(note, Note::Stage(_));
            let since = seen
                .notes
                .iter()
                .rposition(|note| matches!(note, Note::Start { .. }));
            let known = seen.notes[since.unwrap_or(0)..]
                .iter()
                .filter(stage)
                .count();
            if told > known {
                seen.notes.push(Note::Stage(time));
            }
        });
    }

    /// Passes a wish for its end on.
    async fn on_wish(&mut self, wish: &Cancel, watch: &mut Watch) -> Result<(), Stop> {
        watch.cancel_sent = true;
        let fact = RunFact::CancelRequested {
            by: wish.by,
            key: wish.key.clone(),
        };
        self.pen.write(Write::Append, vec![fact]).await?;
        if !self.cancel(wish.by, false).await {
            // The events break off too then, and the wish is passed on when it is found again.
            watch.cancel_sent = false;
            tokio::time::sleep(AGAIN / 10).await;
        }
        Ok(())
    }

    /// Ends it at once, for the engine's own reason. Whether its worker still counts.
    async fn order(&mut self, watch: &mut Watch) -> bool {
        let since = *watch.unanswered.get_or_insert_with(Instant::now);
        if self.cancel(CancelledBy::Operator, true).await {
            watch.unanswered = None;
        } else if since.elapsed() > UNANSWERED_MAX {
            tracing::warn!(run = %self.live.run, "its worker does not answer; the run is given up");
            return false;
        }
        watch.order_at = Some(Instant::now() + AGAIN);
        true
    }

    /// Looks whether the lease still holds. A holder that cannot tell for the length of a lease ends its
    /// computer: somebody else may have the right by then.
    async fn beat(&mut self, watch: &mut Watch) -> Result<(), Stop> {
        let run = self.live.run.clone();
        match self.engine.parts.store.run(None, run).await {
            Ok(row) if row.epoch != self.pen.epoch() => return Err(Stop::Fenced),
            Ok(row) => {
                watch.held_at = Instant::now();
                if row.cancel_requested && !self.unwanted() {
                    self.live.ask_end(Cancel {
                        by: CancelledBy::Caller,
                        key: None,
                    });
                }
            }
            Err(_) => count(&self.engine.metrics.store_errors),
        }
        let lease = Duration::from_millis(self.plan.contract.authority.lease_ms).max(BEAT.0 * 3);
        if watch.held_at.elapsed() > lease && self.verdict.is_none() {
            tracing::warn!(run = %self.live.run, "a lease cannot be renewed; its computer is ended");
            self.verdict = Some(EndReason::LeaseExpired {
                cause: LeaseExpiry::Deadline,
            });
            watch.order_at = Some(Instant::now());
        }
        Ok(())
    }

    /// Writes its standard input, beside everything else.
    fn feed(&self, input: Option<OwnedFd>) -> Option<JoinHandle<io::Result<u64>>> {
        let bytes = self.plan.start.stdin.clone()?;
        let input = input?;
        self.engine.failpoints().before("input");
        Some(tokio::spawn(async move {
            rustix::io::ioctl_fionbio(&input, true)?;
            let mut pipe = pipe::Sender::from_owned_fd(input)?;
            pipe.write_all(&bytes).await?;
            Ok(bytes.len() as u64)
        }))
    }
}

/// Waits until all input was written; a reader that went away has had enough.
async fn fed(input: &mut Option<JoinHandle<io::Result<u64>>>) -> io::Result<u64> {
    match input {
        None => std::future::pending().await,
        Some(task) => match task.await {
            Ok(done) => done,
            Err(error) => Err(io::Error::other(error)),
        },
    }
}
