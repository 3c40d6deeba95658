//! An instance of its own for each test, and orders to its supervisor.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use leasehold_backend::process::client::Client;
use leasehold_backend::process::start::Endpoint;
use leasehold_core::digest::Digest;
use leasehold_core::end::EndReason;
use leasehold_core::id::RunId;
use leasehold_core::record::RunRecord;
use leasehold_core::spec::{ExecSpec, ModuleSpec, SandboxSpec};
use leasehold_e2e::{Instance, Need, need};
use leasehold_protocol::memory;
use leasehold_protocol::supervisor::{Event, Request, Supplied, Target};
use leasehold_protocol::wasm::{Flavour, Load, One, Preopen, RunLimits, Start, one_argv};
use leasehold_wasm::compile::Compiler;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(120);

/// An instance, and a connection to its supervisor.
pub(crate) struct Bench {
    pub(crate) client: Client,
    pub(crate) instance: Instance,
    program: OwnedFd,
    digest: Digest,
    runs: u8,
}

/// What is to be run.
pub(crate) struct Order {
    pub(crate) text: String,
    pub(crate) spec: SandboxSpec,
    pub(crate) exec: ExecSpec,
    /// Whether the program has its workspace, and may write there.
    pub(crate) workspace: Option<bool>,
    pub(crate) directory: Option<OwnedFd>,
}

/// A run that was followed to its end.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) stdout: Vec<u8>,
    pub(crate) record: RunRecord,
}

impl Done {
    pub(crate) fn end(&self) -> &EndReason {
        self.record.end.as_ref().unwrap()
    }
}

impl Order {
    pub(crate) fn of(text: String) -> Self {
        let wasm = wat::parse_str(&text).unwrap();
        Self {
            text,
            spec: SandboxSpec::default(),
            exec: ExecSpec {
                module: Some(ModuleSpec {
                    digest: Digest::of(&wasm),
                    name: "guest.wasm".to_owned(),
                    script: None,
                    determinism: None,
                    fuel: None,
                }),
                ..ExecSpec::command(["guest.wasm"])
            },
            workspace: None,
            directory: None,
        }
    }

    pub(crate) fn fuel(mut self, fuel: u64) -> Self {
        self.exec.module.as_mut().unwrap().fuel = Some(fuel);
        self
    }

    pub(crate) fn bounded(mut self, change: impl FnOnce(&mut SandboxSpec)) -> Self {
        change(&mut self.spec);
        self
    }

    fn one(&self, load: Load) -> One {
        let module = self.exec.module.as_ref().unwrap();
        let preopens = self.workspace.map(|writable| Preopen {
            guest: "/workspace".to_owned(),
            writable,
        });
        One {
            load,
            start: Start {
                module: 0,
                argv: self.exec.argv.clone(),
                env: self.exec.env.clone().into_iter().collect(),
                stdin: self.exec.stdin,
                preopens: preopens.into_iter().collect(),
                limits: RunLimits::of(&self.spec.limits, module.fuel),
                determinism: module.determinism,
            },
        }
    }
}

impl Bench {
    /// One for the test of this name; none where this machine cannot.
    pub(crate) fn new(test: &str) -> Option<Self> {
        if !need(test, &[Need::Root]) {
            return None;
        }
        let instance = Instance::new();
        let program = leasehold_e2e::leasehold().to_owned();
        let endpoint = Endpoint::new(instance.run_folder(), instance.state(), program);
        let host = std::fs::read(env!("CARGO_BIN_EXE_leasehold-wasm-host")).unwrap();
        Some(Self {
            client: Client::connect_or_start(&endpoint).unwrap(),
            instance,
            program: memory::sealed("host", &host).unwrap(),
            digest: Digest::of(&host),
            runs: 0,
        })
    }

    /// Orders a run. Returns its id and the tag of its notices.
    pub(crate) fn order(&mut self, order: &Order) -> (RunId, u64) {
        let module = order.exec.module.as_ref().unwrap();
        let flavour = match module.fuel.is_some() || module.determinism.is_some() {
            true => Flavour::Metered,
            false => Flavour::Plain,
        };
        let wasm = wat::parse_str(&order.text).unwrap();
        let (kind, code) = Compiler::new(flavour).unwrap().compile(&wasm).unwrap();
        let one = order.one(Load { kind, flavour });
        let config = memory::sealed("one", &serde_json::to_vec(&one).unwrap()).unwrap();
        let code = memory::sealed("code", &code).unwrap();
        let supplied = Supplied {
            argv: one_argv(order.workspace),
            passed: 2,
            report: true,
            bound: false,
            digest: self.digest,
        };
        self.runs += 1;
        let run = RunId::from_entropy(&[self.runs; 13]);
        let target = Target::New(order.spec.clone());
        let request = Request::run_supplied(run.clone(), target, order.exec.clone(), supplied);
        let ours = [self.program.as_fd(), config.as_fd(), code.as_fd()];
        let directory = order.directory.iter().map(|fd| fd.as_fd());
        let fds: Vec<BorrowedFd<'_>> = directory.chain(ours).collect();
        let tag = self.client.call(request, &fds).unwrap();
        (run, tag)
    }

    /// Follows a run to the end of its removal; `seen` is shown each event and what came with it.
    pub(crate) fn follow(
        &mut self,
        tag: u64,
        mut seen: impl FnMut(&mut Client, &Event, &mut Vec<OwnedFd>),
    ) -> Done {
        let deadline = Instant::now() + PATIENCE;
        let mut spools = Vec::new();
        loop {
            let (notice, mut fds) = self.client.next_notice(Some(deadline)).unwrap().unwrap();
            if notice.tag != tag {
                continue;
            }
            seen(&mut self.client, &notice.event, &mut fds);
            match notice.event {
                Event::Refused(error) => panic!("{error}"),
                Event::Accepted { .. } => spools = fds,
                Event::Cleaned(record) => {
                    let cleanup = record.cleanup.as_ref().unwrap();
                    assert!(cleanup.clean(), "{cleanup:?}");
                    let spool = File::from(spools.swap_remove(0));
                    let mut stdout = vec![0; record.stdout.kept as usize];
                    spool.read_exact_at(&mut stdout, 0).unwrap();
                    return Done {
                        stdout,
                        record: *record,
                    };
                }
                _ => {}
            }
        }
    }

    pub(crate) fn run(&mut self, order: &Order) -> Done {
        let (_, tag) = self.order(order);
        self.follow(tag, |_, _, _| ())
    }

    /// Runs this text with the limits that nobody named.
    pub(crate) fn ran(&mut self, text: &str) -> Done {
        self.run(&Order::of(text.to_owned()))
    }
}
