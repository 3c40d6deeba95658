//! The first process of a sandbox, from its clone to its exec of init.
//!
//! It begins as the maker (root of the host, or of the spawner's user namespace) in namespaces of
//! its own that belong to the maker, enters its control groups, builds the tree, and only then
//! enters its own user namespace, where it has no rights over any of that any more. A step that
//! fails is told to the spawner and ends the process. Nothing here returns.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::thread::{
    CpuSet, Gid, LinkNameSpaceType, Uid, UnshareFlags, move_into_link_name_space,
};

use super::clone::{Bomb, arrange, end, reset_scheduling, unshare};
use super::spec::{Namespaces, Warm};
use super::step::{At, Failed, MakeStep};
use super::tree::Tree;
use super::userns::{Maker, WORKLOAD};
use super::wire::{self, Order, Progress};
use super::workspace::{self, Source};
use super::{image, netns, template::Template};
use crate::{caps, failpoint, sys};

/// Everything the first process needs, inherited by the clone.
pub(super) struct Plan<'a> {
    pub(super) order: &'a Order,
    pub(super) maker: Maker,
    pub(super) template: &'a Template,
    pub(super) init: BorrowedFd<'a>,
    /// To the spawner; its end without a failure is init.
    pub(super) progress: BorrowedFd<'a>,
    pub(super) texts: &'a CStr,
    pub(super) network: Option<BorrowedFd<'a>>,
    pub(super) image: Option<BorrowedFd<'a>>,
    pub(super) translation: Option<BorrowedFd<'a>>,
    /// As root: the namespace that maps the owners of an image's files onto the sandbox's ids.
    pub(super) image_owners: Option<BorrowedFd<'a>>,
}

impl Plan<'_> {
    /// As an ordinary user: the namespace that shows the host's tree, and the host's `/proc`.
    pub(super) fn host_view(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        let template = self.template;
        let view = template.host_view.as_ref();
        view.map(|view| (view.as_fd(), template.proc.as_fd()))
    }
}

/// Lives the first process's life up to init.
pub(super) fn run(plan: &Plan<'_>) -> ! {
    let _bomb = Bomb;
    let Err(failed) = become_agent(plan);
    // If even this cannot be told, the spawner sees the socket's end and the death.
    let _ = wire::send_progress(plan.progress, Progress::Failed(failed), &[]);
    end(71)
}

fn become_agent(plan: &Plan<'_>) -> Result<std::convert::Infallible, Failed> {
    let spawner = plan.progress;
    failpoint::around_in_child("enter", spawner, || join(plan)).at(MakeStep::Cgroup)?;
    host_name().at(MakeStep::HostName)?;
    if let Some(namespace) = plan.network {
        netns::enter(namespace).at(MakeStep::Network)?;
    }
    let (tree, copied) = failpoint::around_in_child("mounts", spawner, || build(plan))?;
    let workspace = workspace::open(&tree).at(MakeStep::Workspace)?;
    let scratch = workspace::open_scratch(&tree).at(MakeStep::Scratch)?;

    let user_namespace = wire::await_go(plan.progress).at(MakeStep::Ids)?;
    unshare(UnshareFlags::NEWCGROUP).at(MakeStep::CgroupNamespace)?;
    enter(&user_namespace).at(MakeStep::UserNamespace)?;
    failpoint::around_in_child("identity", spawner, || identity(plan.maker))
        .at(MakeStep::Identity)?;
    cut_capabilities(plan.maker).at(MakeStep::Capabilities)?;
    rustix::process::chdir(c"/").at(MakeStep::Handover)?;
    let namespaces = namespaces(&tree.proc).at(MakeStep::Answer)?;
    let fds = [workspace.as_fd(), scratch.as_fd()];
    let standing = Progress::Standing { namespaces, copied };
    wire::send_progress(plan.progress, standing, &fds).at(MakeStep::Answer)?;
    hand_over(plan)
}

/// Enters the user namespace the spawner has made and mapped. All capabilities from here on are over
/// that namespace alone.
fn enter(user_namespace: &[OwnedFd]) -> Result<(), Errno> {
    let [namespace] = user_namespace else {
        return Err(Errno::BADMSG);
    };
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))
}

fn namespaces(proc: &OwnedFd) -> Result<Namespaces, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(proc, c"self/ns", flags, Mode::empty())?;
    let inode = |name: &CStr| {
        rustix::fs::statat(&directory, name, AtFlags::empty()).map(|stat| stat.st_ino)
    };
    Ok(Namespaces {
        net: inode(c"net")?,
        mnt: inode(c"mnt")?,
        pid: inode(c"pid")?,
        user: inode(c"user")?,
        ipc: inode(c"ipc")?,
        uts: inode(c"uts")?,
        cgroup: inode(c"cgroup")?,
    })
}

/// Enters the control groups it was not born in. A process with one thread that moves itself
/// through `tasks` does not wait for the kernel's lock over all moves.
fn join(plan: &Plan<'_>) -> Result<(), Errno> {
    for group in &plan.order.cgroup_procs {
        if rustix::io::write(group, b"0")? != 1 {
            return Err(Errno::IO);
        }
    }
    Ok(())
}

fn host_name() -> Result<(), Errno> {
    rustix::system::sethostname(b"sandbox")?;
    rustix::system::setdomainname(b"(none)")
}

fn build(plan: &Plan<'_>) -> Result<(Tree, bool), Failed> {
    let spec = &plan.order.spec;
    let user = spec.image.as_ref().map_or(WORKLOAD, |image| image.user);
    let owners = plan.maker.owners(spec.ids, user);
    let single_uid = plan.maker.single_uid();
    let template = plan.template;
    rustix::process::umask(Mode::empty());
    let tree = Tree::begin(
        plan.order,
        owners,
        single_uid,
        template.shows_proc,
        plan.image,
    )?;
    if plan.network.is_none() {
        netns::furnish(tree.proc.as_fd()).at(MakeStep::Network)?;
    }
    let source = Source {
        caller: match plan.maker {
            Maker::Root => plan.order.spec.caller_uid,
            Maker::Rootless(_) => 0,
        },
        translation: plan.translation,
        host_view: plan.host_view(),
    };
    let copied = workspace::mount(plan.order, &tree, owners, &source)?;
    tree.writable(owners, spec.image.is_some())?;
    // While /proc can still be written.
    inherited(plan, &tree.proc).at(MakeStep::Inherited)?;
    tree.dress_proc(plan.texts)?;
    tree.devices(spec.shm_bytes)?;
    let tree = image::enter(tree, plan, owners)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok((tree, copied))
}

/// Session, scheduling, out-of-memory score: nothing of the supervisor's shows or counts inside.
fn inherited(plan: &Plan<'_>, proc: &OwnedFd) -> Result<(), Errno> {
    rustix::process::setsid()?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let score = rustix::fs::openat(proc, c"self/oom_score_adj", flags, Mode::empty())?;
    rustix::io::write(score, b"1000")?;
    let mut cores = CpuSet::new();
    for core in &plan.order.spec.cores {
        cores.set(*core as usize);
    }
    rustix::thread::sched_setaffinity(None, &cores)?;
    match rustix::process::setpriority_process(None, 0) {
        Ok(()) => {}
        // A lowered priority that cannot be raised again only makes it slower.
        Err(Errno::ACCESS | Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    reset_scheduling()
}

fn identity(maker: Maker) -> std::io::Result<()> {
    let id = maker.first_id();
    let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    sys::fresh_session_keyring()?;
    sys::reset_personality()?;
    // After the change of identity, which clears it. The supervisor's death ends the sandbox.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// The bounding set is what root gets on exec. A first process that is not root keeps the same by the
/// ambient set, so that init finds the same rights in either case.
fn cut_capabilities(maker: Maker) -> Result<(), Errno> {
    use rustix::thread::{capabilities, configure_capability_in_ambient_set, set_capabilities};

    caps::bound(caps::INIT)?;
    rustix::thread::clear_ambient_capability_set()?;
    if maker.single_uid() {
        let mut sets = capabilities(None)?;
        sets.inheritable = caps::INIT;
        set_capabilities(None, sets)?;
        for capability in caps::INIT.iter() {
            configure_capability_in_ambient_set(capability, true)?;
        }
    }
    rustix::thread::set_no_new_privs(true)
}

/// Descriptors at their numbers, everything else closed, and init.
fn hand_over(plan: &Plan<'_>) -> Result<std::convert::Infallible, Failed> {
    let null = rustix::fs::openat(
        CWD,
        c"/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .at(MakeStep::Handover)?;
    let null = null.as_fd();
    let order = plan.order;
    let (init, stub) = (order.init.as_fd(), order.stub.as_fd());
    let fds = [null, null, null, init, stub, plan.init, plan.progress];
    // What was opened so far is forgotten, not dropped: its numbers mean something else now, and
    // this process ends or becomes another program.
    arrange(&fds, 2).at(MakeStep::Handover)?;
    let (program, progress) = arranged();
    let what: &[&CStr] = match (order.spec.warm, &order.spec.image) {
        (None, None) => &[],
        (Some(Warm::Python), _) => &[c"--warm", c"python"],
        (None, Some(_)) => &[c"--image"],
    };
    let argv: Vec<CString> = [c"leasehold-init"]
        .iter()
        .chain(what)
        .map(|part| CString::from(*part))
        .collect();
    let error = sys::exec_fd(program, &argv, &[]);
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::NOEXEC);
    let failed = Failed {
        step: MakeStep::Exec,
        errno,
    };
    let _ = wire::send_progress(progress, Progress::Failed(failed), &[]);
    end(71)
}

/// Init's program and the progress socket at the numbers [`arrange`] put them.
fn arranged() -> (BorrowedFd<'static>, BorrowedFd<'static>) {
    super::clone::borrow_numbers(5, 6)
}
