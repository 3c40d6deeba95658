//! Input, output, arguments and environment.

use leasehold_core::end::ExitStatus;
use leasehold_protocol::wasm::Flavour;
use leasehold_wasm::input::Input;
use leasehold_wasm::run::Task;

use crate::guests;
use crate::rig::{Rig, limits};

#[test]
fn input_arrives_unaltered() {
    let rig = Rig::new(Flavour::Plain);
    let bytes: Vec<u8> = (0..200_000u32).map(|at| (at * 7 % 251) as u8).collect();
    let mut task = Task::new("guest", limits());
    task.stdin = Input::whole(&bytes);
    let ran = rig.run(&rig.program(&guests::copies()), task);
    assert_eq!(ran.report.exit, Some(ExitStatus::Exit { code: 0 }));
    assert_eq!(ran.stdout, bytes);
}

#[test]
fn only_what_was_declared_is_seen() {
    let rig = Rig::new(Flavour::Plain);
    // Arguments, then the environment, as the program gets them.
    let text = guests::module(
        "(drop (call $args_sizes_get (i32.const 0) (i32.const 4)))
         (drop (call $args_get (i32.const 100) (i32.const 1000)))
         (drop (call $put (i32.const 1) (i32.const 1000) (i32.load (i32.const 4))))
         (drop (call $environ_sizes_get (i32.const 0) (i32.const 4)))
         (drop (call $environ_get (i32.const 100) (i32.const 1000)))
         (drop (call $put (i32.const 1) (i32.const 1000) (i32.load (i32.const 4))))",
    );
    let mut task = Task::new("guest", limits());
    task.argv = vec!["guest".to_owned(), "one two".to_owned(), String::new()];
    task.env = vec![("NAME".to_owned(), "value".to_owned())];
    let ran = rig.run(&rig.program(&text), task);
    assert_eq!(ran.stdout, b"guest\0one two\0\0NAME=value\0");
}

#[test]
fn a_slow_reader_holds_the_program_up_and_loses_nothing() {
    use leasehold_wasm::output::{HELD_MAX, Output};
    use wasmtime_wasi::p2::OutputStream as _;
    let mut output = Output::new(1 << 30, false);
    let mut sent = 0;
    while let Ok(room @ 1..) = output.check_write() {
        output.write(vec![b'x'; room].into()).unwrap();
        sent += room;
    }
    assert_eq!(sent, HELD_MAX);
    assert_eq!(output.take().len(), HELD_MAX);
    assert!(output.check_write().unwrap() > 0);
}
