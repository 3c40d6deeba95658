//! What one run holds on the host's side.

use std::os::fd::OwnedFd;
use std::time::Duration;

use leasehold_protocol::wasm::{Determinism, Preopen, RunLimits};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use wasmtime::Result;
use wasmtime::component::ResourceTable;
use wasmtime_wasi::filesystem::FsPerms;
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{
    HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView,
};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use crate::http::Egress;
use crate::limiter::Meter;
use crate::run::Task;

/// Most random bytes of one call.
const RANDOM_MAX: u64 = 1 << 20;

/// What a core module calls its working directory.
const HERE: &str = ".";

/// Of a core module.
pub(crate) struct CoreState {
    pub(crate) wasi: WasiP1Ctx,
    meter: Meter,
}

/// What is held to the limits of memory.
pub(crate) trait Metered: Send + 'static {
    fn meter(&mut self) -> &mut Meter;
}

impl Metered for CoreState {
    fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }
}

impl Metered for ComponentState {
    fn meter(&mut self) -> &mut Meter {
        &mut self.meter
    }
}

/// Of a component.
pub(crate) struct ComponentState {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    pub(crate) egress: Egress,
    meter: Meter,
}

impl CoreState {
    pub(crate) fn new(task: &Task) -> Result<Self> {
        let mut builder = context(task)?;
        // WASI preview 1 has no word for a working directory; a library that opens a name without a folder
        // looks for a directory called so. It is the first one again, with the same rights.
        if let Some((preopen, directory)) = task.preopens.first() {
            let here = Preopen {
                guest: HERE.to_owned(),
                ..preopen.clone()
            };
            open(&mut builder, &here, directory)?;
        }
        let mut wasi = builder.build_p1();
        wasi.ctx()
            .table
            .set_max_capacity(task.limits.handles as usize);
        Ok(Self {
            wasi,
            meter: Meter::new(&task.limits),
        })
    }
}

impl ComponentState {
    pub(crate) fn new(task: &Task) -> Result<Self> {
        let mut table = ResourceTable::new();
        table.set_max_capacity(task.limits.handles as usize);
        let mut http = WasiHttpCtx::new();
        http.set_field_size_limit(task.limits.header_bytes as usize);
        Ok(Self {
            wasi: context(task)?.build(),
            http,
            table,
            egress: Egress::default(),
            meter: Meter::new(&task.limits),
        })
    }
}

impl WasiView for ComponentState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for ComponentState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            ctx: &mut self.http,
            table: &mut self.table,
            hooks: &mut self.egress,
        }
    }
}

/// What the program sees: nothing of this process's own. No network of any kind.
fn context(task: &Task) -> Result<WasiCtxBuilder> {
    let mut builder = WasiCtxBuilder::new();
    builder
        .args(&task.argv)
        .envs(&task.env)
        .stdin(task.stdin.clone())
        .stdout(task.stdout.clone())
        .stderr(task.stderr.clone())
        .max_random_size(RANDOM_MAX)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    if let Some(how) = task.determinism {
        determine(&mut builder, how);
    }
    for (preopen, directory) in &task.preopens {
        open(&mut builder, preopen, directory)?;
    }
    if let Some((preopen, _)) = task.preopens.first() {
        builder.initial_cwd(&preopen.guest);
    }
    Ok(builder)
}

/// The engine opens a directory by name alone: this process steps into it for that. Its root is empty and it
/// is on one thread when it does, so the way back needs no name either.
fn open(builder: &mut WasiCtxBuilder, preopen: &Preopen, directory: &OwnedFd) -> Result<()> {
    let perms = match preopen.writable {
        true => FsPerms::ReadWrite,
        false => FsPerms::ReadOnly,
    };
    rustix::process::fchdir(directory)?;
    builder.preopened_dir(".", &preopen.guest, perms)?;
    Ok(())
}

fn determine(builder: &mut WasiCtxBuilder, how: Determinism) {
    builder
        .secure_random(StdRng::seed_from_u64(how.seed))
        .insecure_random(StdRng::seed_from_u64(how.seed ^ 1))
        .insecure_random_seed(u128::from(how.seed))
        .wall_clock(Fixed(Duration::from_millis(how.clock_ms)))
        .monotonic_clock(Stepping::default());
}

/// A wall clock that stands.
struct Fixed(Duration);

impl HostWallClock for Fixed {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        self.0
    }
}

/// A clock that goes on by a microsecond each time it is looked at, so that waiting for it ends.
#[derive(Default)]
struct Stepping(std::sync::atomic::AtomicU64);

impl HostMonotonicClock for Stepping {
    fn resolution(&self) -> u64 {
        1_000
    }

    fn now(&self) -> u64 {
        self.0
            .fetch_add(1_000, std::sync::atomic::Ordering::Relaxed)
    }
}

/// Longest wall time: thirty days, as a run of any other kind may have.
const WALL_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;

/// What is wrong with the directories and limits of a run, if anything.
pub(crate) fn check(
    limits: &RunLimits,
    preopens: &[(Preopen, OwnedFd)],
) -> std::result::Result<(), String> {
    if !(1..=WALL_MS_MAX).contains(&limits.wall_ms) {
        return Err(format!(
            "`wall_ms` is {}: it must be 1 to {WALL_MS_MAX}",
            limits.wall_ms
        ));
    }
    if preopens.len() > leasehold_protocol::wasm::PREOPENS_MAX {
        return Err(format!(
            "{} directories: most is {}",
            preopens.len(),
            leasehold_protocol::wasm::PREOPENS_MAX
        ));
    }
    crate::alias::check(preopens)
}
