//! Output and input: byte for byte, bounded, and never waiting for whoever reads.

use std::io::{Read, Write};
use std::time::Instant;

use leasehold_core::end::EndReason;
use leasehold_core::limits::Limit;
use leasehold_core::spec::{ExecSpec, SandboxSpec, TtySize};
use leasehold_protocol::supervisor::{Event, Target};

use crate::harness::{Supervisor, eventually, run_id, shell};

#[test]
fn both_streams_come_byte_for_byte() {
    let Some(supervisor) = Supervisor::start("streams-bytes") else {
        return;
    };
    let script = "printf 'a\\0b\\377\\n'; printf 'e\\r\\n' >&2; cat";
    let done = supervisor
        .connect()
        .run(1, SandboxSpec::default(), shell(script));
    assert_eq!(done.stdout, b"a\0b\xff\n");
    assert_eq!(done.stderr, b"e\r\n");
    assert_eq!(
        done.ended.end,
        Some(EndReason::Completed),
        "standard input is empty, not open"
    );
}

#[test]
fn an_empty_standard_input_is_of_one_run_alone() {
    let Some(supervisor) = Supervisor::start("streams-empty-input") else {
        return;
    };
    let show = "grep flags /proc/self/fdinfo/0";
    let change = format!("python3 -c 'import fcntl; fcntl.fcntl(0, 4, 0o4000)'; {show}");
    let mut client = supervisor.connect();
    let before = client.run(1, SandboxSpec::default(), shell(show)).stdout;
    let changed = client.run(2, SandboxSpec::default(), shell(&change)).stdout;
    let after = client.run(3, SandboxSpec::default(), shell(show)).stdout;
    assert_ne!(changed, before, "the change does not show");
    assert_eq!(after, before, "another sandbox's change shows");
}

#[test]
fn what_is_written_to_standard_input_arrives_and_its_end_too() {
    let Some(supervisor) = Supervisor::start("streams-stdin") else {
        return;
    };
    let mut client = supervisor.connect();
    let exec = ExecSpec {
        stdin: true,
        ..shell("cat; echo over")
    };
    client.start(1, Target::New(SandboxSpec::default()), exec, &[]);
    let (notice, mut fds) = client.next().unwrap();
    assert!(
        matches!(notice.event, Event::Accepted { input: true, .. }),
        "{notice:?}"
    );
    let mut input = std::fs::File::from(fds.pop().unwrap());
    let mut stdout = std::fs::File::from(fds.swap_remove(0));
    input.write_all(&vec![b'x'; 300_000]).unwrap();
    drop(input);
    loop {
        if let Event::Ended(record) = client.next().unwrap().0.event {
            assert_eq!(record.stdout.kept, 300_005);
            break;
        }
    }
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("xxx") && text.ends_with("xover\n"));
}

#[test]
fn a_flood_costs_no_memory() {
    let Some(supervisor) = Supervisor::start("streams-flood") else {
        return;
    };
    let mut client = supervisor.connect();
    let mut spec = SandboxSpec::default();
    spec.limits.output_bytes = Limit::asked(1 << 20);
    client.run(1, spec.clone(), shell("true"));
    let before = supervisor.rss_kb();
    let done = client.run(2, spec, shell("head -c 1073741824 /dev/zero"));
    assert_eq!(done.ended.stdout.written, 1 << 30);
    assert_eq!(done.stdout.len(), 1 << 20);
    let grown = supervisor.rss_kb().saturating_sub(before);
    assert!(grown < 4_096, "{grown} KiB more");
}

#[test]
fn single_bytes_are_all_there() {
    let Some(supervisor) = Supervisor::start("streams-single") else {
        return;
    };
    let script = "exec dd if=/dev/zero bs=1 count=50000 2>/dev/null";
    let done = supervisor
        .connect()
        .run(1, SandboxSpec::default(), shell(script));
    assert_eq!(done.stdout.len(), 50_000);
}

#[test]
fn a_grandchild_that_holds_the_output_does_not_hold_the_run() {
    let Some(supervisor) = Supervisor::start("streams-held") else {
        return;
    };
    let mut client = supervisor.connect();
    for letter in 0..5 {
        let script = "(setsid sleep 60 &) ; echo done";
        let done = client.run(letter, SandboxSpec::default(), shell(script));
        assert_eq!(done.ended.end, Some(EndReason::Completed));
        assert_eq!(done.stdout, b"done\n");
        assert!(done.took.as_millis() < 1_500, "{:?}", done.took);
        assert!(done.cleaned.cleanup.unwrap().clean());
    }
    // One that goes on writing is heard for a bounded time.
    let script = "(setsid sh -c 'while :; do echo tick; sleep 0.02; done' &) ; echo done";
    let begun = Instant::now();
    let done = client.run(9, SandboxSpec::default(), shell(script));
    assert!(begun.elapsed().as_secs() < 5);
    assert_eq!(done.ended.end, Some(EndReason::Completed));
}

#[test]
fn a_caller_that_vanishes_or_never_reads_changes_nothing() {
    let Some(supervisor) = Supervisor::start("streams-vanish") else {
        return;
    };
    let mut vanishing = supervisor.connect();
    let mut silent = supervisor.connect();
    let script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done";
    vanishing.start(1, Target::New(SandboxSpec::default()), shell(script), &[]);
    silent.start(2, Target::New(SandboxSpec::default()), shell(script), &[]);
    vanishing.next().unwrap();
    drop(vanishing);
    let records = leasehold_supervisor::records::Records::open(&supervisor.paths).unwrap();
    for letter in [1, 2] {
        eventually("the record is complete", || {
            records
                .read(&run_id(letter))
                .unwrap()
                .is_some_and(|record| record.cleanup.is_some())
        });
        let record = records.read(&run_id(letter)).unwrap().unwrap();
        assert_eq!(record.end, Some(EndReason::Completed));
        assert_eq!(record.stdout.kept, 18_890);
    }
    let done = silent.follow(Instant::now());
    assert_eq!(done.stdout.len(), 18_890);
    assert_eq!(supervisor.ledger(), [""; 0]);
}

#[test]
fn a_slow_reader_gets_the_newest_counts_and_the_end() {
    let Some(supervisor) = Supervisor::start("streams-slow") else {
        return;
    };
    let mut slow = supervisor.connect();
    // So little room that it is used up at once.
    slow.shrink();
    let mut spec = SandboxSpec::default();
    spec.limits.wall_ms = Limit::asked(4_000);
    let script = "exec dd if=/dev/zero bs=1 count=100000000 2>/dev/null";
    slow.start(1, Target::New(spec), shell(script), &[]);
    let records = leasehold_supervisor::records::Records::open(&supervisor.paths).unwrap();
    eventually("the record is complete", || {
        records
            .read(&run_id(1))
            .unwrap()
            .is_some_and(|record| record.cleanup.is_some())
    });
    let mut counts = Vec::new();
    loop {
        match slow.next().unwrap().0.event {
            Event::Output { stdout, .. } => counts.push(stdout),
            Event::Cleaned(record) => {
                assert_eq!(counts.last(), Some(&record.stdout.kept));
                break;
            }
            _ => {}
        }
    }
    assert!(counts.is_sorted());
    eprintln!("{} notices of output reached the slow reader", counts.len());
}

#[test]
fn a_terminal_has_a_size_an_input_and_an_end() {
    let Some(supervisor) = Supervisor::start("streams-tty") else {
        return;
    };
    let mut client = supervisor.connect();
    let mut exec =
        shell("test -t 0 && test -t 1 && test -t 2 && stty size; read line; echo \"got $line\"");
    exec.tty = Some(TtySize { rows: 33, cols: 77 });
    client.start(1, Target::New(SandboxSpec::default()), exec, &[]);
    let (notice, mut fds) = client.next().unwrap();
    assert!(
        matches!(notice.event, Event::Accepted { input: true, .. }),
        "{notice:?}"
    );
    let mut terminal = std::fs::File::from(fds.pop().unwrap());
    terminal.write_all(b"hello\n").unwrap();
    let record = loop {
        if let Event::Ended(record) = client.next().unwrap().0.event {
            break record;
        }
    };
    assert_eq!(record.end, Some(EndReason::Completed));
    let text = String::from_utf8(crate::harness::read(&fds[0], record.stdout.kept)).unwrap();
    assert!(
        text.contains("33 77\r\n") && text.contains("got hello\r\n"),
        "{text:?}"
    );
}
