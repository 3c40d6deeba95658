//! The command line as a client of a daemon: over HTTP, with a key.
//!
//! A daemon is used where one is named by the environment or has left its notice in the run directory.
//! Every command says which it used, so that nobody takes a local record for the daemon's.

pub(crate) mod admin;
pub(crate) mod directory;
pub(crate) mod look;
mod module;
pub(crate) mod proof;
pub(crate) mod run;
pub(crate) mod runs;
mod stream;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_supervisor::paths::Paths;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::http::{Response, StatusCode};

use crate::env;
use crate::fault::Fault;
use crate::serve::home::Home;

pub(crate) use stream::{Frame, Frames};

/// Longest answer that is not a stream, in bytes.
const ANSWER_MAX: u64 = 64 << 20;
/// How long a daemon on this machine may take to take a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// A daemon and the key it is spoken to with.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    agent: Agent,
    url: String,
    key: String,
    /// Whether it is the daemon of this machine's own run directory.
    local: Option<Home>,
}

/// An answer that is no success.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Refused {
    status: u16,
    /// The `error` object, or whatever came instead.
    error: Value,
}

impl Remote {
    /// The daemon that is meant, if any: by the environment, or by its notice.
    ///
    /// # Errors
    /// When one is named and cannot be used: no key for it, or a key file that cannot be read.
    pub(crate) fn find(paths: &Paths) -> Result<Option<Self>, Fault> {
        let text = |variable: env::Variable| {
            env::read(variable.name).map(|value| value.to_string_lossy().into_owned())
        };
        let key = text(env::API_KEY).filter(|key| !key.trim().is_empty());
        if let Some(url) = text(env::URL).filter(|url| !url.is_empty()) {
            let key = key.ok_or_else(|| {
                Fault::usage(format!(
                    "`{}` names a daemon, and no key is there for it",
                    env::URL.name
                ))
                .hint(format!("set `{}`", env::API_KEY.name))
            })?;
            return Self::new(&url, key, None).map(Some);
        }
        let home = Home::within(paths);
        let Some(notice) = home.notice() else {
            return Ok(None);
        };
        if !stands_behind(&home) {
            return Ok(None);
        }
        let key = match key {
            Some(key) => key,
            None => fs::read_to_string(home.first_key()).map_err(|error| {
                Fault::usage(format!("the daemon at {} needs a key", notice.url))
                    .because(&error)
                    .hint(format!("set `{}`", env::API_KEY.name))
            })?,
        };
        let remote = Self::new(&notice.url, key, Some(home))?;
        // A notice that nobody stands behind is what a killed daemon leaves.
        Ok(remote.answers().then_some(remote))
    }

    /// The daemon that is meant.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn need(paths: &Paths) -> Result<Self, Fault> {
        Self::find(paths)?.ok_or_else(no_daemon)
    }

    fn new(url: &str, key: String, local: Option<Home>) -> Result<Self, Fault> {
        let url = url.trim_end_matches('/').to_owned();
        if !url.starts_with("http://") {
            return Err(Fault::usage(format!("`{url}` is no http:// address"))
                .hint("for a daemon elsewhere, forward its port through ssh"));
        }
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT))
            .max_redirects(0)
            .proxy(None)
            .build()
            .new_agent();
        Ok(Self {
            agent,
            url,
            key: key.trim().to_owned(),
            local,
        })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The daemon's place on this machine, if it is here.
    pub(crate) fn home(&self) -> Option<&Home> {
        self.local.as_ref()
    }

    /// Takes up where the daemon of this machine says it is now.
    pub(crate) fn look_again(&mut self) {
        if let Some(notice) = self.local.as_ref().and_then(Home::notice) {
            self.url = notice.url;
        }
    }

    fn answers(&self) -> bool {
        let asked = self.agent.get(format!("{}/healthz", self.url)).call();
        asked.is_ok_and(|response| response.status() == StatusCode::OK)
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key)
    }

    /// Reads something.
    ///
    /// # Errors
    /// As the daemon says, or when it cannot be reached.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Fault> {
        let response = self
            .agent
            .get(format!("{}{path}", self.url))
            .header("authorization", self.bearer())
            .call()
            .map_err(|error| self.unreachable(&error))?;
        self.read(response)
    }

    /// Sends a JSON body; `method` is POST, PUT or DELETE.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn send<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<T, Fault> {
        self.send_with(method, path, body, &[])
    }

    /// As [`Self::send`], with more headers.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn send_with<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> Result<T, Fault> {
        let url = format!("{}{path}", self.url);
        let bytes = serde_json::to_vec(body)
            .map_err(|error| Fault::host("cannot write the request").because(&error))?;
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(&url)
            .header("authorization", self.bearer())
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(bytes)
            .map_err(|error| Fault::usage("the request cannot be written").because(&error))?;
        let response = self
            .agent
            .run(request)
            .map_err(|error| self.unreachable(&error))?;
        self.read(response)
    }

    /// Sends bytes as they are, of a given type.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        bytes: Vec<u8>,
    ) -> Result<T, Fault> {
        let response = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("authorization", self.bearer())
            .header("content-type", kind)
            .send(bytes)
            .map_err(|error| self.unreachable(&error))?;
        self.read(response)
    }

    /// Opens something to be read as it comes.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) fn open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<ureq::BodyReader<'static>, Fault> {
        let mut request = self
            .agent
            .get(format!("{}{path}", self.url))
            .header("authorization", self.bearer());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.call().map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response.into_body().into_reader());
        }
        Err(self.refusal(response))
    }

    fn read<T: DeserializeOwned>(&self, mut response: Response<ureq::Body>) -> Result<T, Fault> {
        let ended = response.headers().contains_key("leasehold-run");
        if !response.status().is_success() && !ended {
            return Err(self.refusal(response));
        }
        let text = response
            .body_mut()
            .with_config()
            .limit(ANSWER_MAX)
            .read_to_vec()
            .map_err(|error| self.unreachable(&error))?;
        let text = if text.is_empty() {
            b"null".to_vec()
        } else {
            text
        };
        serde_json::from_slice(&text).map_err(|error| {
            Fault::host(format!("the daemon at {} gave no answer we know", self.url))
                .because(&error)
        })
    }

    fn refusal(&self, mut response: Response<ureq::Body>) -> Fault {
        let status = response.status().as_u16();
        let body = response
            .body_mut()
            .with_config()
            .limit(1 << 20)
            .read_to_vec();
        let error = body
            .ok()
            .and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok())
            .map(|mut body| body["error"].take())
            .unwrap_or_default();
        Refused { status, error }.into()
    }

    fn unreachable(&self, error: &ureq::Error) -> Fault {
        let fault = Fault::host(format!("the daemon at {} cannot be reached", self.url)).hint(
            "`leasehold serve` starts one, and says its address; `LEASEHOLD_URL` names which one is meant",
        );
        match error {
            ureq::Error::Io(error) => fault.because(error),
            error => fault.because(error),
        }
    }
}

/// Whether the daemon that left the notice is there. A killed one leaves its notice, and anybody on this
/// machine may listen at its port since; its socket is in a directory that is closed to everybody else, and
/// is refused once nobody holds it. So no key goes to whoever took the port.
pub(crate) fn stands_behind(home: &Home) -> bool {
    UnixStream::connect(home.local_socket()).is_ok()
}

/// What is said where a daemon is needed and none is there.
pub(crate) fn no_daemon() -> Fault {
    Fault::host("no daemon is running here").hint(format!(
        "start one with `leasehold serve`, or name one with `{}`; `leasehold runs` lists what ran without one",
        env::URL.name
    ))
}

/// A text of an answer, fit for a terminal; what is no text is shown as JSON, nothing as nothing.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => crate::voice::clean(text),
        other => crate::voice::clean(&other.to_string()),
    }
}

/// Reads a small text file.
///
/// # Errors
/// When it cannot be read, or is no UTF-8.
pub(crate) fn read_text(path: &Path) -> Result<String, Fault> {
    fs::read_to_string(path)
        .map_err(|error| Fault::usage(format!("cannot read {}", path.display())).because(&error))
}

/// Bytes written in base 64.
pub(crate) fn base64_decode(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        let kind = match refused.status {
            400 | 422 => ErrorKind::Invalid,
            401 => ErrorKind::Unauthenticated,
            403 => ErrorKind::Forbidden,
            404 => ErrorKind::NotFound,
            409 => ErrorKind::Exists,
            429 => ErrorKind::Quota,
            503 => ErrorKind::NoCapacity,
            504 => ErrorKind::Timeout,
            _ => ErrorKind::Internal,
        };
        let message = match refused.error["message"].as_str() {
            Some(message) => crate::voice::clean(message),
            None => format!("the daemon answered with status {}", refused.status),
        };
        let mut error = PublicError::new(kind, message);
        if kind == ErrorKind::Unauthenticated {
            error = error.hint(format!(
                "set `{}` to a key of this daemon; `leasehold key create` makes one",
                env::API_KEY.name
            ));
        } else if let Some(hint) = refused.error["hint"].as_str() {
            error = error.hint(crate::voice::clean(hint));
        }
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p67_no_key_goes_to_whoever_took_the_port_of_a_killed_daemon() {
        let root = std::env::temp_dir().join(format!("leasehold-notice-{}", std::process::id()));
        let paths = Paths::new(&root.join("state"), &root.join("run"));
        paths.create().unwrap();
        let home = Home::within(&paths);
        let lock = home.take().unwrap();
        fs::write(home.first_key(), "lh_secret").unwrap();
        // Whoever listens there now says that it is well.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        home.announce(taken.local_addr().unwrap()).unwrap();
        std::thread::spawn(move || {
            for mut stream in taken.incoming().flatten() {
                use std::io::{Read, Write};
                let _ = stream.read(&mut [0; 4_096]);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer);
            }
        });
        assert!(Remote::find(&paths).unwrap().is_none());
        let socket = std::os::unix::net::UnixListener::bind(home.local_socket()).unwrap();
        assert!(Remote::find(&paths).unwrap().is_some());
        drop(socket);
        assert!(home.local_socket().exists() && Remote::find(&paths).unwrap().is_none());
        drop(lock);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_refusal_keeps_its_words_and_gets_a_status() {
        let refused = Refused {
            status: 400,
            error: serde_json::json!({"message": "`limits.memory` is \"12X\"\u{1b}", "hint": "mend it"}),
        };
        let fault = Fault::from(refused);
        assert_eq!(fault.chain(), "`limits.memory` is \"12X\"\\x1b");
        assert_eq!((fault.status(), fault.mend()), (2, Some("mend it")));
        let fault = Fault::from(Refused {
            status: 503,
            error: Value::Null,
        });
        assert_eq!(fault.status(), 125);
    }
}
