//! The spawner's own process: one thread, never executed anew, nothing but the template, init and a socket
//! to the supervisor. It takes an order, lets the sandbox's first process work, and takes the next while there
//! is a processor for it (`line.rs`); it ends when the socket does.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::thread::UnshareFlags;

use super::child::{self, Plan};
use super::clone::{Bomb, Side, clone_process, close_range, end, unshare};
use super::line::{Line, Seen, Unmade, Work};
use super::netns::{First, Pool};
use super::step::{At, Failed, MakeStep};
use super::template::Template;
use super::tree;
use super::userns::{self, Blanks, Maker, Mapper, RootlessIds, WORKLOAD};
use super::wire::{self, Answer, Order};
use crate::failpoint;
use crate::mount::{self, PLAIN};

/// How long nobody must have ordered anything before a network namespace is made ahead.
const IDLE: Duration = Duration::from_millis(3);
/// The same, when the last one could not be made.
const RETRY: Duration = Duration::from_secs(1);
/// How long it waits where nothing is due.
const FOREVER: Duration = Duration::from_secs(3_600);
/// Pause between two looks at a program that is being written.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// How long ids may take to be mapped from outside.
const MAP_WAIT: Duration = Duration::from_secs(10);

/// What the spawner is started with.
pub(super) struct Start {
    pub(super) socket: OwnedFd,
    pub(super) init: OwnedFd,
    pub(super) maker: Maker,
    pub(super) supervisor: Option<rustix::process::Pid>,
}

/// Lives the spawner's life.
pub(super) fn run(start: Start) -> ! {
    let _bomb = Bomb;
    let socket = start.socket.as_fd();
    match Spawner::set_up(&start) {
        Ok(mut spawner) => {
            if wire::send_answer(socket, Answer::Ready, &[]).is_ok() {
                spawner.serve(socket);
            }
            end(0)
        }
        Err(failed) => {
            let _ = wire::send_answer(socket, Answer::Failed(failed), &[]);
            end(71)
        }
    }
}

struct Spawner<'a> {
    init: BorrowedFd<'a>,
    maker: Maker,
    template: Template,
    pool: Pool,
    blanks: Blanks,
    line: Line,
}

impl<'a> Spawner<'a> {
    fn set_up(start: &'a Start) -> Result<Self, Failed> {
        detach_from_supervisor(start).at(MakeStep::Descriptors)?;
        crate::sys::reset_signals().at(MakeStep::Descriptors)?;
        let proc = processes(start.maker).at(MakeStep::TemplateRoot)?;
        if let Maker::Rootless(ids) = start.maker {
            enter_own_user_namespace(&proc, ids)?;
        }
        match rustix::thread::set_thread_groups(&[]) {
            Ok(()) => {}
            // Where `setgroups` is denied the groups cannot be dropped; they give no right over
            // anything a sandbox can see.
            Err(Errno::PERM) if start.maker.single_uid() => {}
            Err(errno) => return Err(errno).at(MakeStep::MakerIds),
        }
        let network = First::begin(proc.as_fd()).at(MakeStep::Network)?;
        let mut blanks = Blanks::new(start.maker);
        // One that the first sandbox has to wait for; others are made beside its first process.
        blanks.fill_one(proc.as_fd()).at(MakeStep::Ids)?;
        let rootless = start.maker != Maker::Root;
        let template = Template::enter(proc, rootless)?;
        // Again: entering a user namespace may have cleared it.
        die_with_supervisor(start).at(MakeStep::Descriptors)?;
        if start.maker == Maker::Root {
            // An ordinary user's must stay readable to itself, to write maps.
            let hidden = rustix::process::DumpableBehavior::NotDumpable;
            rustix::process::set_dumpable_behavior(hidden).at(MakeStep::Descriptors)?;
        }
        let pool = Pool::new(network, template.proc.as_fd()).at(MakeStep::Network)?;
        Ok(Self {
            init: start.init.as_fd(),
            maker: start.maker,
            template,
            pool,
            blanks,
            line: Line::new(),
        })
    }

    fn serve(&mut self, socket: BorrowedFd<'_>) {
        let mut idle = IDLE;
        loop {
            let alone = self.line.is_empty();
            let wait = if alone && (self.pool.wants() || self.blanks.wants()) {
                idle
            } else {
                FOREVER
            };
            let Ok(seen) = self.line.wait(socket, wait) else {
                return;
            };
            if seen == Seen::Order {
                idle = IDLE;
                match wire::receive_order(socket) {
                    Ok(Some(order)) => {
                        let begun = self.make(&order);
                        self.line.push(begun);
                    }
                    Ok(None) => return,
                    Err(errno) => {
                        let failed = Failed {
                            step: MakeStep::Order,
                            errno,
                        };
                        self.line.push(Err((failed, None)));
                    }
                }
            } else if alone && !self.refill() {
                // For want of something; an order that needs it will say so.
                idle = RETRY;
            }
            if self.line.answer(socket).is_err() {
                return;
            }
        }
    }

    /// Makes ahead what is wanted, one of each; whether it could.
    fn refill(&mut self) -> bool {
        let proc = self.template.proc.as_fd();
        let mut filled = true;
        if self.blanks.wants() {
            filled &= self.blanks.fill_one(proc).is_ok();
        }
        if self.pool.wants() {
            filled &= failpoint::around("netns", || self.pool.fill_one(proc));
        }
        filled
    }

    /// Begins one sandbox: its first process goes on by itself.
    fn make(&mut self, order: &Order) -> Result<Work, Unmade> {
        let until = Instant::now() + order.spec.deadline;
        // Of an order before that failed for it.
        self.leave_given().map_err(|failed| (failed, None))?;
        let prepared = self.prepare(order).map_err(|failed| (failed, None))?;
        let mut namespaces = UnshareFlags::NEWPID
            | UnshareFlags::NEWNS
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS;
        if prepared.network.is_none() {
            namespaces |= UnshareFlags::NEWNET;
        }
        let group = order.cgroup.as_ref().map(AsFd::as_fd);
        let side = failpoint::around("process", || clone_process(namespaces, group))
            .at(MakeStep::Clone)
            .map_err(|failed| (failed, None))?;
        let (pid, pidfd) = match side {
            Side::Child => {
                // Held here too, it would hide the spawner's death from the child.
                drop(prepared.ours);
                child::run(&Plan {
                    order,
                    maker: self.maker,
                    template: &self.template,
                    init: self.init,
                    progress: prepared.theirs.as_fd(),
                    texts: &prepared.texts,
                    network: prepared.network.as_ref().map(AsFd::as_fd),
                    image: prepared.image.as_ref().map(AsFd::as_fd),
                    translation: prepared.translation.as_ref().map(AsFd::as_fd),
                    image_owners: prepared.image_owners.as_ref().map(AsFd::as_fd),
                })
            }
            Side::Parent { pid, pidfd } => (pid, pidfd),
        };
        let progress = prepared.into_ours();
        match self.attend(order, progress.as_fd()) {
            Ok(()) => Ok(Work {
                pid,
                pidfd,
                progress,
                until,
                single_uid: self.maker.single_uid(),
            }),
            Err(failed) => {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                Err((failed, Some(pidfd)))
            }
        }
    }

    /// What must exist before the first process does.
    fn prepare(&mut self, order: &Order) -> Result<Prepared, Failed> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .at(MakeStep::Clone)?;
        let spec = &order.spec;
        Ok(Prepared {
            ours,
            theirs,
            texts: self
                .template
                .texts(&spec.cores, spec.memory_bytes)
                .at(MakeStep::Texts)?,
            translation: self.translation(order)?,
            image_owners: self.image_owners(order)?,
            image: self.image(order).at(MakeStep::Scratch)?,
            network: self.pool.take(),
        })
    }

    /// The outside half of making one sandbox, while its first process works: the user namespace it
    /// is to enter. There is no other hand-over, since each costs a wake-up on both sides.
    fn attend(&mut self, order: &Order, progress: BorrowedFd<'_>) -> Result<(), Failed> {
        let map = self.maker.map(order.spec.ids);
        let proc = self.template.proc.as_fd();
        let namespace = failpoint::around("userns", || self.blanks.with_maps(proc, &map, &map))
            .at(MakeStep::Ids)?;
        self.leave_given()?;
        self.await_sealed(order.spec.deadline).at(MakeStep::Exec)?;
        // A process that failed early has said why; that is read when its socket ends.
        let _ = wire::go(progress, &[namespace.as_fd()]);
        Ok(())
    }

    /// Waits until init's program can change no more: at a start it is written beside the making
    /// of the first sandbox. A file that knows no seals is taken as it is.
    fn await_sealed(&self, at_most: Duration) -> Result<(), Errno> {
        let until = Instant::now() + at_most;
        while let Ok(seals) = rustix::fs::fcntl_get_seals(self.init)
            && !seals.contains(SealFlags::SEAL)
        {
            if Instant::now() >= until {
                return Err(Errno::TIMEDOUT);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Leaves a network namespace that is a sandbox's now.
    fn leave_given(&mut self) -> Result<(), Failed> {
        let proc = self.template.proc.as_fd();
        self.pool.leave(proc).at(MakeStep::Network)
    }

    /// A user namespace that means: the files of the directory's owner are the workload's, those of
    /// everybody else belong to ids that nobody inside can have.
    fn translation(&mut self, order: &Order) -> Result<Option<OwnedFd>, Failed> {
        if self.maker != Maker::Root || order.workspace.is_none() {
            return Ok(None);
        }
        let spec = &order.spec;
        let user = spec.image.as_ref().map_or(WORKLOAD, |image| image.user);
        let workload = self.maker.owners(spec.ids, user).workload;
        let uid_map = userns::owners_map(spec.caller_uid, workload.uid);
        let gid_map = userns::owners_map(spec.caller_gid, workload.gid);
        let proc = self.template.proc.as_fd();
        self.blanks
            .with_maps(proc, &uid_map, &gid_map)
            .at(MakeStep::WorkspaceOwners)
            .map(Some)
    }

    /// A user namespace that means: id `n` of an image's files is id `n` inside.
    fn image_owners(&mut self, order: &Order) -> Result<Option<OwnedFd>, Failed> {
        if self.maker != Maker::Root || order.layers.is_none() {
            return Ok(None);
        }
        let map = self.maker.map(order.spec.ids);
        let proc = self.template.proc.as_fd();
        self.blanks
            .with_maps(proc, &map, &map)
            .at(MakeStep::LayerOwners)
            .map(Some)
    }

    /// The file system on a disk image, attached nowhere yet. Mounted out here, since the sandbox's
    /// control group may not open block devices.
    fn image(&self, order: &Order) -> Result<Option<OwnedFd>, Errno> {
        let Some(device) = &order.disk else {
            return Ok(None);
        };
        // The kernel wants a path, and the template may show no `/proc`.
        rustix::process::fchdir(&self.template.proc)?;
        let image = tree::image(device.as_fd());
        rustix::process::chdir(c"/")?;
        image.map(Some)
    }
}

/// What one sandbox needs from outside before its first process is there. The parent drops all of
/// it but its own end of the socket as soon as the process has its copies.
struct Prepared {
    ours: OwnedFd,
    theirs: OwnedFd,
    texts: CString,
    translation: Option<OwnedFd>,
    image_owners: Option<OwnedFd>,
    image: Option<OwnedFd>,
    network: Option<OwnedFd>,
}

impl Prepared {
    /// Lets go of everything but the parent's end of the socket. The other end in particular: while
    /// the parent holds it, the socket does not end.
    fn into_ours(self) -> OwnedFd {
        self.ours
    }
}

/// A `/proc` in which the supervisor's ids mean what they mean to it and settings can be written. As
/// root one of our own, attached nowhere: the host's may be read-only in part, as in a container.
fn processes(maker: Maker) -> Result<OwnedFd, Errno> {
    let options: [(&CStr, Option<&CStr>); 1] = [(c"source", Some(c"proc"))];
    let attributes = PLAIN | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    match mount::create(c"proc", &options, attributes) {
        Ok(own) if maker == Maker::Root => Ok(own),
        Ok(_) | Err(_) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, c"/proc", flags, Mode::empty())
        }
    }
}

fn die_with_supervisor(start: &Start) -> Result<(), Errno> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == start.supervisor {
        Ok(())
    } else {
        Err(Errno::SRCH)
    }
}

/// Own session, no descriptor but the two, standard ones on the null device.
fn detach_from_supervisor(start: &Start) -> Result<(), Errno> {
    die_with_supervisor(start)?;
    rustix::process::setsid()?;
    rustix::process::umask(Mode::empty());
    let _ = rustix::thread::set_name(c"lease-spawner");
    let null = rustix::fs::openat(CWD, c"/dev/null", OFlags::RDWR, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let mut kept = [&start.socket, &start.init].map(|fd| fd.as_raw_fd().cast_unsigned());
    kept.sort_unstable();
    if kept[0] < 3 {
        return Err(Errno::BADF);
    }
    let mut from = 3;
    // Forgotten, since the range closed may hold it.
    std::mem::forget(null);
    for number in kept {
        if number > from {
            close_range(from, number - 1)?;
        }
        from = from.max(number + 1);
    }
    close_range(from, u32::MAX)
}

fn enter_own_user_namespace(proc: &OwnedFd, ids: RootlessIds) -> Result<(), Failed> {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let mapper = match ids {
        RootlessIds::Single => None,
        RootlessIds::Range {
            uid_first,
            gid_first,
            count,
        } => Some(Mapper::begin((uid_first, gid_first, count)).at(MakeStep::MakerIds)?),
    };
    // User first: the mount namespace belongs to it then, and so do our rights in it.
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).at(MakeStep::MakerNamespace)?;
    match mapper {
        None => userns::write_own_single(proc.as_fd(), uid, gid),
        Some(mapper) => mapper.map(Instant::now() + MAP_WAIT),
    }
    .at(MakeStep::MakerIds)?;
    let root = (rustix::thread::Uid::ROOT, rustix::thread::Gid::ROOT);
    rustix::thread::set_thread_res_gid(root.1, root.1, root.1).at(MakeStep::MakerIds)?;
    rustix::thread::set_thread_res_uid(root.0, root.0, root.0).at(MakeStep::MakerIds)
}
