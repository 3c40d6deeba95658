//! The second half of the demo: a daemon with two tools, one of which it refuses to run.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Demo;
use crate::tally::Tally;
use crate::tree;

/// How long a daemon may take to serve.
const START: Duration = Duration::from_secs(30);
/// Exit status that says no sandbox that is strong enough could be had.
const UNAVAILABLE: i32 = 125;

/// A daemon of our own, ended with us.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        // It is our child and not yet waited for, so the number is still its own.
        let end = format!("kill -TERM {}", self.0.id());
        let _ = Command::new("sh").args(["-c", &end]).status();
        let _ = self.0.wait();
    }
}

/// Serves, publishes two tools, runs one, is refused the other, and proves what ran.
///
/// # Errors
/// When a step does not end as it should.
pub(super) fn run(demo: &Demo, tally: &mut Tally) -> Result<()> {
    println!("\n--- 3. a service: `leasehold serve` in the background, two published tools");
    let _daemon = start(demo)?;
    demo.good(&[
        "policy",
        "set",
        "platform/tenant/default",
        "examples/policy.yaml",
    ])?;
    demo.good(&["tool", "publish", "examples/tools/wordcount"])?;
    demo.good(&["tool", "publish", "examples/tools/linecheck"])?;
    demo.good(&["tool", "ls"])?;
    let input = r#"{"text": "to be or not to be", "top": 2}"#;
    demo.good(&[
        "run",
        "--tool",
        "text.wordcount",
        "--wait-cleanup",
        "--input",
        input,
    ])?;
    println!("\n--- the other tool is untrusted, and no backend here is strong enough for it");
    let status = demo.call(&["run", "--tool", "text.linecheck"])?;
    if status != UNAVAILABLE {
        bail!("the untrusted tool ended with status {status}, not with {UNAVAILABLE}");
    }
    demo.good(&["ps", "--all"])?;
    println!("\n--- what was that run? in words, and proven offline");
    let run = newest(demo)?;
    demo.good(&["explain", &run])?;
    let bundle = demo.folder.join("bundle.json");
    let bundle = bundle.to_string_lossy();
    demo.good(&["evidence", &run, "-o", &bundle])?;
    demo.good(&["verify", &bundle])?;
    tamper(Path::new(&*bundle))?;
    println!("\n--- one digit of it changed");
    if demo.call(&["verify", &bundle])? == 0 {
        bail!("a changed bundle was taken for what was signed");
    }
    tally.passed += 1;
    Ok(())
}

fn start(demo: &Demo) -> Result<Daemon> {
    let notice = demo.folder.join("run/daemon.json");
    if let Err(error) = fs::remove_file(&notice)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error).context("remove an old notice");
    }
    let mut command = demo.command(&["serve", "--listen", "127.0.0.1:0"]);
    println!("\n$ leasehold serve --listen 127.0.0.1:0 &");
    let child = command
        .stdin(Stdio::null())
        .spawn()
        .context("start the daemon")?;
    let mut daemon = Daemon(child);
    let begun = Instant::now();
    while !notice.exists() {
        if let Some(status) = daemon.0.try_wait().context("look at the daemon")? {
            bail!("the daemon went away: {status}");
        }
        if begun.elapsed() > START {
            bail!("the daemon does not serve after {START:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(daemon)
}

/// The newest run of the daemon.
fn newest(demo: &Demo) -> Result<String> {
    let output = demo
        .command(&["ps", "--all", "--json"])
        .output()
        .context("list runs")?;
    let list: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("read the list of runs")?;
    let run = list["runs"][0]["run"].as_str().context("there is no run")?;
    Ok(run.to_owned())
}

/// Changes the exit status that the bundle reports.
fn tamper(bundle: &Path) -> Result<()> {
    let text = fs::read_to_string(bundle).context("read the bundle")?;
    let changed = text.replacen("\"code\":0", "\"code\":1", 1);
    if changed == text {
        bail!("the bundle has no exit status to change");
    }
    fs::write(bundle, changed).context("write the bundle")
}

impl Demo {
    /// A call that must end well.
    fn good(&self, words: &[&str]) -> Result<()> {
        match self.call(words)? {
            0 => Ok(()),
            status => bail!("`leasehold {}` ended with status {status}", words.join(" ")),
        }
    }

    /// The program with some words, in the directories of the demo.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(tree::target().join("debug/leasehold"));
        command
            .args(words)
            .env("LEASEHOLD_STATE_DIR", self.folder.join("state"))
            .env("LEASEHOLD_RUN_DIR", self.folder.join("run"))
            .current_dir(tree::root());
        command
    }
}
