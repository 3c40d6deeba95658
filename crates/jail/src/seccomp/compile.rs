//! From the table to a short program: a binary search over ranges of numbers, then the questions.
//!
//! The kernel runs the program once per known call when it is loaded and once per call that hangs on
//! an argument afterwards, so both its length and its depth are kept small.

use super::rule::{Arch, Branch, Rule, Test, Word};
use super::table::{NEWEST, gaps, table};

/// One instruction of classic BPF, as the kernel lays it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip when the question holds.
    pub jt: u8,
    /// Instructions to skip when it does not.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

pub(super) const LOAD: u16 = 0x20;
pub(super) const AND: u16 = 0x54;
pub(super) const RETURN: u16 = 0x06;
pub(super) const JUMP: u16 = 0x05;
pub(super) const JUMP_EQUAL: u16 = 0x15;
pub(super) const JUMP_AT_LEAST: u16 = 0x35;
pub(super) const JUMP_ANY_BIT: u16 = 0x45;

/// Offsets in `struct seccomp_data`; both instruction sets are little endian.
pub(super) const OFFSET_NR: u32 = 0;
pub(super) const OFFSET_ARCH: u32 = 4;
pub(super) const OFFSET_ARGS: u32 = 16;

pub(super) const RETURN_ALLOW: u32 = 0x7fff_0000;
pub(super) const RETURN_ERRNO: u32 = 0x0005_0000;
pub(super) const RETURN_KILL: u32 = 0x8000_0000;

const X32_BIT: u32 = 0x4000_0000;

/// From this number on, up to the next range, one rule holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: u32,
    pub(super) rule: Rule,
}

/// The rule for each number below the end of the known ones.
fn known(arch: Arch) -> Vec<Rule> {
    let refused = Rule::Errno(libc::EPERM as u16);
    let missing = Rule::Errno(libc::ENOSYS as u16);
    let mut rules = vec![refused; NEWEST as usize + 1];
    for (first, last) in gaps(arch) {
        rules[*first as usize..=*last as usize].fill(missing);
    }
    for row in table() {
        if let Some(number) = row.number(arch) {
            rules[number as usize] = row.rule;
        }
    }
    rules
}

/// Every number of 32 bits, in ranges of one rule each.
pub(super) fn ranges(arch: Arch) -> Vec<Range> {
    let missing = Rule::Errno(libc::ENOSYS as u16);
    let mut all: Vec<Range> = (0..)
        .zip(known(arch))
        .map(|(start, rule)| Range { start, rule })
        .collect();
    all.push(Range {
        start: NEWEST + 1,
        rule: missing,
    });
    if arch == Arch::X86_64 {
        // -1 is what a tracer leaves behind that skipped a call, and what programs probe with.
        all.push(Range {
            start: X32_BIT,
            rule: Rule::Kill,
        });
        all.push(Range {
            start: u32::MAX,
            rule: missing,
        });
    }
    all.dedup_by_key(|range| range.rule);
    all
}

/// Writes a program from its end to its start, so that every jump target already has its place.
#[derive(Default)]
struct Backward {
    code: Vec<Instruction>,
    known: Vec<(Rule, Label)>,
}

/// Place of an instruction, counted from the end of the program.
#[derive(Clone, Copy)]
struct Label(usize);

/// A conditional jump skips at most 255 instructions; two trampolines may come between.
const NEAR: usize = 250;

impl Backward {
    fn push(&mut self, code: u16, k: u32) -> Label {
        self.code.push(Instruction {
            code,
            jt: 0,
            jf: 0,
            k,
        });
        Label(self.code.len() - 1)
    }

    fn skip(&self, target: Label) -> usize {
        self.code.len() - target.0 - 1
    }

    fn near(&mut self, target: Label) -> Label {
        if self.skip(target) < NEAR {
            return target;
        }
        let skip = self.skip(target) as u32;
        self.push(JUMP, skip)
    }

    fn branch(&mut self, code: u16, k: u32, then: Label, otherwise: Label) -> Label {
        let then = self.near(then);
        let otherwise = self.near(otherwise);
        let (jt, jf) = (self.skip(then) as u8, self.skip(otherwise) as u8);
        self.code.push(Instruction { code, jt, jf, k });
        Label(self.code.len() - 1)
    }

    /// Makes the next instruction written fall through to `target`.
    fn fall_to(&mut self, target: Label) {
        let skip = self.skip(target) as u32;
        if skip > 0 {
            self.push(JUMP, skip);
        }
    }

    fn rule(&mut self, rule: Rule) -> Label {
        if let Some((_, label)) = self.known.iter().find(|(known, _)| *known == rule) {
            return *label;
        }
        let label = match rule {
            Rule::Allow => self.push(RETURN, RETURN_ALLOW),
            Rule::Errno(errno) => self.push(RETURN, RETURN_ERRNO | u32::from(errno)),
            Rule::Kill => self.push(RETURN, RETURN_KILL),
            Rule::If(branch) => self.question(branch),
        };
        self.known.push((rule, label));
        label
    }

    fn question(&mut self, branch: &Branch) -> Label {
        let otherwise = self.rule(branch.otherwise);
        let then = self.rule(branch.then);
        let first = match branch.test {
            Test::AnyBit(bits) => self.branch(JUMP_ANY_BIT, bits, then, otherwise),
            Test::OneOf(values) | Test::MaskedOneOf(_, values) => {
                values.iter().rev().fold(otherwise, |next, value| {
                    self.branch(JUMP_EQUAL, *value, then, next)
                })
            }
        };
        self.fall_to(first);
        if let Test::MaskedOneOf(mask, _) = branch.test {
            self.push(AND, mask);
        }
        let offset = match branch.word {
            Word::Low(arg) => u32::from(arg) * 8,
            Word::High(arg) => u32::from(arg) * 8 + 4,
        };
        self.push(LOAD, OFFSET_ARGS + offset)
    }

    fn search(&mut self, ranges: &[Range]) -> Label {
        let (left, right) = ranges.split_at(ranges.len() / 2);
        match (left, right) {
            ([], [only]) => self.rule(only.rule),
            (_, [first, ..]) => {
                let above = self.search(right);
                let below = self.search(left);
                self.branch(JUMP_AT_LEAST, first.start, above, below)
            }
            // There is a range for number 0, and halves of two or more are never empty.
            (_, []) => self.rule(Rule::Kill),
        }
    }
}

/// The program for one instruction set.
pub(super) fn compile(arch: Arch) -> Vec<Instruction> {
    assemble(arch, &ranges(arch))
}

/// The program for ranges that begin at number 0.
pub(super) fn assemble(arch: Arch, ranges: &[Range]) -> Vec<Instruction> {
    let mut program = Backward::default();
    let kill = program.rule(Rule::Kill);
    for rule in [
        Rule::Allow,
        Rule::Errno(libc::EPERM as u16),
        Rule::Errno(libc::ENOSYS as u16),
    ] {
        program.rule(rule);
    }
    let root = program.search(ranges);
    program.fall_to(root);
    let start = program.push(LOAD, OFFSET_NR);
    program.branch(JUMP_EQUAL, arch.audit(), start, kill);
    program.push(LOAD, OFFSET_ARCH);
    program.code.reverse();
    program.code
}
