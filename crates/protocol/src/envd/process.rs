//! Messages of `process.Process`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::base64::Base64;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessConfig {
    /// Program: a path, or a name searched in `PATH`.
    pub cmd: String,
    /// Its arguments, without the program.
    pub args: Vec<String>,
    /// Environment, on top of the sandbox's.
    pub envs: BTreeMap<String, String>,
    /// Working directory: absolute, `~`, or relative to the user's home.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Size {
    /// Columns.
    pub cols: u32,
    /// Lines.
    pub rows: u32,
}

/// A terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pty {
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

/// Names a process by one of its two names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessSelector {
    /// Process id inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Tag given at start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

impl ProcessSelector {
    /// By process id.
    #[must_use]
    pub fn pid(pid: u32) -> Self {
        Self {
            pid: Some(pid),
            tag: None,
        }
    }
}

/// Request of `Start`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRequest {
    /// What.
    pub process: ProcessConfig,
    /// With a terminal of this size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name to select it by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether its standard input stays open; absent means yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// Request of `Connect`, `CloseStdin`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SelectRequest {
    /// Which process.
    pub process: ProcessSelector,
}

/// One message of the streams of `Start` and `Connect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMessage {
    /// What happened.
    pub event: ProcessEvent,
}

/// What happens to a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessEvent {
    /// It runs. Always the first event.
    Start(Started),
    /// It wrote something.
    Data(Data),
    /// It ended. Always the last event.
    End(Ended),
    /// Nothing happened for the interval the caller named.
    Keepalive(Empty),
}

/// Contents of the `start` event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Started {
    /// Process id inside.
    pub pid: u32,
}

/// Output of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// From its standard output.
    Stdout(Base64),
    /// From its standard error.
    Stderr(Base64),
    /// From its terminal.
    Pty(Base64),
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ended {
    /// Its exit status, or -1 when a signal ended it.
    pub exit_code: i32,
    /// Whether it returned by itself.
    pub exited: bool,
    /// `exit status N` or `signal: NAME`.
    pub status: String,
    /// The status again, where it is not plain success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A message without contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Empty {}

/// Request of `Update`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateRequest {
    /// Which process.
    pub process: ProcessSelector,
    /// New size of its terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// Bytes for a process; exactly one field is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInput {
    /// For its standard input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Base64>,
    /// For its terminal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Base64>,
}

/// Request of `SendInput`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SendInputRequest {
    /// Which process.
    pub process: ProcessSelector,
    /// What.
    pub input: ProcessInput,
}

/// One message of the stream of `StreamInput`; exactly one field is set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamInputRequest {
    /// First: which process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<SelectRequest>,
    /// Then: bytes for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<InputData>,
    /// Nothing, so that the connection stays open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Empty>,
}

/// Contents of the `data` message of `StreamInput`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InputData {
    /// What.
    pub input: ProcessInput,
}

/// Signals that can be sent. The names are the wire's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub enum Signal {
    /// None named.
    #[default]
    #[serde(rename = "SIGNAL_UNSPECIFIED")]
    Unspecified,
    /// Please end.
    #[serde(rename = "SIGNAL_SIGTERM")]
    Term,
    /// End.
    #[serde(rename = "SIGNAL_SIGKILL")]
    Kill,
}

impl<'de> Deserialize<'de> for Signal {
    /// By name or by number, as protobuf's JSON mapping allows; unknown ones are unspecified.
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Name(String),
            Number(i64),
        }
        Ok(match Either::deserialize(from)? {
            Either::Name(name) if name == "SIGNAL_SIGTERM" => Self::Term,
            Either::Name(name) if name == "SIGNAL_SIGKILL" => Self::Kill,
            Either::Number(15) => Self::Term,
            Either::Number(9) => Self::Kill,
            Either::Name(_) | Either::Number(_) => Self::Unspecified,
        })
    }
}

/// Request of `SendSignal`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SendSignalRequest {
    /// Which process.
    pub process: ProcessSelector,
    /// Which signal.
    pub signal: Signal,
}

/// One process in `List`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    /// How it was started.
    pub config: ProcessConfig,
    /// Process id inside.
    pub pid: u32,
    /// Its tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Answer of `List`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListResponse {
    /// Every process the agent started that still runs.
    pub processes: Vec<ProcessInfo>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_shape_of_the_wire() {
        let rows = [
            (
                ProcessEvent::Start(Started { pid: 7 }),
                r#"{"event":{"start":{"pid":7}}}"#,
            ),
            (
                ProcessEvent::Data(Data::Stdout(Base64(b"hi\n".to_vec()))),
                r#"{"event":{"data":{"stdout":"aGkK"}}}"#,
            ),
            (
                ProcessEvent::End(Ended {
                    exit_code: 3,
                    exited: true,
                    status: "exit status 3".into(),
                    error: None,
                }),
                r#"{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3"}}}"#,
            ),
            (
                ProcessEvent::Keepalive(Empty {}),
                r#"{"event":{"keepalive":{}}}"#,
            ),
        ];
        for (event, text) in rows {
            let message = EventMessage { event };
            assert_eq!(serde_json::to_string(&message).unwrap(), text);
            assert_eq!(serde_json::from_str::<EventMessage>(text).unwrap(), message);
        }
    }

    #[test]
    fn unknown_fields_are_ignored_and_absent_ones_have_defaults() {
        let text =
            r#"{"process":{"cmd":"/bin/true","later":[1]},"pty":{"size":{"cols":80,"rows":24}}}"#;
        let request: StartRequest = serde_json::from_str(text).unwrap();
        assert_eq!(request.process.cmd, "/bin/true");
        assert_eq!(request.stdin, None);
        assert_eq!(request.pty.unwrap().size.unwrap().cols, 80);
    }

    #[test]
    fn signals_read_by_name_and_number() {
        for (text, signal) in [
            (r#""SIGNAL_SIGKILL""#, Signal::Kill),
            ("15", Signal::Term),
            ("1", Signal::Unspecified),
            (r#""SIGNAL_SIGHUP""#, Signal::Unspecified),
        ] {
            assert_eq!(serde_json::from_str::<Signal>(text).unwrap(), signal);
        }
    }
}
