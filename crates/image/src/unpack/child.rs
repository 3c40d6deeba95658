//! The process that unpacks: opens what it was told, confines itself, reads the layer, answers, ends.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use leasehold_jail::unpacking::{Unpacking, confine};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::apply::{ApplyError, Layer};
use super::decode::Decoded;
use super::tree::Owners;
use super::{Answer, Request, Unpacked, compare};
use crate::stack::Stack;
use crate::tar::{Reader, TarError};

/// Most bytes of a request.
const REQUEST_MAX: u64 = 1 << 20;

/// Is the process that unpacks: reads one request from standard input and answers on standard output. To be
/// called first thing in a program, while it has one thread. Returns the status to end with.
#[must_use]
pub fn main() -> u8 {
    let answer = work().unwrap_or_else(|answer| answer);
    let mut bytes = serde_json::to_vec(&answer).unwrap_or_default();
    bytes.push(b'\n');
    match std::io::stdout().write_all(&bytes) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Answer {
    move |error| Answer::Failed(format!("cannot {what}: {error}"))
}

fn work() -> Result<Answer, Answer> {
    // Whoever started this process may have left it more than the standard descriptors.
    leasehold_jail::sys::close_inherited().map_err(failed("close inherited descriptors"))?;
    let mut bytes = Vec::new();
    let mut input = std::io::stdin().take(REQUEST_MAX);
    input
        .read_to_end(&mut bytes)
        .map_err(failed("read the request"))?;
    let request: Request = serde_json::from_slice(&bytes)
        .map_err(|error| Answer::Failed(format!("cannot read the request: {error}")))?;
    let blob = File::open(&request.blob).map_err(failed("open the layer"))?;
    let compressed = blob.metadata().map_err(failed("look at the layer"))?.len();
    let target = directory(&request.target)?;
    let lowers: Vec<OwnedFd> = request
        .lowers
        .iter()
        .map(|lower| directory(lower))
        .collect::<Result<_, _>>()?;
    let against = request.against.as_deref().map(directory).transpose()?;
    // Modes are those of the archive.
    rustix::process::umask(Mode::empty());
    let readable: Vec<_> = lowers.iter().chain(&against).map(AsFd::as_fd).collect();
    let held = confine(&Unpacking {
        target: target.as_fd(),
        lowers: &readable,
        file_bytes: request.limits.layer_bytes,
        memory_bytes: request.limits.memory_bytes,
        open_files: open_files(request.limits.depth, readable.len()),
        cpu_seconds: request.limits.cpu_seconds,
    });
    let held = held.map_err(|error| Answer::Failed(format!("cannot confine itself: {error}")))?;
    drop(readable);
    let owners = match held.owners {
        true => Owners::Given,
        false => Owners::Caller,
    };
    let lowers = Stack::new(lowers);
    let mut done = unpack(&request, blob, compressed, &target, &lowers, owners)?;
    if let Some(against) = against {
        done.altered =
            compare::compare(&target, &against).map_err(failed("compare the two layers"))?;
    }
    done.confined = (held.root, held.landlock);
    Ok(Answer::Done(Box::new(done)))
}

/// Descriptors that are open at once: two for each directory on a way while two layers are compared, and of each layer
/// below its root, a directory that is kept, and two while one is entered.
fn open_files(depth: usize, layers: usize) -> u64 {
    const OTHERS: usize = 64;
    (OTHERS + 2 * depth + 4 * layers) as u64
}

fn unpack(
    request: &Request,
    blob: File,
    compressed: u64,
    target: &OwnedFd,
    lowers: &Stack,
    owners: Owners,
) -> Result<Unpacked, Answer> {
    let decoded =
        Decoded::new(blob, Some(compressed), request.limits).map_err(failed("read the layer"))?;
    let mut tar = Reader::new(decoded.upon(request.spent.bytes));
    let layer = Layer::new(
        target,
        lowers,
        owners,
        &request.limits,
        request.spent.entries,
    );
    let mut done = layer.unpack(&mut tar).map_err(|error| match error {
        // What is compressed wrongly, or beyond a bound, comes as a failure to read.
        ApplyError::Tar(TarError::Read(cause)) => {
            Answer::Refused(format!("the archive cannot be read: {cause}"))
        }
        ApplyError::Host { .. } => Answer::Failed(error.to_string()),
        ApplyError::Tar(_) | ApplyError::Entry { .. } => Answer::Refused(error.to_string()),
    })?;
    let (bytes, digest) = tar.into_inner().finish();
    if digest != request.diff_id {
        return Err(Answer::Refused(format!(
            "without compression it has the digest {digest}, and the configuration says {}",
            request.diff_id
        )));
    }
    done.bytes = bytes;
    Ok(done)
}

fn directory(path: &Path) -> Result<OwnedFd, Answer> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
        .map_err(|error| Answer::Failed(format!("cannot open a directory of the store: {error}")))
}
