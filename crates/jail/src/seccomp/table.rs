//! The one table: every system call a sandbox may make, must not make, or may make in part.
//!
//! Numbers are `name x86_64 aarch64`, `_` where an instruction set has no such call. A call that is
//! not listed is refused with `EPERM` up to [`NEWEST`] and does not exist (`ENOSYS`) beyond it.

use super::rule::{Arch, Branch, Row, Rule, Test, Word};

/// The newest system call the table was written for (`file_setattr`, Linux 6.17). A newer one does
/// not exist for a sandbox, so that programs fall back instead of failing.
pub const NEWEST: u32 = 469;

/// Numbers no call has, by instruction set: they do not exist either.
#[must_use]
pub const fn gaps(arch: Arch) -> &'static [(u32, u32)] {
    match arch {
        Arch::X86_64 => &[(337, 423)],
        Arch::Aarch64 => &[(244, 259), (295, 423)],
    }
}

const REFUSED: Rule = Rule::Errno(libc::EPERM as u16);
const MISSING: Rule = Rule::Errno(libc::ENOSYS as u16);
const NO_FAMILY: Rule = Rule::Errno(libc::EAFNOSUPPORT as u16);
const NO_PROTOCOL: Rule = Rule::Errno(libc::EPROTONOSUPPORT as u16);
/// GnuPG takes this for "no such limit here" and goes on, and ends itself on `EPERM`.
const NO_LIMIT: Rule = Rule::Errno(libc::EINVAL as u16);

/// What an empty pool answers; programs go on with ordinary pages.
const NO_MEMORY: Rule = Rule::Errno(libc::ENOMEM as u16);

macro_rules! number {
    (_) => {
        None
    };
    ($number:literal) => {
        Some($number)
    };
}

macro_rules! calls {
    ($rule:expr; $($name:ident $x86_64:tt $aarch64:tt;)*) => {
        &[$(Row::new(stringify!($name), number!($x86_64), number!($aarch64), $rule)),*]
    };
}

/// Files and directories.
const FILES: &[Row] = calls!(Rule::Allow;
    read 0 63; write 1 64; open 2 _; openat 257 56; openat2 437 437; creat 85 _; close 3 57;
    close_range 436 436; dup 32 23; dup2 33 _; dup3 292 24; lseek 8 62; pread64 17 67;
    pwrite64 18 68; readv 19 65; writev 20 66; preadv 295 69; pwritev 296 70; preadv2 327 286;
    pwritev2 328 287; sendfile 40 71; splice 275 76; tee 276 77; copy_file_range 326 285;
    stat 4 _; lstat 6 _; fstat 5 80; newfstatat 262 79; statx 332 291; statfs 137 43;
    fstatfs 138 44; access 21 _; faccessat 269 48; faccessat2 439 439; readlink 89 _;
    readlinkat 267 78; getdents 78 _; getdents64 217 61; getcwd 79 17; chdir 80 49;
    fchdir 81 50; rename 82 _; renameat 264 38; renameat2 316 276; mkdir 83 _; mkdirat 258 34;
    rmdir 84 _; unlink 87 _; unlinkat 263 35; link 86 _; linkat 265 37; symlink 88 _;
    symlinkat 266 36; mknod 133 _; mknodat 259 33; chmod 90 _; fchmod 91 52; fchmodat 268 53;
    fchmodat2 452 452; chown 92 _; fchown 93 55; lchown 94 _; fchownat 260 54; umask 95 166;
    utime 132 _; utimes 235 _; futimesat 261 _; utimensat 280 88; truncate 76 45;
    ftruncate 77 46; fallocate 285 47; fadvise64 221 223; readahead 187 213; fsync 74 82;
    fdatasync 75 83; syncfs 306 267; sync_file_range 277 84; flock 73 32; fcntl 72 25;
    getxattr 191 8; lgetxattr 192 9; fgetxattr 193 10; getxattrat 464 464; setxattr 188 5;
    lsetxattr 189 6; fsetxattr 190 7; setxattrat 463 463; listxattr 194 11; llistxattr 195 12;
    flistxattr 196 13; listxattrat 465 465; removexattr 197 14; lremovexattr 198 15;
    fremovexattr 199 16; removexattrat 466 466; file_getattr 468 468; inotify_init 253 _;
    inotify_init1 294 26; inotify_add_watch 254 27; inotify_rm_watch 255 28; pipe 22 _;
    pipe2 293 59;
);

/// Waiting and time.
const WAITING: &[Row] = calls!(Rule::Allow;
    poll 7 _; ppoll 271 73; select 23 _; pselect6 270 72; epoll_create 213 _;
    epoll_create1 291 20; epoll_ctl 233 21; epoll_wait 232 _; epoll_pwait 281 22;
    epoll_pwait2 441 441; eventfd 284 _; eventfd2 290 19; signalfd 282 _; signalfd4 289 74;
    timerfd_create 283 85; timerfd_settime 286 86; timerfd_gettime 287 87; nanosleep 35 101;
    clock_nanosleep 230 115; clock_gettime 228 113; clock_getres 229 114; gettimeofday 96 169;
    time 201 _; times 100 153; alarm 37 _; getitimer 36 102; setitimer 38 103;
    timer_create 222 107; timer_settime 223 110; timer_gettime 224 108;
    timer_getoverrun 225 109; timer_delete 226 111; pause 34 _; restart_syscall 219 128;
);

/// Sockets, once made.
const SOCKETS: &[Row] = calls!(Rule::Allow;
    bind 49 200; listen 50 201; accept 43 202; accept4 288 242; connect 42 203;
    getsockname 51 204; getpeername 52 205; sendto 44 206; recvfrom 45 207; sendmsg 46 211;
    recvmsg 47 212; sendmmsg 307 269; recvmmsg 299 243; getsockopt 55 209; shutdown 48 210;
);

/// Memory.
const MEMORY: &[Row] = calls!(Rule::Allow;
    brk 12 214; munmap 11 215; mprotect 10 226; mremap 25 216; msync 26 227;
    madvise 28 233; mincore 27 232; mlock 149 228; mlock2 325 284; munlock 150 229;
    mlockall 151 230; munlockall 152 231; pkey_alloc 330 289; pkey_free 331 290;
    pkey_mprotect 329 288; mseal 462 462; map_shadow_stack 453 453; get_mempolicy 239 236;
    membarrier 324 283;
);

/// Processes and signals.
const PROCESSES: &[Row] = calls!(Rule::Allow;
    fork 57 _; vfork 58 _; execve 59 221; execveat 322 281; exit 60 93; exit_group 231 94;
    wait4 61 260; waitid 247 95; kill 62 129; tkill 200 130; tgkill 234 131;
    pidfd_open 434 434; pidfd_send_signal 424 424; getpid 39 172; getppid 110 173;
    gettid 186 178; getpgid 121 155; getpgrp 111 _; setpgid 109 154; getsid 124 156;
    setsid 112 157; sched_yield 24 124; sched_getaffinity 204 123; sched_getparam 143 121;
    sched_getscheduler 145 120; sched_getattr 315 275; sched_get_priority_max 146 125;
    sched_get_priority_min 147 126; sched_rr_get_interval 148 127; getcpu 309 168;
    getpriority 140 141; ioprio_get 252 31; set_tid_address 218 96; set_robust_list 273 99;
    get_robust_list 274 100; rseq 334 293; futex 202 98; futex_waitv 449 449;
    futex_wake 454 454; futex_wait 455 455; futex_requeue 456 456; arch_prctl 158 _;
    rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigpending 127 136;
    rt_sigtimedwait 128 137; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240;
    rt_sigsuspend 130 133; rt_sigreturn 15 139; sigaltstack 131 132; getrlimit 97 163;
    getrusage 98 165; sysinfo 99 179; uname 63 160; getrandom 318 278;
);

/// Identity: harmless without capabilities, and the stub needs it.
const IDENTITY: &[Row] = calls!(Rule::Allow;
    getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177; getresuid 118 148;
    getresgid 120 150; getgroups 115 158; setuid 105 146; setgid 106 144; setreuid 113 145;
    setregid 114 143; setresuid 117 147; setresgid 119 149; setfsuid 122 151;
    setfsgid 123 152; setgroups 116 159; capget 125 90; capset 126 91;
    landlock_create_ruleset 444 444; landlock_add_rule 445 445;
    landlock_restrict_self 446 446;
);

/// System v and posix message passing: own ipc namespace.
const IPC: &[Row] = calls!(Rule::Allow;
    shmat 30 196; shmdt 67 197; shmctl 31 195; semget 64 190; semop 65 193;
    semtimedop 220 192; semctl 66 191; msgget 68 186; msgsnd 69 189; msgrcv 70 188;
    msgctl 71 187; mq_open 240 180; mq_unlink 241 181; mq_timedsend 242 182;
    mq_timedreceive 243 183; mq_notify 244 184; mq_getsetattr 245 185;
);

/// Absent: programs fall back when told so.
const ABSENT: &[Row] = calls!(MISSING;
    clone3 435 435; io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427;
    bpf 321 280; perf_event_open 298 241; userfaultfd 323 282; memfd_secret 447 447;
    add_key 248 217; request_key 249 218; keyctl 250 219;
);

/// Refused.
const REFUSED_CALLS: &[Row] = calls!(REFUSED;
    setns 308 268; mount 165 40; umount2 166 39; pivot_root 155 41; chroot 161 51;
    fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433; move_mount 429 429;
    open_tree 428 428; open_tree_attr 467 467; mount_setattr 442 442; statmount 457 457;
    listmount 458 458; name_to_handle_at 303 264; open_by_handle_at 304 265; ptrace 101 117;
    process_vm_readv 310 270; process_vm_writev 311 271; process_madvise 440 440;
    process_mrelease 448 448; pidfd_getfd 438 438; kcmp 312 272; vmsplice 278 75;
    modify_ldt 154 _; kexec_load 246 104; kexec_file_load 320 294; init_module 175 105;
    finit_module 313 273; delete_module 176 106; reboot 169 142; swapon 167 224;
    swapoff 168 225; quotactl 179 60; quotactl_fd 443 443; acct 163 89; syslog 103 116;
    settimeofday 164 170; clock_settime 227 112; adjtimex 159 171; clock_adjtime 305 266;
    ioperm 173 _; iopl 172 _; lookup_dcookie 212 18; vhangup 153 58; nfsservctl 180 42;
    fanotify_init 300 262; fanotify_mark 301 263; file_setattr 469 469; sethostname 170 161;
    setdomainname 171 162; mbind 237 235; set_mempolicy 238 237;
    set_mempolicy_home_node 450 450; move_pages 279 239; migrate_pages 256 238;
    sched_setscheduler 144 119; sched_setparam 142 118; sched_setattr 314 274;
    sched_setaffinity 203 122; ioprio_set 251 30; io_setup 206 0; io_destroy 207 1;
    io_submit 209 2; io_cancel 210 3; io_getevents 208 4; io_pgetevents 333 292;
    cachestat 451 451; remap_file_pages 216 234; lsm_get_self_attr 459 459;
    lsm_set_self_attr 460 460; lsm_list_modules 461 461;
);

/// Allowed in part.
const CHECKED: &[Row] = &[
    Row::new("clone", Some(56), Some(220), Rule::If(&NEW_NAMESPACES)),
    Row::new("unshare", Some(272), Some(97), Rule::If(&NEW_NAMESPACES)),
    Row::new("ioctl", Some(16), Some(29), Rule::If(&IOCTL)),
    Row::new("socket", Some(41), Some(198), Rule::If(&SOCKET)),
    Row::new("socketpair", Some(53), Some(199), Rule::If(&SOCKETPAIR)),
    Row::new("setsockopt", Some(54), Some(208), Rule::If(&SETSOCKOPT)),
    Row::new("mmap", Some(9), Some(222), Rule::If(&MMAP)),
    Row::new("memfd_create", Some(319), Some(279), Rule::If(&MEMFD)),
    Row::new("shmget", Some(29), Some(194), Rule::If(&SHMGET)),
    Row::new("prctl", Some(157), Some(167), Rule::If(&PRCTL)),
    Row::new("seccomp", Some(317), Some(277), Rule::If(&SECCOMP)),
    Row::new("personality", Some(135), Some(92), Rule::If(&PERSONALITY)),
    Row::new("setpriority", Some(141), Some(140), Rule::If(&SETPRIORITY)),
    Row::new("setrlimit", Some(160), Some(164), Rule::If(&SETRLIMIT)),
    Row::new("prlimit64", Some(302), Some(261), Rule::If(&PRLIMIT)),
    // It would write back every file system of the host; ours are in memory or have `syncfs`.
    Row::new("sync", Some(162), Some(81), Rule::Errno(0)),
];

const fn low(arg: u8, test: Test, then: Rule, otherwise: Rule) -> Branch {
    Branch {
        word: Word::Low(arg),
        test,
        then,
        otherwise,
    }
}

/// `CLONE_NEWTIME` is a signal number to `clone`, so no program passes it there either.
static NEW_NAMESPACES: Branch = low(
    0,
    Test::AnyBit(
        (libc::CLONE_NEWNS
            | libc::CLONE_NEWCGROUP
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUSER
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | 0x80) as u32,
    ),
    REFUSED,
    Rule::Allow,
);

/// `TIOCSTI TIOCLINUX TIOCCONS TIOCSETD TIOCVHANGUP`, `FS_IOC_SETFLAGS` (both widths),
/// `FS_IOC_FSSETXATTR`, `FIFREEZE FITHAW FITRIM FIDEDUPERANGE`.
static IOCTL: Branch = low(
    1,
    Test::OneOf(&[
        0x5412,
        0x541c,
        0x541d,
        0x5423,
        0x5437,
        0x4008_6602,
        0x4004_6602,
        0x401c_5820,
        0xc004_5877,
        0xc004_5878,
        0xc018_5879,
        0xc018_9436,
    ]),
    REFUSED,
    Rule::If(&IOCTL_KINDS),
);

/// Console `K`, loop devices `L`, KVM, vhost.
static IOCTL_KINDS: Branch = low(
    1,
    Test::MaskedOneOf(0xff00, &[0x4b00, 0x4c00, 0xae00, 0xaf00]),
    REFUSED,
    Rule::If(&IOCTL_TUN),
);

/// Tunnel devices share the `T` of terminals, from 0xc0 up.
static IOCTL_TUN: Branch = low(
    1,
    Test::MaskedOneOf(0xffc0, &[0x54c0]),
    REFUSED,
    Rule::Allow,
);

static SOCKET: Branch = low(
    0,
    Test::OneOf(&[libc::AF_UNIX as u32]),
    Rule::Allow,
    Rule::If(&SOCKET_INET),
);

/// No netlink, not even routes: what its receive buffers hold is counted against no memory limit of a
/// control group, and there is nothing to configure in a network of one loopback.
static SOCKET_INET: Branch = low(
    0,
    Test::OneOf(&[libc::AF_INET as u32, libc::AF_INET6 as u32]),
    Rule::If(&INET_STREAM),
    NO_FAMILY,
);

/// The kind of a socket, without `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
const SOCK_TYPE_MASK: u32 = 0xf;

static INET_STREAM: Branch = low(
    1,
    Test::MaskedOneOf(SOCK_TYPE_MASK, &[libc::SOCK_STREAM as u32]),
    Rule::If(&STREAM_PROTOCOL),
    Rule::If(&INET_DATAGRAM),
);

static STREAM_PROTOCOL: Branch = low(
    2,
    Test::OneOf(&[0, libc::IPPROTO_TCP as u32]),
    Rule::Allow,
    NO_PROTOCOL,
);

static INET_DATAGRAM: Branch = low(
    1,
    Test::MaskedOneOf(SOCK_TYPE_MASK, &[libc::SOCK_DGRAM as u32]),
    Rule::If(&DATAGRAM_PROTOCOL),
    REFUSED,
);

static DATAGRAM_PROTOCOL: Branch = low(
    2,
    Test::OneOf(&[
        0,
        libc::IPPROTO_UDP as u32,
        libc::IPPROTO_ICMP as u32,
        libc::IPPROTO_ICMPV6 as u32,
    ]),
    Rule::Allow,
    NO_PROTOCOL,
);

static SOCKETPAIR: Branch = low(
    0,
    Test::OneOf(&[libc::AF_UNIX as u32]),
    Rule::Allow,
    NO_FAMILY,
);

/// `SO_ATTACH_FILTER SO_ATTACH_BPF SO_ATTACH_REUSEPORT_CBPF SO_ATTACH_REUSEPORT_EBPF`: the kernel
/// counts neither such a program nor its machine code against a control group's memory.
static SETSOCKOPT: Branch = low(
    1,
    Test::OneOf(&[libc::SOL_SOCKET as u32]),
    Rule::If(&SOCKET_OPTION),
    Rule::Allow,
);

static SOCKET_OPTION: Branch = low(2, Test::OneOf(&[26, 50, 51, 52]), REFUSED, Rule::Allow);

/// Huge pages come from a pool of the host that no memory limit of a control group counts.
static MMAP: Branch = low(
    3,
    Test::AnyBit(libc::MAP_HUGETLB as u32),
    NO_MEMORY,
    Rule::Allow,
);

static MEMFD: Branch = low(1, Test::AnyBit(libc::MFD_HUGETLB), NO_MEMORY, Rule::Allow);

static SHMGET: Branch = low(
    2,
    Test::AnyBit(libc::SHM_HUGETLB as u32),
    NO_MEMORY,
    Rule::Allow,
);

const PR_SVE_SET_VL: u32 = 50;
const PR_SVE_GET_VL: u32 = 51;
const PR_PAC_RESET_KEYS: u32 = 54;
const PR_SET_TAGGED_ADDR_CTRL: u32 = 55;
const PR_GET_TAGGED_ADDR_CTRL: u32 = 56;

/// What programs ask of themselves. Not here: `PR_SET_MM`, `PR_SCHED_CORE`, `PR_SET_MEMORY_MERGE`,
/// `PR_SET_SPECULATION_CTRL`, `PR_SET_IO_FLUSHER`, `PR_SET_SYSCALL_USER_DISPATCH`.
static PRCTL: Branch = low(
    0,
    Test::OneOf(&[
        libc::PR_SET_PDEATHSIG as u32,
        libc::PR_GET_PDEATHSIG as u32,
        libc::PR_GET_DUMPABLE as u32,
        libc::PR_SET_DUMPABLE as u32,
        libc::PR_GET_KEEPCAPS as u32,
        libc::PR_SET_KEEPCAPS as u32,
        libc::PR_SET_NAME as u32,
        libc::PR_GET_NAME as u32,
        libc::PR_GET_SECCOMP as u32,
        libc::PR_SET_SECCOMP as u32,
        libc::PR_CAPBSET_READ as u32,
        libc::PR_CAPBSET_DROP as u32,
        libc::PR_GET_SECUREBITS as u32,
        libc::PR_SET_SECUREBITS as u32,
        libc::PR_SET_TIMERSLACK as u32,
        libc::PR_GET_TIMERSLACK as u32,
        libc::PR_SET_CHILD_SUBREAPER as u32,
        libc::PR_GET_CHILD_SUBREAPER as u32,
        libc::PR_SET_NO_NEW_PRIVS as u32,
        libc::PR_GET_NO_NEW_PRIVS as u32,
        libc::PR_GET_TID_ADDRESS as u32,
        libc::PR_SET_THP_DISABLE as u32,
        libc::PR_GET_THP_DISABLE as u32,
        libc::PR_CAP_AMBIENT as u32,
        libc::PR_GET_SPECULATION_CTRL as u32,
        PR_PAC_RESET_KEYS,
        PR_SET_TAGGED_ADDR_CTRL,
        PR_GET_TAGGED_ADDR_CTRL,
        libc::PR_SET_MDWE as u32,
        libc::PR_GET_MDWE as u32,
        libc::PR_SET_VMA as u32,
        libc::PR_SET_PTRACER as u32,
        PR_SVE_SET_VL,
        PR_SVE_GET_VL,
    ]),
    Rule::Allow,
    REFUSED,
);

/// More filters may be stacked; one that asks a supervisor may not.
static SECCOMP: Branch = low(
    1,
    Test::AnyBit(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER as u32),
    REFUSED,
    Rule::Allow,
);

/// Only the ordinary one, and asking which it is.
static PERSONALITY: Branch = low(0, Test::OneOf(&[0, u32::MAX]), Rule::Allow, REFUSED);

/// A negative value has the sign bit.
static SETPRIORITY: Branch = low(2, Test::AnyBit(1 << 31), REFUSED, Rule::Allow);

static SETRLIMIT: Branch = low(0, Test::OneOf(&[libc::RLIMIT_CORE]), NO_LIMIT, Rule::Allow);

/// Limits of one's own are one's own; those of another are read and not set. A process of a sandbox may have the
/// user id of our init, where ids are few or the command is user 0 of an image, and could end it so.
static PRLIMIT: Branch = low(
    0,
    Test::OneOf(&[0]),
    Rule::If(&PRLIMIT_OWN),
    Rule::If(&PRLIMIT_OTHER_LOW),
);

static PRLIMIT_OTHER_LOW: Branch =
    low(2, Test::OneOf(&[0]), Rule::If(&PRLIMIT_OTHER_HIGH), REFUSED);

static PRLIMIT_OTHER_HIGH: Branch = Branch {
    word: Word::High(2),
    test: Test::OneOf(&[0]),
    then: Rule::Allow,
    otherwise: REFUSED,
};

static PRLIMIT_OWN: Branch = low(
    1,
    Test::OneOf(&[libc::RLIMIT_CORE]),
    Rule::If(&PRLIMIT_NEW_LOW),
    Rule::Allow,
);

/// Reading has no new value, that is a null pointer in both halves.
static PRLIMIT_NEW_LOW: Branch = low(2, Test::OneOf(&[0]), Rule::If(&PRLIMIT_NEW_HIGH), NO_LIMIT);

static PRLIMIT_NEW_HIGH: Branch = Branch {
    word: Word::High(2),
    test: Test::OneOf(&[0]),
    then: Rule::Allow,
    otherwise: NO_LIMIT,
};

const GROUPS: [&[Row]; 10] = [
    FILES,
    WAITING,
    SOCKETS,
    MEMORY,
    PROCESSES,
    IDENTITY,
    IPC,
    CHECKED,
    ABSENT,
    REFUSED_CALLS,
];

/// Every row.
pub fn table() -> impl Iterator<Item = &'static Row> {
    GROUPS.into_iter().flatten()
}
