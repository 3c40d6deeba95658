//! Tools in WebAssembly through the real daemon.
//!
//! - `examples`: those of the repository, with typed input and output.
//! - `same`: a hundred deterministic runs of a script.
//! - `ends`: how modules end, beside others of their host.
//! - `dear`: what is dear to compile hurts nobody.
//! - `killed`: a daemon that dies with runs in its hosts.
//!
//! The programs are built by `cargo xtask wasm --dev`, the interpreters by `cargo xtask templates`; where they
//! are not there a test says so.

mod dear;
mod ends;
mod examples;
mod killed;
mod same;

use std::fs;
use std::path::Path;
use std::time::Duration;

use leasehold_e2e::{Daemon, Outcome, leasehold, skip, until};
use serde_json::{Value, json};

use super::SOON;
use crate::modules::{copy_files, kept_code, shelve};

/// Time to compile an interpreter on a slow machine.
const COMPILE: Duration = Duration::from_secs(300);

/// A daemon that has the programs, and takes every tool of its first tenant for first-party.
struct Rig {
    daemon: Daemon,
}

impl Rig {
    fn new(test: &str) -> Option<Self> {
        Self::with_template(test, None)
    }

    /// One with this template, and its code as far as an earlier test compiled it.
    fn with_template(test: &str, template: Option<&str>) -> Option<Self> {
        let programs = leasehold().parent().unwrap().join("wasm");
        if !programs.join("leasehold-wasm-host").is_file() {
            skip(test, "no programs for WebAssembly: cargo xtask wasm --dev");
            return None;
        }
        let mut daemon = Daemon::prepared(&["--warm", "0"]).with_modules();
        if let Some(name) = template {
            let wasm = daemon.instance().state().join("wasm");
            shelve(test, &wasm, &[name])?;
        }
        daemon.restart(&[]);
        if let Some(name) = template {
            // Its code is kept for the next test.
            let code = if name == "python" { "-c" } else { "-e" };
            let head = ["run", "--alone", "--deterministic", "--interpreter", name];
            let words = head.into_iter().chain(["--", code, "1"]);
            daemon.instance().start(words).wait(COMPILE).status_is(0);
            fs::create_dir_all(kept_code()).unwrap();
            copy_files(&daemon.instance().state().join("wasm/code"), &kept_code());
        }
        let rig = Self { daemon };
        rig.policy("");
        Some(rig)
    }

    /// Sets the operator's policy for the first tenant, with another field.
    fn policy(&self, field: &str) {
        let file = self.daemon.instance().scratch("policies").join("default");
        let text = format!(
            "version: 1\n{field}\nallow: {{tools: ['*'], commands: ['*'], permissions: inherit, egress: [], \
             credentials: [], workspaces: ['*'], trust: ['*'], backends: ['*'], placement: ['*']}}\n\
             trust: {{commands: first_party, tools: {{'*': first_party}}}}\n"
        );
        self.daemon.instance().write(&file, &text);
        let words = ["policy", "set", "platform/tenant/default"];
        let file = file.display().to_string();
        let words = words.into_iter().chain([file.as_str()]);
        self.daemon.cli(words).status_is(0);
    }

    /// After the end of daemon and worker nothing is on the host. Before, the hosts of tenants wait for more.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let left = self.daemon.stopped_inventory();
        assert!(left.is_empty(), "left on the host:\n{left}");
    }

    fn publish(&self, folder: &Path) {
        let folder = folder.display().to_string();
        self.daemon.cli(["tool", "publish", &folder]).status_is(0);
    }

    /// Publishes the tool `test.NAME` of one module, with more lines of its manifest.
    fn publish_module(&self, name: &str, module: &[u8], more: &str) {
        let folder = self.daemon.instance().scratch(name);
        fs::write(folder.join("tool.wasm"), module).unwrap();
        let manifest = format!(
            "id: test.{name}\nversion: 1.0.0\ncategory: test\nowner: tests\ndescription: A test.\n\
             entrypoint: {{runtime: wasm, file: tool.wasm}}\nsandbox: {{isolation: wasm, trust: first_party}}\n{more}\n"
        );
        fs::write(folder.join("tool.yaml"), manifest).unwrap();
        self.publish(&folder);
    }

    fn run(&self, tool: &str, input: &Value) -> Outcome {
        let input = input.to_string();
        let words = ["run", "--tool", tool, "--input", &input];
        self.daemon.instance().start(words).wait(COMPILE)
    }

    /// Begins a run over HTTP and waits for nothing.
    fn begin(&self, tool: &str) -> String {
        let body = json!({"tool": tool, "input": {}});
        let begun = self.daemon.post("/v1/runs?wait=none", &[], &body);
        begun.status_is(202).run()
    }

    /// Waits until a run has said this on standard error.
    fn await_word(&self, run: &str, word: &str) {
        let stderr = format!("/v1/runs/{run}/logs/stderr");
        until("the tool to be up", SOON, || {
            self.daemon.get(&stderr).text.contains(word).then_some(())
        });
    }
}

fn compiled(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}
