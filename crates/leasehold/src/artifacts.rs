//! `leasehold artifacts`: the files that were kept of a run, listed, or written to a directory of this host.

use leasehold_core::id::RunId;
use leasehold_core::quantity::format_bytes;
use leasehold_core::record::Artifact;
use leasehold_supervisor::collector::wanted;
use leasehold_supervisor::paths::Paths;

use crate::cli::ArtifactsFlags;
use crate::fault::Fault;
use crate::remote::{directory, look};
use crate::run::export::{Destination, Exported};
use crate::{place, show, table, voice};

/// Lists them, or writes them where `--out` says.
///
/// # Errors
/// When there is no such run, no such file, or they are not kept any more.
pub(crate) fn main(flags: &ArtifactsFlags) -> Result<u8, Fault> {
    let paths = place::paths()?;
    match show::find(&paths, &flags.run) {
        Ok(run) => alone(&paths, &run, flags),
        Err(fault) => {
            let of_daemon = look::find(&paths, &flags.run)?;
            let (remote, run) = of_daemon.ok_or(fault)?;
            let artifacts = chosen(directory::artifacts(&remote, &run)?, &run, flags)?;
            finish(flags, &artifacts, |destination| {
                directory::take(&remote, &run, &artifacts, destination)
            })
        }
    }
}

/// Of a run without a daemon: from the copies beside its record.
fn alone(paths: &Paths, run: &RunId, flags: &ArtifactsFlags) -> Result<u8, Fault> {
    let mut record = show::kept(paths, run)?;
    if record.end.is_none() {
        return Err(Fault::usage(format!("run {run} is not over"))
            .hint("its files are collected when its command has ended"));
    }
    record.artifacts = chosen(record.artifacts, run, flags)?;
    let artifacts = record.artifacts.clone();
    finish(flags, &artifacts, |destination| {
        destination.take(paths, &record)
    })
}

/// The list with every file that the globs do not want struck out, at its place: places name the copies.
fn chosen(
    mut artifacts: Vec<Artifact>,
    run: &RunId,
    flags: &ArtifactsFlags,
) -> Result<Vec<Artifact>, Fault> {
    if flags.globs.is_empty() {
        return Ok(artifacts);
    }
    let paths = artifacts.iter().map(|file| file.path.as_str());
    let wanted = wanted(&flags.globs, paths)
        .map_err(|error| Fault::usage("this cannot be looked for").because(&error))?;
    if !wanted.contains(&true) {
        return Err(Fault::usage(format!(
            "run {run} has no artifact that is {}",
            voice::clean(&flags.globs.join(" or "))
        ))
        .hint(format!("`leasehold artifacts {run}` lists what it has")));
    }
    for (file, wanted) in artifacts.iter_mut().zip(wanted) {
        if !wanted {
            file.sha256 = None;
            file.skipped = None;
        }
    }
    Ok(artifacts)
}

fn finish(
    flags: &ArtifactsFlags,
    artifacts: &[Artifact],
    take: impl FnOnce(&Destination) -> Result<Exported, Fault>,
) -> Result<u8, Fault> {
    let Some(out) = &flags.out else {
        return list(artifacts, flags.json);
    };
    let exported = take(&Destination::open(out, flags.unsafe_artifacts)?)?;
    match flags.json {
        true => voice::json(&exported)?,
        false => exported.tell(),
    }
    Ok(0)
}

fn list(artifacts: &[Artifact], json: bool) -> Result<u8, Fault> {
    let there = |file: &&Artifact| file.sha256.is_some() || file.skipped.is_some();
    let listed: Vec<&Artifact> = artifacts.iter().filter(there).collect();
    if json {
        voice::json(&listed)?;
    } else if listed.is_empty() {
        voice::note("the run left no artifacts");
    } else {
        let rows = listed.into_iter().map(row).collect();
        voice::data(table::lines(["FILE", "SIZE", "NOTE"], rows).as_bytes())?;
    }
    Ok(0)
}

fn row(file: &Artifact) -> [String; 3] {
    let note = match &file.skipped {
        Some(why) => format!("not taken: {}", voice::clean(why)),
        None if file.may_execute_on_host => "this host's tools may execute it".to_owned(),
        None => String::new(),
    };
    let size = match file.sha256 {
        Some(_) => format_bytes(file.bytes),
        None => String::new(),
    };
    [voice::clean(&file.path), size, note]
}
