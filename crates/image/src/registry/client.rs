//! Asks a registry. Every answer has a bound, every wait an end.

use std::io::Read;
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold_core::digest::Digest;
use ureq::http::{Response, Uri};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

use super::address::{Address, is_loopback};
use super::auth::{Challenge, Token, challenge, escaped};
use super::pace::Paced;
use super::reach::Reach;
use super::{PullOptions, tls};
use crate::document::accepted;
use crate::error::{ImageError, Result, shown};
use crate::limits::MANIFEST_BYTES;
use crate::reference::Reference;

/// Redirects that are followed.
const REDIRECTS: usize = 5;
/// Most bytes of a token's answer.
const TOKEN_MAX: u64 = 64 << 10;
/// Most bytes of an error that are read.
const ERROR_MAX: u64 = 4 << 10;

/// One repository of one registry.
pub(crate) struct Client<'a> {
    agent: Agent,
    base: Address,
    repository: &'a str,
    options: &'a PullOptions,
    /// What goes with each request, once a registry asked for it.
    authorization: Mutex<Option<String>>,
}

/// A manifest as it came.
pub(crate) struct Fetched {
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: Digest,
    pub(crate) content_type: Option<String>,
}

/// One request.
struct Ask<'a> {
    path: &'a str,
    /// In words, for errors.
    what: &'a str,
    accept: Option<&'a str>,
    /// First byte that is wanted.
    from: u64,
}

impl<'a> Client<'a> {
    /// For the repository of a name.
    ///
    /// # Errors
    /// When the certificates cannot be read.
    pub(crate) fn new(reference: &'a Reference, options: &'a PullOptions) -> Result<Self> {
        let loopback = is_loopback(reference.host());
        let plain = options.plain_http || loopback && options.ca.is_none();
        let base = Address {
            secure: !plain,
            authority: reference.host().to_ascii_lowercase(),
            path: "/".to_owned(),
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .tls_config(tls::config(options.ca.as_deref())?)
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(Duration::from_secs(20)))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(options.stall.max(Duration::from_secs(1)) * 2))
            .timeout_per_read(Some(options.stall))
            .timeout_per_write(Some(options.stall))
            .max_response_header_size(64 << 10)
            .build();
        let at: Uri = base.text().parse().map_err(|_| ImageError::Registry {
            registry: base.authority.clone(),
            what: "anything".to_owned(),
            why: "it has no address".to_owned(),
        })?;
        let agent = Agent::with_parts(config, DefaultConnector::default(), Reach::new(at));
        Ok(Self {
            agent,
            base,
            repository: reference.repository(),
            options,
            authorization: Mutex::new(None),
        })
    }

    /// Whether a request may go there: by TLS anywhere, by plain HTTP only to the registry that is spoken to so,
    /// and from loopback to loopback.
    fn allowed(&self, to: &Address) -> bool {
        let here = is_loopback(&self.base.authority) && is_loopback(&to.authority);
        to.secure || !self.base.secure && (here || to.same_host(&self.base))
    }

    /// How long a connection may stand still.
    pub(super) fn stall(&self) -> Duration {
        self.options.stall
    }

    pub(crate) fn failure(&self, what: &str, why: impl Into<String>) -> ImageError {
        ImageError::Registry {
            registry: self.base.authority.clone(),
            what: what.to_owned(),
            why: why.into(),
        }
    }

    /// Gets a manifest or an index, of a tag or a digest, up to its bound.
    ///
    /// # Errors
    /// When it cannot be had, is too long, or is not of its digest.
    pub(crate) fn manifest(&self, which: &str, wanted: Option<&Digest>) -> Result<Fetched> {
        let what = format!("the manifest {}", shown(which.as_bytes()));
        let accept = accepted();
        let path = format!("/v2/{}/manifests/{which}", self.repository);
        let answer = self.get(&Ask {
            path: &path,
            what: &what,
            accept: Some(&accept),
            from: 0,
        })?;
        let content_type = header(&answer, "content-type").map(str::to_owned);
        let stated = header(&answer, "docker-content-digest").map(str::to_owned);
        let bytes = self.read(answer, MANIFEST_BYTES, &what, "manifest")?;
        let digest = Digest::of(&bytes);
        let stated = match stated {
            Some(text) => Digest::parse(&text).ok(),
            None => None,
        };
        for wanted in [wanted.copied(), stated].into_iter().flatten() {
            if wanted != digest {
                return Err(ImageError::Digest {
                    what,
                    found: digest,
                    wanted,
                });
            }
        }
        Ok(Fetched {
            bytes,
            digest,
            content_type,
        })
    }

    /// Begins to get a blob from a byte on: the answer, and from which byte on it is.
    ///
    /// # Errors
    /// When it cannot be had.
    pub(crate) fn blob(&self, digest: &Digest, from: u64) -> Result<(Response<Body>, u64)> {
        let what = format!("blob {digest}");
        let path = format!("/v2/{}/blobs/{digest}", self.repository);
        let ask = Ask {
            path: &path,
            what: &what,
            accept: None,
            from,
        };
        let answer = self.get(&ask)?;
        if answer.status().as_u16() != 206 {
            return Ok((answer, 0));
        }
        // Another part than was asked for would be spliced in.
        let range = header(&answer, "content-range").unwrap_or_default();
        match range.starts_with(&format!("bytes {from}-")) {
            true => Ok((answer, from)),
            false => Err(self.failure(&what, "it sends another part than was asked for")),
        }
    }

    fn get(&self, ask: &Ask<'_>) -> Result<Response<Body>> {
        let address = Address {
            path: ask.path.to_owned(),
            ..self.base.clone()
        };
        let (answer, from) = self.follow(address.clone(), ask)?;
        // Whoever we were sent on to is answered nothing.
        if answer.status().as_u16() != 401 || !from.same_host(&self.base) {
            return self.good(answer, &from, ask.what);
        }
        let asked = header(&answer, "www-authenticate").and_then(challenge);
        let Some(asked) = asked else {
            return self.good(answer, &from, ask.what);
        };
        let Some(authorization) = self.answer_to(asked, ask.what)? else {
            return self.good(answer, &from, ask.what);
        };
        *self
            .authorization
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(authorization);
        let (answer, from) = self.follow(address, ask)?;
        self.good(answer, &from, ask.what)
    }

    /// One request, and where it is sent on to: the answer, and who gave it. What proves who asks goes to the
    /// registry alone.
    fn follow(&self, mut address: Address, ask: &Ask<'_>) -> Result<(Response<Body>, Address)> {
        for _ in 0..=REDIRECTS {
            if !self.allowed(&address) {
                let why = format!(
                    "it sends us on to plain HTTP, at {}, which is spoken only to the registry itself",
                    shown(address.authority.as_bytes())
                );
                return Err(self.failure(ask.what, why));
            }
            let mut request = self.agent.get(address.text());
            if let Some(accept) = ask.accept {
                request = request.header("accept", accept);
            }
            if ask.from > 0 {
                request = request.header("range", format!("bytes={}-", ask.from));
            }
            let known = self
                .authorization
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .clone();
            if let Some(known) = known
                && address.same_host(&self.base)
            {
                request = request.header("authorization", known);
            }
            let answer = request
                .call()
                .map_err(|error| self.failure(ask.what, error.to_string()))?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((answer, address));
            }
            let location = header(&answer, "location").unwrap_or_default();
            address = address
                .follow(location)
                .map_err(|why| self.failure(ask.what, format!("its answer {why}")))?;
        }
        Err(self.failure(
            ask.what,
            format!("it sends us on more than {REDIRECTS} times"),
        ))
    }

    /// What is to go with requests from now on; `None` when we have nothing that is asked for.
    fn answer_to(&self, asked: Challenge, what: &str) -> Result<Option<String>> {
        let own = self.options.credentials.as_ref();
        let basic = own.map(|own| {
            let pair = format!("{}:{}", own.user, own.password);
            format!("Basic {}", STANDARD.encode(pair))
        });
        let (realm, service, scope) = match asked {
            Challenge::Basic => return Ok(basic),
            Challenge::Bearer {
                realm,
                service,
                scope,
            } => (realm, service, scope),
        };
        let mut address = Address::parse(&realm)
            .map_err(|why| self.failure(what, format!("its challenge {why}")))?;
        if !self.allowed(&address) {
            let why = format!(
                "its tokens are had by plain HTTP, at {}, which is spoken only to the registry itself",
                shown(address.authority.as_bytes())
            );
            return Err(self.failure(what, why));
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let mark = if address.path.contains('?') { '&' } else { '?' };
        address
            .path
            .push_str(&format!("{mark}scope={}", escaped(&scope)));
        if let Some(service) = service {
            address
                .path
                .push_str(&format!("&service={}", escaped(&service)));
        }
        let mut request = self.agent.get(address.text());
        if let Some(basic) = basic
            && (address.secure || address.same_host(&self.base))
        {
            request = request.header("authorization", basic);
        }
        let answer = request
            .call()
            .map_err(|error| self.failure("a token", error.to_string()))?;
        let answer = self.good(answer, &address, "a token")?;
        let bytes = self.read(answer, TOKEN_MAX, "a token", "token")?;
        let token = serde_json::from_slice::<Token>(&bytes)
            .ok()
            .and_then(Token::text);
        match token {
            Some(token) => Ok(Some(format!("Bearer {token}"))),
            None => Err(self.failure("a token", "what it gives is none")),
        }
    }

    /// An answer that is what was asked for, or the reason it is not.
    fn good(&self, answer: Response<Body>, from: &Address, what: &str) -> Result<Response<Body>> {
        let status = answer.status().as_u16();
        if matches!(status, 200 | 206) {
            return Ok(answer);
        }
        let mut said = Vec::new();
        // What somebody says to whom we were sent on may be none of the registry's business, or of its user's.
        if from.same_host(&self.base) {
            let body = answer.into_body().into_reader().take(ERROR_MAX);
            // What came before it broke off says something too.
            let _ = Paced::new(body, self.options.stall).read_to_end(&mut said);
        }
        let said = (!said.is_empty()).then(|| shown(message(&said).as_bytes()));
        Err(ImageError::Answer {
            registry: self.base.authority.clone(),
            status,
            what: what.to_owned(),
            said,
        })
    }

    /// Reads an answer up to its bound.
    fn read(
        &self,
        answer: Response<Body>,
        most: u64,
        what: &str,
        limit: &'static str,
    ) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let body = Paced::new(answer.into_body().into_reader(), self.options.stall);
        body.take(most + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.failure(what, error.to_string()))?;
        match bytes.len() as u64 <= most {
            true => Ok(bytes),
            false => Err(ImageError::Limit {
                what: what.to_owned(),
                limit,
                most,
            }),
        }
    }
}

fn header<'a>(answer: &'a Response<Body>, name: &str) -> Option<&'a str> {
    answer.headers().get(name)?.to_str().ok()
}

/// What a registry says in its form of an error, else the text itself.
fn message(said: &[u8]) -> String {
    let value: Option<serde_json::Value> = serde_json::from_slice(said).ok();
    let text = value
        .as_ref()
        .and_then(|value| value.pointer("/errors/0/message")?.as_str());
    match text {
        Some(text) => text.to_owned(),
        None => String::from_utf8_lossy(said).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_to_whom_it_was_asked_for() {
        let options = PullOptions {
            plain_http: true,
            ..PullOptions::default()
        };
        let goes = |name: &str, to: &str| {
            let reference = Reference::parse(name).unwrap();
            let client = Client::new(&reference, &options).unwrap();
            client.allowed(&Address::parse(to).unwrap())
        };
        for to in ["http://r.io:5000/y", "https://other.io/"] {
            assert!(goes("r.io:5000/x", to), "{to}");
        }
        for to in ["http://other.io/", "http://r.io/", "http://127.0.0.1:1/"] {
            assert!(!goes("r.io:5000/x", to), "{to}");
        }
        assert!(goes("localhost:1/x", "http://127.0.0.1:2/"));
        assert!(!goes("localhost:1/x", "http://other.io/"));
    }
}
