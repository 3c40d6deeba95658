//! The compiled program against the table it came from, on both instruction sets.

use super::compile::{
    AND, JUMP, JUMP_ANY_BIT, JUMP_AT_LEAST, JUMP_EQUAL, LOAD, OFFSET_ARCH, OFFSET_ARGS, OFFSET_NR,
    RETURN, RETURN_ALLOW, RETURN_ERRNO, RETURN_KILL, ranges,
};
use super::{Arch, NEWEST, Program, Row, Rule, Test, Word, gaps, table};
use std::collections::BTreeSet;

/// What the kernel would do with the program.
fn run(program: &Program, arch: u32, nr: u32, args: [u64; 6]) -> u32 {
    let code = program.instructions();
    let (mut at, mut a) = (0usize, 0u32);
    for _ in 0..code.len() {
        let i = code[at];
        at += 1;
        let taken = match i.code {
            LOAD => {
                a = match i.k {
                    OFFSET_NR => nr,
                    OFFSET_ARCH => arch,
                    k => {
                        let arg = args[((k - OFFSET_ARGS) / 8) as usize];
                        if (k - OFFSET_ARGS).is_multiple_of(8) {
                            arg as u32
                        } else {
                            (arg >> 32) as u32
                        }
                    }
                };
                continue;
            }
            AND => {
                a &= i.k;
                continue;
            }
            RETURN => return i.k,
            JUMP => {
                at += i.k as usize;
                continue;
            }
            JUMP_EQUAL => a == i.k,
            JUMP_AT_LEAST => a >= i.k,
            JUMP_ANY_BIT => a & i.k != 0,
            other => panic!("instruction {other:#x}"),
        };
        at += usize::from(if taken { i.jt } else { i.jf });
    }
    panic!("the program does not end");
}

fn expected(rule: Rule, args: [u64; 6]) -> u32 {
    match rule.decide(args) {
        Rule::Allow => RETURN_ALLOW,
        Rule::Errno(errno) => RETURN_ERRNO | u32::from(errno),
        Rule::Kill => RETURN_KILL,
        Rule::If(_) => panic!("undecided"),
    }
}

/// Every value a rule names, its neighbours, and values that differ in the half that does not count.
fn interesting(rule: Rule, into: &mut BTreeSet<u64>) {
    let Rule::If(branch) = rule else { return };
    let values: Vec<u32> = match branch.test {
        Test::OneOf(values) | Test::MaskedOneOf(_, values) => values.to_vec(),
        Test::AnyBit(bits) => (0..32).map(|bit| bits & 1 << bit).collect(),
    };
    for value in values {
        for near in [
            value.wrapping_sub(1),
            value,
            value.wrapping_add(1),
            value ^ 0x8_0000,
        ] {
            into.extend([
                u64::from(near),
                u64::from(near) | 1 << 32,
                u64::from(near) << 32,
            ]);
        }
    }
    interesting(branch.then, into);
    interesting(branch.otherwise, into);
}

fn arguments(rule: Rule) -> Vec<[u64; 6]> {
    let mut values = BTreeSet::from([0, u64::MAX]);
    interesting(rule, &mut values);
    let mut all = Vec::new();
    for first in &values {
        for second in &values {
            for third in [
                0,
                1,
                6,
                17,
                1 << 32,
                u64::MAX,
                0xffff_ffff,
                0x8000_0000,
                *first,
            ] {
                all.push([*first, *second, third, 0, 0, 0]);
            }
        }
    }
    all
}

const ARCHES: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

#[test]
fn the_program_agrees_with_the_table() {
    for arch in ARCHES {
        let program = Program::for_arch(arch);
        for Row { name, rule, .. } in table() {
            let row = table().find(|row| row.name == *name).unwrap();
            let Some(nr) = row.number(arch) else { continue };
            for args in arguments(*rule) {
                let got = run(&program, arch.audit(), nr, args);
                assert_eq!(got, expected(*rule, args), "{arch:?} {name} {args:x?}");
            }
        }
    }
}

#[test]
fn unlisted_numbers_are_refused_or_absent() {
    let eperm = RETURN_ERRNO | libc::EPERM as u32;
    let enosys = RETURN_ERRNO | libc::ENOSYS as u32;
    for arch in ARCHES {
        let program = Program::for_arch(arch);
        let listed: BTreeSet<u32> = table().filter_map(|row| row.number(arch)).collect();
        for nr in (0..=NEWEST).filter(|nr| !listed.contains(nr)) {
            let gap = gaps(arch)
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&nr));
            let want = if gap { enosys } else { eperm };
            assert_eq!(
                run(&program, arch.audit(), nr, [0; 6]),
                want,
                "{arch:?} {nr}"
            );
        }
        for nr in [NEWEST + 1, 512, 547, 1000, 0x3fff_ffff, u32::MAX] {
            assert_eq!(
                run(&program, arch.audit(), nr, [0; 6]),
                enosys,
                "{arch:?} {nr:#x}"
            );
        }
    }
}

#[test]
fn foreign_entries_kill() {
    for arch in ARCHES {
        let program = Program::for_arch(arch);
        for foreign in [
            0x4000_0003,
            0x4000_0028,
            0,
            u32::MAX,
            arch.audit() ^ 0x4000_0000,
        ] {
            assert_eq!(
                run(&program, foreign, 1, [0; 6]),
                RETURN_KILL,
                "{arch:?} {foreign:#x}"
            );
        }
    }
    let program = Program::for_arch(Arch::X86_64);
    for nr in [
        0x4000_0000,
        0x4000_0001,
        0x4000_0200,
        0xffff_fffe,
        0x8000_0000,
    ] {
        let got = run(&program, Arch::X86_64.audit(), nr, [0; 6]);
        assert_eq!(got, RETURN_KILL, "{nr:#x}");
    }
}

#[test]
fn the_program_is_short() {
    for arch in ARCHES {
        let program = Program::for_arch(arch);
        let (length, count) = (program.instructions().len(), ranges(arch).len());
        eprintln!("{arch:?}: {length} instructions for {count} ranges");
        assert!(length < 250, "{arch:?}: {length}");
    }
}

#[test]
fn rows_are_unique_and_known() {
    for arch in ARCHES {
        let mut seen = BTreeSet::new();
        for row in table() {
            let Some(number) = row.number(arch) else {
                continue;
            };
            assert!(number <= NEWEST, "{}", row.name);
            assert!(seen.insert(number), "{arch:?} {} {number}", row.name);
            let gap = gaps(arch)
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&number));
            assert!(!gap, "{}", row.name);
        }
    }
    let names: BTreeSet<&str> = table().map(|row| row.name).collect();
    assert_eq!(names.len(), table().count());
}

/// The numbers against the kernel's own headers, for both instruction sets.
#[test]
fn numbers_are_the_kernels() {
    let headers = [
        (
            Arch::X86_64,
            "/usr/include/x86_64-linux-gnu/asm/unistd_64.h",
        ),
        (Arch::Aarch64, "/usr/include/asm-generic/unistd.h"),
    ];
    for (arch, path) in headers {
        let Ok(text) = std::fs::read_to_string(path) else {
            eprintln!("SKIP numbers_are_the_kernels: {path} is not here");
            continue;
        };
        let mut checked = 0;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["#define", name, number] = words[..] else {
                continue;
            };
            let name = name
                .strip_prefix("__NR3264_")
                .or(name.strip_prefix("__NR_"));
            let (Some(name), Ok(number)) = (name, number.parse::<u32>()) else {
                continue;
            };
            if let Some(row) = table().find(|row| row.name == name) {
                assert_eq!(row.number(arch), Some(number), "{arch:?} {name}");
                checked += 1;
            }
        }
        assert!(checked > 250, "{path}: {checked} names");
    }
}

#[test]
fn the_digest_is_of_the_program() {
    let (one, other) = (
        Program::for_arch(Arch::X86_64),
        Program::for_arch(Arch::Aarch64),
    );
    assert_eq!(one.sha256().len(), 64);
    assert_ne!(one.sha256(), other.sha256());
    assert_eq!(one.sha256(), Program::for_arch(Arch::X86_64).sha256());
}

#[test]
fn questions_look_at_halves_that_exist() {
    fn walk(rule: Rule) {
        if let Rule::If(branch) = rule {
            let (Word::Low(arg) | Word::High(arg)) = branch.word;
            assert!(arg < 6);
            walk(branch.then);
            walk(branch.otherwise);
        }
    }
    table().for_each(|row| walk(row.rule));
}
