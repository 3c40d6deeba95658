//! Every way a module can end, as its record tells it.

use std::fs::File;
use std::io::Write as _;

use leasehold_core::contract::Enforcement;
use leasehold_core::end::{CancelledBy, EndReason, ExitStatus};
use leasehold_core::isolation::Isolation;
use leasehold_core::limits::{Limit, OnDenied, OnOutputLimit, Resource};
use leasehold_protocol::supervisor::{Event, Request};

use crate::guests;
use crate::rig::{Bench, Done, Order};

fn hit(done: &Done) -> (Resource, u64) {
    match done.end() {
        EndReason::ResourceExceeded { hit, .. } => (hit.which, hit.limit),
        other => panic!("{other:?}, {:?}", done.record.module),
    }
}

#[test]
fn a_module_runs_in_a_sandbox_and_its_contract_says_so() {
    let Some(mut bench) = Bench::new("a_module_runs_in_a_sandbox_and_its_contract_says_so") else {
        return;
    };
    // Arguments, then the environment, as the module gets them.
    let mut order = Order::of(guests::module(
        "(drop (call $args_sizes_get (i32.const 0) (i32.const 4)))
         (drop (call $args_get (i32.const 100) (i32.const 1000)))
         (drop (call $put (i32.const 1) (i32.const 1000) (i32.load (i32.const 4))))
         (drop (call $environ_sizes_get (i32.const 0) (i32.const 4)))
         (drop (call $environ_get (i32.const 100) (i32.const 1000)))
         (drop (call $put (i32.const 1) (i32.const 1000) (i32.load (i32.const 4))))",
    ));
    order.exec.argv.push("one two".to_owned());
    order
        .exec
        .env
        .insert("LD_PRELOAD".into(), "/evil.so".into());
    let done = bench.run(&order);
    assert_eq!(
        *done.end(),
        EndReason::Completed,
        "{:?}",
        done.record.module
    );
    assert_eq!(done.stdout, b"guest.wasm\0one two\0LD_PRELOAD=/evil.so\0");
    let contract = done.record.contract.unwrap();
    assert_eq!(
        (&*contract.backend, contract.isolation),
        ("wasm", Isolation::Wasm)
    );
    assert_eq!(contract.program, order.exec.module);
    assert_eq!(contract.env_names, ["LD_PRELOAD"]);
    let host = contract.posture.host.unwrap();
    assert!(
        host.places.is_empty() && host.seccomp_sha256.len() == 64,
        "{host:?}"
    );
    let held = contract
        .enforcement
        .iter()
        .filter(|row| row.how == Enforcement::Enforced);
    let held: Vec<Resource> = held.map(|row| row.which).collect();
    for which in [
        Resource::Memory,
        Resource::Wall,
        Resource::Output,
        Resource::Stack,
        Resource::Handles,
    ] {
        assert!(held.contains(&which), "{which:?} of {held:?}");
    }
    // One process with one thread of its own, and as many open files as are standard, are enough for it.
    let order = Order::of(guests::hello()).bounded(|spec| {
        spec.limits.pids = Limit::asked(1);
        spec.limits.files = Limit::asked(16);
        spec.limits.memory_bytes = Limit::asked(8 << 20);
    });
    let done = bench.run(&order);
    assert_eq!(
        (done.end(), &*done.stdout),
        (&EndReason::Completed, &b"hello\n"[..])
    );
}

#[test]
fn statuses_and_traps_are_the_module_s_own() {
    let Some(mut bench) = Bench::new("statuses_and_traps_are_the_module_s_own") else {
        return;
    };
    for code in [1, 125, 137, 255] {
        let done = bench.ran(&guests::exits(code.into()));
        let exit = ExitStatus::Exit { code };
        assert_eq!(done.record.exit, Some(exit.clone()));
        assert_eq!(*done.end(), EndReason::ToolError { exit });
    }
    let done = bench.ran(&guests::with("(func $inner unreachable)", "(call $inner)"));
    let EndReason::ToolError {
        exit: ExitStatus::Trap { name },
    } = done.end()
    else {
        panic!("{:?}", done.end());
    };
    assert_eq!(name, "wasm `unreachable` instruction executed");
    assert_eq!(done.end().cli_status(), 134);
    let told = done.record.module.as_ref().unwrap();
    assert!(told.backtrace[0].starts_with("inner "), "{told:?}");
    assert!(told.memory_peak_bytes >= 64 << 10);
    // What imports something that there is not is no crash of ours, and says what.
    let done = bench.ran(r#"(module (import "env" "no" (func)) (memory (export "memory") 1) (func (export "_start")))"#);
    let exit = ExitStatus::NotExecutable;
    assert_eq!(*done.end(), EndReason::ToolError { exit });
    let detail = done.record.module.unwrap().detail.unwrap();
    assert!(detail.contains("env"), "{detail}");
}

#[test]
fn memory_stack_and_instructions_are_named_with_the_limit_that_was_set() {
    let Some(mut bench) = Bench::new("memory_stack_and_instructions_are_named") else {
        return;
    };
    // Grows by 100 pages of 64 KiB; exits with 9 where it cannot.
    let grows = "(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then (call $proc_exit (i32.const 9))))";
    let order = |bytes: u64, kill: bool| {
        Order::of(guests::module(grows)).bounded(|spec| {
            spec.limits.memory_bytes = Limit::asked(bytes);
            spec.limits.on_denied = if kill { OnDenied::Kill } else { OnDenied::Note };
        })
    };
    // The control: it fits.
    assert_eq!(
        *bench.run(&order(16 << 20, true)).end(),
        EndReason::Completed
    );
    let limit = 4 << 20;
    // The least a sandbox can be asked for is above this: so the module asks for more.
    let most = 8 << 20;
    let many = grows.replace("100", "200");
    let large = |kill| {
        let mut order = order(most, kill);
        order.text = guests::module(&many);
        order
    };
    assert!(limit < most);
    let done = bench.run(&large(false));
    assert_eq!(hit(&done), (Resource::Memory, most));
    assert_eq!(done.record.exit, Some(ExitStatus::Exit { code: 9 }));
    let done = bench.run(&large(true));
    assert_eq!(
        (hit(&done), done.record.exit),
        ((Resource::Memory, most), None)
    );
    let done = bench.ran(&guests::with("(func $f (call $f))", "(call $f)"));
    assert_eq!(hit(&done).0, Resource::Stack);
    let done = bench.run(&Order::of(guests::spins()).fuel(100_000));
    assert_eq!(hit(&done), (Resource::Fuel, 100_000));
    let used = done.record.module.unwrap().fuel_used.unwrap();
    assert!(used <= 100_000 && used > 90_000, "{used}");
}

#[test]
fn time_ends_a_module_asleep_and_one_that_computes() {
    let Some(mut bench) = Bench::new("time_ends_a_module_asleep_and_one_that_computes") else {
        return;
    };
    for text in [guests::sleeps(), guests::spins()] {
        for grace_ms in [0, 20_000] {
            let order = Order::of(text.clone()).bounded(|spec| {
                spec.limits.wall_ms = Limit::asked(400);
                spec.limits.grace_ms = grace_ms;
            });
            let done = bench.run(&order);
            assert_eq!(*done.end(), EndReason::Timeout { limit_ms: 400 });
        }
    }
    let order = Order::of(guests::spins()).bounded(|spec| {
        spec.limits.cpu_time_ms = Some(Limit::asked(200));
    });
    assert_eq!(hit(&bench.run(&order)), (Resource::CpuTime, 200));
}

#[test]
fn a_module_is_cancelled_within_its_grace() {
    let Some(mut bench) = Bench::new("a_module_is_cancelled_within_its_grace") else {
        return;
    };
    let says = "(drop (call $put (i32.const 1) (i32.const 0) (i32.const 1)))";
    let order = Order::of(guests::module(&format!("{says} {}", guests::SLEEPS)))
        .bounded(|spec| spec.limits.grace_ms = 60_000);
    let (run, tag) = bench.order(&order);
    let mut asked = false;
    let done = bench.follow(tag, |client, event, _| {
        if matches!(event, Event::Output { stdout: 1.., .. }) && !asked {
            asked = true;
            let (run, by) = (run.clone(), CancelledBy::Caller);
            client
                .call(
                    Request::Cancel {
                        run,
                        by,
                        at_once: false,
                    },
                    &[],
                )
                .unwrap();
        }
    });
    let by = CancelledBy::Caller;
    assert_eq!(*done.end(), EndReason::Cancelled { by });
    // Its host had the time to say what it had seen by then.
    assert!(done.record.module.is_some());
}

#[test]
fn output_is_counted_and_cut_by_the_supervisor() {
    let Some(mut bench) = Bench::new("output_is_counted_and_cut_by_the_supervisor") else {
        return;
    };
    let order = |action| {
        Order::of(guests::floods(100)).bounded(|spec| {
            spec.limits.output_bytes = Limit::asked(100_000);
            spec.limits.on_output_limit = action;
        })
    };
    let done = bench.run(&order(OnOutputLimit::Cut));
    assert_eq!(*done.end(), EndReason::Completed);
    let stdout = done.record.stdout;
    assert_eq!(
        (stdout.written, stdout.kept, stdout.truncated),
        (100 * 32_768, 100_000, true)
    );
    let done = bench.run(&order(OnOutputLimit::Kill));
    assert_eq!(hit(&done), (Resource::Output, 100_000));
}

#[test]
fn input_reaches_a_module_and_ends() {
    let Some(mut bench) = Bench::new("input_reaches_a_module_and_ends") else {
        return;
    };
    let mut order = Order::of(guests::copies());
    order.exec.stdin = true;
    let bytes: Vec<u8> = (0..600_000u32).map(|at| (at % 251) as u8).collect();
    let (_, tag) = bench.order(&order);
    let mut writer = None;
    let done = bench.follow(tag, |_, event, fds| {
        if matches!(event, Event::Accepted { input: true, .. }) {
            let (mut input, bytes) = (File::from(fds.pop().unwrap()), bytes.clone());
            writer = Some(std::thread::spawn(move || input.write_all(&bytes).unwrap()));
        }
    });
    writer.unwrap().join().unwrap();
    assert_eq!(*done.end(), EndReason::Completed);
    assert!(
        done.stdout == bytes,
        "{} bytes came back",
        done.stdout.len()
    );
}
