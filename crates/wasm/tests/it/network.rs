//! What a component asks of the network: every kind of it is denied, and what was asked is told.
//!
//! The controls run the same components in an engine of the test's own that grants: they do reach the host.

use std::future::Future;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use leasehold_core::end::ExitStatus;
use leasehold_core::limits::Resource;
use leasehold_protocol::wasm::{Flavour, RunLimits};
use wasmtime::component::{Component, Linker, ResourceTable};
use wasmtime::{Config, Engine, Store};
use wasmtime_wasi::p2::bindings::Command;
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};

use crate::asking::{asks, binds};
use crate::rig::{Rig, limits};

/// The error of `wasi:sockets` that says no, and the one for a port that somebody has.
const ACCESS_DENIED: u32 = 1;
const ADDRESS_IN_USE: u32 = 12;

/// What a run of a component holds in an engine that grants.
struct Granted {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
    hooks: Sends,
}

/// Goes where a request asks to go, as far as the connection.
struct Sends(Arc<Mutex<Vec<String>>>);

impl WasiView for Granted {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for Granted {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            ctx: &mut self.http,
            table: &mut self.table,
            hooks: &mut self.hooks,
        }
    }
}

type Sent = Result<
    (
        http::Response<WasiBody>,
        Box<dyn Future<Output = Result<(), Error>> + Send>,
    ),
    Error,
>;

impl WasiHttpHooks for Sends {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let authority = request.uri().authority().unwrap().to_string();
        drop(std::net::TcpStream::connect(&authority).unwrap());
        self.0.lock().unwrap().push(authority);
        Box::new(std::future::ready(Err(Error::HttpRequestDenied)))
    }
}

/// Runs a component where the network is open: whether it says that it went well, and where it asked.
fn granted(text: &str) -> (bool, Vec<String>) {
    let engine = Engine::new(&Config::new()).unwrap();
    let component = Component::new(&engine, wat::parse_str(text).unwrap()).unwrap();
    let mut linker = Linker::new(&engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker).unwrap();
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker).unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let state = Granted {
        wasi: WasiCtxBuilder::new()
            .allow_tcp(true)
            .inherit_network()
            .build(),
        http: WasiHttpCtx::new(),
        table: ResourceTable::new(),
        hooks: Sends(asked.clone()),
    };
    let mut store = Store::new(&engine, state);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let well = runtime.block_on(async {
        let command = Command::instantiate_async(&mut store, &component, &linker)
            .await
            .unwrap();
        command
            .wasi_cli_run()
            .call_run(&mut store)
            .await
            .unwrap()
            .is_ok()
    });
    let asked = asked.lock().unwrap().clone();
    (well, asked)
}

#[test]
fn p18_a_component_gets_no_socket() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let rig = Rig::new(Flavour::Plain);
    let report = rig.ends(&binds(port, ACCESS_DENIED), limits()).report;
    assert_eq!(
        report.exit,
        Some(ExitStatus::Exit { code: 0 }),
        "{report:?}"
    );
    // The control: where it is granted one, it meets the host's own ports: one that somebody has, and a free one.
    assert!(granted(&binds(port, ADDRESS_IN_USE)).0);
    drop(taken);
    assert!(!granted(&binds(port, ADDRESS_IN_USE)).0);
}

#[test]
fn p18_a_component_asks_by_http_and_is_denied_and_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let rig = Rig::new(Flavour::Plain);
    let ran = rig.ends(&asks(&authority, 3), limits());
    let report = ran.report;
    assert_eq!(
        report.exit,
        Some(ExitStatus::Exit { code: 0 }),
        "{report:?}"
    );
    assert_eq!(report.http_denied, 3);
    assert_eq!(
        report.http_denied_to,
        vec![format!("GET {authority}"); 3],
        "it is told where"
    );
    assert!(listener.accept().is_err(), "somebody came");
    // The control: the same component where requests are sent.
    let (well, asked) = granted(&asks(&authority, 1));
    assert!(well);
    assert_eq!(asked, [authority]);
    listener.accept().expect("nobody came");
}

/// What is told of requests is bounded, however many there are and however long their names.
#[test]
fn what_is_told_of_denied_requests_is_bounded() {
    let rig = Rig::new(Flavour::Plain);
    let report = rig.ends(&asks(&"x".repeat(2_000), 100), limits()).report;
    assert_eq!(report.http_denied, 100);
    assert!(!report.http_denied_to.is_empty());
    let told: usize = report.http_denied_to.iter().map(String::len).sum();
    assert!(told < 10_000, "{told} bytes of {report:?}");
    // What it holds of requests is bounded too, and is named.
    let few = RunLimits {
        handles: 20,
        ..limits()
    };
    let report = rig.ends(&asks("example.test", 1_000), few).report;
    let hit = report.killed_by.expect("a limit");
    assert_eq!((hit.which, hit.limit), (Resource::Handles, 20));
}
