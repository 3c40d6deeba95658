//! `leasehold evidence`, `verify` and `explain`: what proves a run, with a daemon and without one.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use leasehold_control::evidence::bundle::BUNDLE_MAX;
use leasehold_control::evidence::explain::explain as in_words;
use leasehold_control::evidence::local::{self, Outputs};
use leasehold_control::evidence::verify::verify as check;
use leasehold_control::evidence::{Bundle, Keyring, Trust};
use leasehold_core::digest::Digest;
use leasehold_core::id::RunId;
use leasehold_core::outcome::StoredStream;
use leasehold_core::record::StreamRecord;
use leasehold_supervisor::paths::Paths;
use serde_json::json;

use super::{Remote, runs};
use crate::cli::daemon::{EvidenceFlags, ExplainFlags, VerifyFlags};
use crate::fault::Fault;
use crate::run::open_log;
use crate::voice::{self, clean};
use crate::{place, show};

/// Largest output of a run without a daemon that is hashed for its evidence, in bytes: what is kept by default.
const HASHED_MAX: u64 = 64 << 20;

/// The evidence of a run: the daemon's if it has the run, else made of the supervisor's own record.
fn bundle(paths: &Paths, run: &str) -> Result<Vec<u8>, Fault> {
    if let Some(remote) = Remote::find(paths)?
        && let Some(run) = runs::find(&remote, run)?
    {
        let mut text = Vec::new();
        match remote.open(&format!("/v1/runs/{run}/evidence"), &[]) {
            Ok(mut answer) => {
                answer
                    .read_to_end(&mut text)
                    .map_err(|error| Fault::host("the evidence broke off").because(&error))?;
                return Ok(text);
            }
            // A run of no daemon may have been meant.
            Err(fault) if show::find(paths, run.as_str()).is_err() => return Err(fault),
            Err(_) => {}
        }
    }
    of_record(paths, run)
}

fn of_record(paths: &Paths, run: &str) -> Result<Vec<u8>, Fault> {
    let run = show::find(paths, run)?;
    let record = show::read(paths, &run)?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        });
    let keyring = Keyring::open(paths.state().join("signing"), now)
        .map_err(|error| Fault::host("cannot open the signing key").because(&error))?;
    let outputs = Outputs {
        stdout: hashed(paths, &run, "stdout", record.stdout),
        stderr: hashed(paths, &run, "stderr", record.stderr),
    };
    let bundle = local::bundle(&record, outputs, &keyring, now)
        .map_err(|error| Fault::usage(format!("run {run} gives no evidence")).because(&error))?;
    let text = bundle
        .text()
        .map_err(|error| Fault::host("cannot write the evidence").because(&error))?;
    Ok(text.into_bytes())
}

/// An output stream with the digest of what is kept of it; `None` when it is gone, or larger than what is hashed.
fn hashed(paths: &Paths, run: &RunId, name: &str, stream: StreamRecord) -> Option<StoredStream> {
    if stream.kept > HASHED_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    let log = open_log(paths, run, name).ok()?;
    log.take(stream.kept).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == stream.kept).then(|| StoredStream {
        stream,
        digest: Some(Digest::of(&bytes)),
    })
}

/// A file's bytes, or the evidence of a run of that name.
fn given(what: &str) -> Result<Vec<u8>, Fault> {
    let path = Path::new(what);
    // A run id has neither, so that a file was meant.
    if !path.exists() && !what.contains(['.', '/']) {
        return bundle(&place::paths()?, what);
    }
    let mut bytes = Vec::new();
    let read = fs::File::open(path)
        .and_then(|file| file.take(BUNDLE_MAX as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| Fault::usage(format!("cannot read {}", path.display())).because(&error))?;
    Ok(bytes)
}

/// `leasehold evidence`.
///
/// # Errors
/// When there is no such run, or it is not over.
pub(crate) fn evidence(flags: &EvidenceFlags) -> Result<u8, Fault> {
    let mut text = bundle(&place::paths()?, &flags.run)?;
    text.push(b'\n');
    match &flags.out {
        None => voice::data(&text)?,
        Some(path) => {
            fs::write(path, &text).map_err(|error| {
                Fault::usage(format!("cannot write {}", path.display())).because(&error)
            })?;
            voice::note(&format!("wrote {}", path.display()));
        }
    }
    Ok(0)
}

/// `leasehold verify`.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn verify(flags: &VerifyFlags) -> Result<u8, Fault> {
    let text = given(&flags.what)?;
    let trust = match flags.key.is_empty() {
        true => Trust::AsShown,
        false => {
            let keys: Result<BTreeSet<Digest>, Fault> =
                flags.key.iter().map(|key| pinned(key)).collect();
            Trust::Pinned(keys?)
        }
    };
    let verdict = check(text.trim_ascii_end(), &trust);
    let left = Bundle::read(text.trim_ascii_end())
        .ok()
        .and_then(|bundle| left(&bundle));
    let is_clean = left.as_ref().is_some_and(Vec::is_empty);
    if flags.json {
        let faults: Vec<String> = verdict.faults.iter().map(ToString::to_string).collect();
        voice::json(&json!({
            "holds": verdict.holds(), "clean": is_clean, "left": left, "faults": faults,
            "notes": verdict.notes,
        }))?;
    } else {
        let mut said = verdict.to_string();
        for row in left.iter().flatten() {
            said.push_str(&format!("not clean: {row}\n"));
        }
        voice::data(said.as_bytes())?;
    }
    Ok(if verdict.holds() && is_clean { 0 } else { 1 })
}

/// What was still on the host after the removal, each with what was seen; `None` when nobody looked.
fn left(bundle: &Bundle) -> Option<Vec<String>> {
    let observed = bundle
        .events
        .iter()
        .rev()
        .find_map(|event| match &event.fact {
            leasehold_core::event::RunFact::Cleaned { observed } => Some(observed),
            _ => None,
        })?;
    let rows = observed.residues.iter().filter(|row| !row.clean);
    let told = rows.map(|row| format!("{}: {}", clean(&row.resource), clean(&row.detail)));
    Some(told.collect())
}

/// The id of a key that is trusted, as typed or in a file.
fn pinned(text: &str) -> Result<Digest, Fault> {
    const HINT: &str = "`leasehold verify` without --key says which key signed";
    let path = Path::new(text);
    if path.exists() {
        // What is in a file is not repeated: it may be the secret of a key.
        return Digest::parse(super::read_text(path)?.trim()).map_err(|_| {
            let shown = clean(text);
            Fault::usage(format!(
                "`--key`: the file {shown} has something else in it than one key id, `sha256:` and 64 digits"
            ))
            .hint(HINT)
        });
    }
    Digest::parse(text.trim()).map_err(|error| {
        Fault::usage(format!("`--key` is `{}`", clean(text)))
            .because(&error)
            .hint(HINT)
    })
}

/// `leasehold explain`.
///
/// # Errors
/// When there is no such run or file, or it is no evidence.
pub(crate) fn explain(flags: &ExplainFlags) -> Result<u8, Fault> {
    let text = given(&flags.what)?;
    let bundle = Bundle::read(text.trim_ascii_end())
        .map_err(|fault| Fault::usage(format!("{} is no evidence: {fault}", clean(&flags.what))))?;
    voice::data(in_words(&bundle).as_bytes())?;
    Ok(0)
}
