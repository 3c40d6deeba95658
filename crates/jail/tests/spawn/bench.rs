//! How long a sandbox takes to make and to be gone: `cargo test -p leasehold-jail --test spawn --
//! --bench [count] [pause in ms]`. Prints; fails nothing, since machines differ.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::rig::{make, spawner, spec};

pub(crate) fn run(args: &[String]) -> ExitCode {
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let count = numbers.next().unwrap_or(200);
    let pause = Duration::from_millis(numbers.next().unwrap_or(0));
    let began = Instant::now();
    let mut spawner = match spawner(None) {
        Ok(spawner) => spawner,
        Err(error) => {
            println!("no spawner: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("spawner ready: {} us", began.elapsed().as_micros());
    let (mut made, mut gone) = (Vec::new(), Vec::new());
    for _ in 0..count {
        std::thread::sleep(pause);
        let began = Instant::now();
        match make(&mut spawner, &spec(), None) {
            Ok(sandbox) => {
                made.push(began.elapsed());
                let began = Instant::now();
                drop(sandbox);
                gone.push(began.elapsed());
            }
            Err(error) => {
                println!("not made: {error} ({:?})", error.errno());
                return ExitCode::FAILURE;
            }
        }
    }
    show("make", &mut made);
    show("kill and reap", &mut gone);
    ExitCode::SUCCESS
}

fn show(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_micros();
    println!(
        "{what}: min {} p10 {} p50 {} p95 {} us",
        at(0),
        at(10),
        at(50),
        at(95)
    );
}
