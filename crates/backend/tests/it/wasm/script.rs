//! The commands of the suite as WebAssembly modules.

use std::sync::LazyLock;

use leasehold_backend::conformance::script::{Command, Difference, Language, PATH, Script};
use leasehold_backend::wasm::Module;
use leasehold_core::digest::Digest;
use leasehold_core::spec::ExecSpec;

use super::{guests, module, spec};

/// Modules that play the commands.
pub(super) struct Modules;

/// Plays what its first argument names by one letter.
static PLAYER: LazyLock<Module> = LazyLock::new(|| module(&player()));
/// Asks for a thread, which there is not.
static THREADS: LazyLock<Module> = LazyLock::new(|| importing("wasi", "thread-spawn"));
/// Asks for something that nobody has.
static STRANGE: LazyLock<Module> = LazyLock::new(|| importing("nowhere", "nothing"));

fn importing(from: &str, name: &str) -> Module {
    module(&format!(
        r#"(module (import "{from}" "{name}" (func (param i32) (result i32)))
             (memory (export "memory") 1) (func (export "_start")))"#
    ))
}

fn letter(script: Script) -> &'static str {
    match script {
        Script::True => "t",
        Script::False => "f",
        Script::Exit(_) => "x",
        Script::Signal => "k",
        Script::Print => "p",
        Script::Echo => "e",
        Script::Env => "v",
        Script::Pwd => "w",
        Script::Sleep | Script::Stubborn => "s",
        Script::Hog => "h",
        Script::Spin => "c",
        Script::Fill => "F",
        Script::Flood => "o",
        Script::Mark => "m",
        Script::Look => "l",
        Script::MarkAndLook => "M",
        Script::Count => "n",
        Script::Artifacts => "a",
        // Modules of their own.
        Script::Missing | Script::NotExecutable | Script::Fork => "?",
    }
}

impl Language for Modules {
    fn command(&self, script: Script) -> Command {
        let module = match script {
            Script::Fork => &*THREADS,
            Script::NotExecutable => &*STRANGE,
            _ => &*PLAYER,
        };
        let mut argv = vec!["guest.wasm".to_owned(), letter(script).to_owned()];
        if let Script::Exit(code) = script {
            argv.push(code.to_string());
        }
        let mut exec = ExecSpec::command(argv);
        exec.env.insert("PATH".to_owned(), PATH.to_owned());
        let mut named = spec(module);
        if script == Script::Missing {
            named.digest = Digest::of(b"a module that nobody has");
        }
        exec.module = Some(named);
        let module = (script != Script::Missing).then(|| module.clone());
        Command { exec, module }
    }

    fn differs(&self, difference: Difference) -> bool {
        match difference {
            Difference::Traps
            | Difference::Obeys
            | Difference::Alone
            | Difference::NoDirectory
            | Difference::NothingMissing
            | Difference::MemoryDenied
            | Difference::NoAgent => true,
        }
    }
}

/// Texts: where each is and how long.
const TEXTS: [(&str, usize, usize); 10] = [
    (r"before\0a", 100, 7),
    (r"out\00\ff\0a", 120, 6),
    (r"err\0a", 140, 4),
    (r"mark", 160, 4),
    (r"full", 170, 4),
    (r"out", 180, 3),
    (r"out/a", 190, 5),
    (r"mine", 200, 4),
    (r"out/link", 210, 8),
    (r"0\0a", 230, 2),
];

/// Puts a text of the table out.
fn put(fd: u32, text: &str) -> String {
    let (_, at, len) = TEXTS.iter().find(|(known, ..)| *known == text).unwrap();
    format!("(drop (call $put (i32.const {fd}) (i32.const {at}) (i32.const {len})))")
}

/// Address and length of a name of the table.
fn name(text: &str) -> String {
    let (_, at, len) = TEXTS.iter().find(|(known, ..)| *known == text).unwrap();
    format!("(i32.const {at}) (i32.const {len})")
}

fn player() -> String {
    let data: String = TEXTS
        .iter()
        .map(|(text, at, _)| format!("(data (i32.const {at}) \"{text}\")\n"))
        .collect();
    let fields = format!("{data}{}", functions());
    guests::with(&fields, &cases())
}

/// Functions of the player that name its files.
fn functions() -> String {
    let (mark, made, link) = (name("mark"), name("out/a"), name("out/link"));
    let (out, mine, target) = (name("out"), name("mine"), name("out/a"));
    format!(
        r#"
  ;; Opens a file of the workspace, making it if asked; the answer is the errno, the descriptor is at 64.
  (func $open (param $at i32) (param $len i32) (param $make i32) (result i32)
    (call $path_open (i32.const 3) (i32.const 0) (local.get $at) (local.get $len) (local.get $make)
      (select (i64.const 64) (i64.const 2) (local.get $make)) (i64.const 0) (i32.const 0) (i32.const 64)))
  (func $must (param $errno i32)
    (if (local.get $errno) (then (call $proc_exit (i32.const 9)))))
  (func $sleep
    (i32.store8 (i32.const 8) (i32.const 0))
    (i32.store (i32.const 16) (i32.const 1))
    (i64.store (i32.const 24) (i64.const 600000000000))
    (drop (call $poll_oneoff (i32.const 0) (i32.const 300) (i32.const 1) (i32.const 400))))
  (func $mark (call $must (call $open {mark} (i32.const 1))))
  (func $look
    (if (i32.eqz (call $open {mark} (i32.const 0))) (then (call $proc_exit (i32.const 1)))))
  (func $artifacts
    (call $must (call $path_create_directory (i32.const 3) {out}))
    (call $must (call $open {made} (i32.const 1)))
    (call $must (call $put (i32.load (i32.const 64)) {mine}))
    (call $must (call $path_symlink {target} (i32.const 3) {link})))
  (func $is (param $letter i32) (result i32)
    (i32.eq (i32.load8_u (i32.load (i32.const 1028))) (local.get $letter)))
{MORE}"#
    )
}

/// Functions of the player that name nothing.
const MORE: &str = r"
  (func $line (param $at i32)
    (local $len i32)
    (block $end (loop $next
      (br_if $end (i32.eqz (i32.load8_u (i32.add (local.get $at) (local.get $len)))))
      (local.set $len (i32.add (local.get $len) (i32.const 1)))
      (br $next)))
    (i32.store8 (i32.add (local.get $at) (local.get $len)) (i32.const 10))
    (drop (call $put (i32.const 1) (local.get $at) (i32.add (local.get $len) (i32.const 1)))))
  (func $environment
    (local $left i32) (local $at i32)
    (call $must (call $environ_sizes_get (i32.const 0) (i32.const 4)))
    (call $must (call $environ_get (i32.const 8192) (i32.const 12288)))
    (local.set $left (i32.load (i32.const 0)))
    (local.set $at (i32.const 8192))
    (block $end (loop $next
      (br_if $end (i32.eqz (local.get $left)))
      (call $line (i32.load (local.get $at)))
      (local.set $at (i32.add (local.get $at) (i32.const 4)))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br $next))))
  (func $directory
    (call $must (call $fd_prestat_get (i32.const 3) (i32.const 0)))
    (call $must (call $fd_prestat_dir_name (i32.const 3) (i32.const 1000) (i32.load (i32.const 4))))
    (call $line (i32.const 1000)))
  (func $number (param $at i32) (result i32)
    (local $value i32)
    (block $end (loop $next
      (br_if $end (i32.eqz (i32.load8_u (local.get $at))))
      (local.set $value (i32.add (i32.mul (local.get $value) (i32.const 10))
        (i32.sub (i32.load8_u (local.get $at)) (i32.const 48))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $next)))
    (local.get $value))
  ;; Writes zeros to a descriptor, up to so many, and 0 if they fit.
  (func $zeros (param $fd i32) (param $left i32) (result i32)
    (block $end (loop $next
      (br_if $end (i32.le_s (local.get $left) (i32.const 0)))
      (if (call $put (local.get $fd) (i32.const 20000) (select (local.get $left) (i32.const 32768)
          (i32.lt_u (local.get $left) (i32.const 32768))))
        (then (return (i32.const 1))))
      (local.set $left (i32.sub (local.get $left) (i32.load (i32.const 65008))))
      (br $next)))
    (i32.const 0))
  (func $copy
    (local $got i32)
    (loop $again
      (i32.store (i32.const 0) (i32.const 20000))
      (i32.store (i32.const 4) (i32.const 30000))
      (call $must (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)))
      (local.set $got (i32.load (i32.const 8)))
      (drop (call $put (i32.const 1) (i32.const 20000) (local.get $got)))
      (br_if $again (local.get $got))))
";

/// What each letter does.
fn cases() -> String {
    let before = put(1, r"before\0a");
    let open_full = format!("(call $must (call $open {} (i32.const 1)))", name("full"));
    let rows = [
        ('t', "(return)".to_owned()),
        ('f', "(call $proc_exit (i32.const 1))".to_owned()),
        (
            'x',
            "(call $proc_exit (call $number (i32.load (i32.const 1032))))".to_owned(),
        ),
        ('k', "unreachable".to_owned()),
        (
            'p',
            format!("{} {}", put(1, r"out\00\ff\0a"), put(2, r"err\0a")),
        ),
        ('e', "(call $copy)".to_owned()),
        ('v', "(call $environment)".to_owned()),
        ('w', "(call $directory)".to_owned()),
        ('s', format!("{before} (call $sleep)")),
        (
            'h',
            "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
             (call $proc_exit (i32.const 1))"
                .to_owned(),
        ),
        ('c', "(loop $ever (br $ever))".to_owned()),
        (
            'F',
            format!(
                "{open_full} (call $proc_exit (call $zeros (i32.load (i32.const 64)) (i32.const 8388608)))"
            ),
        ),
        (
            'o',
            "(drop (call $zeros (i32.const 1) (i32.const 100000)))".to_owned(),
        ),
        ('m', format!("(call $mark) {before} (call $sleep)")),
        ('l', "(call $look)".to_owned()),
        ('M', "(call $mark) (call $look)".to_owned()),
        ('n', put(1, r"0\0a")),
        ('a', "(call $artifacts)".to_owned()),
    ];
    let rows: String = rows
        .into_iter()
        .map(|(letter, body)| {
            let code = u32::from(letter);
            format!("(if (call $is (i32.const {code})) (then {body} (return)))\n")
        })
        .collect();
    format!(
        "(call $must (call $args_sizes_get (i32.const 0) (i32.const 4)))
         (call $must (call $args_get (i32.const 1024) (i32.const 4096)))
         {rows} (call $proc_exit (i32.const 99))"
    )
}
