//! `leasehold serve`: the daemon. The only place where concrete store, objects, backend and HTTP meet.
//!
//! The order of a start: the lock, the store, the worker, whatever an earlier process left, the first key,
//! and only then the door. At the end the door closes first.

pub(crate) mod config;
mod door;
pub(crate) mod home;
mod images;
mod local;
mod parts;
mod wasm;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold_api::Directories;
use leasehold_backend::process::ProcessBackend;
use leasehold_backend::process::client::{Client, ClientError};
use leasehold_backend::process::start::Endpoint;
use leasehold_control::auth::Token;
use leasehold_control::clock::{Clock, SystemClock};
use leasehold_control::control::Control;
use leasehold_control::engine::Engine;
use leasehold_control::engine::backends::Backends;
use leasehold_control::engine::descriptors::{Descriptors, runs_carried};
use leasehold_control::engine::failpoint::Failpoints;
use leasehold_control::engine::modules::Scripts;
use leasehold_control::engine::parts::{Parts, Settings};
use leasehold_control::engine::queue::Bounds;
use leasehold_control::entropy::SystemEntropy;
use leasehold_control::evidence::Keyring;
use leasehold_control::evidence::seal::Signer;
use leasehold_control::tools::StoredChecks;
use leasehold_control::vault::Vault;
use leasehold_store::objects::Objects;
use leasehold_store::sqlite::{Options, SqliteStore};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use self::config::Config;
use self::door::Width;
use self::home::Home;
use self::images::Stocked;
use self::parts::{Shelved, Stored, Trees};
use self::wasm::LateWasm;
use crate::cli::daemon::ServeFlags;
use crate::fault::Fault;
use crate::{place, voice};

/// Threads of the runtime: the work is elsewhere, in the supervisor and the sandboxes.
const THREADS: usize = 2;
/// How long answers that are under way may take once the door is closed.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// Serves until it is told to end.
///
/// # Errors
/// When it cannot start: configuration, directories, database, address.
pub(crate) fn main(flags: &ServeFlags) -> Result<u8, Fault> {
    // First of all, so that their numbers are low.
    let descriptors = Descriptors::set_aside().map_err(|error| {
        Fault::host("cannot set descriptors aside for ends")
            .because(&error)
            .hint("`ulimit -n` gives this process more")
    })?;
    let config = Config::settle(flags)?;
    let paths = place::paths()?;
    place::make(&paths)?;
    let home = Home::within(&paths);
    let lock = home.take()?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        // Whoever read the log may be gone. What it says of that itself goes the same way, and would fall over.
        .log_internal_errors(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .on_thread_start(|| {
            let _ = leasehold_jail::schedule::be_prompt();
        })
        .enable_all()
        .build()
        .map_err(|error| Fault::host("cannot start the runtime").because(&error))?;
    let served = runtime.block_on(serve(&config, &home, descriptors));
    home.withdraw();
    runtime.shutdown_timeout(LAST_ANSWERS);
    drop(lock);
    served.map(|()| 0)
}

async fn serve(config: &Config, home: &Home, descriptors: Arc<Descriptors>) -> Result<(), Fault> {
    let width = Width::settle();
    let running_max = running_max(config, width);
    let worker = home.worker();
    // Before anything is opened, and so before anything is changed.
    understood(place::address(&worker)).await?;
    let store = SqliteStore::open(Options::new(home.own()))
        .map_err(|error| Fault::host("cannot open the database").because(&error))?;
    let store = Arc::new(store);
    let objects = Objects::local(home.objects())
        .map_err(|error| Fault::host("cannot open the objects").because(&error))?;
    let trees = Trees::new(objects.clone(), home.trees())
        .map_err(|error| Fault::host("cannot make the directory of trees").because(&error))?;
    let clock = Arc::new(SystemClock::new());
    let keyring = Keyring::open(home.signing(), clock.unix_ms())
        .map_err(|error| Fault::host("cannot open the signing keys").because(&error))?;
    let vault = Vault::open(&home.vault()).map_err(|error| {
        Fault::host(format!("cannot open {}", home.vault().display())).because(&error)
    })?;
    let backend = ProcessBackend::new(place::endpoint(&worker)?);
    let engine = Engine::start(Parts {
        store: store.clone(),
        objects: Arc::new(Stored(objects)),
        backends: Backends::of(Arc::new(backend.clone()))
            .with(Arc::new(LateWasm::new(backend, home.wasm()))),
        sealer: Arc::new(Signer::new(Arc::new(keyring), clock.clone())),
        checks: Arc::new(StoredChecks(store)),
        vault: Arc::new(vault),
        workspaces: Arc::new(trees),
        templates: Arc::new(Shelved(home.templates())),
        images: Arc::new(Stocked::new(home.images())),
        scripts: Scripts::default(),
        clock,
        entropy: Arc::new(SystemEntropy),
        worker: home.worker_id()?,
        descriptors: Arc::clone(&descriptors),
        settings: Settings {
            bounds: Bounds::new(running_max, Settings::default().bounds.queued_max),
            ..Settings::default()
        },
        failpoints: Failpoints::from_env(),
    })
    .await
    .map_err(|error| Fault::host("cannot take up what was left").because(&error))?;
    tell_taken_up(engine.carried());
    let control = Control::new(engine);
    guard(config, &control).await?;
    let listener = TcpListener::bind(config.listen).await.map_err(|error| {
        Fault::host(format!("cannot listen at {}", config.listen))
            .because(&error)
            .hint("`--listen` takes another port, and 0 a free one")
    })?;
    let address = listener
        .local_addr()
        .map_err(|error| Fault::host("cannot tell the address").because(&error))?;
    first_key(home, &control).await?;
    let directories = Directories::default();
    local::listen(
        &home.local_socket(),
        directories.clone(),
        Arc::clone(&descriptors),
    )?;
    control.keep_warm(config.warm);
    home.announce(address)?;
    told(address, home);
    let router = leasehold_api::router(control.clone(), directories);
    let door = (listener, width, descriptors);
    until_told(door, router, control, config.drain).await
}

/// Says how many runs an earlier daemon left that were not over.
fn tell_taken_up(runs: usize) {
    if runs > 0 {
        voice::note(&format!(
            "took up what was not over, {runs} in all; `leasehold ps` shows it"
        ));
    }
}

/// A worker that is there already, with what an earlier daemon left alive, is understood by this version.
async fn understood(endpoint: Endpoint) -> Result<(), Fault> {
    let asked = tokio::task::spawn_blocking(move || Client::connect(&endpoint).map(drop));
    match asked.await {
        Ok(Err(error @ ClientError::Version { .. })) => Err(Fault::host(
            "the worker of another version is still here, and its runs with it",
        )
        .because(&error)
        .hint(
            "serve with the version it belongs to until its runs are over; without any it leaves within a minute",
        )),
        // None is there, or it is asked again when it is needed.
        _ => Ok(()),
    }
}

/// Runs at once: no more than this process has descriptors for.
fn running_max(config: &Config, width: Width) -> u32 {
    let carried = runs_carried(width.descriptors, width.connections as u64);
    if carried < config.running_max {
        voice::note(&format!(
            "at most {carried} of {} runs at once: this process may have {} descriptors",
            config.running_max, width.descriptors
        ));
    }
    config.running_max.min(carried)
}

/// Beyond this machine nothing is served without keys, nor in the clear unless that is said aloud.
async fn guard(config: &Config, control: &Control) -> Result<(), Fault> {
    if config.is_loopback() {
        return Ok(());
    }
    if !control.has_keys().await? {
        return Err(Fault::usage(format!(
            "{} is reachable from other machines, and no key has been made yet",
            config.listen
        ))
        .hint(
            "start it once on 127.0.0.1, where it makes the first key, then make the keys you need",
        ));
    }
    if !config.plain_http {
        return Err(Fault::usage(format!(
            "{} is reachable from other machines, and keys would go there in the clear",
            config.listen
        ))
        .hint("put something that speaks TLS in front of it and say --plain-http"));
    }
    Ok(())
}

async fn first_key(home: &Home, control: &Control) -> Result<(), Fault> {
    let keep = |token: &Token| home::write_closed(&home.first_key(), token.reveal().as_bytes());
    if control.first_key(keep).await? {
        voice::note(&format!(
            "made the first key, of an operator: {}",
            home.first_key().display()
        ));
    }
    Ok(())
}

fn told(address: SocketAddr, home: &Home) {
    voice::note(&format!("serving at http://{address}"));
    if home.first_key().exists() {
        voice::hint(
            "`leasehold run -- CMD` on this machine uses it from now on; `leasehold ps` shows what runs",
        );
    }
}

/// Serves until TERM or INT; then closes the door, drains, and lets the last answers out.
async fn until_told(
    (listener, width, descriptors): (TcpListener, Width, Arc<Descriptors>),
    router: axum::Router,
    control: Control,
    drain: Duration,
) -> Result<(), Fault> {
    let no_signals = |error: std::io::Error| Fault::host("cannot take signals").because(&error);
    let mut term = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut int = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let (end, ended) = tokio::sync::watch::channel(false);
    let server = tokio::spawn(door::serve(listener, router, width, descriptors, ended));
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    voice::note(&format!(
        "draining for at most {}; a second signal ends it at once",
        leasehold_core::quantity::format_micros(
            u64::try_from(drain.as_micros()).unwrap_or(u64::MAX)
        )
    ));
    tokio::select! {
        () = control.drain(drain) => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    // Whoever waits or follows is told that the run goes on without us.
    control.leave();
    end.send_replace(true);
    // What does not end by itself then is cut.
    let _ = tokio::time::timeout(LAST_ANSWERS, server).await;
    Ok(())
}
