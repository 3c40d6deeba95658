//! Where our supervisor, its records and its logs are.

use std::path::PathBuf;

use leasehold_backend::process::client::{Client, ClientError};
use leasehold_backend::process::start::{self, Begun, Endpoint};
use leasehold_core::id::RunId;
use leasehold_supervisor::paths::Paths;

use crate::carried;
use crate::env;
use crate::fault::Fault;
use crate::serve::home::Home;

/// The directories this user and environment mean. Makes nothing.
///
/// # Errors
/// When a variable is no absolute path, or nothing says where the state belongs.
pub(crate) fn paths() -> Result<Paths, Fault> {
    Paths::from_env().map_err(|error| Fault::usage("cannot tell the directories").because(&error))
}

/// How to reach the supervisor of some directories, where one runs. Changes nothing.
pub(crate) fn address(paths: &Paths) -> Endpoint {
    Endpoint::new(
        paths.run().to_owned(),
        paths.state().to_owned(),
        PathBuf::new(),
    )
}

/// How to reach or start the supervisor of some directories. Its program is put into the run directory, if that is
/// there.
///
/// # Errors
/// When there is no room for the supervisor's program.
pub(crate) fn endpoint(paths: &Paths) -> Result<Endpoint, Fault> {
    Ok(Endpoint {
        program: carried::supervisor(paths.run())?,
        init: carried::INIT,
        agent: carried::AGENT,
        ..address(paths)
    })
}

/// The program that runs here.
///
/// # Errors
/// When it cannot be found.
pub(crate) fn this_program() -> Result<PathBuf, Fault> {
    let program = std::env::current_exe()
        .map_err(|error| Fault::host("cannot find this program").because(&error))?;
    // A program that was replaced while it runs has no path any more, and is still there.
    Ok(match program.exists() {
        true => program,
        false => PathBuf::from("/proc/self/exe"),
    })
}

/// Makes the directories, closed to everybody else.
///
/// # Errors
/// When one cannot be made, or belongs to or is open to somebody else.
pub(crate) fn make(paths: &Paths) -> Result<(), Fault> {
    paths.create().map_err(|error| {
        Fault::host("cannot use the directories")
            .because(&error)
            .hint(format!(
                "`{}` and `{}` name others",
                env::STATE_DIR.name,
                env::RUN_DIR.name
            ))
    })
}

/// Connects to the supervisor, or makes the directories and starts it.
///
/// # Errors
/// When a directory or a variable is refused, or the supervisor cannot be started or talked to.
pub(crate) fn connect_or_start(paths: &Paths) -> Result<Client, Fault> {
    connect_or_go_on(paths, None)
}

/// The same, where [`begin`] has begun one.
///
/// # Errors
/// As [`connect_or_start`].
pub(crate) fn connect_or_go_on(paths: &Paths, begun: Option<Begun>) -> Result<Client, Fault> {
    // The supervisor reads it; here its refusal is heard.
    env::scope_wanted()?;
    env::retention()?;
    if begun.is_none() {
        make(paths)?;
    }
    Client::connect_or_go_on(&endpoint(paths)?, begun).map_err(client_fault)
}

/// Begins a supervisor where one will probably be wanted: its program is loaded while this one reads its
/// flags. It does nothing before it is told to, and leaves when this process ends without a word. What is
/// wrong here is said by who asks for it in earnest.
pub(crate) fn begin() -> Option<Begun> {
    let paths = paths().ok()?;
    // The first run of all makes the directories when its flags are accepted.
    let daemon = env::read(env::URL.name).is_some() || Home::within(&paths).notice_file().exists();
    if daemon || !paths.run().exists() {
        return None;
    }
    make(&paths).ok()?;
    start::begin(&endpoint(&paths).ok()?).ok()?
}

/// Connects to the supervisor if one runs.
///
/// # Errors
/// When one runs and cannot be talked to.
pub(crate) fn connect(paths: &Paths) -> Result<Option<Client>, Fault> {
    match Client::connect(&address(paths)) {
        Ok(client) => Ok(Some(client)),
        Err(ClientError::Absent { .. } | ClientError::Gone) => Ok(None),
        Err(error) => Err(client_fault(error)),
    }
}

/// A client's failure as ours.
pub(crate) fn client_fault(error: ClientError) -> Fault {
    if let ClientError::Refused(error) = error {
        return error.into();
    }
    let fault = Fault::host("cannot use the supervisor").because(&error);
    match error.hint() {
        Some(hint) => fault.hint(hint),
        None => fault,
    }
}

/// The directory of one run's record, logs and artifacts.
pub(crate) fn run_directory(paths: &Paths, run: &RunId) -> PathBuf {
    paths.runs().join(run.as_str())
}
