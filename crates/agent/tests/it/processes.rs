//! The agent's processes: how they start, what they may, what they write, how they end.

use std::time::{Duration, Instant};

use leasehold_protocol::envd::base64::Base64;
use leasehold_protocol::envd::code::Code;
use leasehold_protocol::envd::frame;
use leasehold_protocol::envd::process::{ListResponse, ProcessEvent, Pty, Size, StartRequest};
use serde_json::json;

use crate::client::{Agent, selector, shell};
use crate::sandbox::able;

#[test]
fn output_and_status_come_back() {
    if !able("output_and_status_come_back") {
        return;
    }
    let agent = Agent::boot();
    let output =
        agent.run("echo out; echo err >&2; pwd > /dev/stdout; echo \"$HOME $USER\"; exit 3");
    assert_eq!(output.stdout, "out\n/home/user\n/home/user user\n");
    assert_eq!(output.stderr, "err\n");
    let ended = output.ended.unwrap();
    assert_eq!((ended.exit_code, ended.exited), (3, true));
    assert_eq!(ended.status, "exit status 3");
    assert_eq!(ended.error.as_deref(), Some("exit status 3"));
    assert_eq!(output.error, None);
    let killed = agent.run("kill -9 $$").ended.unwrap();
    assert_eq!((killed.exit_code, killed.exited), (-1, false));
    assert_eq!(killed.status, "signal: killed");
}

/// The same posture as the first command of the sandbox (I12), whoever is asked for.
#[test]
fn i12_a_process_of_the_agent_has_the_workload_posture() {
    if !able("i12_a_process_of_the_agent_has_the_workload_posture") {
        return;
    }
    let agent = Agent::boot();
    let script = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status; \
                  ls /proc/self/fd; ulimit -c; cat /proc/self/attr/current; \
                  touch /etc/x; unshare -r true; nice -n -1 true; ls -l /proc/$PPID/fd";
    let user = agent.run(script);
    let root = agent.start(&shell(script), &["authorization: Basic cm9vdDo="]);
    for (output, uid) in [(user, 1000), (root.0.finish(), 0)] {
        let ids = format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        assert!(output.stdout.contains(&ids), "{output:?}");
        assert!(output.stdout.contains("Groups:\t\n") || output.stdout.contains("Groups:\t \n"));
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(
                output.stdout.contains(&format!("{set}:\t0000000000000000")),
                "{output:?}"
            );
        }
        assert!(output.stdout.contains("NoNewPrivs:\t1\n"), "{output:?}");
        assert!(output.stdout.contains("Seccomp:\t2\n"), "{output:?}");
        // Its own three, and the one `ls` reads the directory by.
        assert!(output.stdout.contains("\n0\n1\n2\n3\n"), "{output:?}");
        assert!(!output.stdout.contains("\n4\n"), "{output:?}");
        for refused in ["touch:", "unshare:", "/proc/"] {
            assert!(output.stderr.contains(refused), "{refused}: {output:?}");
        }
    }
}

#[test]
fn the_agent_is_out_of_reach_of_the_workload() {
    if !able("the_agent_is_out_of_reach_of_the_workload") {
        return;
    }
    let agent = Agent::boot();
    let pid = agent.pid;
    let script = format!(
        "kill -9 {pid} 2>/dev/null && echo killed; cat /proc/{pid}/environ /proc/{pid}/maps 2>/dev/null; \
         ls /proc/{pid}/fd 2>/dev/null; head -c1 /proc/{pid}/mem 2>/dev/null; sleep 100 & \
         kill -9 $! && echo own"
    );
    // The control: the same script can kill what is its own.
    assert_eq!(agent.run(&script).stdout, "own\n");
    assert_eq!(agent.ask("GET", "/health", &[], b"").status, 204);
}

/// The one Landlock layer of the agent holds for its children, whoever they are, and makes them one
/// company.
#[test]
fn i12_rules_are_inherited_and_shared() {
    if !able("i12_rules_are_inherited_and_shared") {
        return;
    }
    let agent = Agent::boot();
    // `/home` itself is open to everybody here; the rules are not.
    let script = "[ -w /home ] && echo open; mkdir /home/x; mkdir /home/user/x && echo made";
    for headers in [&[][..], &["authorization: Basic cm9vdDo="]] {
        let output = agent.start(&shell(script), headers).0.finish();
        assert!(output.stdout.contains("open\n"), "{output:?}");
        assert!(output.stderr.contains("/home/x"), "{output:?}");
        let made = json!({"path": "/home/x"});
        let made = agent
            .client()
            .call("/filesystem.Filesystem/MakeDir", headers, &made);
        assert_eq!(made.code(), "permission_denied");
    }
    // Reading another's environment is what tracing it would take.
    let (mut stream, pid) = agent.script("MARK=seen exec sh -c 'echo up; exec sleep 300'");
    stream.until("up");
    let other = format!("grep -c MARK=seen /proc/{pid}/environ; kill {pid} && echo killed");
    assert_eq!(agent.run(&other).stdout, "1\nkilled\n");
}

#[test]
fn what_cannot_start_is_said() {
    if !able("what_cannot_start_is_said") {
        return;
    }
    let agent = Agent::boot();
    let refuse = |request: &StartRequest, headers: &[&str]| {
        let stream = agent
            .client()
            .stream("/process.Process/Start", headers, request);
        stream.finish().error.unwrap()
    };
    let mut request = shell("true");
    request.process.cwd = Some("/nowhere".into());
    let error = refuse(&request, &[]);
    assert_eq!(error.code, Code::InvalidArgument);
    assert_eq!(error.message, "cwd '/nowhere' does not exist");
    let mut request = shell("true");
    request.process.cmd = "no-such-program".into();
    assert_eq!(refuse(&request, &[]).code, Code::InvalidArgument);
    request.process.cmd = String::new();
    assert_eq!(refuse(&request, &[]).code, Code::InvalidArgument);
    let unknown = ["authorization: Basic bm9ib2R5LWhlcmU6"];
    assert_eq!(refuse(&shell("true"), &unknown).code, Code::Unauthenticated);
    let mut request = shell("true");
    request.process.envs = (0..2_000).map(|n| (format!("V{n}"), "x".into())).collect();
    assert_eq!(refuse(&request, &[]).code, Code::InvalidArgument);
    request.process.envs = [("A=B".to_owned(), String::new())].into();
    assert_eq!(refuse(&request, &[]).code, Code::InvalidArgument);
    // Relative to the home, and by name in PATH.
    let mut request = shell("");
    request.process.cmd = "pwd".into();
    request.process.cwd = Some("../user/.".into());
    request.process.args.clear();
    assert_eq!(agent.start(&request, &[]).0.finish().stdout, "/home/user\n");
}

#[test]
fn a_client_that_goes_away_changes_nothing() {
    if !able("a_client_that_goes_away_changes_nothing") {
        return;
    }
    let agent = Agent::boot();
    let (mut stream, pid) =
        agent.script("echo first; while [ ! -e go ]; do sleep 0.02; done; echo second; exit 5");
    stream.until("first");
    drop(stream);
    let connect = || {
        let stream = agent.client();
        stream.stream("/process.Process/Connect", &[], &selector(pid))
    };
    let mut again = connect();
    assert!(matches!(again.event(), Some(ProcessEvent::Start(started)) if started.pid == pid));
    let list: ListResponse = agent.call("/process.Process/List", &json!({})).json();
    assert_eq!(list.processes.len(), 1);
    assert_eq!(list.processes[0].config.cmd, "/bin/bash");
    assert_eq!(agent.upload("go", b"").status, 200);
    let output = again.finish();
    // No replay: what was written before is gone.
    assert_eq!(output.stdout, "second\n");
    assert_eq!(output.ended.unwrap().exit_code, 5);
    // The end is remembered for a while.
    let late = connect().finish();
    assert_eq!(
        (late.stdout.as_str(), late.ended.unwrap().exit_code),
        ("", 5)
    );
    let never = agent.client();
    let never = never.stream("/process.Process/Connect", &[], &selector(99_999));
    assert_eq!(never.finish().error.unwrap().code, Code::NotFound);
}

#[test]
fn the_time_of_the_caller_bounds_the_process() {
    if !able("the_time_of_the_caller_bounds_the_process") {
        return;
    }
    let agent = Agent::boot();
    let start = Instant::now();
    let script = "sleep 300 & echo $!; wait";
    let (mut stream, pid) = agent.start(&shell(script), &["connect-timeout-ms: 300"]);
    let child: u32 = stream.until("\n").trim().parse().unwrap();
    let output = stream.finish();
    assert_eq!(output.error.unwrap().code, Code::DeadlineExceeded);
    assert_eq!(output.ended, None);
    assert!(start.elapsed() < Duration::from_secs(10));
    // Also what it started, and also where nobody reads any more.
    let (stream, other) = agent.start(&shell(script), &["connect-timeout-ms: 200"]);
    drop(stream);
    let gone = format!(
        "for i in $(seq 200); do kill -0 {pid} 2>/dev/null || kill -0 {child} 2>/dev/null || \
         kill -0 {other} 2>/dev/null || {{ echo gone; break; }}; sleep 0.02; done"
    );
    assert_eq!(agent.run(&gone).stdout, "gone\n");
    let bad = agent.client().stream(
        "/process.Process/Start",
        &["connect-timeout-ms: soon"],
        &shell("true"),
    );
    assert_eq!(bad.finish().error.unwrap().code, Code::InvalidArgument);
}

#[test]
fn input_reaches_the_process_in_order() {
    if !able("input_reaches_the_process_in_order") {
        return;
    }
    let agent = Agent::boot();
    let mut request = shell("cat; while [ ! -e go ]; do sleep 0.02; done; echo over");
    request.stdin = None;
    let (stream, pid) = agent.start(&request, &[]);
    let input = |text: &str| json!({"stdin": Base64(text.as_bytes().to_vec())});
    let sent = agent.call(
        "/process.Process/SendInput",
        &json!({"process": {"pid": pid}, "input": input("one ")}),
    );
    assert_eq!((sent.status, sent.text().as_str()), (200, "{}"));
    // A stream of input, in pieces that do not respect its messages.
    let messages = [
        json!({"start": {"process": {"pid": pid}}}),
        json!({"data": {"input": input("two ")}}),
        json!({"keepalive": {}}),
        json!({"data": {"input": input("three ")}}),
    ];
    let body: Vec<u8> = messages
        .iter()
        .flat_map(|message| frame::wrap(0, message.to_string().as_bytes()))
        .collect();
    let streamed = agent.ask(
        "POST",
        "/process.Process/StreamInput",
        &["content-type: application/connect+json"],
        &body,
    );
    assert_eq!(
        streamed.header("content-type"),
        Some("application/connect+json")
    );
    let want = [frame::wrap(0, b"{}"), frame::wrap(frame::END, b"{}")].concat();
    assert_eq!(streamed.body, want);
    let wrong = json!({"process": {"pid": pid}, "input": {"pty": "eA=="}});
    let wrong = agent.call("/process.Process/SendInput", &wrong);
    assert_eq!(wrong.code(), "failed_precondition");
    for _ in 0..2 {
        let closed = agent.call("/process.Process/CloseStdin", &selector(pid));
        assert_eq!(closed.status, 200);
    }
    assert_eq!(agent.upload("go", b"").status, 200);
    assert_eq!(stream.finish().stdout, "one two three over\n");
    let late = json!({"process": {"pid": pid}, "input": {"stdin": "eA=="}});
    assert_eq!(
        agent.call("/process.Process/SendInput", &late).code(),
        "not_found"
    );
}

#[test]
fn a_terminal_is_one() {
    if !able("a_terminal_is_one") {
        return;
    }
    let agent = Agent::boot();
    let mut request =
        shell("tty; stty size; read line; stty size; echo \"$TERM $LANG\"; sleep 300");
    request.pty = Some(Pty {
        size: Some(Size { cols: 90, rows: 30 }),
    });
    let (mut stream, pid) = agent.start(&request, &[]);
    let first = stream.until("30 90");
    assert!(first.contains("/dev/pts/"), "{first}");
    let resize = |cols: u32| {
        let size = json!({"cols": cols, "rows": 20});
        agent.call(
            "/process.Process/Update",
            &json!({"process": {"pid": pid}, "pty": {"size": size}}),
        )
    };
    assert_eq!(resize(100).status, 200);
    assert_eq!(resize(70_000).code(), "invalid_argument");
    let send = |bytes: &[u8]| {
        let input = json!({"pty": Base64(bytes.to_vec())});
        agent.call(
            "/process.Process/SendInput",
            &json!({"process": {"pid": pid}, "input": input}),
        )
    };
    assert_eq!(send(b"\n").status, 200);
    let second = stream.until("xterm-256color C.UTF-8");
    assert!(second.contains("20 100"), "{second}");
    assert_eq!(
        agent
            .call("/process.Process/CloseStdin", &selector(pid))
            .code(),
        "failed_precondition"
    );
    // The interrupt key works, so it is the controlling terminal.
    assert_eq!(send(b"\x03").status, 200);
    let output = stream.finish();
    let ended = output.ended.unwrap();
    assert!(
        ended.exit_code == 130 || ended.status == "signal: interrupt",
        "{ended:?}"
    );
}

#[test]
fn signals_reach_the_group_and_tags_select() {
    if !able("signals_reach_the_group_and_tags_select") {
        return;
    }
    let agent = Agent::boot();
    let mut request = shell("trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.02; done");
    request.tag = Some("one".into());
    let (mut stream, pid) = agent.start(&request, &[]);
    stream.until("up");
    let signal = |process: serde_json::Value, signal: &str| {
        agent.call(
            "/process.Process/SendSignal",
            &json!({"process": process, "signal": signal}),
        )
    };
    let tag = json!({"tag": "one"});
    assert_eq!(
        signal(tag.clone(), "SIGNAL_SIGHUP").code(),
        "invalid_argument"
    );
    assert_eq!(
        signal(json!({"tag": "two"}), "SIGNAL_SIGTERM").code(),
        "not_found"
    );
    assert_eq!(
        signal(json!({}), "SIGNAL_SIGTERM").code(),
        "invalid_argument"
    );
    assert_eq!(signal(tag, "SIGNAL_SIGTERM").status, 200);
    assert_eq!(stream.finish().ended.unwrap().exit_code, 7);
    assert_eq!(
        signal(json!({"pid": pid}), "SIGNAL_SIGKILL").code(),
        "not_found"
    );
    let (stream, pid) = agent.script("sleep 300 | cat");
    assert_eq!(signal(json!({"pid": pid}), "SIGNAL_SIGKILL").status, 200);
    assert_eq!(stream.finish().ended.unwrap().status, "signal: killed");
    assert_eq!(agent.run("pgrep -c sleep").stdout, "0\n");
}

/// A server in the background holds its output open for ever.
#[test]
fn held_output_neither_hangs_the_end_nor_kills_its_holder() {
    if !able("held_output_neither_hangs_the_end_nor_kills_its_holder") {
        return;
    }
    let agent = Agent::boot();
    let start = Instant::now();
    let script = "(while :; do sleep 0.9; echo tick; echo $$ >> ticks; done) & echo main";
    let output = agent.run(script);
    assert_eq!(output.stdout, "main\n");
    assert_eq!(output.ended.unwrap().exit_code, 0);
    assert!(start.elapsed() < Duration::from_secs(10));
    let lives = "for i in $(seq 400); do [ $(wc -l < ticks) -gt 3 ] && { echo lives; break; }; \
                 sleep 0.02; done; pkill -f tick";
    assert_eq!(agent.run(lives).stdout, "lives\n");
    // The control: late output that comes without a pause is not lost.
    let output = agent.run("seq 300000 & exit 0");
    assert!(output.stdout.ends_with("\n299999\n300000\n"));
}

#[test]
fn large_output_is_whole() {
    if !able("large_output_is_whole") {
        return;
    }
    let agent = Agent::boot();
    let output = agent
        .run("head -c 20000000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero | tr '\\0' y >&2");
    assert_eq!(
        (output.stdout.len(), output.stderr.len()),
        (20_000_000, 300_000)
    );
}

/// P95: a reader that does not read makes the process wait, and nobody else.
#[test]
fn p95_a_flood_is_held_back() {
    if !able("p95_a_flood_is_held_back") {
        return;
    }
    let agent = Agent::boot();
    let (_stalled, pid) = agent.script("while :; do printf '%01000d' 0; done");
    let memory = format!("awk '/VmRSS/{{print $2}}' /proc/{}/status", agent.pid);
    let state = format!(
        "for i in $(seq 100); do sleep 0.02; awk '{{print $14+$15}}' /proc/{pid}/stat; done"
    );
    // The flood goes on until every buffer on the way is full; then it uses no more time.
    let ticks = agent.run(&state).stdout;
    let ticks: Vec<u64> = ticks.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(ticks[ticks.len() - 1], ticks[ticks.len() - 20], "{ticks:?}");
    let kib: u64 = agent.run(&memory).stdout.trim().parse().unwrap();
    assert!(kib < 32_768, "{kib} KiB");
    let start = Instant::now();
    for _ in 0..50 {
        assert_eq!(agent.ask("GET", "/health", &[], b"").status, 204);
    }
    assert!(start.elapsed() < Duration::from_secs(5));
    // A second reader is held back with it, until the first one goes.
    let signal = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(
        agent.call("/process.Process/SendSignal", &signal).status,
        200
    );
}

#[test]
fn keepalives_come_while_nothing_happens() {
    if !able("keepalives_come_while_nothing_happens") {
        return;
    }
    let agent = Agent::boot();
    let (mut stream, pid) = agent.start(&shell("sleep 300"), &["keepalive-ping-interval: 1"]);
    assert!(matches!(stream.event(), Some(ProcessEvent::Keepalive(_))));
    assert!(matches!(stream.event(), Some(ProcessEvent::Keepalive(_))));
    let signal = json!({"process": {"pid": pid}, "signal": 9});
    assert_eq!(
        agent.call("/process.Process/SendSignal", &signal).status,
        200
    );
    assert_eq!(stream.finish().ended.unwrap().status, "signal: killed");
}

#[test]
fn processes_are_bounded() {
    if !able("processes_are_bounded") {
        return;
    }
    let agent = Agent::boot();
    let mut request = shell("");
    request.process.cmd = "/bin/sleep".into();
    request.process.args = vec!["300".into()];
    let mut last = None;
    for _ in 0..257 {
        let stream = agent
            .client()
            .stream("/process.Process/Start", &[], &request);
        last = Some(stream);
    }
    let error = last.unwrap().finish().error.unwrap();
    assert_eq!(error.code, Code::ResourceExhausted);
    let list: ListResponse = agent.call("/process.Process/List", &json!({})).json();
    assert_eq!(list.processes.len(), 256);
    let first = list.processes[0].pid;
    let signal = json!({"process": {"pid": first}, "signal": "SIGNAL_SIGKILL"});
    assert_eq!(
        agent.call("/process.Process/SendSignal", &signal).status,
        200
    );
    assert_eq!(agent.run("echo room").stdout, "room\n");
}
