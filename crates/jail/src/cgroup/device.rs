//! Which device nodes a sandbox may open, as a second layer behind its own `/dev`.
//!
//! On cgroup2 a program of the kernel's device hook, attached once to `leasehold-<instance>`; on v1
//! rules of the devices controller, set once on the same directory. Allowed are reading and writing
//! null, zero, full, random, urandom, tty, ptmx and pts, nothing else, and making no node at all.
//! Whoever mounts a block device must do so from outside.
#![allow(unsafe_code, reason = "bpf(2) has no safe wrapper in rustix")]

use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::file;

/// Character devices: major number and the lowest and highest minor number.
const ALLOWED: [(u32, u32, u32); 6] = [
    (1, 3, 3),         // null
    (1, 5, 5),         // zero
    (1, 7, 9),         // full, random, urandom
    (5, 0, 0),         // tty
    (5, 2, 2),         // ptmx
    (136, 0, 1 << 20), // pts; majors 137 to 143 continue it and no host here gets that far
];

/// One instruction as the kernel reads it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(
    code: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
) -> Instruction {
    Instruction {
        code,
        registers: source << 4 | destination,
        offset,
        immediate,
    }
}

/// `BPF_LDX | BPF_MEM | BPF_W`: load a word of the context in register 1.
const fn load(destination: u8, offset: i16) -> Instruction {
    instruction(0x61, destination, 1, offset, 0)
}
const fn move_register(destination: u8, source: u8) -> Instruction {
    instruction(0xbc, destination, source, 0, 0)
}
const fn set(destination: u8, immediate: i32) -> Instruction {
    instruction(0xb7, destination, 0, 0, immediate)
}
const fn and(destination: u8, immediate: i32) -> Instruction {
    instruction(0x54, destination, 0, 0, immediate)
}
const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);
/// Jumps of class `BPF_JMP` with an immediate: taken when equal, unequal, above, below.
const JEQ: u8 = 0x15;
const JNE: u8 = 0x55;
const JGT: u8 = 0x25;
const JLT: u8 = 0xa5;

const DEVICE_CHARACTER: i32 = 2;
const ACCESS_MKNOD: i32 = 1 << 16;

/// The program: 1 allows, 0 refuses. Context: access and type, major, minor (three words).
fn program() -> Vec<Instruction> {
    let mut code = vec![
        load(2, 0),
        load(4, 4),
        load(5, 8),
        set(0, 0),
        move_register(3, 2),
        and(2, 0xffff),
        instruction(JEQ, 2, 0, 1, DEVICE_CHARACTER),
        EXIT,
        and(3, ACCESS_MKNOD),
        instruction(JEQ, 3, 0, 1, 0),
        EXIT,
    ];
    for (major, low, high) in ALLOWED {
        code.extend([
            instruction(JNE, 4, 0, 4, major as i32),
            instruction(JLT, 5, 0, 3, low as i32),
            instruction(JGT, 5, 0, 2, high as i32),
            set(0, 1),
            EXIT,
        ]);
    }
    code.push(EXIT);
    code
}

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const PROGRAM_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;

/// First part of the kernel's `union bpf_attr` for loading; what is left out counts as zero.
#[repr(C)]
#[derive(Default)]
struct LoadOrder {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buffer: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

/// The same for attaching.
#[repr(C)]
struct AttachOrder {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
}

fn bpf<T>(command: libc::c_long, order: &T) -> rustix::io::Result<i32> {
    // SAFETY: `order` lives across the call, its size is passed with it, and the addresses inside it
    // point to buffers that the callers below keep alive; the kernel only reads all of these.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, order, size_of::<T>()) };
    match i32::try_from(answer) {
        Ok(value) if value >= 0 => Ok(value),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Loads the program and attaches it to a cgroup2 directory, in place of one of ours from before.
/// It holds for every group below and goes with the directory. Groups below can attach no other.
pub(super) fn attach_program(dir: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let code = program();
    let license = c"Apache-2.0";
    let mut name = [0; 16];
    name[..9].copy_from_slice(b"leasehold");
    let load = LoadOrder {
        program_type: PROGRAM_TYPE_CGROUP_DEVICE,
        instruction_count: code.len() as u32,
        instructions: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        name,
        expected_attach_type: ATTACH_CGROUP_DEVICE,
        ..LoadOrder::default()
    };
    let loaded = bpf(BPF_PROG_LOAD, &load)?;
    // SAFETY: the kernel has just made this descriptor for us and nobody else knows it.
    let loaded = unsafe { OwnedFd::from_raw_fd(loaded) };
    let attach = AttachOrder {
        target: dir.as_raw_fd() as u32,
        program: loaded.as_raw_fd() as u32,
        attach_type: ATTACH_CGROUP_DEVICE,
        flags: 0,
    };
    bpf(BPF_PROG_ATTACH, &attach).map(|_| ())
}

/// The same as v1 rules. For a moment nothing is allowed, for groups of a predecessor too.
pub(super) fn write_rules(dir: BorrowedFd<'_>) -> rustix::io::Result<()> {
    file::write(dir, c"devices.deny", b"a")?;
    for (major, low, high) in ALLOWED {
        if major == 136 {
            file::write(dir, c"devices.allow", b"c 136:* rw")?;
            continue;
        }
        for minor in low..=high {
            let rule = format!("c {major}:{minor} rw");
            file::write(dir, c"devices.allow", rule.as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn allows(kind: u32, access: u32, major: u32, minor: u32) -> bool {
        let context = [access << 16 | kind, major, minor];
        let code = program();
        let mut registers = [0_u64; 6];
        let mut at = 0_usize;
        loop {
            let now = code[at];
            let destination = usize::from(now.registers & 15);
            let source = usize::from(now.registers >> 4);
            let immediate = now.immediate as u64;
            let value = registers[destination];
            let jump = match now.code {
                0x61 => {
                    registers[destination] = context[now.offset as usize / 4].into();
                    false
                }
                0xbc => {
                    registers[destination] = registers[source];
                    false
                }
                0xb7 => {
                    registers[destination] = immediate;
                    false
                }
                0x54 => {
                    registers[destination] = value & immediate;
                    false
                }
                0x95 => return registers[0] == 1,
                JEQ => value == immediate,
                JNE => value != immediate,
                JGT => value > immediate,
                JLT => value < immediate,
                other => panic!("instruction {other:#x} is not used"),
            };
            at += 1 + if jump { now.offset as usize } else { 0 };
        }
    }

    #[test]
    fn only_the_listed_character_devices_may_be_opened_and_none_made() {
        const READ_WRITE: u32 = 2 | 4;
        for (major, minor) in [
            (1, 3),
            (1, 5),
            (1, 7),
            (1, 8),
            (1, 9),
            (5, 0),
            (5, 2),
            (136, 7),
        ] {
            assert!(allows(2, READ_WRITE, major, minor), "c {major}:{minor}");
            assert!(!allows(1, READ_WRITE, major, minor), "b {major}:{minor}");
            assert!(!allows(2, 1, major, minor), "mknod c {major}:{minor}");
            assert!(!allows(2, 7, major, minor), "mknod c {major}:{minor}");
        }
        for (major, minor) in [
            (1, 1),
            (1, 4),
            (1, 6),
            (1, 10),
            (1, 11),
            (4, 64),
            (5, 1),
            (5, 3),
            (10, 200),
            (10, 229),
            (10, 232),
            (10, 237),
            (0, 0),
            (135, 0),
            (137, 0),
            (u32::MAX, u32::MAX),
        ] {
            assert!(!allows(2, 2, major, minor), "c {major}:{minor}");
        }
        assert!(!allows(1, 2, 7, 0), "a loop device");
    }

    #[test]
    fn the_order_has_the_kernels_shape() {
        assert_eq!(size_of::<Instruction>(), 8);
        assert_eq!(std::mem::offset_of!(LoadOrder, name), 48);
        assert_eq!(std::mem::offset_of!(LoadOrder, expected_attach_type), 68);
    }
}
