//! Programs for the two processes that are given somebody's WebAssembly: one compiles it, one runs it.
//!
//! Whoever takes such a process over has its descriptors, memory, time and threads, and no way to a file, a
//! socket or another program. Code can be made executable, since that is what loading is, and never while it
//! can be written.

use super::Program;
use super::allow::{WITHOUT_EXECUTION, allowing};
use super::rule::{Branch, Rule, Test, Word};

const REFUSED: Rule = Rule::Errno(libc::EPERM as u16);
/// The C library then makes threads by the older call, whose flags can be seen.
const MISSING: Rule = Rule::Errno(libc::ENOSYS as u16);

/// `PAGEMAP_SCAN`, by which the engine learns what a run touched.
const PAGEMAP_SCAN: u32 = 0xc060_6610;
const WRITE: u32 = libc::PROT_WRITE as u32;
const THREAD: u32 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u32;
const NEW_SPACES: u32 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u32;

const fn branch(arg: u8, test: Test, then: Rule, otherwise: Rule) -> Branch {
    Branch {
        word: Word::Low(arg),
        test,
        then,
        otherwise,
    }
}

/// Executable, and then not writable.
static NOT_BOTH: Branch = branch(
    2,
    Test::AnyBit(WRITE),
    Rule::If(&WITHOUT_EXECUTION),
    Rule::Allow,
);
static SCAN: Branch = branch(1, Test::OneOf(&[PAGEMAP_SCAN]), Rule::Allow, REFUSED);
static NAMES_A_THREAD: Branch = branch(
    0,
    Test::OneOf(&[libc::PR_SET_NAME as u32]),
    Rule::Allow,
    REFUSED,
);
static NO_SPACES: Branch = branch(0, Test::AnyBit(NEW_SPACES), REFUSED, Rule::Allow);
static A_THREAD: Branch = branch(
    0,
    Test::MaskedOneOf(THREAD, &[THREAD]),
    Rule::If(&NO_SPACES),
    REFUSED,
);

/// What both need: memory, time, and the descriptors they have.
const BOTH: [libc::c_long; 31] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_statx,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_ftruncate,
    libc::SYS_fcntl,
];

/// What running needs beside it: one socket, events, threads, memory files of its own, how fine a clock is.
const HOST: [libc::c_long; 15] = [
    libc::SYS_clock_getres,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_rt_sigaction,
];

#[cfg(target_arch = "x86_64")]
const HOST_OLDER: [libc::c_long; 2] = [libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const HOST_OLDER: [libc::c_long; 0] = [];

/// What runs with directories need: everything below a directory that was passed.
const FILES: [libc::c_long; 23] = [
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_fchdir,
    libc::SYS_newfstatat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_utimensat,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_dup,
];

impl Program {
    /// For a process that compiles: it reads, writes and computes on one thread.
    #[must_use]
    pub fn wasm_compiler() -> Self {
        Self::of_rows(allowing(&BOTH, &[libc::SYS_mmap, libc::SYS_mprotect]))
    }

    /// For a process that runs compiled code, `files` where its runs are given directories.
    #[must_use]
    pub fn wasm_host(files: bool) -> Self {
        let plain = BOTH.into_iter().chain(HOST).chain(HOST_OLDER);
        let files = FILES.into_iter().filter(|_| files);
        let rows = plain.chain(files).map(|call| (call, Rule::Allow));
        Self::of_rows(rows.chain([
            (libc::SYS_mmap, Rule::If(&WITHOUT_EXECUTION)),
            (libc::SYS_mprotect, Rule::If(&NOT_BOTH)),
            (libc::SYS_ioctl, Rule::If(&SCAN)),
            (libc::SYS_prctl, Rule::If(&NAMES_A_THREAD)),
            (libc::SYS_clone, Rule::If(&A_THREAD)),
            (libc::SYS_clone3, MISSING),
        ]))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::process::{WaitOptions, waitpid};

    use super::*;

    /// Bits of what a child under the program can do: open a file, open a socket, start a process, and
    /// start a thread.
    fn tries(program: Option<&Program>) -> u8 {
        let out = std::io::stdout();
        let child = crate::sys::spawn_child(&[out.as_fd()], || {
            if let Some(program) = program
                && (rustix::thread::set_no_new_privs(true).is_err() || program.load().is_err())
            {
                return 99;
            }
            let opens = std::fs::File::open("/etc/passwd").is_ok();
            let family = rustix::net::AddressFamily::UNIX;
            let socket = rustix::net::socket(family, rustix::net::SocketType::STREAM, None).is_ok();
            let none: [std::os::fd::BorrowedFd<'_>; 0] = [];
            let forks = crate::sys::spawn_child(&none, || 0).is_ok();
            let thread = std::thread::Builder::new().spawn(|| ()).map(|t| t.join());
            u8::from(opens)
                | u8::from(socket) << 1
                | u8::from(forks) << 2
                | u8::from(thread.is_ok()) << 3
        });
        let (_, status) = waitpid(Some(child.unwrap()), WaitOptions::empty())
            .unwrap()
            .unwrap();
        u8::try_from(status.exit_status().unwrap()).unwrap()
    }

    #[test]
    fn what_is_given_modules_opens_connects_and_starts_nothing() {
        assert_eq!(tries(None), 0b1111);
        assert_eq!(tries(Some(&Program::wasm_host(false))), 0b1000);
        assert_eq!(tries(Some(&Program::wasm_host(true))), 0b1001);
        assert_eq!(tries(Some(&Program::wasm_compiler())), 0);
    }
}
