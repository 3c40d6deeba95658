//! A daemon without room on its disk, on a disk that cannot be written, without descriptors, memory or processes
//! (P87): new work is refused and told, ending works, and it mends itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use leasehold_e2e::{Answer, Daemon, Need, need, until};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

use super::{SOON, agree, assert_nothing_left, assert_proven, reason, script};

/// Runs a program of the host.
fn call(program: &str, args: &[&str]) -> bool {
    let done = Command::new(program).args(args).output();
    done.is_ok_and(|done| done.status.success())
}

/// A refusal of new work that blames the host, with its word.
fn is_typed(answer: &Answer) -> bool {
    let code = answer.json["error"]["code"].as_str();
    matches!(answer.status, 429 | 503 | 507) && code.is_some_and(|code| !code.is_empty())
}

/// A small file system of its own over a directory; gone with the test.
struct Small<'a>(&'a Path);

impl Drop for Small<'_> {
    fn drop(&mut self) {
        call("umount", &["-l", &self.0.display().to_string()]);
    }
}

impl<'a> Small<'a> {
    /// Puts a file system of 24 MiB over a directory, with what is in it; `None` where this may not be.
    fn over(directory: &'a Path, kept: &Path) -> Option<Self> {
        let (at, kept) = (directory.display().to_string(), kept.display().to_string());
        assert!(call("cp", &["-a", &format!("{at}/."), &kept]));
        let mount = ["-t", "tmpfs", "-o", "size=24m,mode=700", "small", &at];
        if !call("mount", &mount) {
            return None;
        }
        let small = Self(directory);
        assert!(call("cp", &["-a", &format!("{kept}/."), &at]));
        Some(small)
    }

    /// Fills it to the last byte, and gives the file that does.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let of = format!("of={}", ballast.display());
        call("dd", &["if=/dev/zero", &of, "bs=4k", "status=none"]);
        ballast
    }
}

/// Asks for new work that is large enough to be refused soon.
fn refused(daemon: &Daemon) -> Answer {
    until("a refusal", SOON, || {
        let mut body = script("true");
        body["env"] = json!({"FILLER": "x".repeat(8_192)});
        let answer = daemon.post("/v1/runs?wait=none", &[], &body);
        (answer.status != 202).then_some(answer)
    })
}

/// Begins a run that prints and stays, and waits until it has printed so many bytes.
fn printing(daemon: &Daemon, text: &str, bytes: usize) -> String {
    let text = format!("{text}; sleep 600");
    let run = daemon.post("/v1/runs?wait=none", &[], &script(&text)).run();
    until("it has printed", SOON, || {
        let at = bytes - 1;
        let log = daemon.get(&format!("/v1/runs/{run}/logs/stdout?offset={at}"));
        (log.text.len() == 1).then_some(())
    });
    run
}

/// Asks for the end of a run and waits until it is sealed.
fn ended(daemon: &Daemon, run: &str) -> Value {
    let asked = daemon.post(&format!("/v1/runs/{run}/cancel"), &[], &Value::Null);
    assert!(matches!(asked.status, 200 | 202), "{}", asked.text);
    // Its output is tried for half a minute before the run ends without.
    let row = daemon.sealed(run, 3 * SOON);
    assert_eq!(reason(&row), "cancelled", "{row:#}");
    row
}

#[test]
fn p87_a_full_disk_of_a_daemon_refuses_new_work_lets_work_end_and_mends_itself() {
    let name = "daemon::scarce::p87_a_full_disk_of_a_daemon_refuses_new_work_lets_work_end_and_mends_itself";
    if !need(name, &[Need::Root, Need::Program("mount")]) {
        return;
    }
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    daemon.kill();
    let own = daemon.instance().state().join("daemon");
    let kept = daemon.instance().scratch("kept");
    let Some(small) = Small::over(&own, &kept) else {
        leasehold_e2e::skip(name, "cannot mount");
        return;
    };
    daemon.restart(&[]);
    // More than a full disk can have room for, whatever is given up.
    let large = printing(&daemon, "head -c 10485760 /dev/zero", 10 << 20);
    let quiet: Vec<String> = (0..3).map(|_| printing(&daemon, "echo", 1)).collect();
    let ballast = small.fill();
    let answer = refused(&daemon);
    assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
    assert_eq!(daemon.row(&large)["state"], "running", "reading works");
    // What ends is sealed while the disk is full, and what is given up for that is not for new work.
    for run in &quiet[..2] {
        ended(&daemon, run);
        let answer = daemon.post("/v1/runs?wait=none", &[], &script("true"));
        assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
    }
    let row = ended(&daemon, &large);
    assert_eq!(row["outcome"]["stdout"]["kept"], 10 << 20, "{row:#}");
    assert!(row["outcome"]["stdout"]["digest"].is_null(), "{row:#}");
    let told = daemon.cli(["explain", &large]).status_is(0).out();
    assert!(
        told.contains("10485760 bytes, which could not be kept"),
        "{told}"
    );
    let log = daemon.get(&format!("/v1/runs/{large}/logs/stdout"));
    let log = log.status_is(404);
    assert!(log.text.contains("could not be kept"), "{}", log.text);
    // Also by the next daemon.
    daemon.kill();
    daemon.restart(&[]);
    ended(&daemon, &quiet[2]);
    let answer = refused(&daemon);
    assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
    for run in [&quiet[0], &quiet[2], &large] {
        assert_proven(&daemon, run);
    }
    std::fs::remove_file(&ballast).unwrap();
    let fine = until("work again", SOON, || {
        let answer = daemon.post("/v1/runs", &[], &script("true"));
        (answer.status == 200).then_some(answer)
    });
    assert_eq!(reason(&fine.json), "completed");
    until("all runs to be over", SOON, || {
        let over = daemon.rows("").iter().all(|row| row["state"] == "sealed");
        over.then_some(())
    });
    agree(&daemon, Duration::from_secs(2));
    assert_nothing_left(&daemon);
    drop(small);
}

/// A file system of its own over a directory, from an image that a test may break; gone with the test.
struct Disk {
    over: PathBuf,
    image: PathBuf,
}

impl Drop for Disk {
    fn drop(&mut self) {
        call("umount", &["-l", &self.over.display().to_string()]);
    }
}

impl Disk {
    /// Puts one over a directory, with what is in it.
    fn over(directory: &Path, kept: &Path) -> Option<Self> {
        let (at, kept_at) = (directory.display().to_string(), kept.display().to_string());
        assert!(call("cp", &["-a", &format!("{at}/."), &kept_at]));
        let disk = Self {
            over: directory.to_owned(),
            image: kept.with_extension("img"),
        };
        let image = disk.image.display().to_string();
        let made = call("truncate", &["-s", "64M", &image])
            && call("mkfs.ext4", &["-q", "-F", &image])
            && disk.mount();
        let filled = made && call("cp", &["-a", &format!("{kept_at}/."), &at]);
        // What only memory has is lost when it fails, as on any disk.
        (filled && call("sync", &["-f", &at])).then_some(disk)
    }

    fn mount(&self) -> bool {
        let (image, at) = (
            self.image.display().to_string(),
            self.over.display().to_string(),
        );
        call("mount", &["-o", "loop", &image, &at])
    }

    /// Has its file system give up, as it does when the disk under it fails: nothing can be written any more.
    fn fail(&self) -> bool {
        let at = self.over.display().to_string();
        call("mount", &["-o", "remount,abort", &at]);
        std::fs::write(self.over.join("probe"), "x").is_err()
    }

    /// What an operator does then.
    fn mend(&self) {
        assert!(call("umount", &[&self.over.display().to_string()]));
        call("e2fsck", &["-fy", &self.image.display().to_string()]);
        assert!(self.mount(), "the mended disk can be mounted");
    }
}

/// Milliseconds of processor time that a process has used.
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |at: usize| rest.split_whitespace().nth(at)?.parse::<u64>().ok();
    (field(11).unwrap_or(0) + field(12).unwrap_or(0)) * 10
}

/// Nothing turns in circles while it waits for what is not there.
#[track_caller]
fn assert_calm(daemon: &Daemon) {
    let before = cpu_ms(daemon.pid());
    std::thread::sleep(Duration::from_secs(2));
    let used = cpu_ms(daemon.pid()) - before;
    assert!(used < 1_000, "{used} ms of processor time in 2 s");
}

#[test]
fn p87_a_disk_that_turns_read_only_refuses_new_work_and_nothing_is_lost() {
    let name =
        "daemon::scarce::p87_a_disk_that_turns_read_only_refuses_new_work_and_nothing_is_lost";
    let programs = ["mount", "mkfs.ext4", "e2fsck"].map(Need::Program);
    let needs = [
        &[Need::Root, Need::Path("/dev/loop-control")][..],
        &programs,
    ]
    .concat();
    if !need(name, &needs) {
        return;
    }
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    daemon.kill();
    let own = daemon.instance().state().join("daemon");
    let kept = daemon.instance().scratch("kept");
    let Some(disk) = Disk::over(&own, &kept) else {
        leasehold_e2e::skip(name, "no image can be mounted here");
        return;
    };
    daemon.restart(&[]);
    let done = daemon.post("/v1/runs?wait=cleanup", &[], &script("echo kept"));
    let done = done.status_is(200).run();
    let live = printing(&daemon, "echo up", 3);
    if !disk.fail() {
        leasehold_e2e::skip(name, "this kernel cannot make a file system give up");
        return;
    }
    let answer = refused(&daemon);
    assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
    assert_eq!(daemon.row(&live)["state"], "running", "reading works");
    let log = daemon.get(&format!("/v1/runs/{done}/logs/stdout"));
    assert_eq!(log.status_is(200).text, "kept\n");
    assert_calm(&daemon);
    // A daemon that is started on it says what it cannot write, and ends.
    daemon.kill();
    daemon.spawn(&[]);
    let ended = daemon.await_end();
    assert!(!matches!(ended.status, 0 | 101 | 134), "{}", ended.story());
    let said = ended.err().to_lowercase();
    assert!(
        said.contains("read-only") || said.contains("readonly"),
        "{}",
        ended.story()
    );
    disk.mend();
    daemon.restart(&[]);
    ended_well(&daemon, &live);
    for run in [&done, &live] {
        assert_proven(&daemon, run);
    }
    let next = daemon.post("/v1/runs", &[], &script("true")).status_is(200);
    assert_eq!(reason(&next.json), "completed");
    daemon.sealed(&next.run(), SOON);
    assert_nothing_left(&daemon);
    drop(disk);
}

/// What ran on while the disk was away can be ended, and its evidence is whole.
#[track_caller]
fn ended_well(daemon: &Daemon, run: &str) {
    agree(daemon, Duration::from_secs(2));
    ended(daemon, run);
}

/// So many descriptors.
const FEW: u64 = 64;

/// A daemon may have so many descriptors from now on; its worker has its own.
fn allow(daemon: &Daemon, descriptors: u64) {
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    let maximum = getrlimit(Resource::Nofile).maximum;
    let few = Rlimit {
        current: Some(descriptors),
        maximum,
    };
    prlimit(pid, Resource::Nofile, few).expect("limit its descriptors");
}

/// How many it may have.
fn allowed(daemon: &Daemon) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid()));
    let limits = limits.expect("its limits");
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    soft.expect("a number")
}

#[test]
fn p87_with_64_descriptors_new_work_waits_or_is_refused_and_all_is_cancelled() {
    let daemon = Daemon::start(&["--warm", "0", "--running-max", "64"], &[]);
    let first = daemon.post("/v1/runs?wait=cleanup", &[], &script("true"));
    assert_eq!(reason(&first.status_is(200).json), "completed");
    allow(&daemon, FEW);
    let open =
        || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).map_or(0, Iterator::count);
    let mut admitted = Vec::new();
    let (mut refused, mut most) = (0, 0);
    for number in 0..40 {
        let body = script(&format!("echo {number}; sleep 600"));
        let answer = daemon.post("/v1/runs?wait=none", &[], &body);
        match answer.status {
            202 => admitted.push(answer.run()),
            _ => {
                assert!(is_typed(&answer), "{}: {}", answer.status, answer.text);
                assert_eq!(answer.json["error"]["retryable"], true, "{}", answer.text);
                refused += 1;
            }
        }
        most = most.max(open());
    }
    // The control: not all of them can have what they need.
    std::thread::sleep(Duration::from_secs(1));
    most = most.max(open());
    let rows = daemon.rows("&state=running");
    eprintln!(
        "{} admitted, {refused} refused, {} run, {most} descriptors",
        admitted.len(),
        rows.len()
    );
    assert!((1..admitted.len()).contains(&rows.len()), "{}", rows.len());
    assert_calm(&daemon);
    assert!(!daemon.is_over(), "{}", daemon.log());
    for run in &admitted {
        until("a cancellation to be taken", SOON, || {
            let asked = daemon.post(&format!("/v1/runs/{run}/cancel"), &[], &Value::Null);
            matches!(asked.status, 200 | 202).then_some(())
        });
    }
    for run in &admitted {
        let row = daemon.sealed(run, 3 * SOON);
        let end = reason(&row);
        assert!(
            matches!(end, "cancelled" | "sandbox_unavailable"),
            "{row:#}"
        );
    }
    let fine = daemon.post("/v1/runs?wait=cleanup", &[], &script("echo again"));
    assert_eq!(reason(&fine.status_is(200).json), "completed");
    agree(&daemon, Duration::from_secs(2));
    assert_nothing_left(&daemon);
}

/// Live runs when the bound is cut, and runs that are asked for then.
const LIVE: usize = 28;
const LATE: usize = 6;

/// Asks for something over a connection of its own, which ends with it.
fn anew(daemon: &Daemon, path: &str, body: &str) -> Answer {
    let address = daemon.url().strip_prefix("http://").expect("its address");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        daemon.key(),
        body.len()
    );
    let asked = until("an answer", SOON, || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(SOON)).ok()?;
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(body.as_bytes()).ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        (!said.is_empty()).then_some(said)
    });
    let (head, text) = asked.split_once("\r\n\r\n").expect("a whole answer");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    Answer {
        status: status.expect("a status"),
        json: serde_json::from_str(text).unwrap_or_default(),
        text: text.to_owned(),
        retry_after: None,
    }
}

#[test]
fn p87_a_daemon_cut_to_64_descriptors_amid_its_runs_ends_every_one_of_them() {
    let daemon = Daemon::start(&["--warm", "0", "--running-max", "64"], &[]);
    let runs: Vec<String> = (0..LIVE)
        .map(|number| printing(&daemon, &format!("printf {number:02}"), 2))
        .collect();
    let address = daemon.url().strip_prefix("http://").expect("its address");
    let silent: Vec<TcpStream> = (0..16)
        .map(|_| TcpStream::connect(address).expect("reach it"))
        .collect();
    let folder = format!("/proc/{}/fd", daemon.pid());
    let open = || std::fs::read_dir(&folder).map_or(0, Iterator::count);
    until("the silent ones to be let in", SOON, || {
        (open() > FEW as usize + silent.len()).then_some(())
    });
    allow(&daemon, FEW);
    // The control: there are not the numbers for what is new.
    let body = script("sleep 600").to_string();
    let late = |_| {
        anew(&daemon, "/v1/runs?wait=none", &body)
            .status_is(202)
            .run()
    };
    let late: Vec<String> = (0..LATE).map(late).collect();
    assert_calm(&daemon);
    let waits = |run: &&String| daemon.row(run)["state"] == "queued";
    assert!(late.iter().filter(waits).count() > LATE / 2, "{late:?}");
    for run in runs.iter().chain(&late) {
        let path = format!("/v1/runs/{run}/cancel");
        let asked = anew(&daemon, &path, "");
        assert!(matches!(asked.status, 200 | 202), "{}", asked.text);
    }
    for (number, run) in runs.iter().enumerate() {
        let row = daemon.sealed(run, 3 * SOON);
        assert_eq!(reason(&row), "cancelled", "{row:#}");
        // What it printed was kept all the same.
        let log = daemon.get(&format!("/v1/runs/{run}/logs/stdout"));
        assert_eq!(log.status_is(200).text, format!("{number:02}"));
    }
    for run in &late {
        assert_eq!(reason(&daemon.sealed(run, SOON)), "cancelled");
    }
    // The next ones begin, now that there are some.
    let next = daemon.post("/v1/runs?wait=cleanup", &[], &script("echo next"));
    assert_eq!(reason(&next.status_is(200).json), "completed");
    assert_eq!(allowed(&daemon), FEW, "all that with so few");
    for run in [&runs[0], &runs[LIVE - 1]] {
        assert_proven(&daemon, run);
    }
    drop(silent);
    agree(&daemon, Duration::from_secs(2));
    assert_nothing_left(&daemon);
}

#[test]
fn p87_a_daemon_that_gets_no_memory_at_its_start_says_so_and_leaves_nothing_broken() {
    let name = "daemon::scarce::p87_a_daemon_that_gets_no_memory_at_its_start_says_so_and_leaves_nothing_broken";
    if !need(name, &[Need::Program("prlimit")]) {
        return;
    }
    let mut daemon = Daemon::start(&["--warm", "0"], &[]);
    let done = daemon.post("/v1/runs?wait=cleanup", &[], &script("echo kept"));
    let done = done.status_is(200).run();
    daemon.kill();
    let mut failed = 0;
    for mib in [24, 48, 56, 64, 72, 96, 160, 224] {
        let limit = format!("--as={}", mib << 20);
        let mut command = Command::new("prlimit");
        let serve = daemon.serve_command();
        command
            .args([limit.as_str(), "--"])
            .arg(serve.get_program())
            .args(serve.get_args());
        command.env_clear();
        for (name, value) in serve.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        let running = leasehold_e2e::Running::start(&mut command, None);
        let begun = std::time::Instant::now();
        let gone = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.map_or(true, |text| text.contains(") Z "))
        };
        while !gone(running.pid()) && begun.elapsed() < Duration::from_secs(3) {
            std::thread::sleep(Duration::from_millis(10));
        }
        if gone(running.pid()) {
            let ended = running.wait(SOON);
            assert_ne!(ended.status, 0, "{mib} MiB: {}", ended.story());
            // With next to nothing the kernel ends it before it is a program.
            failed += usize::from(!ended.err().trim().is_empty());
        } else {
            running.signal(rustix::process::Signal::KILL);
            running.wait(SOON);
        }
    }
    assert!(
        failed > 0,
        "the control: there was too little, and that was said"
    );
    daemon.restart(&[]);
    assert_proven(&daemon, &done);
    let next = daemon.post("/v1/runs?wait=cleanup", &[], &script("true"));
    assert_eq!(reason(&next.status_is(200).json), "completed");
    assert_nothing_left(&daemon);
}

/// A group that bounds the number of processes in it; those in it leave, and it goes, on drop.
struct Few(PathBuf);

impl Few {
    fn around(pid: u32) -> Option<Self> {
        let top = Path::new("/sys/fs/cgroup/pids");
        let few = Self(top.join(format!("leasehold-e2e-few-{pid}")));
        std::fs::create_dir(&few.0).ok()?;
        std::fs::write(few.0.join("pids.max"), "1").ok()?;
        std::fs::write(few.0.join("cgroup.procs"), pid.to_string()).ok()?;
        Some(few)
    }

    fn open(&self) {
        std::fs::write(self.0.join("pids.max"), "max").unwrap();
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        let inside = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines() {
            std::fs::write("/sys/fs/cgroup/pids/cgroup.procs", pid).ok();
        }
        std::fs::remove_dir(&self.0).ok();
    }
}

/// The spawner can make no process: what it was to make is told as not to be had, and comes when there is room.
#[test]
fn p87_a_host_that_gives_no_process_is_told_and_work_goes_on_when_it_does() {
    let name =
        "daemon::scarce::p87_a_host_that_gives_no_process_is_told_and_work_goes_on_when_it_does";
    if !need(name, &[Need::Root, Need::Path("/sys/fs/cgroup/pids")]) {
        return;
    }
    let daemon = Daemon::start(&["--warm", "0"], &[]);
    // What a daemon tries out with its first worker is not what is looked at.
    let first = daemon.post("/v1/runs?wait=cleanup", &[], &script("true"));
    assert_eq!(reason(&first.status_is(200).json), "completed");
    let all = daemon.inventory().all("processes");
    let spawner = all.iter().find(|line| line.contains("lease-spawner"));
    let spawner = spawner.and_then(|line| line.split(' ').next()?.parse().ok());
    let Some(few) = Few::around(spawner.expect("a spawner")) else {
        leasehold_e2e::skip(name, "no group of processes can be made here");
        return;
    };
    let answer = daemon.post("/v1/runs?wait=cleanup", &[], &script("true"));
    assert!(answer.status != 200, "{}", answer.text);
    assert_eq!(
        reason(&answer.json),
        "sandbox_unavailable",
        "{}",
        answer.text
    );
    assert_calm(&daemon);
    few.open();
    let next = daemon.post("/v1/runs?wait=cleanup", &[], &script("true"));
    assert_eq!(reason(&next.status_is(200).json), "completed");
    drop(few);
    assert_nothing_left(&daemon);
}
