//! Outgoing HTTP of a component: the place where egress will be decided. Nothing grants any yet, so every
//! request is denied, counted, and the first are told.

use std::future::Future;

use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// Denied requests that are told in words.
const TOLD_MAX: usize = 16;
/// Most characters of one.
const TOLD_LENGTH: usize = 300;

/// The decision, and what it was about.
#[derive(Debug, Default)]
pub(crate) struct Egress {
    pub(crate) denied: u64,
    pub(crate) denied_to: Vec<String>,
}

type Sending = Result<
    (
        http::Response<WasiBody>,
        Box<dyn Future<Output = Result<(), Error>> + Send>,
    ),
    Error,
>;

impl WasiHttpHooks for Egress {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Sending> + Send> {
        self.denied += 1;
        if self.denied_to.len() < TOLD_MAX {
            let authority = request
                .uri()
                .authority()
                .map_or("", |authority| authority.as_str());
            let told = format!("{} {authority}", request.method());
            self.denied_to
                .push(told.chars().take(TOLD_LENGTH).collect());
        }
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }
}
