//! The engine's library used directly, and instances of the engine as the host has it.

use std::time::{Duration, Instant};

use leasehold_protocol::wasm::Flavour;
use leasehold_wasm::engine::Room;
use leasehold_wasm::program::Loader;
use tokio::runtime::{Builder, Runtime};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, InstancePre, Linker, Module, Store};
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;

pub(crate) type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// What a program would write that has the library alone: one engine with its own defaults for a pool, WASI,
/// captured output, no limit of ours.
pub(crate) struct Direct {
    engine: Engine,
    linker: Linker<WasiP1Ctx>,
    module: Module,
}

impl Direct {
    pub(crate) fn new(wasm: &[u8]) -> Fallible<Self> {
        let mut config = Config::new();
        config.allocation_strategy(InstanceAllocationStrategy::pooling());
        let engine = Engine::new(&config)?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p1::add_to_linker_sync(&mut linker, |state| state)?;
        Ok(Self {
            module: Module::from_binary(&engine, wasm)?,
            engine,
            linker,
        })
    }

    /// One run: how long its instance took to be made, and what it wrote.
    pub(crate) fn run(&self) -> Fallible<(Duration, Vec<u8>)> {
        let stdout = MemoryOutputPipe::new(1 << 20);
        let state = WasiCtxBuilder::new().stdout(stdout.clone()).build_p1();
        let mut store = Store::new(&self.engine, state);
        let begun = Instant::now();
        let instance = self.linker.instantiate(&mut store, &self.module)?;
        let took = begun.elapsed();
        instance
            .get_typed_func::<(), ()>(&mut store, "_start")?
            .call(&mut store, ())?;
        drop(store);
        Ok((took, stdout.contents().to_vec()))
    }
}

/// Instances of a module in the engine as the host has it: its pool, its clock, its stacks.
pub(crate) struct Instances {
    pre: InstancePre<WasiP1Ctx>,
    runtime: Runtime,
}

impl Instances {
    pub(crate) fn new(wasm: &[u8]) -> Fallible<Self> {
        let loader = Loader::new(Flavour::Plain, Room::default())?;
        let mut linker = Linker::new(loader.engine());
        wasmtime_wasi::p1::add_to_linker_async(&mut linker, |state| state)?;
        let module = Module::from_binary(loader.engine(), wasm)?;
        Ok(Self {
            pre: linker.instantiate_pre(&module)?,
            runtime: Builder::new_current_thread().build()?,
        })
    }

    /// How long one took to be made.
    pub(crate) fn make(&self) -> Fallible<Duration> {
        let engine = self.pre.module().engine();
        let mut store = Store::new(engine, WasiCtxBuilder::new().build_p1());
        store.set_epoch_deadline(1_000_000);
        self.runtime.block_on(async {
            let begun = Instant::now();
            self.pre.instantiate_async(&mut store).await?;
            Ok(begun.elapsed())
        })
    }
}
