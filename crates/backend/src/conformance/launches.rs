//! Runs that are launched in one step and known by their run alone.

use leasehold_core::end::{CancelledBy, EndReason};
use leasehold_core::error::ErrorKind;
use leasehold_core::id::{RunId, SandboxId};
use leasehold_core::limits::Limit;
use leasehold_core::spec::SandboxSpec;

use super::script::{Command, PRINTED, Script};
use super::{Case, Suite, Trouble, Verdict, await_output, check, content, finish, new_run};
use crate::error::BackendError;
use crate::execution::Execution;
use crate::seam::{Doing, Launch};

pub(super) const ALL: &[(&str, Case)] = &[
    ("a launch makes, runs and removes", launch),
    ("a launch that is refused leaves nothing", refused),
    ("a run id is launched once", once),
    ("a run is cancelled by its id", cancel),
    ("a run is listed while it holds a computer", running),
    ("the copy of an artifact is read by its place", artifact),
    ("a warm computer serves a launch", warm),
];

async fn launched(
    suite: &Suite<'_>,
    run: &RunId,
    script: Script,
) -> Result<Execution, BackendError> {
    let launch = ordered(suite, run, SandboxSpec::default(), suite.command(script));
    suite.backend.launch(launch).await
}

fn ordered(suite: &Suite<'_>, run: &RunId, sandbox: SandboxSpec, command: Command) -> Launch {
    Launch {
        module: command.module,
        tenant: suite.rig.tenant(),
        ..Launch::new(run.clone(), sandbox, command.exec)
    }
}

fn launch<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let run = new_run()?;
        let execution = launched(suite, &run, Script::Print).await?;
        check!(execution.run == run, "it runs as {}", execution.run);
        let done = finish(execution).await?;
        check!(done.stdout == PRINTED, "standard output: {:?}", done.stdout);
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        let cleanup = done.record.cleanup.as_ref();
        check!(
            cleanup.is_some_and(leasehold_core::record::Observed::clean),
            "not clean: {cleanup:?}"
        );
        Ok(())
    })
}

fn refused<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        // Cases that were skipped may have left something.
        suite.backend.sweep(Vec::new()).await?;
        let run = new_run()?;
        let mut sandbox = SandboxSpec::default();
        sandbox.limits.memory_bytes = Limit::asked(1);
        let launch = ordered(suite, &run, sandbox, suite.command(Script::True));
        let kind = suite.backend.launch(launch).await.map(drop);
        let kind = kind.map_err(|error| error.kind());
        check!(kind == Err(ErrorKind::Invalid), "one byte: {kind:?}");
        let found = suite.backend.attach(run).await.map(drop);
        let found = found.map_err(|error| error.kind());
        check!(found == Err(ErrorKind::NotFound), "left: {found:?}");
        let swept = suite.backend.sweep(Vec::new()).await?;
        check!(swept.ended.is_empty(), "left {swept:?}");
        Ok(())
    })
}

fn once<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let run = new_run()?;
        let mut first = launched(suite, &run, Script::Sleep).await?;
        await_output(&mut first, 7).await?;
        let second = launched(suite, &run, Script::True).await;
        let kind = second.map(drop).map_err(|error| error.kind());
        check!(kind == Err(ErrorKind::Exists), "beside it: {kind:?}");
        suite
            .backend
            .cancel(run.clone(), CancelledBy::Caller, true)
            .await?;
        finish(first).await?;
        let third = launched(suite, &run, Script::True).await;
        let kind = third.map(drop).map_err(|error| error.kind());
        check!(kind == Err(ErrorKind::Exists), "after it: {kind:?}");
        Ok(())
    })
}

fn cancel<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let run = new_run()?;
        let mut execution = launched(suite, &run, Script::Sleep).await?;
        await_output(&mut execution, 7).await?;
        for _ in 0..2 {
            let ending = suite
                .backend
                .cancel(run.clone(), CancelledBy::Operator, false);
            ending.await?;
        }
        let done = finish(execution).await?;
        let want = EndReason::Cancelled {
            by: CancelledBy::Operator,
        };
        check!(*done.end()? == want, "ended as {:?}", done.end()?);
        suite.backend.cancel(run, CancelledBy::Caller, true).await?;
        let nobody = suite
            .backend
            .cancel(new_run()?, CancelledBy::Caller, true)
            .await;
        let kind = nobody.map_err(|error| error.kind());
        check!(kind == Err(ErrorKind::NotFound), "nobody's run: {kind:?}");
        Ok(())
    })
}

fn running<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let run = new_run()?;
        let mut execution = launched(suite, &run, Script::Sleep).await?;
        await_output(&mut execution, 7).await?;
        let sandbox = execution.sandbox.clone();
        let listed = suite.backend.running().await?;
        let ours = |(listed, _): &&(RunId, SandboxId)| *listed == run;
        let found: Vec<_> = listed.iter().filter(ours).collect();
        check!(found == [&(run.clone(), sandbox)], "listed: {listed:?}");
        suite
            .backend
            .cancel(run.clone(), CancelledBy::Caller, true)
            .await?;
        finish(execution).await?;
        let listed = suite.backend.running().await?;
        check!(
            listed.iter().all(|(listed, _)| *listed != run),
            "still listed: {listed:?}"
        );
        Ok(())
    })
}

fn artifact<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let run = new_run()?;
        let mut command = suite.command(Script::Artifacts);
        command.exec.artifacts = vec!["out/*".to_owned()];
        let launch = ordered(suite, &run, SandboxSpec::default(), command);
        let done = finish(suite.backend.launch(launch).await?).await?;
        for (place, row) in done.record.artifacts.iter().enumerate() {
            let copy = suite.backend.artifact(run.clone(), place).await;
            match (&row.sha256, copy) {
                (Some(_), Ok(file)) => {
                    let bytes = content(&file)?;
                    check!(bytes == b"mine", "{} holds {bytes:?}", row.path);
                }
                (None, Err(error)) if error.kind() == ErrorKind::NotFound => {}
                (_, copy) => {
                    return Err(Trouble::Wrong(format!("{}: {copy:?}", row.path)));
                }
            }
        }
        let taken = done.record.artifacts.iter();
        check!(
            taken.filter(|row| row.sha256.is_some()).count() == 1,
            "collected {:?}",
            done.record.artifacts
        );
        Ok(())
    })
}

fn warm<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        suite.backend.keep_warm(SandboxSpec::default(), 1).await?;
        let execution = launched(suite, &new_run()?, Script::True).await?;
        let done = finish(execution).await;
        suite.backend.keep_warm(SandboxSpec::default(), 0).await?;
        let done = done?;
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        if !done.record.warm {
            return Err(Trouble::Missing("a pool".to_owned()));
        }
        Ok(())
    })
}
