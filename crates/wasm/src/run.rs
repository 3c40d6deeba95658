//! One run: a fresh instance, everything that bounds it, and what was seen of it.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use leasehold_core::end::LimitHit;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::{Determinism, Flavour, Preopen, Report, RunLimits};
use rustix::time::ClockId;
use tokio::sync::oneshot;
use wasmtime::{AsContextMut, InstancePre, Store};
use wasmtime_wasi::p2::bindings::CommandPre;

use crate::input::Input;
use crate::output::Output;
use crate::program::{Code, Program};
use crate::state::{self, ComponentState, CoreState, Metered};
use crate::verdict::{self, Stop};

/// Most bytes that one call of the program makes the host copy: lists, names and buffers together.
const CALL_BYTES_MAX: usize = 16 << 20;

/// What is to be run, and with what.
#[derive(Debug)]
pub struct Task {
    /// Arguments, the program's name first.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Standard input.
    pub stdin: Input,
    /// Standard output.
    pub stdout: Output,
    /// Standard error.
    pub stderr: Output,
    /// Directories and where the program finds them.
    pub preopens: Vec<(Preopen, OwnedFd)>,
    /// What bounds it.
    pub limits: RunLimits,
    /// Fixed clocks and seeded random.
    pub determinism: Option<Determinism>,
}

impl Task {
    /// A program with nothing but its name and its limits.
    #[must_use]
    pub fn new(name: &str, limits: RunLimits) -> Self {
        Self {
            argv: vec![name.to_owned()],
            env: Vec::new(),
            stdin: Input::whole(b""),
            stdout: Output::new(limits.output_bytes, limits.output_kill),
            stderr: Output::new(limits.output_bytes, limits.output_kill),
            preopens: Vec::new(),
            limits,
            determinism: None,
        }
    }

    /// What is wrong with it for this program, if anything.
    ///
    /// # Errors
    /// Names what, and the bound.
    pub fn check(&self, program: &Program) -> Result<(), String> {
        let counted = self.limits.fuel.is_some() || self.determinism.is_some();
        if counted && program.flavour != Flavour::Metered {
            return Err("fuel and determinism need code of the metered flavour".to_owned());
        }
        state::check(&self.limits, &self.preopens)
    }
}

/// The memory of a run that is over. It is set back, or given back, when this is dropped, which takes as long as a
/// small run does.
pub struct Remains {
    _store: Box<dyn Send>,
}

impl std::fmt::Debug for Remains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remains").finish_non_exhaustive()
    }
}

/// Runs it to its end, at most as long as its limits say. Somebody must take its output meanwhile, and advance
/// the engine's epoch: a program that computes lets others run at each tick. Sending on `cancel` ends it, and
/// dropping the sender does not. The task must have been checked.
pub async fn run(program: &Program, task: Task, cancel: oneshot::Receiver<()>) -> Report {
    run_leaving(program, task, cancel).await.0
}

/// As [`run`], and leaves it to the caller when the memory is set back: who waits for the end need not wait for that.
/// Of a run with directories nothing remains.
pub async fn run_leaving(
    program: &Program,
    task: Task,
    cancel: oneshot::Receiver<()>,
) -> (Report, Option<Remains>) {
    let begun = Instant::now();
    let (mut report, remains) = match &program.code {
        Code::Core(pre) => core(program, pre, &task, begun, cancel).await,
        Code::Component(pre) => component(program, pre, &task, begun, cancel).await,
    };
    task.stdout.finish();
    task.stderr.finish();
    report.stdout = task.stdout.counted();
    report.stderr = task.stderr.counted();
    for counted in [report.stdout, report.stderr] {
        if counted.total > counted.kept && report.killed_by.is_none() {
            report.denied.push(LimitHit {
                which: Resource::Output,
                limit: task.limits.output_bytes,
                observed: counted.total,
            });
        }
    }
    let remains = remains.filter(|_| task.preopens.is_empty());
    report.wall_us = micros(begun.elapsed());
    (report, remains)
}

async fn core(
    program: &Program,
    pre: &InstancePre<CoreState>,
    task: &Task,
    begun: Instant,
    cancel: oneshot::Receiver<()>,
) -> (Report, Option<Remains>) {
    let work = async |store: &mut Store<CoreState>| {
        let instance = pre.instantiate_async(&mut *store).await;
        let instance = instance.map_err(Stop::NotStarted)?;
        let start = instance.get_typed_func::<(), ()>(&mut *store, "_start");
        let start = start.map_err(Stop::NotStarted)?;
        let called = start.call_async(&mut *store, ()).await;
        called.map_err(Stop::Failed)?;
        Ok(true)
    };
    let made = CoreState::new(task);
    let (report, store) = bounded(program, made, task, begun, cancel, work).await;
    (report, store.map(remains))
}

async fn component(
    program: &Program,
    pre: &CommandPre<ComponentState>,
    task: &Task,
    begun: Instant,
    cancel: oneshot::Receiver<()>,
) -> (Report, Option<Remains>) {
    let made = ComponentState::new(task);
    let work = async |store: &mut Store<ComponentState>| {
        let command = pre.instantiate_async(&mut *store).await;
        let command = command.map_err(Stop::NotStarted)?;
        let answer = command.wasi_cli_run().call_run(&mut *store).await;
        Ok(answer.map_err(Stop::Failed)?.is_ok())
    };
    let (mut report, mut store) = bounded(program, made, task, begun, cancel, work).await;
    if let Some(store) = &mut store {
        let egress = std::mem::take(&mut store.data_mut().egress);
        report.http_denied = egress.denied;
        report.http_denied_to = egress.denied_to;
    }
    (report, store.map(remains))
}

fn remains<T: Metered>(store: Store<T>) -> Remains {
    Remains {
        _store: Box::new(store),
    }
}

/// Makes the store, and holds what is done in it to its limits.
async fn bounded<T: Metered>(
    program: &Program,
    made: wasmtime::Result<T>,
    task: &Task,
    begun: Instant,
    cancel: oneshot::Receiver<()>,
    work: impl AsyncFnOnce(&mut Store<T>) -> Result<bool, Stop>,
) -> (Report, Option<Store<T>>) {
    let mut report = Report::default();
    let limits = &task.limits;
    let state = match made {
        Ok(state) => state,
        Err(error) => {
            report.crashed = Some(format!("{error:#}"));
            return (report, None);
        }
    };
    let mut store = Store::new(program.engine(), state);
    store.limiter(|state| state.meter());
    store.set_hostcall_fuel(CALL_BYTES_MAX);
    store.set_epoch_deadline(1);
    store.epoch_deadline_async_yield_and_update(1);
    let fuel = (program.flavour == Flavour::Metered).then(|| limits.fuel.unwrap_or(u64::MAX));
    if let Some(fuel) = fuel
        && let Err(error) = store.set_fuel(fuel)
    {
        report.crashed = Some(format!("{error:#}"));
        return (report, None);
    }
    let mut spent = Duration::ZERO;
    let stop = Bounded {
        work: pin!(work(&mut store)),
        wall: pin!(tokio::time::sleep_until(
            (begun + Duration::from_millis(limits.wall_ms)).into()
        )),
        cancel: pin!(cancel),
        deadline: begun.checked_add(Duration::from_millis(limits.wall_ms)),
        cpu: limits.cpu_time_ms.map(Duration::from_millis),
        spent: &mut spent,
    }
    .await;
    report.cpu_us = micros(spent);
    report.fuel_used = fuel.and_then(|fuel| Some(fuel - store.as_context_mut().get_fuel().ok()?));
    let state = store.data_mut();
    report.memory_peak_bytes = state.meter().peak();
    report.denied.extend(state.meter().denied());
    verdict::give(&mut report, stop, limits);
    (report, Some(store))
}

/// Work that is watched: each time it lets go, its time and its processor time are looked at.
struct Bounded<'a, W, S, C> {
    work: Pin<&'a mut W>,
    wall: Pin<&'a mut S>,
    cancel: Pin<&'a mut C>,
    deadline: Option<Instant>,
    cpu: Option<Duration>,
    spent: &'a mut Duration,
}

impl<W, S, C> Future for Bounded<'_, W, S, C>
where
    W: Future<Output = Result<bool, Stop>>,
    S: Future<Output = ()>,
    C: Future<Output = Result<(), oneshot::error::RecvError>>,
{
    type Output = Stop;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Stop> {
        let this = &mut *self;
        let before = thread_time();
        let worked = this.work.as_mut().poll(context);
        *this.spent += thread_time().saturating_sub(before);
        if let Poll::Ready(done) = worked {
            return Poll::Ready(match done {
                Ok(well) => Stop::Returned(well),
                Err(stop) => stop,
            });
        }
        // Looked at here and not left to the timer alone, which comes late where others compute.
        let late = this
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline);
        if late || this.wall.as_mut().poll(context).is_ready() {
            return Poll::Ready(Stop::Wall);
        }
        if this.cpu.is_some_and(|cpu| *this.spent >= cpu) {
            return Poll::Ready(Stop::Cpu(this.spent.as_millis() as u64));
        }
        match this.cancel.as_mut().poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(Stop::Cancelled),
            _ => Poll::Pending,
        }
    }
}

fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
