//! The engine's library as a peer of `leasehold bench wasm --library`, which links no engine itself.
//!
//! `library MODULE`: for each line on standard input one run of the module, in this process; the answer is a line
//! with nanoseconds: the run with the library's own settings, its instance alone, and an instance in the engine as
//! the host has it.

#[path = "../benches/host/library.rs"]
mod library;

use std::io::{BufRead as _, Write as _};
use std::time::Instant;

use library::{Direct, Fallible, Instances};

fn main() -> Fallible<()> {
    let path = std::env::args_os().nth(1).ok_or("usage: library MODULE")?;
    let wasm = std::fs::read(path)?;
    let (direct, instances) = (Direct::new(&wasm)?, Instances::new(&wasm)?);
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        line?;
        let begun = Instant::now();
        let (instance, _) = direct.run()?;
        let run = begun.elapsed().as_nanos();
        let ours = instances.make()?.as_nanos();
        writeln!(out, "{run} {} {ours}", instance.as_nanos())?;
        out.flush()?;
    }
    Ok(())
}
