//! A program for the process that unpacks a layer of an image: files below what it has open, and nothing else.

use super::Program;
use super::allow::allowing;
use super::rule::{Branch, Rule, Test, Word};

const REFUSED: Rule = Rule::Errno(libc::EPERM as u16);

/// Of device nodes only the mark of a removed name can be made, which is a character device 0/0 of mode 0.
static MARK: Branch = Branch {
    word: Word::Low(2),
    test: Test::OneOf(&[libc::S_IFCHR]),
    then: Rule::If(&NO_DEVICE),
    otherwise: REFUSED,
};
static NO_DEVICE: Branch = Branch {
    word: Word::Low(3),
    test: Test::OneOf(&[0]),
    then: Rule::Allow,
    otherwise: REFUSED,
};

const ALLOWED: [libc::c_long; 43] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_openat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_mkdirat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_fsetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fadvise64,
    libc::SYS_fcntl,
    libc::SYS_ppoll,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_pread64,
];

impl Program {
    /// For a process that unpacks: it reads, and makes files by name below directories that are open. Everything
    /// else is refused with `EPERM`.
    #[must_use]
    pub fn unpacker() -> Self {
        let careful = [libc::SYS_mmap, libc::SYS_mprotect];
        let marks = [(libc::SYS_mknodat, Rule::If(&MARK))];
        Self::of_rows(allowing(&ALLOWED, &careful).chain(marks))
    }
}
