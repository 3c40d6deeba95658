//! Runs of a daemon: listing, showing, following, cancelling.

use std::io::Read;

use leasehold_core::end::EndReason;
use leasehold_core::id::RunId;
use leasehold_core::quantity::format_micros;
use serde_json::{Value, json};

use super::{Frame, Frames, Remote, text};
use crate::cli::daemon::{PsFlags, RunArg};
use crate::fault::Fault;
use crate::show::when;
use crate::voice::{self, clean};
use crate::{place, table};

/// How often a broken stream is taken up again before we give up.
const BROKEN_MAX: u32 = 5;

/// A run by its whole id, or by the beginning of one among the newest.
///
/// # Errors
/// When there is none, or more than one.
pub(crate) fn find(remote: &Remote, prefix: &str) -> Result<Option<RunId>, Fault> {
    if let Ok(run) = RunId::parse(prefix) {
        return Ok(Some(run));
    }
    let plausible = !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !plausible {
        return Ok(None);
    }
    let page: Value = remote.get("/v1/runs?limit=500")?;
    let runs = page["runs"].as_array().into_iter().flatten();
    let mut found = runs
        .filter_map(|run| run["run"].as_str())
        .filter(|run| run.starts_with(prefix))
        .filter_map(|run| RunId::parse(run).ok());
    match (found.next(), found.next()) {
        (first, None) => Ok(first),
        (_, Some(_)) => Err(Fault::usage(format!(
            "`{}` is the beginning of more than one run id",
            clean(prefix)
        ))
        .hint("type more of it; `leasehold ps -a` lists them")),
    }
}

/// `leasehold ps`.
///
/// # Errors
/// As the daemon says.
pub(crate) fn ps(flags: &PsFlags) -> Result<u8, Fault> {
    let remote = Remote::need(&place::paths()?)?;
    if !(1..=500).contains(&flags.last) {
        return Err(Fault::usage(format!(
            "`--last` is {}: allowed is 1 to 500",
            flags.last
        )));
    }
    let mut runs = Vec::new();
    let states: &[&str] = match flags.all {
        true => &[""],
        false => &["&state=running", "&state=queued"],
    };
    for state in states {
        let tool = match &flags.tool {
            Some(tool)
                if tool
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-')) =>
            {
                format!("&tool={tool}")
            }
            Some(tool) => {
                return Err(Fault::usage(format!(
                    "`--tool` is `{}`: a name is needed",
                    clean(tool)
                )));
            }
            None => String::new(),
        };
        let mut page: Value = remote.get(&format!("/v1/runs?limit={}{state}{tool}", flags.last))?;
        if let Value::Array(part) = page["runs"].take() {
            // No more than was asked for, whatever comes.
            runs.extend(part.into_iter().take(flags.last as usize));
        }
    }
    if flags.json {
        voice::json(&json!({ "runs": runs }))?;
    } else if runs.is_empty() {
        voice::note(match (flags.all, &flags.tool) {
            (true, None) => "there are no runs yet",
            (true, Some(_)) => "there are no runs of this tool",
            (false, None) => "nothing runs; `leasehold ps -a` shows what is over",
            (false, Some(_)) => "nothing of this tool runs; with `-a` it shows what is over",
        });
    } else {
        let rows = runs.iter().map(row).collect();
        let heading = ["RUN", "SINCE", "STATE", "WHAT", "BY", "END"];
        voice::data(table::lines(heading, rows).as_bytes())?;
    }
    Ok(0)
}

/// Why a run is over, if it is.
pub(super) fn end_of(run: &Value) -> Option<EndReason> {
    serde_json::from_value(run["outcome"]["end"].clone()).ok()
}

fn row(run: &Value) -> [String; 6] {
    let end = end_of(run).map_or_else(String::new, |end| table::short(&clean(&end.phrase()), 40));
    let what = match run["tool"].as_str() {
        Some(tool) => clean(tool),
        None => "command".to_owned(),
    };
    [
        text(&run["run"]),
        run["accepted_unix_ms"]
            .as_u64()
            .map_or_else(String::new, when),
        match run["stuck"].as_bool() {
            Some(true) => format!("{}, stuck", text(&run["state"])),
            _ => text(&run["state"]),
        },
        what,
        text(&run["principal"]),
        end,
    ]
}

/// `leasehold cancel`.
///
/// # Errors
/// As the daemon says.
pub(crate) fn cancel(flags: &RunArg) -> Result<u8, Fault> {
    let remote = Remote::need(&place::paths()?)?;
    let run = need(&remote, &flags.run)?;
    let view: Value = remote.send("POST", &format!("/v1/runs/{run}/cancel"), &json!({}))?;
    match flags.json {
        true => voice::json(&view)?,
        false => voice::note(&match end_of(&view) {
            Some(end) => format!("run {run} is over: {}", clean(&end.phrase())),
            None => format!("asked run {run} to end"),
        }),
    }
    Ok(0)
}

/// Finds a run that must be there.
///
/// # Errors
/// When it is not.
pub(crate) fn need(remote: &Remote, run: &str) -> Result<RunId, Fault> {
    find(remote, run)?.ok_or_else(|| {
        Fault::usage(format!("the daemon has no run `{}`", clean(run)))
            .hint("`leasehold ps -a` lists what it has; `leasehold runs` what ran without it")
    })
}

/// The last words about a run of a daemon.
pub(crate) fn tell(run: &Value, total_micros: u64) {
    let end = match end_of(run) {
        Some(EndReason::Completed) => format!("completed in {}", format_micros(total_micros)),
        Some(end) => format!(
            "{} after {}",
            clean(&end.phrase()),
            format_micros(total_micros)
        ),
        None => format!(
            "{} after {}",
            text(&run["state"]),
            format_micros(total_micros)
        ),
    };
    if let Ok(report) = serde_json::from_value(run["outcome"]["module"].clone()) {
        for note in crate::run::module::notes(&report) {
            voice::note(&note);
        }
    }
    let used = serde_json::from_value(run["outcome"]["usage"].clone())
        .map_or_else(|_| String::new(), |usage| crate::run::summary::used(&usage));
    let used = if used.is_empty() {
        used
    } else {
        format!(" {used},")
    };
    voice::note(&format!("{end},{used} run {}", text(&run["run"])));
}

/// What a caller that wants to hear nothing of ours but errors must hear: that it was not the command.
pub(crate) fn tell_failure(run: &Value) {
    let id = text(&run["run"]);
    if let Some(failure) = crate::run::summary::failure(end_of(run).as_ref(), &id) {
        voice::note(&format!("error: {failure}"));
        voice::hint(&format!("`leasehold explain {id}` says more"));
    }
}

/// The exit status of the command line for a run of a daemon.
pub(crate) fn status(run: &Value) -> u8 {
    end_of(run).map_or(125, |end| end.cli_status())
}

/// What is told of a run as it happens.
pub(crate) trait Reader {
    /// One event that is not the last.
    ///
    /// # Errors
    /// When it cannot be passed on; then nothing more is read.
    fn frame(&mut self, frame: &Frame) -> Result<(), Fault>;
}

/// Follows a run to its end, over broken connections, and gives its last state.
///
/// # Errors
/// As the daemon says, or when it cannot be reached any more.
pub(crate) fn follow(
    remote: &Remote,
    run: &RunId,
    reader: &mut dyn Reader,
) -> Result<Value, Fault> {
    let mut last: Option<String> = None;
    let mut broken = 0;
    let mut remote = remote.clone();
    loop {
        let path = format!("/v1/runs/{run}/events");
        let headers: Vec<(&str, &str)> = last
            .iter()
            .map(|id| ("last-event-id", id.as_str()))
            .collect();
        let opened = remote.open(&path, &headers);
        let over = opened.and_then(|bytes| pass(bytes, &mut last, reader));
        match over {
            Ok(Passed::Over(view)) => return Ok(view),
            Ok(Passed::Leaving) => {
                return Err(Fault::host("the daemon is leaving; the run goes on")
                    .hint(format!("`leasehold logs -f {run}` when it is back")));
            }
            Ok(Passed::Cut) | Err(_) if broken < BROKEN_MAX => {
                broken += 1;
                std::thread::sleep(std::time::Duration::from_millis(200 << broken));
                // A daemon that was started again may serve somewhere else.
                remote.look_again();
            }
            Ok(Passed::Cut) => return Err(Fault::host("the stream ended before the run did")),
            Err(fault) => return Err(fault),
        }
    }
}

/// How a stream ended.
#[derive(Debug, PartialEq)]
enum Passed {
    /// With the run.
    Over(Value),
    /// With the daemon, which said so.
    Leaving,
    /// Without a word.
    Cut,
}

fn pass(
    bytes: impl Read,
    last: &mut Option<String>,
    reader: &mut dyn Reader,
) -> Result<Passed, Fault> {
    let mut frames = Frames::new(bytes);
    while let Some(mut frame) = frames.next()? {
        match frame.event.as_str() {
            "done" | "error" => return Ok(Passed::Over(frame.data.take())),
            "leaving" => return Ok(Passed::Leaving),
            _ => {}
        }
        reader.frame(&frame)?;
        if frame.id.is_some() {
            last.clone_from(&frame.id);
        }
    }
    Ok(Passed::Cut)
}

/// Where a run finds its workspace.
const WORKSPACE: &[u8] = b"/workspace";

/// Prints output as it comes, and what a tool says of its progress.
#[derive(Debug)]
pub(crate) struct Printer {
    /// Whether output is printed.
    pub(crate) print: bool,
    /// Whether progress and logs are told.
    pub(crate) talk: bool,
    /// Standard error spoke of the workspace.
    pub(crate) workspace: bool,
}

impl Reader for Printer {
    fn frame(&mut self, frame: &Frame) -> Result<(), Fault> {
        match frame.event.as_str() {
            "stdout" if self.print => voice::data(&output_bytes(&frame.data)?),
            "stderr" if self.print => {
                let bytes = output_bytes(&frame.data)?;
                self.workspace |= bytes
                    .windows(WORKSPACE.len())
                    .any(|piece| piece == WORKSPACE);
                voice::error_data(&bytes)
            }
            "queued" if self.talk => {
                if let Some(ahead) = frame.data["ahead"].as_u64().filter(|ahead| *ahead > 0) {
                    voice::note(&format!("waits for its turn; {ahead} before it"));
                }
                Ok(())
            }
            "compiling" if self.talk => {
                voice::note("compiles the module first: once, and it is no time of the run");
                Ok(())
            }
            "compiled" if self.talk => {
                let micros = frame.data["micros"].as_u64().unwrap_or(0);
                voice::note(&format!("compiled it in {}", format_micros(micros)));
                Ok(())
            }
            "pulling" if self.talk => {
                let image = text(&frame.data["image"]);
                voice::note(&format!(
                    "pulls the image {image} first: it is no time of the run"
                ));
                Ok(())
            }
            "pulled" if self.talk => {
                let micros = frame.data["micros"].as_u64().unwrap_or(0);
                voice::note(&format!("pulled it in {}", format_micros(micros)));
                Ok(())
            }
            "progress" if self.talk => {
                voice::note(&format!("progress {}", clean(&frame.data.to_string())));
                Ok(())
            }
            "log" if self.talk => {
                voice::note(&format!("log {}", text(&frame.data["text"])));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The bytes of an output event.
///
/// # Errors
/// When they are no base 64.
pub(super) fn output_bytes(data: &Value) -> Result<Vec<u8>, Fault> {
    if let Some(text) = data["text"].as_str() {
        return Ok(text.as_bytes().to_vec());
    }
    let encoded = data["base64"].as_str().unwrap_or_default();
    crate::remote::base64_decode(encoded)
        .ok_or_else(|| Fault::host("the stream has output that is no base 64"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Seen(Vec<u8>);

    impl Reader for Seen {
        fn frame(&mut self, frame: &Frame) -> Result<(), Fault> {
            self.0.extend(output_bytes(&frame.data)?);
            Ok(())
        }
    }

    #[test]
    fn a_stream_is_passed_on_up_to_its_end() {
        let text = b"id: 1\nevent: stdout\ndata: {\"text\":\"a\"}\n\nid: 2\nevent: stdout\ndata: {\"base64\":\"/wA=\"}\n\nevent: done\ndata: {\"run\":\"x\"}\n\n";
        let (mut seen, mut last) = (Seen::default(), None);
        let Passed::Over(view) = pass(&text[..], &mut last, &mut seen).unwrap() else {
            panic!("it is over")
        };
        assert_eq!(
            (view["run"].as_str(), last.as_deref()),
            (Some("x"), Some("2"))
        );
        assert_eq!(seen.0, [b'a', 0xff, 0]);
        let cut = &text[..40];
        assert_eq!(
            pass(cut, &mut last, &mut Seen::default()).unwrap(),
            Passed::Cut
        );
        let text = b"id: 3\nevent: leaving\ndata: {}\n\nid: 4\nevent: stdout\ndata: {\"text\":\"late\"}\n\n";
        let mut seen = Seen::default();
        let left = pass(&text[..], &mut last, &mut seen).unwrap();
        assert_eq!((left, seen.0.len()), (Passed::Leaving, 0));
    }
}
