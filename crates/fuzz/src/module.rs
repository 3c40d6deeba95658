//! Modules and components: compiled, loaded and run, or refused.

use std::cell::OnceCell;

use leasehold_protocol::wasm::{Flavour, RunLimits};
use leasehold_wasm::compile::Compiler;
use leasehold_wasm::run::Task;

use self::rig::{Rig, limits, sealed};

#[path = "../../wasm/tests/it/guests.rs"]
#[allow(dead_code, reason = "each crate uses some of them")]
mod guests;
#[path = "../../wasm/tests/it/rig.rs"]
#[allow(dead_code, reason = "each crate uses some of it")]
mod rig;

/// Most bytes of one. What is longer is slow, which is the compiler process's to bound.
const BYTES_MAX: usize = 32 << 10;

thread_local! {
    static MADE: OnceCell<(Rig, Compiler)> = const { OnceCell::new() };
}

/// Compiles it, and runs it for a moment where that went well.
pub(crate) fn body(data: &[u8]) {
    if data.len() > BYTES_MAX {
        return;
    }
    MADE.with(|made| {
        let (rig, compiler) = made.get_or_init(|| {
            let compiler = Compiler::new(Flavour::Plain).unwrap();
            (Rig::new(Flavour::Plain), compiler)
        });
        let Ok((kind, code)) = compiler.compile(data) else {
            return;
        };
        let Ok(program) = rig.loader.load(kind, Flavour::Plain, sealed(&code)) else {
            return;
        };
        let limits = RunLimits {
            wall_ms: 20,
            output_bytes: 4 << 10,
            ..limits()
        };
        let report = rig.run(&program, Task::new("guest", limits)).report;
        assert_eq!(report.crashed, None);
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let component = r#"(component
        (core module $m (memory 1) (func (export "run") (result i32) (i32.const 0)))
        (core instance $i (instantiate $m))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $out (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $out)))"#;
    let tables = guests::with(
        "(table $t 4 funcref) (elem (i32.const 0) $put $tell) (global $g (mut i64) (i64.const 7))
         (data $d \"passive\")",
        "(memory.init $d (i32.const 8) (i32.const 0) (i32.const 7))
         (drop (table.grow $t (ref.null func) (i32.const 10)))
         (block $a (br_table $a $a (i32.const 1)))",
    );
    let texts = [
        guests::hello(),
        guests::copies(),
        guests::entropy(),
        guests::sleeps(),
        tables,
        component.to_owned(),
    ];
    texts
        .iter()
        .map(|text| wat::parse_str(text).unwrap())
        .collect()
}
