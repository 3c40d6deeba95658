//! The one configuration of the engine. Whatever changes code is set here by hand and not left to a default,
//! since compiler and host must agree on it: code that was compiled under another one is refused at load.

pub use leasehold_protocol::wasm::ENGINE as VERSION;
use leasehold_protocol::wasm::Flavour;
use wasmtime::Config;
#[cfg(feature = "host")]
use wasmtime::{Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Result};

/// Call stack of a run in bytes, host functions not counted. Enough that a recursion too deep for an interpreter in
/// WebAssembly meets the interpreter's own limit first, and is an error inside of it.
pub const STACK_BYTES: usize = 2 << 20;
/// Stack that a run and the host functions it calls share. Functions of an unoptimised build need much.
#[cfg(feature = "host")]
const ASYNC_STACK_BYTES: usize = STACK_BYTES + (2 << 20);

/// Functions of the program in a backtrace, at most.
#[cfg(feature = "host")]
const FRAMES_MAX: std::num::NonZeroUsize = std::num::NonZeroUsize::new(32).unwrap();

/// Largest linear memory: all that a pointer of 32 bits reaches.
#[cfg(feature = "host")]
const MEMORY_MAX: usize = 4 << 30;
/// Largest table.
#[cfg(feature = "host")]
pub(crate) const TABLE_MAX: usize = 1 << 20;

/// What the code is made of, for compiler and host alike.
fn shared(flavour: Flavour) -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .max_wasm_stack(STACK_BYTES)
        .memory_reservation(4 << 30)
        .memory_guard_size(32 << 20)
        .memory_init_cow(true)
        .signals_based_traps(true)
        .concurrency_support(false)
        .generate_address_map(true)
        // Nobody unwinds its frames but the engine itself, which needs none of it: less code to map at each load.
        .native_unwind_info(false)
        .wasm_exceptions(true)
        .wasm_memory64(false)
        .wasm_wide_arithmetic(false);
    let metered = flavour == Flavour::Metered;
    config
        .consume_fuel(metered)
        .relaxed_simd_deterministic(metered);
    config
}

/// For the compiler: one thread, no bound of its own. The process around it has them.
#[cfg(feature = "compiler")]
#[must_use]
pub fn compiling(flavour: Flavour) -> Config {
    let mut config = shared(flavour);
    config.cranelift_nan_canonicalization(flavour == Flavour::Metered);
    config
}

/// What an engine has room for.
#[cfg(feature = "host")]
#[derive(Debug, Clone, Copy)]
pub enum Room {
    /// One run, whose memory is mapped when it is begun.
    One,
    /// A pool of slots for so many runs at one time. Address space is reserved for all of them, memory is not.
    Pool {
        /// Runs at one time.
        runs: u32,
    },
}

#[cfg(feature = "host")]
impl Default for Room {
    fn default() -> Self {
        Self::Pool { runs: 64 }
    }
}

/// A pool of slots whose pages are given back, or set back, after each run.
#[cfg(feature = "host")]
fn pool(runs: u32, scan: bool) -> PoolingAllocationConfig {
    const KEPT: usize = 4 << 20;
    const KEPT_SMALL: usize = 64 << 10;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(runs)
        .total_core_instances(runs * 32)
        .total_memories(runs * 2)
        .total_tables(runs * 8)
        .total_stacks(runs * 2)
        .total_gc_heaps(runs)
        .max_core_instances_per_component(64)
        .max_memories_per_component(8)
        .max_tables_per_component(64)
        .max_memories_per_module(4)
        .max_tables_per_module(16)
        .max_core_instance_size(4 << 20)
        .max_component_instance_size(2 << 20)
        .max_memory_size(MEMORY_MAX)
        .table_elements(TABLE_MAX)
        // Slots that were used and keep their pages; a host idles with no more than this.
        .max_unused_warm_slots(4)
        .linear_memory_keep_resident(KEPT)
        .table_keep_resident(KEPT_SMALL)
        .async_stack_keep_resident(KEPT_SMALL)
        .pagemap_scan(if scan { Enabled::Auto } else { Enabled::No });
    pool
}

/// For the host.
#[cfg(feature = "host")]
fn running(flavour: Flavour, allocation: InstanceAllocationStrategy) -> Config {
    let mut config = shared(flavour);
    config
        .async_stack_size(ASYNC_STACK_BYTES)
        .wasm_backtrace_max_frames(Some(FRAMES_MAX))
        .allocation_strategy(allocation);
    #[cfg(feature = "compiler")]
    config.cranelift_nan_canonicalization(flavour == Flavour::Metered);
    config
}

/// An engine that runs. Where the kernel cannot say which pages a run touched (before Linux 6.7, or
/// without `/proc`), all that were kept are set back.
///
/// # Errors
/// When the address space cannot be reserved.
#[cfg(feature = "host")]
pub(crate) fn engine(flavour: Flavour, room: Room) -> Result<Engine> {
    let engine = |allocation| Engine::new(&running(flavour, allocation));
    match room {
        Room::One => engine(InstanceAllocationStrategy::OnDemand),
        Room::Pool { runs } => {
            engine(pool(runs, true).into()).or_else(|_| engine(pool(runs, false).into()))
        }
    }
}
