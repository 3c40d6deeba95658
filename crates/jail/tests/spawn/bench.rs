//! How long a sandbox takes to make and to be gone: `cargo test -p leasehold-jail --test spawn --
//! --bench [count] [pause in ms]`. Prints; fails nothing, since machines differ.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leasehold_jail::spawn::{Spawner, SpawnerConfig};

use crate::rig::{first_program, make, spawner, spec};

pub(crate) fn run(args: &[String]) -> ExitCode {
    let mut numbers = args.iter().filter_map(|arg| arg.parse::<u64>().ok());
    let count = numbers.next().unwrap_or(200);
    let pause = Duration::from_millis(numbers.next().unwrap_or(0));
    let mut started = Vec::new();
    for _ in 0..10 {
        let init = first_program();
        let began = Instant::now();
        drop(Spawner::start(SpawnerConfig {
            init,
            rootless: None,
        }));
        started.push(began.elapsed());
    }
    show("spawner start and end", &mut started);
    let mut spawner = match spawner(None) {
        Ok(spawner) => spawner,
        Err(error) => {
            println!("no spawner: {error}");
            return ExitCode::FAILURE;
        }
    };
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

/// Kernel and private memory of a parked sandbox, from the differences the kernel counts while many
/// are parked: `--park [count]`. Other work on the machine counts too.
pub(crate) fn park(args: &[String]) -> ExitCode {
    let count = args
        .iter()
        .find_map(|arg| arg.parse::<u64>().ok())
        .unwrap_or(200);
    let Ok(mut spawner) = spawner(None) else {
        return ExitCode::FAILURE;
    };
    let warm: Vec<_> = (0..20)
        .filter_map(|_| make(&mut spawner, &spec(), None).ok())
        .collect();
    let before = counters();
    let parked: Vec<_> = (0..count)
        .filter_map(|_| make(&mut spawner, &spec(), None).ok())
        .collect();
    let after = counters();
    println!("{} parked", parked.len());
    for ((name, old), (_, new)) in before.iter().zip(&after) {
        println!("{name}: {} KB each", (new - old) / count.cast_signed());
    }
    drop(warm);
    ExitCode::SUCCESS
}

fn counters() -> Vec<(String, i64)> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(name, _)| {
            [
                "Slab",
                "KernelStack",
                "PageTables",
                "Percpu",
                "Shmem",
                "AnonPages",
            ]
            .contains(name)
        })
        .filter_map(|(name, value)| {
            let value = value.trim().trim_end_matches(" kB").parse().ok()?;
            Some((name.to_owned(), value))
        })
        .collect()
}
