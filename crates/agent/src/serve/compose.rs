//! `POST /files/compose`: puts files together into one and removes them.

use hyper::StatusCode;
use leasehold_protocol::envd::code::{CallError, Code};
use leasehold_protocol::envd::http::{ComposeRequest, Uploaded};
use rustix::io::Errno;

use super::acting::{self, Done, refused};
use super::reply::{Refusal, Reply, json};
use super::state::Shared;
use super::users::User;
use super::{bounds, paths, tree};

fn bad(message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message)
}

/// Composes as the request says.
///
/// # Errors
/// 400 for a request that makes no sense, 404 when a source is missing, 507 when the disk is full.
pub(super) async fn post(
    shared: &Shared,
    user: &User,
    request: ComposeRequest,
) -> Result<Reply, Refusal> {
    if request.source_paths.is_empty() {
        return Err(bad("source_paths must not be empty"));
    }
    if request.source_paths.len() > bounds::COMPOSED {
        let most = bounds::COMPOSED;
        return Err(bad(format!("more than {most} source_paths")));
    }
    if request.destination.is_empty() {
        return Err(bad("destination is required"));
    }
    let destination = shared.path(&request.destination, user)?;
    let mut sources = Vec::with_capacity(request.source_paths.len());
    for source in &request.source_paths {
        let path = shared.path(source, user)?;
        if path == destination {
            return Err(bad(format!(
                "source path {source:?} cannot be the same as destination"
            )));
        }
        sources.push(path);
    }
    let time = bounds::LONG_OPERATION_TIME;
    let work = || compose(&sources, &destination, user);
    let (composed, _) = acting::ask::<Uploaded>(shared, user, time, work).await?;
    Ok(json(StatusCode::OK, &composed))
}

/// Runs in the child. Writes beside the destination first, so that a failure leaves it as it was.
fn compose(sources: &[String], destination: &str, user: &User) -> Result<Done, CallError> {
    // Opened one after the other; a missing one must be noticed before anything is made.
    for source in sources {
        tree::open_to_read(source)?;
    }
    let draft = format!("{destination}.{}.part", std::process::id());
    let outcome = write(sources, &draft, user).and_then(|()| {
        rustix::fs::rename(&draft, destination)
            .map_err(|errno| refused(&format!("cannot make {destination}"), errno))
    });
    if let Err(error) = outcome {
        let _ = rustix::fs::unlink(&draft);
        return Err(error);
    }
    for source in sources {
        match rustix::fs::unlink(source) {
            // Named twice.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(refused(&format!("cannot remove {source}"), errno)),
        }
    }
    Done::json(&Uploaded {
        name: paths::name(destination).to_owned(),
        path: destination.to_owned(),
        kind: "file".to_owned(),
        metadata: super::metadata::Metadata::new(),
    })
}

fn write(sources: &[String], draft: &str, user: &User) -> Result<(), CallError> {
    let file = tree::open_to_write(draft, user, 0o666)?;
    for source in sources {
        let (from, stat) = tree::open_to_read(source)?;
        let here = rustix::fs::fstat(&file)
            .map_err(|errno| refused(&format!("cannot look at {draft}"), errno))?;
        if (stat.st_dev, stat.st_ino) == (here.st_dev, here.st_ino) {
            let message = format!("{source} is the file being made");
            return Err(CallError::new(Code::InvalidArgument, message));
        }
        tree::pour(&from, &file)
            .map_err(|errno| refused(&format!("cannot copy {source}"), errno))?;
    }
    Ok(())
}
