//! What bounds the WebAssembly backend of one process.

use std::time::Duration;

use super::compile::CompileLimits;

/// Bounds, each with the default of a daemon.
#[derive(Debug, Clone, Copy)]
pub struct WasmBounds {
    /// Of one module's compilation.
    pub compile: CompileLimits,
    /// Modules that are compiled at one time.
    pub compiles: usize,
    /// Modules of one tenant that are or wait to be compiled.
    pub compiles_waiting: usize,
    /// Bytes of compiled code that stays in memory.
    pub code_memory_bytes: u64,
    /// Whether program and code are left with the supervisor in memory, for a process that begins after this one has
    /// ended: a command that lives for one run.
    pub lend: bool,
    /// Bytes of compiled code that is kept on disk.
    pub code_disk_bytes: u64,
    /// Shared hosts at one time, untouched ones included.
    pub hosts: usize,
    /// Of these, for one tenant.
    pub hosts_per_tenant: usize,
    /// Untouched hosts that are kept ready once one was needed.
    pub spares: usize,
    /// Runs after which a host is used for no further one.
    pub host_runs: u64,
    /// Runs of one host at one time; it has no room for more than 64.
    pub host_runs_at_once: usize,
    /// Bytes that the modules and runs of one host may hold together, by their limits.
    pub host_memory_bytes: u64,
    /// How long a host of a tenant stays without a run.
    pub host_idle: Duration,
    /// Bytes of output that shared runs may come to hold in memory, by their limits.
    pub output_memory_bytes: u64,
    /// Of these, for one tenant.
    pub output_memory_of_a_tenant: u64,
    /// How long a run waits for room in a shared host before it gets a sandbox of its own.
    pub room_wait: Duration,
    /// How much later than a run's own limit, or than the order to end it, its host is given up.
    pub slack: Duration,
    /// Shared runs that are over and can still be attached to.
    pub ended_kept: usize,
}

impl Default for WasmBounds {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let memory = memory_bytes();
        let output = (memory / 8).clamp(512 << 20, 8 << 30);
        Self {
            compile: CompileLimits::default(),
            compiles: cores,
            compiles_waiting: 8,
            code_memory_bytes: 256 << 20,
            lend: false,
            code_disk_bytes: super::code::KEPT_BYTES,
            hosts: 32,
            hosts_per_tenant: cores.clamp(2, 8),
            spares: 2,
            host_runs: 10_000,
            host_runs_at_once: 64,
            host_memory_bytes: (memory / 4).clamp(2 << 30, 16 << 30),
            host_idle: Duration::from_secs(60),
            output_memory_bytes: output,
            output_memory_of_a_tenant: output / 2,
            room_wait: Duration::from_millis(200),
            slack: Duration::from_secs(5),
            ended_kept: 256,
        }
    }
}

/// Memory of this machine; a small one where that cannot be read.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit);
    info.totalram.saturating_mul(unit).max(2 << 30)
}
