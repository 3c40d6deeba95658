//! The bytes between the supervisor and its spawner, and between the spawner and a sandbox being
//! made. All of them are our own program, forked and never executed anew, so there is one version;
//! lengths and values are checked all the same, because a wrong order must fail, not half work.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use leasehold_core::digest::Digest;
use leasehold_core::image::{ImageSpec, LAYERS_MAX, LayerName, RootDirectory, User};
use leasehold_protocol::socket::{recv_with_fds, send_with_fds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::spec::{
    CGROUPS_MAX, CORES_MAX, Disk, IdBlock, MakeFds, MakeSpec, Namespaces, Warm, WorkspaceMode,
};
use super::step::{Failed, MakeStep};

/// Most bytes of one message.
const MESSAGE_MAX: usize = 256 + 4 * CORES_MAX + LAYER_BYTES * LAYERS_MAX;
/// Bytes of the name of a layer.
const LAYER_BYTES: usize = 36;

/// An order as the spawner holds it.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) spec: MakeSpec,
    pub(super) init: OwnedFd,
    pub(super) stub: OwnedFd,
    pub(super) workspace: Option<OwnedFd>,
    pub(super) disk: Option<OwnedFd>,
    pub(super) layers: Option<OwnedFd>,
    pub(super) cgroup: Option<OwnedFd>,
    pub(super) cgroup_procs: Vec<OwnedFd>,
}

/// What comes back for one order, or at the start for none. Descriptors travel beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// The template stands; orders are welcome.
    Ready,
    /// The sandbox stands. Beside it: pidfd, workspace, scratch.
    Made {
        pid: u32,
        namespaces: Namespaces,
        single_uid: bool,
        copied: bool,
    },
    /// It does not. Beside it: the pidfd of the killed first process, if there was one.
    Failed(Failed),
}

/// What a sandbox being made says, once. The end of its socket without a failure is init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Everything stands and init is next. Beside it: workspace, scratch.
    Standing {
        namespaces: Namespaces,
        copied: bool,
    },
    /// A step failed; it ends now.
    Failed(Failed),
    /// Of a process beside the spawner: what it was to do is done.
    Parked,
}

/// Waits until a socket has something or its end, or the moment is over (`false`).
pub(super) fn readable(socket: BorrowedFd<'_>, until: Instant) -> Result<bool, Errno> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if send_with_fds(socket, bytes, fds)? == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::WriteZero))
    }
}

/// One message; `None` at the end of the socket.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(Reader, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut fds = Vec::new();
    let got = recv_with_fds(socket, &mut bytes, &mut fds)?;
    if got == 0 {
        return Ok(None);
    }
    bytes.truncate(got);
    Ok(Some((Reader { bytes, at: 0 }, fds)))
}

/// What of the host's is passed on as the spawner needs it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Copies<'a> {
    pub(super) workspace: Option<BorrowedFd<'a>>,
    pub(super) layers: Option<BorrowedFd<'a>>,
}

pub(super) fn send_order(
    socket: BorrowedFd<'_>,
    spec: &MakeSpec,
    fds: &MakeFds<'_>,
    copies: Copies<'_>,
) -> io::Result<()> {
    let Copies { workspace, layers } = copies;
    let mut out = Writer::default();
    out.words(&[spec.ids.host_base, spec.ids.count]);
    out.words(&[spec.caller_uid, spec.caller_gid]);
    let mode = match spec.workspace {
        WorkspaceMode::Ephemeral => 0,
        WorkspaceMode::ReadOnly => 1,
        WorkspaceMode::Clone => 2,
        WorkspaceMode::ReadWrite => 3,
    };
    let warm = u32::from(spec.warm == Some(Warm::Python));
    let (disk, bytes, inodes) = match spec.disk {
        Disk::Tmpfs { bytes, inodes } => (0, bytes, inodes),
        Disk::Image => (1, 0, 0),
    };
    out.words(&[mode, warm, disk]);
    let deadline_ms = u64::try_from(spec.deadline.as_millis()).unwrap_or(u64::MAX);
    for value in [
        bytes,
        inodes,
        spec.memory_bytes,
        spec.shm_bytes,
        deadline_ms,
    ] {
        out.long(value);
    }
    out.words(&[spec.cores.len() as u32]);
    out.words(&spec.cores);
    out.words(&[
        u32::from(workspace.is_some()),
        u32::from(fds.disk.is_some()),
        u32::from(layers.is_some()),
        u32::from(fds.cgroup.is_some()),
        fds.cgroup_procs.len() as u32,
    ]);
    out.image(spec.image.as_ref());
    let mut all = vec![fds.init, fds.stub];
    all.extend(workspace);
    all.extend(fds.disk);
    all.extend(layers);
    all.extend(fds.cgroup);
    all.extend(fds.cgroup_procs);
    send(socket, &out.0, &all)
}

/// Reads an order; `None` when the supervisor is gone.
pub(super) fn receive_order(socket: BorrowedFd<'_>) -> Result<Option<Order>, Errno> {
    let received = receive(socket).map_err(errno)?;
    let Some((mut reader, fds)) = received else {
        return Ok(None);
    };
    parse_order(&mut reader, fds).map(Some).ok_or(Errno::BADMSG)
}

fn parse_order(reader: &mut Reader, fds: Vec<OwnedFd>) -> Option<Order> {
    let ids = IdBlock {
        host_base: reader.word()?,
        count: reader.word()?,
    };
    let (caller_uid, caller_gid) = (reader.word()?, reader.word()?);
    let workspace = match reader.word()? {
        0 => WorkspaceMode::Ephemeral,
        1 => WorkspaceMode::ReadOnly,
        2 => WorkspaceMode::Clone,
        3 => WorkspaceMode::ReadWrite,
        _ => return None,
    };
    let warm = match reader.word()? {
        0 => None,
        1 => Some(Warm::Python),
        _ => return None,
    };
    let on_image = reader.word()?;
    let (bytes, inodes) = (reader.long()?, reader.long()?);
    let disk = match on_image {
        0 => Disk::Tmpfs { bytes, inodes },
        1 => Disk::Image,
        _ => return None,
    };
    let (memory_bytes, shm_bytes) = (reader.long()?, reader.long()?);
    let deadline = Duration::from_millis(reader.long()?);
    let count = reader.word()? as usize;
    if count > CORES_MAX {
        return None;
    }
    let cores = (0..count).map(|_| reader.word()).collect::<Option<_>>()?;
    let (directory, device) = (reader.word()? == 1, reader.word()? == 1);
    let (below, born) = (reader.word()? == 1, reader.word()? == 1);
    let groups = reader.word()? as usize;
    let image = reader.image()?;
    if groups > CGROUPS_MAX || !reader.done() {
        return None;
    }
    let mut fds = fds.into_iter();
    let order = Order {
        init: fds.next()?,
        stub: fds.next()?,
        workspace: if directory { Some(fds.next()?) } else { None },
        disk: if device { Some(fds.next()?) } else { None },
        layers: if below { Some(fds.next()?) } else { None },
        cgroup: if born { Some(fds.next()?) } else { None },
        cgroup_procs: fds.collect(),
        spec: MakeSpec {
            ids,
            cores,
            memory_bytes,
            disk,
            shm_bytes,
            workspace,
            warm,
            image,
            caller_uid,
            caller_gid,
            deadline,
        },
    };
    let fits = order.layers.is_some() == order.spec.image.is_some();
    (fits && order.cgroup_procs.len() == groups).then_some(order)
}

pub(super) fn send_answer(
    socket: BorrowedFd<'_>,
    answer: Answer,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut out = Writer::default();
    match answer {
        Answer::Ready => out.words(&[0]),
        Answer::Made {
            pid,
            namespaces,
            single_uid,
            copied,
        } => {
            out.words(&[1, pid, u32::from(single_uid), u32::from(copied)]);
            out.namespaces(namespaces);
        }
        Answer::Failed(failed) => out.failed(2, failed),
    }
    send(socket, &out.0, fds)
}

/// Reads an answer; `None` when the spawner is gone or says what is not of the protocol.
pub(super) fn receive_answer(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(Option<Answer>, Vec<OwnedFd>)>> {
    let Some((mut reader, fds)) = receive(socket)? else {
        return Ok(None);
    };
    let answer = parse_answer(&mut reader).filter(|_| reader.done());
    Ok(Some((answer, fds)))
}

fn parse_answer(reader: &mut Reader) -> Option<Answer> {
    Some(match reader.word()? {
        0 => Answer::Ready,
        1 => Answer::Made {
            pid: reader.word()?,
            single_uid: reader.word()? == 1,
            copied: reader.word()? == 1,
            namespaces: reader.namespaces()?,
        },
        2 => Answer::Failed(reader.failed()?),
        _ => return None,
    })
}

pub(super) fn send_progress(
    socket: BorrowedFd<'_>,
    progress: Progress,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut out = Writer::default();
    match progress {
        Progress::Standing { namespaces, copied } => {
            out.words(&[0, u32::from(copied)]);
            out.namespaces(namespaces);
        }
        Progress::Failed(failed) => out.failed(1, failed),
        Progress::Parked => out.words(&[2]),
    }
    send(socket, &out.0, fds)
}

/// Reads progress; `None` when the process became init or died.
pub(super) fn receive_progress(
    socket: BorrowedFd<'_>,
) -> Result<Option<(Progress, Vec<OwnedFd>)>, Errno> {
    let Some((mut reader, fds)) = receive(socket).map_err(errno)? else {
        return Ok(None);
    };
    let progress = parse_progress(&mut reader);
    progress
        .filter(|_| reader.done())
        .map(|progress| Some((progress, fds)))
        .ok_or(Errno::BADMSG)
}

fn parse_progress(reader: &mut Reader) -> Option<Progress> {
    Some(match reader.word()? {
        0 => Progress::Standing {
            copied: reader.word()? == 1,
            namespaces: reader.namespaces()?,
        },
        1 => Progress::Failed(reader.failed()?),
        2 => Progress::Parked,
        _ => return None,
    })
}

/// Lets the other side of a handshake go on, with what it needs for that.
pub(super) fn go(socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    send(socket, b"g", fds).map_err(errno)
}

/// Waits for [`go`]. An ended socket is an error: the other side is gone.
pub(super) fn await_go(socket: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Errno> {
    match receive(socket).map_err(errno)? {
        Some((reader, fds)) if reader.bytes == b"g" => Ok(fds),
        Some(_) => Err(Errno::BADMSG),
        None => Err(Errno::CONNRESET),
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::BADMSG)
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn long(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn digest(&mut self, digest: Digest) {
        self.0.extend_from_slice(digest.bytes());
    }

    fn image(&mut self, image: Option<&ImageSpec>) {
        self.words(&[u32::from(image.is_some())]);
        let Some(image) = image else { return };
        self.digest(image.digest);
        let RootDirectory { mode, uid, gid } = image.root;
        let flags = [image.owners, image.home].map(u32::from);
        self.words(&[mode, uid, gid, flags[0], flags[1]]);
        self.words(&[image.user.uid, image.user.gid, image.layers.len() as u32]);
        for layer in &image.layers {
            self.digest(layer.digest);
            self.words(&[u32::from(layer.leans)]);
        }
    }

    fn namespaces(&mut self, of: Namespaces) {
        for inode in [of.net, of.mnt, of.pid, of.user, of.ipc, of.uts, of.cgroup] {
            self.long(inode);
        }
    }

    fn failed(&mut self, kind: u32, failed: Failed) {
        let errno = failed.errno.raw_os_error().cast_unsigned();
        self.words(&[kind, failed.step as u32, errno]);
    }
}

struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    fn word(&mut self) -> Option<u32> {
        let bytes = self.bytes.get(self.at..self.at + 4)?;
        self.at += 4;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from(self.word()?) | u64::from(self.word()?) << 32)
    }

    fn digest(&mut self) -> Option<Digest> {
        let bytes: &[u8; 32] = self.bytes.get(self.at..)?.first_chunk()?;
        let digest = Digest::from_bytes(*bytes);
        self.at += bytes.len();
        Some(digest)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.word()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// `None` where what is there is no image, nor none.
    fn image(&mut self) -> Option<Option<ImageSpec>> {
        if !self.flag()? {
            return Some(None);
        }
        let digest = self.digest()?;
        let root = RootDirectory {
            mode: self.word()?,
            uid: self.word()?,
            gid: self.word()?,
        };
        let (owners, home) = (self.flag()?, self.flag()?);
        let user = User {
            uid: self.word()?,
            gid: self.word()?,
        };
        let count = self.word()? as usize;
        if !(1..=LAYERS_MAX).contains(&count) {
            return None;
        }
        let mut layer = || {
            Some(LayerName {
                digest: self.digest()?,
                leans: self.flag()?,
            })
        };
        let layers = (0..count).map(|_| layer()).collect::<Option<_>>()?;
        Some(Some(ImageSpec {
            digest,
            layers,
            root,
            owners,
            user,
            home,
        }))
    }

    fn namespaces(&mut self) -> Option<Namespaces> {
        Some(Namespaces {
            net: self.long()?,
            mnt: self.long()?,
            pid: self.long()?,
            user: self.long()?,
            ipc: self.long()?,
            uts: self.long()?,
            cgroup: self.long()?,
        })
    }

    fn failed(&mut self) -> Option<Failed> {
        let step = MakeStep::from_number(self.word()?)?;
        let errno = Errno::from_raw_os_error(self.word()?.cast_signed());
        Some(Failed { step, errno })
    }

    fn done(&self) -> bool {
        self.at == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    fn pair() -> (OwnedFd, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
    }

    #[test]
    fn an_order_arrives_as_it_was_sent() {
        let (here, there) = pair();
        let mut spec = super::super::spec::tests::small();
        spec.cores = (0..CORES_MAX as u32).collect();
        spec.workspace = WorkspaceMode::Clone;
        spec.warm = Some(Warm::Python);
        let mut image = super::super::spec::tests::image();
        image.layers = [image.layers[0], image.layers[1]].repeat(LAYERS_MAX / 2);
        spec.image = Some(image);
        let groups = [here.as_fd(); CGROUPS_MAX];
        let fds = MakeFds {
            init: here.as_fd(),
            stub: there.as_fd(),
            workspace: Some(here.as_fd()),
            disk: None,
            layers: Some(there.as_fd()),
            cgroup: Some(there.as_fd()),
            cgroup_procs: &groups,
        };
        let copies = Copies {
            workspace: fds.workspace,
            layers: fds.layers,
        };
        send_order(here.as_fd(), &spec, &fds, copies).unwrap();
        let order = receive_order(there.as_fd()).unwrap().unwrap();
        assert_eq!(order.spec, spec);
        assert!(order.workspace.is_some() && order.disk.is_none());
        assert!(order.cgroup.is_some() && order.layers.is_some());
        assert_eq!(order.cgroup_procs.len(), CGROUPS_MAX);
    }

    #[test]
    fn a_cut_or_overlong_order_is_refused() {
        let (here, there) = pair();
        for bytes in [&b"abc"[..], &[0; 400]] {
            send(here.as_fd(), bytes, &[]).unwrap();
            assert_eq!(receive_order(there.as_fd()).unwrap_err(), Errno::BADMSG);
        }
        drop(here);
        assert!(receive_order(there.as_fd()).unwrap().is_none());
    }

    #[test]
    fn answers_and_progress_arrive_as_they_were_sent() {
        let (here, there) = pair();
        let failed = Failed {
            step: MakeStep::WorkspaceCopy,
            errno: Errno::NOSPC,
        };
        let namespaces = Namespaces {
            net: 1 << 40,
            cgroup: 3,
            ..Namespaces::default()
        };
        let made = Answer::Made {
            pid: 7,
            namespaces,
            single_uid: true,
            copied: true,
        };
        for answer in [Answer::Ready, made, Answer::Failed(failed)] {
            send_answer(here.as_fd(), answer, &[]).unwrap();
            let (got, _) = receive_answer(there.as_fd()).unwrap().unwrap();
            assert_eq!(got, Some(answer));
        }
        let standing = Progress::Standing {
            namespaces,
            copied: true,
        };
        for progress in [standing, Progress::Failed(failed), Progress::Parked] {
            send_progress(here.as_fd(), progress, &[]).unwrap();
            let (got, _) = receive_progress(there.as_fd()).unwrap().unwrap();
            assert_eq!(got, progress);
        }
    }
}
