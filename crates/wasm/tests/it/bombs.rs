//! Modules that were made to be dear: to compile, to load or to begin. Each comes to its end within the bounds
//! of the process that has it, and that end has a name.

use std::time::{Duration, Instant};

use leasehold_core::end::ExitStatus;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::{FromHost, Kind, Load, Refused, Report, RunLimits, ToHost, body};

use crate::binary::{
    Binary, CODE, DATA, ELEMENTS, EXPORTS, FUNCTIONS, GLOBALS, IMPORTS, MEMORIES, NOTHING, TABLES,
    TYPES, command, export, number, sized,
};
use crate::compile::compile;
use crate::guests;
use crate::host::{Host, start};
use crate::rig::{limits, sealed};

/// What the compiler may use here: seconds of a processor, and bytes of memory.
const CPU_SECONDS: &str = "20";
const MEMORY: &str = "1073741824";
const MODULE_BYTES: &str = "67108864";
/// Longest that one may take on a slow machine on which much else runs.
const LONGEST: Duration = Duration::from_secs(180);

/// How a module must end.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The compiler says that it is no valid module, in these words among others.
    Malformed(&'static str),
    /// The compiler is ended by a bound.
    CompileLimit,
    /// The host does not load it, and says so in these words.
    Unfit(&'static str),
    /// It is not begun, for want of memory.
    Memory,
    /// It runs and ends well.
    Runs,
}

const I32: u8 = 0x7f;
const NOP: u8 = 0x01;
const END: u8 = 0x0b;

/// `count` blocks, each in the one before it.
fn nested(count: usize) -> Vec<u8> {
    let body = [
        &[0][..],
        &[0x02, 0x40].repeat(count),
        &[END].repeat(count + 1),
    ]
    .concat();
    command(&body, |module| module)
}

/// `count` tables of `targets` branches, of which nobody can know beforehand which is taken.
fn branches(count: usize, targets: u64) -> Vec<u8> {
    const GLOBAL_GET: u8 = 0x23;
    let table = [
        &[0x02, 0x40, GLOBAL_GET, 0, 0x0e][..],
        &number(targets),
        &vec![0; targets as usize + 1],
        &[END],
    ]
    .concat();
    let body = [&[0][..], &table.repeat(count), &[END]].concat();
    command(&body, |module| {
        module.many(GLOBALS, 1, &[I32, 1, 0x41, 0, END])
    })
}

/// One function of so many instructions that do nothing.
fn long(instructions: usize) -> Vec<u8> {
    let body = [&[0][..], &[NOP].repeat(instructions), &[END]].concat();
    command(&body, |module| module)
}

/// One function with so many variables.
fn variables(count: u64) -> Vec<u8> {
    let body = [&[1][..], &number(count), &[I32, END]].concat();
    command(&body, |module| module)
}

/// So many functions of a few instructions.
fn functions(count: usize) -> Vec<u8> {
    let small = sized(&[0, NOP, END]);
    Binary::default()
        .many(TYPES, 1, NOTHING)
        .many(FUNCTIONS, count, &[0])
        .section(EXPORTS, &[export("_start", 0, 0)])
        .many(CODE, count, &small)
        .bytes()
}

/// So many types, each another one: of `n` parameters.
fn types(count: usize) -> Vec<u8> {
    Binary::default()
        .many(TYPES, count, NOTHING)
        .many(FUNCTIONS, 1, &[0])
        .section(EXPORTS, &[export("_start", 0, 0)])
        .section(CODE, &[sized(&[0, END])])
        .bytes()
}

/// One type of so many parameters.
fn parameters(count: usize) -> Vec<u8> {
    let wide = [
        &[0x60][..],
        &number(count as u64),
        &[I32].repeat(count),
        &[0],
    ]
    .concat();
    Binary::default()
        .section(TYPES, &[NOTHING.to_vec(), wide])
        .many(FUNCTIONS, 1, &[0])
        .section(EXPORTS, &[export("_start", 0, 0)])
        .section(CODE, &[sized(&[0, END])])
        .bytes()
}

/// So many functions asked of the host, each by another name.
fn imports(count: usize) -> Vec<u8> {
    let asked: Vec<Vec<u8>> = (0..count)
        .map(|at| [sized(b"env"), export(&format!("f{at}"), 0, 0)].concat())
        .collect();
    Binary::default()
        .many(TYPES, 1, NOTHING)
        .section(IMPORTS, &asked)
        .many(FUNCTIONS, 1, &[0])
        .section(EXPORTS, &[export("_start", 0, count as u64)])
        .section(CODE, &[sized(&[0, END])])
        .bytes()
}

/// So many names for one function besides its own.
fn exports(count: usize, name: impl Fn(usize) -> String) -> Vec<u8> {
    let names = (0..count).map(|at| export(&name(at), 0, 0));
    let all: Vec<_> = names.chain([export("_start", 0, 0)]).collect();
    Binary::default()
        .many(TYPES, 1, NOTHING)
        .many(FUNCTIONS, 1, &[0])
        .section(EXPORTS, &all)
        .section(CODE, &[sized(&[0, END])])
        .bytes()
}

fn globals(count: usize) -> Vec<u8> {
    command(&[0, END], |module| {
        module.many(GLOBALS, count, &[I32, 1, 0x41, 0, END])
    })
}

/// A memory of so many pages at its begin.
fn memory(pages: u64) -> Vec<u8> {
    let memory = [&[0][..], &number(pages)].concat();
    command(&[0, END], |module| module.section(MEMORIES, &[memory]))
}

fn memories(count: usize) -> Vec<u8> {
    command(&[0, END], |module| module.many(MEMORIES, count, &[0, 1]))
}

/// So many tables of so many elements at their begin.
fn tables(count: usize, elements: u64) -> Vec<u8> {
    let table = [&[0x70, 0][..], &number(elements)].concat();
    command(&[0, END], |module| module.many(TABLES, count, &table))
}

/// So many pieces of data, one byte each, all at one place.
fn data(count: usize) -> Vec<u8> {
    Binary::default()
        .many(TYPES, 1, NOTHING)
        .many(FUNCTIONS, 1, &[0])
        .section(MEMORIES, &[vec![0, 1]])
        .section(EXPORTS, &[export("_start", 0, 0)])
        .section(CODE, &[sized(&[0, END])])
        .many(DATA, count, &[0, 0x41, 0, END, 1, b'x'])
        .bytes()
}

/// So many lists of elements, each of one function.
fn elements(count: usize) -> Vec<u8> {
    Binary::default()
        .many(TYPES, 1, NOTHING)
        .many(FUNCTIONS, 1, &[0])
        .section(TABLES, &[vec![0x70, 0, 1]])
        .section(EXPORTS, &[export("_start", 0, 0)])
        .many(ELEMENTS, count, &[0, 0x41, 0, END, 1, 0])
        .section(CODE, &[sized(&[0, END])])
        .bytes()
}

/// A section that says it is as long as can be said.
fn boasts() -> Vec<u8> {
    let mut bytes = Binary::default().bytes();
    bytes.push(TYPES);
    bytes.extend(number(u64::from(u32::MAX)));
    bytes.extend([0xff; 64]);
    bytes
}

/// A component in a component, so many times.
fn components(depth: usize) -> Vec<u8> {
    const HEAD: &[u8] = b"\0asm\x0d\0\x01\0";
    (0..depth).fold(HEAD.to_vec(), |inner, _| {
        [HEAD, &[4], &sized(&inner)].concat()
    })
}

/// A component that makes so many instances of one small module.
fn instances(count: usize) -> Vec<u8> {
    let made = "(core instance (instantiate $m))".repeat(count);
    let text = format!(
        r#"(component (core module $m (memory 1) (func (export "run") (result i32) (i32.const 0)))
           {made} (core instance $i (instantiate $m))
           (func $run (result (result)) (canon lift (core func $i "run")))
           (instance $out (export "run" (func $run))) (export "wasi:cli/run@0.2.0" (instance $out)))"#
    );
    wat::parse_str(text).unwrap()
}

/// Those that are refused for what they are: an order of magnitude above anything that is made by a compiler.
fn malformed() -> Vec<(&'static str, Vec<u8>, End)> {
    let named = |length| exports(1, move |_| "n".repeat(length));
    vec![
        ("a long function", long(8_000_000), End::Malformed("size")),
        (
            "many variables",
            variables(60_000),
            End::Malformed("locals"),
        ),
        (
            "very many variables",
            variables(u64::from(u32::MAX)),
            End::Malformed("locals"),
        ),
        (
            "many parameters",
            parameters(2_000),
            End::Malformed("param"),
        ),
        (
            "many types",
            types(1_100_000),
            End::Malformed("types count"),
        ),
        (
            "a table of very many branches",
            branches(1, 70_000),
            End::Malformed("br_table"),
        ),
        ("a long name", named(200_000), End::Malformed("string size")),
        ("many pieces of data", data(150_000), End::Malformed("data")),
        (
            "many globals",
            globals(1_100_000),
            End::Malformed("globals count"),
        ),
        (
            "many memories",
            memories(200),
            End::Malformed("memories count"),
        ),
        (
            "many tables",
            tables(200, 1),
            End::Malformed("tables count"),
        ),
        (
            "a memory beyond what can be addressed",
            memory(70_000),
            End::Malformed("memory"),
        ),
        ("a section that boasts", boasts(), End::Malformed("")),
    ]
}

/// Those that are valid, and whose cost the compiler's process bounds or bears.
fn dear() -> Vec<(&'static str, Vec<u8>, End)> {
    vec![
        ("deeply nested blocks", nested(3_000), End::Runs),
        (
            "tables of branches without end",
            branches(40, 65_000),
            End::CompileLimit,
        ),
        ("thousands of functions", functions(8_000), End::Runs),
        ("thousands of globals", globals(20_000), End::Runs),
        ("thousands of types", types(100_000), End::Runs),
        ("thousands of pieces of data", data(50_000), End::Runs),
        (
            "thousands of lists of elements",
            elements(50_000),
            End::Runs,
        ),
        (
            "thousands of exports",
            exports(50_000, |at| format!("f{at}")),
            End::Runs,
        ),
        (
            "a name of a hundred thousand bytes",
            exports(1, |_| "n".repeat(99_999)),
            End::Runs,
        ),
        (
            "a component in a component",
            components(2_000),
            End::Unfit("wasi:cli/run"),
        ),
        (
            "thousands of imports",
            imports(20_000),
            End::Unfit("unknown import"),
        ),
        ("all memory there is", memory(65_536), End::Memory),
        (
            "a table of ten million",
            tables(1, 10_000_000),
            End::Unfit("exceeds the limit"),
        ),
        (
            "tables that are too many together",
            tables(16, 500_000),
            End::Memory,
        ),
        ("more memories than a run has", memories(90), End::Unfit("")),
        ("more tables than a run has", tables(90, 1), End::Unfit("")),
        (
            "more instances than a run has",
            instances(500),
            End::Unfit(""),
        ),
    ]
}

/// What the compiler and, where it made code, the host make of it.
fn judge(host: &mut Host, at: u32, wasm: &[u8]) -> (End, String) {
    use std::os::unix::process::ExitStatusExt as _;
    let made = compile(wasm, [CPU_SECONDS, MEMORY, MODULE_BYTES]);
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    match (made.status.code(), made.status.signal()) {
        (Some(0), _) => {}
        (Some(65), _) => return (End::Malformed(""), said),
        // Its time is over, or it gives up for want of memory.
        (None, Some(24 | 9 | 6)) => return (End::CompileLimit, said),
        _ => panic!("{:?}: {said}", made.status),
    }
    let kind = match said.trim() {
        "core" => Kind::Core,
        _ => Kind::Component,
    };
    let flavour = leasehold_protocol::wasm::Flavour::Plain;
    let load = body(&Load { kind, flavour }).unwrap();
    host.send(ToHost::Load, at, &load, &[sealed(&made.stdout).into()]);
    let answer = host.next().expect("the host is gone");
    if FromHost::of(answer.kind) == Some(FromHost::Refused) {
        return (End::Unfit(""), answer.read::<Refused>().unwrap().message);
    }
    host.start(at, &start(at, limits()), &[]);
    let report: Report = host.ended(at).1;
    let told = format!("{report:?}");
    assert_eq!(report.crashed, None, "{told}");
    let end = match (&report.killed_by, &report.exit) {
        (Some(hit), _) if hit.which == Resource::Memory => End::Memory,
        (None, Some(ExitStatus::Exit { code: 0 })) => End::Runs,
        (None, Some(ExitStatus::NotExecutable)) => End::Unfit(""),
        _ => panic!("{told}"),
    };
    (end, told)
}

fn judged(cases: Vec<(&'static str, Vec<u8>, End)>) {
    let mut host = Host::spawn(false);
    host.load(0, &guests::hello());
    let mut wrong = Vec::new();
    for (at, (name, wasm, wanted)) in (1..).zip(cases) {
        let begun = Instant::now();
        let (end, said) = judge(&mut host, at, &wasm);
        let took = begun.elapsed();
        eprintln!("{name}: {} bytes, {end:?} after {took:?}", wasm.len());
        let words = match wanted {
            End::Malformed(words) | End::Unfit(words) => words,
            _ => "",
        };
        let same = std::mem::discriminant(&end) == std::mem::discriminant(&wanted);
        if !same || !said.contains(words) || took > LONGEST {
            wrong.push(format!(
                "{name}: {end:?}, not {wanted:?}, after {took:?}: {said}"
            ));
        }
        // Whoever was in the same host goes on.
        host.start(0, &start(0, limits()), &[]);
        assert_eq!(host.ended(0).0, b"hello\n", "after {name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_module_beyond_all_measure_is_refused_for_what_it_is() {
    judged(malformed());
}

#[test]
fn a_dear_module_ends_by_a_name_and_hurts_nobody() {
    judged(dear());
}

/// With twice the memory a run begins that was refused for want of it: the refusal was about memory alone.
#[test]
fn what_was_refused_for_memory_runs_where_there_is_enough() {
    let mut host = Host::spawn(false);
    for (at, wasm) in [(1, memory(2_048)), (2, tables(1, 900_000))] {
        let made = compile(&wasm, [CPU_SECONDS, MEMORY, MODULE_BYTES]);
        host.load_code(at, Kind::Core, &made.stdout);
        for (memory_bytes, table_elements, well) in
            [(8 << 20, 1 << 20, false), (256 << 20, 1 << 20, true)]
        {
            let room = RunLimits {
                memory_bytes,
                table_elements,
                ..limits()
            };
            host.start(at, &start(at, room), &[]);
            let report = host.ended(at).1;
            assert_eq!(
                report.exit == Some(ExitStatus::Exit { code: 0 }),
                well,
                "{report:?}"
            );
            assert_eq!(report.killed_by.is_some(), !well, "{report:?}");
        }
    }
}
