//! Guests as WebAssembly text. Tests of the crate `backend` use them too.

/// A module with WASI functions imported, one page of memory, and this body of `_start`.
pub(crate) fn module(body: &str) -> String {
    with("", body)
}

/// The same with more fields.
pub(crate) fn with(fields: &str, body: &str) -> String {
    let wasi = "wasi_snapshot_preview1";
    format!(
        r#"(module
  (import "{wasi}" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "{wasi}" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "{wasi}" "proc_exit" (func $proc_exit (param i32)))
  (import "{wasi}" "poll_oneoff" (func $poll_oneoff (param i32 i32 i32 i32) (result i32)))
  (import "{wasi}" "random_get" (func $random_get (param i32 i32) (result i32)))
  (import "{wasi}" "clock_time_get" (func $clock_time_get (param i32 i64 i32) (result i32)))
  (import "{wasi}" "args_sizes_get" (func $args_sizes_get (param i32 i32) (result i32)))
  (import "{wasi}" "args_get" (func $args_get (param i32 i32) (result i32)))
  (import "{wasi}" "environ_sizes_get" (func $environ_sizes_get (param i32 i32) (result i32)))
  (import "{wasi}" "environ_get" (func $environ_get (param i32 i32) (result i32)))
  (import "{wasi}" "path_open" (func $path_open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
  (import "{wasi}" "path_create_directory" (func $path_create_directory (param i32 i32 i32) (result i32)))
  (import "{wasi}" "path_remove_directory" (func $path_remove_directory (param i32 i32 i32) (result i32)))
  (import "{wasi}" "fd_close" (func $fd_close (param i32) (result i32)))
  (import "{wasi}" "fd_prestat_dir_name" (func $fd_prestat_dir_name (param i32 i32 i32) (result i32)))
  (import "{wasi}" "path_link" (func $path_link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (import "{wasi}" "path_rename" (func $path_rename (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "{wasi}" "path_symlink" (func $path_symlink (param i32 i32 i32 i32 i32) (result i32)))
  (import "{wasi}" "path_unlink_file" (func $path_unlink_file (param i32 i32 i32) (result i32)))
  (import "{wasi}" "fd_renumber" (func $fd_renumber (param i32 i32) (result i32)))
  (import "{wasi}" "fd_prestat_get" (func $fd_prestat_get (param i32 i32) (result i32)))
  (import "{wasi}" "sock_accept" (func $sock_accept (param i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  {fields}
  ;; Writes `len` bytes at `at` to descriptor `fd`; the answer is the errno.
  (func $put (param $fd i32) (param $at i32) (param $len i32) (result i32)
    (i32.store (i32.const 65000) (local.get $at))
    (i32.store (i32.const 65004) (local.get $len))
    (call $fd_write (local.get $fd) (i32.const 65000) (i32.const 1) (i32.const 65008)))
  ;; Writes an errno as two digits and a space.
  (func $tell (param $errno i32)
    (i32.store8 (i32.const 65016) (i32.add (i32.const 48) (i32.div_u (local.get $errno) (i32.const 10))))
    (i32.store8 (i32.const 65017) (i32.add (i32.const 48) (i32.rem_u (local.get $errno) (i32.const 10))))
    (i32.store8 (i32.const 65018) (i32.const 32))
    (drop (call $put (i32.const 1) (i32.const 65016) (i32.const 3))))
  (func (export "_start") {body}))"#
    )
}

/// Says hello.
pub(crate) fn hello() -> String {
    with(
        r#"(data (i32.const 0) "hello\n")"#,
        "(drop (call $put (i32.const 1) (i32.const 0) (i32.const 6)))",
    )
}

/// Ends with a status.
pub(crate) fn exits(status: i32) -> String {
    module(&format!("(call $proc_exit (i32.const {status}))"))
}

/// What computes for ever.
pub(crate) const SPINS: &str = "(loop $again (br $again))";
/// What sleeps for an hour in one call.
pub(crate) const SLEEPS: &str = "
    (i32.store8 (i32.const 8) (i32.const 0)) ;; a clock
    (i32.store (i32.const 16) (i32.const 1)) ;; monotonic
    (i64.store (i32.const 24) (i64.const 3600000000000))
    (drop (call $poll_oneoff (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 256)))";

/// Computes for ever.
pub(crate) fn spins() -> String {
    module(SPINS)
}

/// Sleeps for an hour in one call.
pub(crate) fn sleeps() -> String {
    module(SLEEPS)
}

/// Writes 64 KiB at a time, for ever or `times` times.
pub(crate) fn floods(times: i32) -> String {
    module(&format!(
        "(local $left i32)
         (local.set $left (i32.const {times}))
         (loop $again
           (drop (call $put (i32.const 1) (i32.const 0) (i32.const 32768)))
           (local.set $left (i32.sub (local.get $left) (i32.const 1)))
           (br_if $again (local.get $left)))"
    ))
}

/// Copies its input to its output.
pub(crate) fn copies() -> String {
    module(
        "(local $got i32)
         (loop $again
           (i32.store (i32.const 0) (i32.const 1024))
           (i32.store (i32.const 4) (i32.const 30000))
           (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))
             (then (call $proc_exit (i32.const 1))))
           (local.set $got (i32.load (i32.const 8)))
           (drop (call $put (i32.const 1) (i32.const 1024) (local.get $got)))
           (br_if $again (local.get $got)))",
    )
}

/// Writes 32 random bytes and what both clocks say.
pub(crate) fn entropy() -> String {
    module(
        "(drop (call $random_get (i32.const 0) (i32.const 32)))
         (drop (call $clock_time_get (i32.const 0) (i64.const 1) (i32.const 32)))
         (drop (call $clock_time_get (i32.const 1) (i64.const 1) (i32.const 40)))
         (f32.store (i32.const 48) (f32.div (f32.const 0) (f32.load (i32.const 60000))))
         (drop (call $put (i32.const 1) (i32.const 0) (i32.const 52)))",
    )
}
