//! P43, P44: without a grant nothing leaves a sandbox, whichever way it goes and whatever it ignores.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use leasehold_e2e::{Instance, Need, need, skip};

use crate::terminal::Session;

use super::{await_workload, everybody, helper, outside, workspace_with};

const WANDERER: &str = include_str!("../../../helpers/wanderer.c");

/// Everything on this host that somebody may knock at.
struct Doors {
    tcp: TcpListener,
    file: UnixListener,
    abstract_: UnixListener,
    arguments: [String; 3],
}

impl Doors {
    fn open(instance: &Instance) -> Self {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("listen");
        let path = instance.scratch("guest").join("host.sock");
        let file = UnixListener::bind(&path).expect("listen");
        let name = format!("leasehold-{}", instance.name());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let abstract_ = UnixListener::bind_addr(&address).expect("listen");
        tcp.set_nonblocking(true).expect("do not wait");
        file.set_nonblocking(true).expect("do not wait");
        abstract_.set_nonblocking(true).expect("do not wait");
        let port = tcp.local_addr().expect("an address").port().to_string();
        let arguments = [port, path.display().to_string(), name];
        Self {
            tcp,
            file,
            abstract_,
            arguments,
        }
    }

    /// How many knocked at each.
    fn knocks(&self) -> [usize; 3] {
        let mut counts = [0; 3];
        while self
            .tcp
            .accept()
            .map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock))
            .is_ok()
        {
            counts[0] += 1;
        }
        while self.file.accept().is_ok() {
            counts[1] += 1;
        }
        while self.abstract_.accept().is_ok() {
            counts[2] += 1;
        }
        counts
    }
}

/// What a process's network has sent, by device.
fn sent(pid: i32) -> Vec<(String, u64)> {
    let table = fs::read_to_string(format!("/proc/{pid}/net/dev")).unwrap_or_default();
    let lines = table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, counts)| {
            let packets = counts
                .split_whitespace()
                .nth(9)
                .and_then(|word| word.parse().ok());
            (name.trim().to_owned(), packets.expect("a count"))
        })
        .collect()
}

#[test]
fn p43_p44_nothing_leaves_a_sandbox() {
    let test = "p43_p44_nothing_leaves";
    if !need(
        test,
        &[Need::Root, Need::Program("unshare"), Need::Program("ip")],
    ) {
        return;
    }
    let Some(program) = helper(test, "wanderer", WANDERER) else {
        return;
    };
    for who in everybody(test) {
        let instance = Instance::of(who);
        let doors = Doors::open(&instance);
        stays_inside(&instance, &doors, &program);
    }
    // The control: outside the same program knocks at every door, and sends packets where it can.
    let instance = Instance::new();
    let doors = Doors::open(&instance);
    let program = program.display().to_string();
    knocks_everywhere(&doors, &program);
    sends_packets(test, &program);
}

#[track_caller]
fn knocks_everywhere(doors: &Doors, program: &str) {
    let [port, path, name] = &doors.arguments;
    let free = outside(&[program, port, path, name, "127.0.0.1"], None).status_is(0);
    assert!(
        free.out()
            .contains(&format!("tcp 127.0.0.1 {port} connected")),
        "{}",
        free.story()
    );
    assert!(
        free.out().contains("file /") && free.out().contains("abstract leasehold-"),
        "{}",
        free.story()
    );
    let knocks = doors.knocks();
    assert!(knocks.iter().all(|count| *count > 0), "{knocks:?}");
}

/// With a device that leads somewhere, packets do go out; here into nothing.
#[track_caller]
fn sends_packets(test: &str, program: &str) {
    let script = "ip link set lo up; ip link add out type veth peer name in && ip addr add 198.18.0.1/15 dev out && \
        ip link set in up && ip link set out arp off up && ip route add default dev out && \"$0\" \"$@\"; \
        echo packets $(grep out: /proc/net/dev | awk '{print $11}')";
    let free = outside(
        &[
            "unshare",
            "--net",
            "sh",
            "-c",
            script,
            program,
            "1",
            "/nowhere",
            "nobody",
            "192.0.2.1",
            "10.0.0.1",
            "169.254.169.254",
        ],
        None,
    );
    if free.err().contains("device type") || free.err().contains("not supported") {
        skip(
            test,
            "this kernel has no device of kind veth: half of the control is missing",
        );
        return;
    }
    assert!(
        free.out().contains("udp 192.0.2.1 53 sent"),
        "{}",
        free.story()
    );
    let counted = free.out().lines().find_map(|line| {
        line.strip_prefix("packets ")?
            .split(' ')
            .next_back()?
            .parse::<u64>()
            .ok()
    });
    assert!(
        counted.is_some_and(|packets| packets >= 10),
        "{}",
        free.story()
    );
}

/// Wanders in a sandbox; nobody outside notices.
#[track_caller]
fn stays_inside(instance: &Instance, doors: &Doors, program: &Path) {
    let workspace = workspace_with(instance, program);
    let [port, path, name] = &doors.arguments;
    // Whatever a proxy is called, none is asked: a static program, without and with the variables.
    let script = format!(
        "unset http_proxy https_proxy all_proxy no_proxy; /workspace/helper {port} {path} {name}; \
         /workspace/helper {port} /workspace/host.sock {name}; https_proxy=http://127.0.0.1:{port} /workspace/helper {port} {path} {name}; echo over; exec sleep 60"
    );
    let words = [
        "run",
        "-t",
        "--workspace",
        &workspace,
        "--",
        "sh",
        "-c",
        &script,
    ];
    let session = Session::start(instance, &words);
    session.await_seen("over");
    let told = session.seen();
    let (_, workload) = await_workload(instance, "sleep", || session.seen());
    // Its own loopback takes datagrams and has nobody who listens.
    for line in told.lines().map(str::trim) {
        let home = [
            "127.0.0.1 ",
            "127.0.0.53 ",
            "0.0.0.0 ",
            "::1 ",
            "::ffff:127.0.0.1 ",
            ":: ",
            "ff02::1 ",
            "fe80::1 ",
        ];
        let local = line
            .strip_prefix("udp ")
            .is_some_and(|rest| home.iter().any(|own| rest.starts_with(own)));
        assert!(
            local || !(line.ends_with("connected") || line.ends_with("sent")),
            "{line}\n{told}"
        );
    }
    assert_eq!(doors.knocks(), [0, 0, 0], "{told}");
    // No device but the loopback, no route, and no door to another namespace.
    let devices: Vec<String> = sent(workload).into_iter().map(|(name, _)| name).collect();
    assert_eq!(devices, ["lo"]);
    let routes = fs::read_to_string(format!("/proc/{workload}/net/route")).unwrap_or_default();
    assert_eq!(routes.lines().count(), 1, "{routes}");
    drop(session);
}

/// There is nothing that grants a network yet: every form of asking for one is refused before a run.
#[test]
fn p43_no_form_of_asking_grants_a_network() {
    if !need("p43_no_form_of_asking", &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    for flags in [
        &["--network"][..],
        &["--network", ""],
        &["--network", "{}"],
        &["--network", "null"],
        &["--network", "[]"],
        &["--network", "host"],
        &["--net=host"],
        &["--egress", "*"],
        &["--allow", "*"],
        &["--publish", "80"],
    ] {
        let words = [&["run"][..], flags, &["--", "true"]].concat();
        let outcome = instance.cli(words);
        assert_eq!(outcome.status, 2, "{flags:?}: {}", outcome.story());
    }
    let runs = instance.cli(["runs", "--json"]).json();
    assert_eq!(runs.as_array().map(Vec::len), Some(0), "{runs:#}");
    // The control: a run without such a flag is a run, and its contract says what it was granted.
    let record = instance.record_of(&[], "true");
    assert_eq!(record["contract"]["network"], "none", "{record:#}");
}

/// A gap that is meant: a directory shared for writing is the host's own, with the sockets in it. In a
/// clone and in a read-only one they are dead, as `p43_p44_nothing_leaves_a_sandbox` shows for a clone.
#[test]
fn p43_only_a_directory_shared_for_writing_shares_its_sockets() {
    let test = "p43_only_a_directory_shared_for_writing";
    if !need(test, &[Need::Root]) {
        return;
    }
    let Some(program) = helper(test, "wanderer", WANDERER) else {
        return;
    };
    let instance = Instance::new();
    let doors = Doors::open(&instance);
    let workspace = workspace_with(&instance, &program);
    for (mode, knocks) in [("clone", 0), ("ro", 0), ("rw", 1)] {
        let shared = format!("{workspace}:{mode}");
        let head = [
            "run",
            "-q",
            "--workspace",
            &shared,
            "--",
            "/workspace/helper",
        ];
        let words = [
            &head[..],
            &["1", "/workspace/host.sock", "nobody", "127.0.0.1"],
        ]
        .concat();
        let outcome = instance.cli(words).status_is(0);
        assert_eq!(
            doors.knocks(),
            [0, knocks, 0],
            "{mode}: {}",
            outcome.story()
        );
    }
}
