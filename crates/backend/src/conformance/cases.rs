//! Life, streams and ends.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use leasehold_core::end::{CancelledBy, EndReason, ExitStatus};
use leasehold_core::error::ErrorKind;
use leasehold_core::limits::{Limit, Limits};
use leasehold_core::spec::SandboxSpec;
use leasehold_core::stage::Stage;
use leasehold_protocol::envd::channel::{Kind, open};

use super::script::{COMPLAINED, Command, Difference, PRINTED, Script};
use super::{Case, Suite, Trouble, Verdict, await_output, check, finish, new_run};
use crate::execution::RunEvent;
use crate::seam::{Doing, Known};

pub(super) const ALL: &[(&str, Case)] = &[
    (
        "a parked computer is there and clean when it is gone",
        parked,
    ),
    ("a bad request is refused as invalid", refused),
    ("0 and 1", true_and_false),
    ("every exit status comes through", exit_statuses),
    ("a signal is told as one", signal),
    ("a command that is not there", missing),
    ("a file that is no program", not_executable),
    ("both streams byte for byte", streams),
    ("standard input comes through to its end", echo),
    ("no standard input reads as empty", no_input),
    ("the environment is exactly the declared one", environment),
    ("the working directory", directory),
    ("seven stages, once each and in order", stages),
    ("a run id serves once", run_id_once),
    ("a computer serves one run", one_run),
    ("a run is read again after its end", attach),
    ("cancelling ends it as cancelled", cancel),
    (
        "cancelling a stubborn one takes the grace, or none",
        stubborn,
    ),
    ("destroying a busy one ends its run", destroy_busy),
    ("destroying again says the same", destroy_twice),
    (
        "a computer whose init died is told and removed",
        crash_running,
    ),
    ("a parked one whose init died is removed", crash_parked),
    ("one computer does not see another", apart),
    ("a computer is adopted while it lives", adopt),
    ("a sweep ends what nobody knows", sweep),
    ("artifacts are taken and links are not", artifacts),
    ("the agent answers on its channel", agent),
];

fn parked<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        let contract = computer.contract();
        check!(
            contract.backend == suite.backend.name(),
            "the contract names backend {}",
            contract.backend
        );
        check!(
            contract.isolation == suite.backend.isolation(),
            "the contract says {:?}",
            contract.isolation
        );
        computer.usage().await?;
        let observed = computer.destroy().await?;
        check!(observed.clean(), "not clean: {observed:?}");
        Ok(())
    })
}

fn refused<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let mut spec = SandboxSpec::default();
        spec.limits.memory_bytes = Limit::asked(1);
        match suite.backend.provision(spec, None).await {
            Ok(_) => Err(Trouble::Wrong("1 byte of memory was granted".to_owned())),
            Err(error) => {
                check!(
                    error.kind() == ErrorKind::Invalid,
                    "refused as {:?}: {error}",
                    error.kind()
                );
                Ok(())
            }
        }
    })
}

async fn ends_as(suite: &Suite<'_>, script: Script, want: EndReason) -> Verdict {
    let done = suite.run(Limits::default(), script).await?;
    let end = done.end()?;
    check!(*end == want, "{script:?} ended as {end:?}, not {want:?}");
    let cleanup = done.record.cleanup.as_ref();
    check!(
        cleanup.is_some_and(leasehold_core::record::Observed::clean),
        "{script:?} was not removed cleanly: {cleanup:?}"
    );
    Ok(())
}

fn tool_error(exit: ExitStatus) -> EndReason {
    EndReason::ToolError { exit }
}

fn true_and_false<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        ends_as(suite, Script::True, EndReason::Completed).await?;
        ends_as(
            suite,
            Script::False,
            tool_error(ExitStatus::Exit { code: 1 }),
        )
        .await
    })
}

fn exit_statuses<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        for code in [2, 7, 42, 125, 126, 127, 128, 137, 255] {
            let want = tool_error(ExitStatus::Exit { code });
            ends_as(suite, Script::Exit(code), want).await?;
        }
        Ok(())
    })
}

fn signal<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        if !suite.differs(Difference::Traps) {
            let want = tool_error(ExitStatus::Signal { number: 9 });
            return ends_as(suite, Script::Signal, want).await;
        }
        let done = suite.run(Limits::default(), Script::Signal).await?;
        let end = done.end()?;
        let trapped = matches!(end, EndReason::ToolError { exit: ExitStatus::Trap { name } } if !name.is_empty());
        check!(trapped, "ended as {end:?}");
        Ok(())
    })
}

fn missing<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        if suite.differs(Difference::NothingMissing) {
            let command = suite.command(Script::Missing);
            return refused_as(suite, command, ErrorKind::Invalid).await;
        }
        ends_as(suite, Script::Missing, tool_error(ExitStatus::NotFound)).await
    })
}

/// A command that is refused, and has not used up its computer.
async fn refused_as(suite: &Suite<'_>, command: Command, kind: ErrorKind) -> Verdict {
    let computer = suite.park(Limits::default()).await?;
    let begun = computer.run(new_run()?, command.exec, command.module).await;
    let refused = begun.map(drop).map_err(|error| error.kind());
    check!(refused == Err(kind), "refused as {refused:?}");
    let execution = suite.begin(&*computer, new_run()?, Script::True).await?;
    let done = finish(execution).await?;
    check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
    Ok(())
}

fn not_executable<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    let want = tool_error(ExitStatus::NotExecutable);
    Box::pin(ends_as(suite, Script::NotExecutable, want))
}

fn streams<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let done = suite.run(Limits::default(), Script::Print).await?;
        check!(done.stdout == PRINTED, "standard output: {:?}", done.stdout);
        check!(
            done.stderr == COMPLAINED,
            "standard error: {:?}",
            done.stderr
        );
        let counts = (done.record.stdout, done.record.stderr);
        let (out, err) = (PRINTED.len() as u64, COMPLAINED.len() as u64);
        check!(
            counts.0.written == out && counts.0.kept == out && !counts.0.truncated,
            "{counts:?}"
        );
        check!(
            counts.1.written == err && counts.1.kept == err,
            "{counts:?}"
        );
        Ok(())
    })
}

fn echo<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        const TEXT: &[u8] = b"in\0\xfe\nno line end";
        let Command { mut exec, module } = suite.command(Script::Echo);
        exec.stdin = true;
        let computer = suite.park(Limits::default()).await?;
        let mut execution = computer.run(new_run()?, exec, module).await?;
        let Some(input) = execution.input.take() else {
            return Err(Trouble::Wrong("there is no standard input".to_owned()));
        };
        // A pipe takes so few bytes at once.
        let put = rustix::io::write(&input, TEXT).map_err(std::io::Error::from)?;
        check!(put == TEXT.len(), "{put} bytes were taken");
        await_output(&mut execution, TEXT.len() as u64).await?;
        drop(input);
        let done = finish(execution).await?;
        check!(done.stdout == TEXT, "came back as {:?}", done.stdout);
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        Ok(())
    })
}

fn no_input<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        let execution = suite.begin(&*computer, new_run()?, Script::Echo).await?;
        check!(execution.input.is_none(), "an input was given");
        let done = finish(execution).await?;
        check!(done.stdout.is_empty(), "read {:?}", done.stdout);
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        Ok(())
    })
}

fn environment<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let mut command = suite.command(Script::Env);
        let env = &mut command.exec.env;
        env.insert("A".to_owned(), "1 2=3".to_owned());
        env.insert("EMPTY".to_owned(), String::new());
        let want: Vec<String> = env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let done = suite.run_command(command).await?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let mut got: Vec<&str> = text.lines().collect();
        got.sort_unstable();
        check!(got == want, "the environment is {got:?}, not {want:?}");
        let names = done.record.contract.map(|contract| contract.env_names);
        let names = names.unwrap_or_default();
        check!(names == ["A", "EMPTY", "PATH"], "recorded as {names:?}");
        Ok(())
    })
}

fn directory<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        for (asked, want) in [(None, "/workspace\n"), (Some("/tmp"), "/tmp\n")] {
            let mut command = suite.command(Script::Pwd);
            command.exec.cwd = asked.map(str::to_owned);
            if asked.is_some() && suite.differs(Difference::NoDirectory) {
                return refused_as(suite, command, ErrorKind::Invalid).await;
            }
            let done = suite.run_command(command).await?;
            let got = String::from_utf8_lossy(&done.stdout).into_owned();
            check!(got == want, "{asked:?} gives {got:?}");
        }
        Ok(())
    })
}

fn stages<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let done = suite.run(Limits::default(), Script::True).await?;
        let recorded: Vec<Stage> = done.record.stages.iter().map(|time| time.stage).collect();
        check!(recorded == Stage::ALL, "recorded: {recorded:?}");
        let told: Vec<Stage> = done
            .events
            .iter()
            .filter_map(|event| match event {
                RunEvent::Stage(time) => Some(time.stage),
                _ => None,
            })
            .collect();
        check!(told == Stage::ALL, "told: {told:?}");
        let ended = done
            .events
            .iter()
            .filter(|event| matches!(event, RunEvent::Ended(_)))
            .count();
        check!(ended == 1, "the end was told {ended} times");
        Ok(())
    })
}

fn run_id_once<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let run = new_run()?;
        let first = suite.park(Limits::default()).await?;
        finish(suite.begin(&*first, run.clone(), Script::True).await?).await?;
        let second = suite.park(Limits::default()).await?;
        let again = suite.begin(&*second, run, Script::True).await;
        second.destroy().await?;
        let kind = again.map(drop).map_err(|error| error.kind());
        check!(
            kind == Err(ErrorKind::Exists) || kind == Err(ErrorKind::Conflict),
            "a second run of the same id: {kind:?}"
        );
        Ok(())
    })
}

fn one_run<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        let mut first = suite.begin(&*computer, new_run()?, Script::Sleep).await?;
        await_output(&mut first, 7).await?;
        let second = suite.begin(&*computer, new_run()?, Script::True).await;
        check!(second.is_err(), "a second run was let in beside the first");
        computer.cancel(CancelledBy::Caller, true).await?;
        finish(first).await?;
        let third = suite.begin(&*computer, new_run()?, Script::True).await;
        check!(third.is_err(), "a run was let in after the first");
        Ok(())
    })
}

fn attach<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let run = new_run()?;
        let computer = suite.park(Limits::default()).await?;
        let first = suite.begin(&*computer, run.clone(), Script::Print).await?;
        let first = finish(first).await?;
        let again = finish(suite.backend.attach(run).await?).await?;
        check!(again.stdout == PRINTED, "read again: {:?}", again.stdout);
        check!(again.record == first.record, "another record was read");
        let nobody = suite.backend.attach(new_run()?).await;
        let kind = nobody.map(drop).map_err(|error| error.kind());
        check!(
            kind == Err(ErrorKind::NotFound),
            "a run nobody made: {kind:?}"
        );
        Ok(())
    })
}

fn cancel<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        let mut execution = suite.begin(&*computer, new_run()?, Script::Sleep).await?;
        await_output(&mut execution, 7).await?;
        computer.cancel(CancelledBy::Operator, false).await?;
        let done = finish(execution).await?;
        let want = EndReason::Cancelled {
            by: CancelledBy::Operator,
        };
        check!(*done.end()? == want, "ended as {:?}", done.end()?);
        check!(done.stdout == b"before\n", "kept {:?}", done.stdout);
        Ok(())
    })
}

fn stubborn<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let limits = Limits {
            grace_ms: 300,
            ..Limits::default()
        };
        let obeys = suite.differs(Difference::Obeys);
        let grace = if obeys { 0 } else { 250_000 };
        for (at_once, least) in [(false, grace), (true, 0)] {
            let computer = suite.park(limits.clone()).await?;
            let mut execution = suite
                .begin(&*computer, new_run()?, Script::Stubborn)
                .await?;
            await_output(&mut execution, 7).await?;
            computer.cancel(CancelledBy::Caller, at_once).await?;
            let done = finish(execution).await?;
            let cancelled = matches!(done.end()?, EndReason::Cancelled { .. });
            check!(cancelled, "ended as {:?}", done.end()?);
            let wall = done.record.usage.wall_micros;
            check!(
                (least..30_000_000).contains(&wall),
                "at once {at_once}: it ran {wall} µs"
            );
        }
        Ok(())
    })
}

fn destroy_busy<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        let mut execution = suite.begin(&*computer, new_run()?, Script::Sleep).await?;
        await_output(&mut execution, 7).await?;
        let observed = computer.destroy().await?;
        check!(observed.clean(), "not clean: {observed:?}");
        let done = finish(execution).await?;
        let cancelled = matches!(done.end()?, EndReason::Cancelled { .. });
        check!(cancelled, "ended as {:?}", done.end()?);
        Ok(())
    })
}

fn destroy_twice<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        for time in ["first", "second", "third"] {
            let observed = computer.destroy().await?;
            check!(observed.clean(), "{time} time: {observed:?}");
        }
        let run = suite.begin(&*computer, new_run()?, Script::True).await;
        check!(run.is_err(), "a run was let into what is gone");
        let usage = computer.usage().await.map_err(|error| error.kind());
        check!(usage == Err(ErrorKind::NotFound), "usage: {usage:?}");
        Ok(())
    })
}

/// Kills init, or says that nobody can.
async fn crash(suite: &Suite<'_>, computer: &dyn crate::seam::Computer) -> Verdict {
    match suite.rig.crash(computer.id()) {
        None => Err(Trouble::Missing("a way to kill init".to_owned())),
        Some(doing) => doing.await.map_err(Trouble::Wrong),
    }
}

fn crash_running<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        let mut execution = suite.begin(&*computer, new_run()?, Script::Sleep).await?;
        await_output(&mut execution, 7).await?;
        crash(suite, computer.as_ref()).await?;
        let done = finish(execution).await?;
        let crashed = matches!(done.end()?, EndReason::SandboxCrashed { .. });
        check!(crashed, "ended as {:?}", done.end()?);
        let observed = computer.destroy().await?;
        check!(observed.clean(), "not clean: {observed:?}");
        Ok(())
    })
}

fn crash_parked<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        crash(suite, computer.as_ref()).await?;
        let observed = computer.destroy().await?;
        check!(observed.clean(), "not clean: {observed:?}");
        let run = suite.begin(&*computer, new_run()?, Script::True).await;
        check!(run.is_err(), "a run was let into what is gone");
        Ok(())
    })
}

fn apart<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        // The mark is seen where it was left, so looking means something.
        let want = tool_error(ExitStatus::Exit { code: 1 });
        ends_as(suite, Script::MarkAndLook, want).await?;
        let marked = suite.park(Limits::default()).await?;
        let mut marking = suite.begin(&*marked, new_run()?, Script::Mark).await?;
        await_output(&mut marking, 7).await?;
        ends_as(suite, Script::Look, EndReason::Completed).await?;
        let done = suite.run(Limits::default(), Script::Count).await?;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let seen: Option<u32> = text.trim().parse().ok();
        check!(
            seen.is_some_and(|seen| seen <= 4),
            "it sees {text:?} processes"
        );
        marked.cancel(CancelledBy::Caller, true).await?;
        finish(marking).await?;
        Ok(())
    })
}

fn adopt<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let made = suite.park(Limits::default()).await?;
        let known = Known {
            sandbox: made.id().clone(),
            contract: made.contract().clone(),
        };
        drop(made);
        let Some(adopted) = suite.backend.adopt(known.clone()).await? else {
            return Err(Trouble::Wrong("a living computer was not found".to_owned()));
        };
        let execution = suite.begin(&*adopted, new_run()?, Script::True).await?;
        let done = finish(execution).await?;
        check!(*done.end()? == EndReason::Completed, "{:?}", done.end()?);
        adopted.destroy().await?;
        let gone = suite.backend.adopt(known).await?;
        check!(gone.is_none(), "a computer that is gone was adopted");
        Ok(())
    })
}

fn sweep<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let kept = suite.park(Limits::default()).await?;
        let lost = suite.park(Limits::default()).await?;
        let swept = suite.backend.sweep(vec![kept.id().clone()]).await?;
        let found = swept.ended.iter().find(|(id, _)| id == lost.id());
        check!(
            found.is_some_and(|(_, observed)| observed.clean()),
            "swept: {swept:?}"
        );
        let spared = swept.ended.iter().all(|(id, _)| id != kept.id());
        check!(spared, "what is known was ended");
        let execution = suite.begin(&*kept, new_run()?, Script::True).await?;
        check!(
            *finish(execution).await?.end()? == EndReason::Completed,
            "what is known was harmed"
        );
        Ok(())
    })
}

fn artifacts<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let mut command = suite.command(Script::Artifacts);
        command.exec.artifacts = vec!["out/*".to_owned(), "nothing".to_owned()];
        let done = suite.run_command(command).await?;
        let rows: Vec<(&str, u64, &str)> = done
            .record
            .artifacts
            .iter()
            .map(|row| {
                let reason = row.skipped.as_deref().unwrap_or("taken");
                (row.path.as_str(), row.bytes, reason)
            })
            .collect();
        let want = [
            ("out/a", 4, "taken"),
            ("out/link", 0, "symlink"),
            ("nothing", 0, "not_found"),
        ];
        check!(rows == want, "collected {rows:?}");
        Ok(())
    })
}

fn agent<'a>(suite: &'a Suite<'a>) -> Doing<'a, Verdict> {
    Box::pin(async move {
        let computer = suite.park(Limits::default()).await?;
        let channel = match computer.channel().await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                computer.destroy().await?;
                if suite.differs(Difference::NoAgent) {
                    return Ok(());
                }
                return Err(Trouble::Missing("an agent".to_owned()));
            }
            Ok(_) if suite.differs(Difference::NoAgent) => {
                return Err(Trouble::Wrong("there is an agent after all".to_owned()));
            }
            channel => channel?,
        };
        let asked = tokio::task::spawn_blocking(move || ask_health(&channel)).await;
        let answer = asked.map_err(|error| Trouble::Wrong(error.to_string()))??;
        check!(
            answer.starts_with("HTTP/1.1 2"),
            "the agent says {answer:?}"
        );
        let observed = computer.destroy().await?;
        check!(observed.clean(), "not clean: {observed:?}");
        Ok(())
    })
}

/// Asks the agent how it is, over a connection of its own.
fn ask_health(channel: &OwnedFd) -> std::io::Result<String> {
    const QUESTION: &[u8] = b"GET /health HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n";
    let connection = UnixStream::from(open(channel, Kind::Host)?);
    connection.set_read_timeout(Some(std::time::Duration::from_secs(20)))?;
    (&connection).write_all(QUESTION)?;
    let mut answer = Vec::new();
    connection.take(4_096).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
