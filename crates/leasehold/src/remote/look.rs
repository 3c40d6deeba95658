//! `leasehold show` and `logs` for runs of a daemon.

use std::io::{IsTerminal, Read};

use leasehold_core::contract::HostPosture;
use leasehold_core::id::RunId;
use leasehold_core::quantity::{format_bytes, format_micros};
use leasehold_supervisor::paths::Paths;
use serde_json::{Value, json};

use super::runs::{
    self, Printer, Reader, end_of, follow, output_bytes, status, tell, tell_failure,
};
use super::{Frame, Remote, text};
use crate::cli::{AttachFlags, LogsFlags, ShowFlags};
use crate::fault::Fault;
use crate::run::module;
use crate::run::screen::Screen;
use crate::show::when;
use crate::voice::{self, clean};

/// Bytes that are read at once.
const PIECE: usize = 64 << 10;

/// The run of a daemon that is meant, if a daemon has it.
///
/// # Errors
/// As the daemon says.
pub(crate) fn find(paths: &Paths, run: &str) -> Result<Option<(Remote, RunId)>, Fault> {
    let Some(remote) = Remote::find(paths)? else {
        return Ok(None);
    };
    Ok(runs::find(&remote, run)?.map(|run| (remote, run)))
}

/// Shows a run and its contract.
///
/// # Errors
/// As the daemon says.
pub(crate) fn show(remote: &Remote, run: &RunId, flags: &ShowFlags) -> Result<u8, Fault> {
    let view: Value = remote.get(&format!("/v1/runs/{run}"))?;
    let contract: Value = remote.get(&format!("/v1/runs/{run}/contract"))?;
    if flags.json {
        voice::json(&json!({ "run": view, "contract": contract }))?;
        return Ok(0);
    }
    let host = match contract["program"].is_null() {
        true => None,
        false => host(remote, run),
    };
    voice::data(page(&view, &contract, host.as_ref()).as_bytes())?;
    Ok(0)
}

/// What the evidence of a run says of the host of its module; nothing before there is any.
fn host(remote: &Remote, run: &RunId) -> Option<HostPosture> {
    let evidence: Value = remote.get(&format!("/v1/runs/{run}/evidence")).ok()?;
    let events = evidence["events"].as_array()?;
    let computers = events.iter().map(|event| &event["fact"]["computer"]);
    let mut hosts = computers.map(|computer| computer["posture"]["host"].clone());
    hosts.find_map(|host| serde_json::from_value(host).ok())
}

/// A run on one page. Pure; every text is made fit for a terminal.
fn page(view: &Value, contract: &Value, host: Option<&HostPosture>) -> String {
    let mut page = String::new();
    let mut line = |name: &str, value: String| {
        if !value.is_empty() {
            page.push_str(&format!("{name:<11}{value}\n"));
        }
    };
    let words = |list: &Value| {
        let words = list.as_array().into_iter().flatten().map(text);
        words.collect::<Vec<_>>().join(" ")
    };
    line("run", text(&view["run"]));
    line("state", text(&view["state"]));
    let end = end_of(view).map_or_else(String::new, |end| clean(&end.phrase()));
    line("end", end);
    let whose = format!("{}/{}", text(&view["tenant"]), text(&view["project"]));
    line("tenant", whose);
    line("asked by", text(&view["principal"]));
    let accepted = view["accepted_unix_ms"].as_u64();
    line("accepted", accepted.map_or_else(String::new, when));
    line("tool", text(&view["tool"]));
    line("command", words(&contract["argv"]));
    for (name, told) in of_module(&contract["program"], &view["outcome"]["module"]) {
        line(name, told);
    }
    line("host", host.map_or_else(String::new, module::host));
    let selected = &contract["selected"];
    line(
        "boundary",
        format!(
            "{} ({})",
            text(&selected["isolation"]),
            text(&selected["reason"])
        ),
    );
    line("sandbox", text(&view["sandbox"]));
    let outcome = &view["outcome"];
    if let Some(micros) = outcome["usage"]["wall_micros"].as_u64() {
        line("took", format_micros(micros));
    }
    let used = serde_json::from_value(outcome["usage"].clone());
    line(
        "used",
        used.map_or_else(|_| String::new(), |usage| crate::run::summary::used(&usage)),
    );
    for stream in ["stdout", "stderr"] {
        if let Some(kept) = outcome[stream]["kept"].as_u64() {
            let cut = match outcome[stream]["truncated"].as_bool() {
                Some(true) => ", the rest was cut",
                _ => "",
            };
            let lost = match outcome[stream]["digest"].is_null() && kept > 0 {
                true => ", which could not be kept",
                false => "",
            };
            line(stream, format!("{}{cut}{lost}", format_bytes(kept)));
        }
    }
    for artifact in outcome["artifacts"].as_array().into_iter().flatten() {
        let fate = match artifact["skipped"].as_str() {
            Some(why) => format!("not taken: {}", clean(why)),
            None => artifact["bytes"]
                .as_u64()
                .map_or_else(String::new, format_bytes),
        };
        line("artifact", format!("{} ({fate})", text(&artifact["path"])));
    }
    line("contract", text(&view["contract"]));
    page
}

/// What is told of a module and of what its host saw.
fn of_module(program: &Value, report: &Value) -> Vec<(&'static str, String)> {
    let mut told = Vec::new();
    if let Ok(program) = serde_json::from_value(program.clone()) {
        told.push(("module", module::program(&program)));
    }
    if let Ok(report) = serde_json::from_value(report.clone()) {
        told.push(("in it", module::used(&report)));
        told.extend(
            module::notes(&report)
                .into_iter()
                .map(|note| ("note", note)),
        );
    }
    told
}

/// Follows a run from its first byte and returns its exit status.
///
/// # Errors
/// As the daemon says, or when another beginning is wanted.
pub(crate) fn attach(remote: &Remote, run: &RunId, flags: &AttachFlags) -> Result<u8, Fault> {
    if flags.from != "start" {
        return Err(Fault::usage(
            "`--from` is for runs without a daemon: one of a daemon is told whole",
        )
        .hint("`leasehold logs -f` follows one of its outputs"));
    }
    let mut printer = Printer {
        talk: !flags.quiet,
        print: true,
        workspace: false,
    };
    let view = follow(remote, run, &mut printer)?;
    if !flags.quiet {
        let took = view["outcome"]["usage"]["wall_micros"].as_u64();
        tell(&view, took.unwrap_or_default());
    } else {
        tell_failure(&view);
    }
    Ok(status(&view))
}

/// Prints one output of a run, to its end if that is wanted.
///
/// # Errors
/// As the daemon says.
pub(crate) fn logs(remote: &Remote, run: &RunId, flags: &LogsFlags) -> Result<u8, Fault> {
    let stream = if flags.stderr { "stderr" } else { "stdout" };
    let mut out = Out::new(flags.raw);
    if flags.follow {
        follow(
            remote,
            run,
            &mut Chosen {
                stream,
                out: &mut out,
            },
        )?;
        return out.finish().map(|()| 0);
    }
    let mut bytes = remote.open(&format!("/v1/runs/{run}/logs/{stream}"), &[])?;
    let mut piece = vec![0; PIECE];
    loop {
        let got = bytes
            .read(&mut piece)
            .map_err(|error| Fault::host("the log broke off").because(&error))?;
        if got == 0 {
            return out.finish().map(|()| 0);
        }
        out.write(&piece[..got])?;
    }
}

/// Standard output: as it is for programs, made harmless for a terminal.
pub(crate) struct Out {
    screen: Option<Screen>,
    shown: Vec<u8>,
}

impl Out {
    /// Raw bytes even for a terminal, if that is wanted.
    pub(crate) fn new(raw: bool) -> Self {
        Self {
            screen: (!raw && std::io::stdout().is_terminal()).then(Screen::default),
            shown: Vec::new(),
        }
    }

    /// Writes some bytes.
    ///
    /// # Errors
    /// As [`voice::data`].
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(screen) = &mut self.screen else {
            return voice::data(bytes);
        };
        self.shown.clear();
        screen.pass(bytes, &mut self.shown);
        voice::data(&self.shown)
    }

    /// Writes what is held back of a cut sequence.
    ///
    /// # Errors
    /// As [`voice::data`].
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        let Some(screen) = &mut self.screen else {
            return Ok(());
        };
        self.shown.clear();
        screen.finish(&mut self.shown);
        voice::data(&self.shown)
    }
}

/// One of the two outputs.
struct Chosen<'a> {
    stream: &'static str,
    out: &'a mut Out,
}

impl Reader for Chosen<'_> {
    fn frame(&mut self, frame: &Frame) -> Result<(), Fault> {
        match frame.event == self.stream {
            true => self.out.write(&output_bytes(&frame.data)?),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_the_end_and_no_escape() {
        let view = json!({
            "run": "r1", "state": "sealed", "tenant": "acme", "project": "web",
            "outcome": {
                "end": {"reason": "timeout", "limit_ms": 1000},
                "stdout": {"written": 9, "kept": 5, "truncated": true},
                "artifacts": [{"path": "a\u{1b}[2J", "skipped": "symlink"}],
            },
        });
        let contract =
            json!({"argv": ["sh", "-c"], "selected": {"isolation": "process", "reason": "x"}});
        let page = page(&view, &contract, None);
        for part in [
            "timeout: ran longer than",
            "acme/web",
            "5 B, the rest was cut",
            "a\\x1b[2J (not taken: symlink)",
            "sh -c",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert!(!page.contains('\u{1b}'));
    }
}
