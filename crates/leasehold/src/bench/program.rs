//! The program that every runtime is measured with: the least a process can do, as a static ELF
//! file made here byte by byte. It needs no loader, no library and no file, so what is measured is
//! the runtime alone. With `output` it writes one byte before it ends with status 0.

/// Where the one segment is mapped.
const BASE: u64 = 0x40_0000;
/// Bytes of the two headers before the code.
const HEADERS: u64 = 64 + 56;

/// The file for the architecture this program was built for; nothing on another one.
pub(crate) fn least(output: bool) -> Option<Vec<u8>> {
    let (machine, code) = match std::env::consts::ARCH {
        "x86_64" => (62, x86_64(output)),
        "aarch64" => (183, aarch64(output)),
        _ => return None,
    };
    Some(elf(machine, &code))
}

/// `write(1, code, 1)` if wanted, then `exit_group(0)`.
fn x86_64(output: bool) -> Vec<u8> {
    let mut code = Vec::new();
    if output {
        code.extend([0xb8, 1, 0, 0, 0]); // mov eax, 1
        code.extend([0xbf, 1, 0, 0, 0]); // mov edi, 1
        code.push(0xbe); // mov esi, the program's own first bytes
        code.extend((BASE as u32).to_le_bytes());
        code.extend([0xba, 1, 0, 0, 0]); // mov edx, 1
        code.extend([0x0f, 0x05]); // syscall
    }
    code.extend([0x31, 0xff]); // xor edi, edi
    code.extend([0xb8, 231, 0, 0, 0]); // mov eax, 231
    code.extend([0x0f, 0x05]); // syscall
    code
}

/// The same for 64-bit Arm.
fn aarch64(output: bool) -> Vec<u8> {
    let mov = |register: u32, value: u32| 0xd280_0000 | value << 5 | register;
    let upper = |register: u32, value: u32| 0xd2a0_0000 | value << 5 | register;
    let call = 0xd400_0001;
    let mut words = Vec::new();
    if output {
        words.extend([
            mov(0, 1),
            upper(1, (BASE >> 16) as u32),
            mov(2, 1),
            mov(8, 64),
            call,
        ]);
    }
    words.extend([mov(0, 0), mov(8, 94), call]);
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn elf(machine: u16, code: &[u8]) -> Vec<u8> {
    let size = HEADERS + code.len() as u64;
    let mut file = Vec::with_capacity(size as usize);
    file.extend(b"\x7fELF\x02\x01\x01");
    file.resize(16, 0);
    file.extend(2u16.to_le_bytes()); // an executable
    file.extend(machine.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    file.extend((BASE + HEADERS).to_le_bytes()); // entry
    file.extend(64u64.to_le_bytes()); // program headers
    file.extend(0u64.to_le_bytes()); // no sections
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes()); // one segment to load
    file.extend(5u32.to_le_bytes()); // readable, executable
    for double in [0, BASE, BASE, size, size, 0x1_0000] {
        file.extend(double.to_le_bytes());
    }
    file.extend(code);
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::{Command, Stdio};

    #[test]
    fn it_runs_here_and_says_just_one_byte() {
        for (output, length) in [(false, 0), (true, 1)] {
            let Some(bytes) = least(output) else {
                eprintln!(
                    "SKIP it_runs_here: no such program for {}",
                    std::env::consts::ARCH
                );
                return;
            };
            let path = std::env::temp_dir()
                .join(format!("leasehold-least-{}-{output}", std::process::id()));
            {
                let mut file = std::fs::OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o755)
                    .open(&path)
                    .unwrap();
                std::io::Write::write_all(&mut file, &bytes).unwrap();
            }
            let ran = Command::new(&path).stderr(Stdio::inherit()).output();
            std::fs::remove_file(&path).unwrap();
            let ran = ran.unwrap();
            assert!(ran.status.success(), "{:?}", ran.status);
            assert_eq!(ran.stdout.len(), length);
        }
    }

    #[test]
    fn both_architectures_have_whole_instructions() {
        assert_eq!(aarch64(true).len() % 4, 0);
        assert_eq!(x86_64(false).len(), 9);
    }
}
