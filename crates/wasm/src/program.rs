//! Compiled code, loaded: what runs are made from. Loading trusts its bytes entirely, since they are machine
//! code: only what our compiler wrote and our owner checked may come here, and only in a file that nobody can
//! change any more.

#![allow(unsafe_code, reason = "loading machine code has no safe binding")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use leasehold_protocol::wasm::{Flavour, Kind};
use rustix::fs::SealFlags;
use wasmtime::component::{Component, Linker as ComponentLinker};
use wasmtime::{Engine, InstancePre, Linker, Module};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi::p2::bindings::CommandPre;

use crate::engine::{self, Room};
use crate::state::{ComponentState, CoreState};

/// Most bytes of compiled code.
pub const CODE_BYTES_MAX: u64 = 1 << 30;

/// Why code is not loaded, or an engine not there.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could be changed after it was checked.
    #[error("the code is in a file that is not sealed: it could be changed after it was checked")]
    NotSealed,
    /// The file cannot be read.
    #[error("the code cannot be read")]
    Read(#[source] io::Error),
    /// The code is not of this engine.
    #[error("the code cannot be used: {0}")]
    Unusable(String),
    /// The module is no command, or asks for what a run is not given.
    #[error("the module cannot be run: {0}")]
    Unfit(String),
    /// No engine on this machine.
    #[error("the engine cannot be set up: {0}")]
    Setup(String),
}

fn setup(error: &wasmtime::Error) -> LoadError {
    LoadError::Setup(format!("{error:#}"))
}

fn unusable(error: &wasmtime::Error) -> LoadError {
    LoadError::Unusable(format!("{error:#}").chars().take(500).collect())
}

fn unfit(error: &wasmtime::Error) -> LoadError {
    LoadError::Unfit(format!("{error:#}").chars().take(500).collect())
}

/// An engine of one flavour, and what programs on it may call.
pub struct Loader {
    engine: Engine,
    core: Option<Linker<CoreState>>,
    component: Option<ComponentLinker<ComponentState>>,
}

impl std::fmt::Debug for Loader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loader").finish_non_exhaustive()
    }
}

/// A program that can be run any number of times.
#[derive(Clone)]
pub struct Program {
    pub(crate) code: Code,
    pub(crate) flavour: Flavour,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("flavour", &self.flavour)
            .finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub(crate) enum Code {
    Core(InstancePre<CoreState>),
    Component(CommandPre<ComponentState>),
}

impl Program {
    pub(crate) fn engine(&self) -> &Engine {
        match &self.code {
            Code::Core(pre) => pre.module().engine(),
            Code::Component(pre) => pre.engine(),
        }
    }
}

impl Loader {
    /// An engine and its pool.
    ///
    /// # Errors
    /// When the address space cannot be had.
    pub fn new(flavour: Flavour, room: Room) -> Result<Self, LoadError> {
        Self::of(&[Kind::Core, Kind::Component], flavour, room)
    }

    /// An engine for one program of this kind: what it could not call is not set up.
    ///
    /// # Errors
    /// As [`Loader::new`].
    pub fn for_one(kind: Kind, flavour: Flavour) -> Result<Self, LoadError> {
        Self::of(&[kind], flavour, Room::One)
    }

    fn of(kinds: &[Kind], flavour: Flavour, room: Room) -> Result<Self, LoadError> {
        let engine = engine::engine(flavour, room).map_err(|error| setup(&error))?;
        let wanted = |kind| kinds.contains(&kind);
        let core = wanted(Kind::Core).then(|| core_linker(&engine));
        let component = wanted(Kind::Component).then(|| component_linker(&engine));
        Ok(Self {
            core: core.transpose().map_err(|error| setup(&error))?,
            component: component.transpose().map_err(|error| setup(&error))?,
            engine,
        })
    }

    /// The engine, whose epoch somebody must advance.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Loads compiled code from a sealed memory file. The caller vouches that it is what our compiler wrote.
    ///
    /// # Errors
    /// When the file is not sealed, not of this engine, flavour and kind, or imports what there is not.
    pub fn load(&self, kind: Kind, flavour: Flavour, file: File) -> Result<Program, LoadError> {
        sealed(&file)?;
        let other = || LoadError::Setup("the engine was set up for the other kind".to_owned());
        let code = match kind {
            Kind::Core => {
                // SAFETY: the bytes are what our compiler wrote, by the word of our owner, who checked their
                // digest; and the file is sealed, so they stay that.
                let module = unsafe { Module::deserialize_open_file(&self.engine, file) };
                let module = module.map_err(|error| unusable(&error))?;
                let linker = self.core.as_ref().ok_or_else(other)?;
                let pre = linker.instantiate_pre(&module);
                Code::Core(pre.map_err(|error| unfit(&error))?)
            }
            Kind::Component => {
                let component = self.component(&file)?;
                let linker = self.component.as_ref().ok_or_else(other)?;
                let pre = linker.instantiate_pre(&component).and_then(CommandPre::new);
                Code::Component(pre.map_err(|error| unfit(&error))?)
            }
        };
        Ok(Program { code, flavour })
    }
}

impl Loader {
    /// The engine maps a component by name alone, which is the cheapest by far; where nothing can be opened any
    /// more it is copied.
    fn component(&self, file: &File) -> Result<Component, LoadError> {
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        if File::open(&name).is_ok() {
            // SAFETY: as for a module; what the name leads to is that file and no other.
            let mapped = unsafe { Component::deserialize_file(&self.engine, &name) };
            return mapped.map_err(|error| unusable(&error));
        }
        let length = file.metadata().map_err(LoadError::Read)?.len();
        // At most `CODE_BYTES_MAX`.
        let mut bytes = vec![0; length as usize];
        // Its owner may share the place in the file with other hosts.
        file.read_exact_at(&mut bytes, 0).map_err(LoadError::Read)?;
        // SAFETY: as for a module; these bytes are a copy of our own.
        let copied = unsafe { Component::deserialize(&self.engine, &bytes) };
        copied.map_err(|error| unusable(&error))
    }
}

/// Nobody can write to the file, or change its length, any more.
fn sealed(file: &File) -> Result<(), LoadError> {
    let wanted = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| LoadError::NotSealed)?;
    if !seals.contains(wanted) {
        return Err(LoadError::NotSealed);
    }
    let length = file.metadata().map_err(LoadError::Read)?.len();
    if length > CODE_BYTES_MAX {
        return Err(LoadError::Unusable(format!(
            "{length} bytes of code: most is {CODE_BYTES_MAX}"
        )));
    }
    Ok(())
}

/// WASI preview 1. An exit status is a byte, as everywhere, where the engine takes those below 126 alone.
fn core_linker(engine: &Engine) -> wasmtime::Result<Linker<CoreState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p1::add_to_linker_async(&mut linker, |state: &mut CoreState| &mut state.wasi)?;
    linker.allow_shadowing(true);
    linker.func_wrap(
        "wasi_snapshot_preview1",
        "proc_exit",
        |status: i32| -> wasmtime::Result<()> { Err(I32Exit(status & 0xff).into()) },
    )?;
    linker.allow_shadowing(false);
    // For the test that a defect of ours ends one run and not the host.
    #[cfg(debug_assertions)]
    linker.func_wrap("leasehold_failpoint", "panic", failpoint)?;
    Ok(linker)
}

#[cfg(debug_assertions)]
fn failpoint() {
    std::panic::panic_any("failpoint");
}

/// WASI 0.2 with outgoing HTTP, which is denied when it is used.
fn component_linker(engine: &Engine) -> wasmtime::Result<ComponentLinker<ComponentState>> {
    let mut linker = ComponentLinker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    Ok(linker)
}
