//! Turning one module into machine code. Hostile input makes this slow and large without bound, and it cannot
//! be stopped from inside: call it only in a process that may be killed.

use std::hash::{Hash, Hasher};

use leasehold_protocol::wasm::{Flavour, Kind};
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;

use crate::engine;

/// Most bytes of a module, unless its owner says otherwise.
pub const WASM_BYTES_MAX: u64 = 64 << 20;

/// Why there is no code.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// It is neither a module nor a component in binary form.
    #[error(
        "it is no WebAssembly binary: it begins with neither a module's nor a component's magic number"
    )]
    NotWasm,
    /// It is one, and not a valid one, or it needs what the engine has not.
    #[error("it is not a valid {kind:?}: {message}")]
    Invalid {
        /// What it says it is.
        kind: Kind,
        /// What is wrong and where.
        message: String,
    },
    /// The compiler cannot be set up on this machine.
    #[error("the compiler cannot be set up: {0}")]
    Setup(String),
}

/// A compiler for one flavour, set up before it sees any input.
pub struct Compiler {
    engine: Engine,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl Compiler {
    /// Sets one up.
    ///
    /// # Errors
    /// When the engine does not know this machine.
    pub fn new(flavour: Flavour) -> Result<Self, CompileError> {
        let engine = Engine::new(&engine::compiling(flavour))
            .map_err(|error| CompileError::Setup(format!("{error:#}")))?;
        Ok(Self { engine })
    }

    /// What code of this compiler depends on besides the module: engine, flavour and this machine's processor.
    /// Part of the key it is kept under.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let mut hash = Digest(Sha256::new());
        engine::VERSION.hash(&mut hash);
        self.engine.precompile_compatibility_hash().hash(&mut hash);
        let digest = hash.0.finalize();
        digest
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// Compiles one module or component.
    ///
    /// # Errors
    /// When it is not a valid one.
    pub fn compile(&self, wasm: &[u8]) -> Result<(Kind, Vec<u8>), CompileError> {
        let kind = Kind::of(wasm).ok_or(CompileError::NotWasm)?;
        let compiled = match kind {
            Kind::Core => self.engine.precompile_module(wasm),
            Kind::Component => self.engine.precompile_component(wasm),
        };
        let code = compiled.map_err(|error| CompileError::Invalid {
            kind,
            message: format!("{error:#}").chars().take(500).collect(),
        })?;
        Ok((kind, code))
    }
}

/// A digest that can be fed by [`Hash`]: the standard hasher may change with the compiler of this program.
struct Digest(Sha256);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_le_bytes(std::array::from_fn(|at| digest[at]))
    }
}
