//! P08, P09, P11: what may be called at all, which namespaces can be had, which sockets exist.

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_e2e::{Instance, Need, Running, need};

use super::{
    PATIENCE, await_workload, below, descriptors_of, helper, inits, outside, parents,
    workspace_with,
};

const CALLER: &str = include_str!("../../../helpers/caller.c");
const CALLS: &str = include_str!("../../../helpers/calls.txt");
/// The newest number in the list, by both instruction sets.
const NEWEST: u32 = 469;
const X86: bool = cfg!(target_arch = "x86_64");
/// Numbers no call has: a sandbox is told so, as for those past the newest.
const GAPS: &[std::ops::RangeInclusive<u32>] = if X86 {
    &[337..=423]
} else {
    &[244..=259, 295..=423]
};
const EPERM: &str = "errno 1";
const ENOMEM: &str = "errno 12";
const EINVAL: &str = "errno 22";
const ENOSYS: &str = "errno 38";
const EPROTONOSUPPORT: &str = "errno 93";
const ESOCKTNOSUPPORT: &str = "errno 94";
const EAFNOSUPPORT: &str = "errno 97";
const KILLED: &str = "signal 31";
/// Every flag that makes a namespace, as `unshare` takes it.
const NEW: [&str; 8] = [
    "20000", "2000000", "4000000", "8000000", "10000000", "20000000", "40000000", "80",
];

/// The list: number to name and verdict.
fn calls() -> BTreeMap<u32, (&'static str, &'static str)> {
    CALLS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split(' ');
            let name = words.next()?;
            let (x86_64, aarch64) = (words.next()?, words.next()?);
            let number = if X86 { x86_64 } else { aarch64 };
            Some((number.parse().ok()?, (name, words.next()?)))
        })
        .collect()
}

/// A line for the helper, its first word a name of the list.
fn line(text: &str) -> String {
    let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
    let found = calls().into_iter().find(|(_, (known, _))| *known == name);
    let (number, _) = found.unwrap_or_else(|| panic!("no call `{name}`"));
    format!("{number:x} {rest}").trim_end().to_owned()
}

/// The helper's answers, in the order of the lines.
#[track_caller]
fn answers(lines: &[String], out: &str) -> Vec<String> {
    let told: Vec<&str> = out.lines().filter(|line| *line != "held").collect();
    assert_eq!(
        told.len(),
        lines.len(),
        "not every line was answered: {out}"
    );
    let pairs = lines.iter().zip(told);
    pairs
        .map(|(line, told)| {
            let answer = told.strip_prefix(line.trim_start_matches('!'));
            let answer = answer.or_else(|| told.strip_prefix(line.as_str()));
            answer
                .unwrap_or_else(|| panic!("`{told}` answers `{line}`"))
                .trim()
                .to_owned()
        })
        .collect()
}

fn bytes(lines: &[String]) -> Vec<u8> {
    let mut text = lines.join("\n");
    text.push('\n');
    text.into_bytes()
}

/// In a sandbox that works on no file of the host, where more is refused: the program comes in by
/// standard input before its lines.
#[track_caller]
fn inside(instance: &Instance, program: &Path, lines: &[String]) -> Vec<String> {
    let mut input = std::fs::read(program).expect("read the helper");
    let script = format!(
        "head -c {} > helper; chmod +x helper; exec ./helper",
        input.len()
    );
    input.extend(bytes(lines));
    let mut command = instance.command(["run", "-q", "-i", "--", "sh", "-c", &script]);
    let outcome = Running::start(&mut command, Some(input)).wait(PATIENCE);
    answers(lines, &outcome.status_is(0).out())
}

/// As a user without any right, and nothing but that: the guard off.
#[track_caller]
fn bare(program: &Path, lines: &[String]) -> Vec<String> {
    let program = program.display().to_string();
    let words = [
        "unshare",
        "--ipc",
        "--pid",
        "--mount-proc",
        "--net",
        "--uts",
        "--fork",
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--",
        &program,
    ];
    let outcome = outside(&words, Some(bytes(lines)));
    answers(lines, &outcome.status_is(0).out())
}

fn verdict(number: u32, calls: &BTreeMap<u32, (&str, &'static str)>) -> &'static str {
    match calls.get(&number) {
        Some((_, "EPERM")) => EPERM,
        Some((_, "ENOSYS")) => ENOSYS,
        Some((_, other)) => other,
        None if number > NEWEST || GAPS.iter().any(|gap| gap.contains(&number)) => ENOSYS,
        None => EPERM,
    }
}

#[test]
fn p09_every_system_call_does_what_the_list_says() {
    let test = "p09_every_system_call";
    if !need(
        test,
        &[
            Need::Root,
            Need::Program("unshare"),
            Need::Program("setpriv"),
        ],
    ) {
        return;
    }
    let Some(program) = helper(test, "caller", CALLER) else {
        return;
    };
    let calls = calls();
    let ones = ["ffffffffffffffff"; 6].join(" ");
    let numbers: Vec<u32> = (0..=NEWEST + 20).chain([1_000, 100_000]).collect();
    let lines: Vec<String> = numbers
        .iter()
        .flat_map(|number| [format!("{number:x}"), format!("{number:x} {ones}")])
        .collect();
    let instance = Instance::new();
    let within = inside(&instance, &program, &lines);
    let log = instance.run_folder().join("supervisor.log");
    let log = std::fs::read_to_string(log).unwrap_or_default();
    assert!(
        log.lines().count() <= 4,
        "refused calls fill the log: {log}"
    );
    let without = bare(&program, &lines);
    let mut wrong = Vec::new();
    let mut seen_without = 0;
    for (at, number) in numbers
        .iter()
        .flat_map(|number| [number, number])
        .enumerate()
    {
        let name = calls.get(number).map_or("-", |(name, _)| name);
        let (got, free) = (within[at].as_str(), without[at].as_str());
        let right = match verdict(*number, &calls) {
            "part" => true,
            "kernel" => got == EPERM || got == free,
            // The kernel itself may refuse or lack it, for everybody.
            "allow" => ![EPERM, ENOSYS].contains(&got) || got == free,
            error => {
                seen_without += usize::from(free != error);
                got == error
            }
        };
        if !right {
            wrong.push(format!(
                "{number} {name}: `{got}`, without a filter `{free}`"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The control: without the filter most refused calls get further.
    assert!(
        seen_without > 60,
        "{seen_without} calls differ without a filter"
    );
}

/// What hangs on an argument, and how it is answered; `-` is any answer but a refusal.
fn arguments() -> Vec<(String, &'static str)> {
    let mut cases: Vec<(String, &'static str)> = Vec::new();
    for flag in NEW {
        cases.push((line(&format!("unshare {flag}")), EPERM));
        cases.push((line(&format!("unshare ffffffff{flag:0>8}")), EPERM));
        if flag != "80" {
            let flags = u64::from_str_radix(flag, 16).expect("hexadecimal") | 0x11;
            cases.push((line(&format!("clone {flags:x}")), EPERM));
        }
    }
    let refused = [
        "5412", "541c", "541d", "5423", "5437", "40086602", "40046602", "401c5820", "c0045877",
        "c0045878", "c0185879", "c0189436", "4b3a", "4c00", "4c82", "ae01", "af01", "400454ca",
    ];
    for number in refused {
        cases.push((line(&format!("ioctl 1 {number} x")), EPERM));
        cases.push((line(&format!("ioctl 1 1{number:0>8} x")), EPERM));
    }
    let rest = [
        ("unshare 0", "-"),
        ("unshare 200", "-"),
        ("clone 11", "-"),
        ("clone 100000011", "-"),
        ("ioctl 1 5401 z", "-"),
        ("ioctl 1 541b z", "-"),
        ("clone3 z 58", ENOSYS),
        ("personality 0", "-"),
        ("personality ffffffff", "-"),
        ("personality 8", EPERM),
        ("personality 40000", EPERM),
        ("personality 100040000", EPERM),
        ("setpriority 0 0 5", "-"),
        ("setpriority 0 0 ffffffec", EPERM),
        ("setpriority 0 0 ffffffffffffffff", EPERM),
        ("prctl f x", "-"),
        ("prctl 2 z", "-"),
        ("prctl 23 1 z", EPERM),
        ("prctl 3e 0", EPERM),
        ("prctl 43 1", EPERM),
        ("prctl 35 0 0", EPERM),
        ("prctl 39 1", EPERM),
        ("prctl 3b 1", EPERM),
        ("prctl 100000023 1 z", EPERM),
        ("seccomp 1 8 z", EPERM),
        ("seccomp 1 100000008 z", EPERM),
        ("seccomp 1 0 z", "-"),
        ("setrlimit 4 z", EINVAL),
        ("setrlimit 100000004 z", EINVAL),
        ("setrlimit 1 z", "-"),
        ("prlimit64 0 4 z 0", EINVAL),
        ("prlimit64 0 4 0 z", "-"),
        ("prlimit64 0 4 100000000 0", EINVAL),
        ("prlimit64 0 1 z 0", "-"),
    ];
    cases.extend(rest.map(|(text, answer)| (line(text), answer)));
    cases.extend(memory().map(|(text, answer)| (line(text), answer)));
    cases
}

/// Memory that no control group counts: programs on sockets, huge pages.
fn memory() -> [(&'static str, &'static str); 12] {
    [
        ("setsockopt 0 1 1a z 10", EPERM),
        ("setsockopt 0 1 32 z 4", EPERM),
        ("setsockopt 0 1 33 z 10", EPERM),
        ("setsockopt 0 1 34 z 4", EPERM),
        ("setsockopt 0 100000001 10000001a z 10", EPERM),
        ("setsockopt 0 1 2 z 4", "-"),
        ("mmap 0 200000 3 40022 ffffffff 0", ENOMEM),
        ("mmap 0 1000 3 22 ffffffff 0", "-"),
        ("memfd_create z 4", ENOMEM),
        ("memfd_create z 0", "-"),
        ("shmget 0 200000 b80", ENOMEM),
        ("shmget 0 1000 380", "-"),
    ]
}

#[test]
fn p09_what_hangs_on_an_argument() {
    let test = "p09_what_hangs_on_an_argument";
    if !need(
        test,
        &[
            Need::Root,
            Need::Program("unshare"),
            Need::Program("setpriv"),
        ],
    ) {
        return;
    }
    let Some(program) = helper(test, "caller", CALLER) else {
        return;
    };
    let mut cases = arguments();
    if X86 {
        cases.extend(["i386", "x32"].map(|door| (door.to_owned(), KILLED)));
    }
    let lines: Vec<String> = cases.iter().map(|(line, _)| line.clone()).collect();
    let instance = Instance::new();
    let within = inside(&instance, &program, &lines);
    let without = bare(&program, &lines);
    let mut wrong = Vec::new();
    let mut free = 0;
    for (at, (line, answer)) in cases.iter().enumerate() {
        let right = match *answer {
            "-" => {
                ![EPERM, ENOSYS, EINVAL].contains(&within[at].as_str()) || within[at] == without[at]
            }
            answer => within[at] == answer,
        };
        free += usize::from(*answer != "-" && without[at] != *answer);
        if !right {
            wrong.push(format!("{line}: `{}`, not `{answer}`", within[at]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The control.
    let told = |text: &str| {
        let at = lines.iter().position(|line| line == text).expect("a case");
        without[at].as_str()
    };
    assert_eq!(told(&line("personality 8")), "ok");
    assert_eq!(told(&line("clone3 z 58")), "ok");
    assert_eq!(told(&line("setrlimit 4 z")), "ok");
    assert!(free > 45, "{free} cases differ without a filter");
}

/// Runs the helper with lines in a sandbox or below another program, until it holds what it has; gives
/// what it said and what `look` finds at its process then.
#[track_caller]
fn held<T>(
    instance: &Instance,
    program: &Path,
    lines: &[String],
    look: impl Fn(i32) -> T,
) -> (Vec<String>, T) {
    let workspace = format!("{}:ro", workspace_with(instance, program));
    let words = [
        "run",
        "-q",
        "-i",
        "--workspace",
        &workspace,
        "--",
        "/workspace/helper",
        "hold",
    ];
    let running = Running::start(&mut instance.command(words), Some(bytes(lines)));
    running.await_out("held", PATIENCE);
    let (_, workload) = await_workload(instance, "helper", || running.err());
    (answers(lines, &running.out()), look(workload))
}

#[test]
fn p08_no_further_namespace_can_be_had() {
    let test = "p08_no_further_namespace";
    if !need(
        test,
        &[
            Need::Root,
            Need::Program("unshare"),
            Need::Program("setpriv"),
        ],
    ) {
        return;
    }
    let Some(program) = helper(test, "caller", CALLER) else {
        return;
    };
    let mut lines: Vec<String> = NEW
        .iter()
        .map(|flag| format!("!{}", line(&format!("unshare {flag}"))))
        .collect();
    lines.push(format!("!{}", line("unshare 7e020080")));
    for flag in NEW.iter().filter(|flag| **flag != "80") {
        lines.push(format!("!{}", line(&format!("setns 0 {flag}"))));
    }
    let instance = Instance::new();
    let names = [
        "user",
        "mnt",
        "pid_for_children",
        "net",
        "ipc",
        "uts",
        "cgroup",
        "time_for_children",
    ];
    let spaces = |pid: i32| {
        names.map(|name| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).expect("a namespace"))
    };
    let (told, seen) = held(&instance, &program, &lines, |workload| {
        let parents = parents();
        let init = inits(&instance, &parents)[0];
        let all = below(init, &parents);
        assert!(all.contains(&workload));
        all.into_iter().all(|pid| spaces(pid) == spaces(init))
    });
    assert!(told.iter().all(|answer| answer == EPERM), "{told:?}");
    assert!(seen, "a process is in other namespaces than its init");
    // A map cannot be written either, whatever may be unshared.
    let script = "for map in uid_map gid_map setgroups; do (echo '0 0 1' > /proc/self/$map) 2>/dev/null && echo wrote; done; \
        for kind in user mount pid net ipc uts cgroup; do unshare --$kind true 2>/dev/null && echo unshared; \
        nsenter --$kind=/proc/self/ns/* true 2>/dev/null && echo entered; done; echo end";
    let outcome = instance.sh(&["-q"], script).status_is(0);
    assert_eq!(outcome.out().trim(), "end", "{}", outcome.story());

    // The control: the same steps by a user without rights, in one process, have all of it.
    let free = bare(
        &program,
        &[
            format!("!{}", line("unshare 10000000")),
            format!("!{}", line("unshare 7e020000")),
        ],
    );
    assert_eq!(
        free[0], "ok",
        "this host gives no user namespace to anybody: no control"
    );
}

fn sockets() -> Vec<(String, &'static str)> {
    let mut cases = Vec::new();
    for family in 0..=50_u32 {
        // Stream, datagram, raw, reliable datagram, sequenced packet.
        for kind in 1..=5_u32 {
            let answer = match (family, kind) {
                (1, 4) => ESOCKTNOSUPPORT,
                (1 | 2 | 10, 1 | 2) | (1, _) => "ok",
                (2 | 10, _) => EPERM,
                _ => EAFNOSUPPORT,
            };
            cases.push((line(&format!("socket {family:x} {kind} 0")), answer));
            cases.push((
                line(&format!("socket {family:x} {:x} 0", kind | 0x80800)),
                answer,
            ));
            let pair = match (family, kind) {
                (1, 4) => ESOCKTNOSUPPORT,
                (1, _) => "ok",
                _ => EAFNOSUPPORT,
            };
            cases.push((line(&format!("socketpair {family:x} {kind} 0 z")), pair));
        }
    }
    for protocol in 0..=31_u32 {
        cases.push((line(&format!("socket 10 3 {protocol:x}")), EAFNOSUPPORT));
    }
    for family in ["2", "a"] {
        for (kind, protocol) in [("1", "84"), ("1", "106"), ("2", "88"), ("2", "ff")] {
            cases.push((
                line(&format!("socket {family} {kind} {protocol}")),
                EPROTONOSUPPORT,
            ));
        }
        for protocol in ["1", "3a", "ff"] {
            cases.push((line(&format!("socket {family} 3 {protocol}")), EPERM));
        }
    }
    cases
}

#[test]
fn p11_only_listed_socket_families_exist() {
    let test = "p11_only_listed_socket_families";
    if !need(test, &[Need::Root, Need::Program("unshare")]) {
        return;
    }
    let Some(program) = helper(test, "caller", CALLER) else {
        return;
    };
    let cases = sockets();
    let without_v6 = !Path::new("/proc/net/if_inet6").exists();
    let lines: Vec<String> = cases.iter().map(|(line, _)| format!("!{line}")).collect();
    let instance = Instance::new();
    let open = |pid: i32| {
        let all = descriptors_of(pid);
        all.values()
            .filter(|target| target.starts_with("socket:"))
            .count()
    };
    let (told, counted) = held(&instance, &program, &lines, open);
    let mut expected = 0;
    for (at, (line, answer)) in cases.iter().enumerate() {
        let absent =
            without_v6 && line.starts_with(&self::line("socket a ")) && told[at] == EAFNOSUPPORT;
        assert!(
            told[at] == *answer || absent,
            "{line}: `{}`, not `{answer}`",
            told[at]
        );
        let pair = line.starts_with(&self::line("socketpair"));
        expected += if told[at] == "ok" {
            1 + usize::from(pair)
        } else {
            0
        };
    }
    // The host counts what is open: nothing was had under another answer.
    assert_eq!(counted, expected);

    // The control: root in a network of its own gets more of them; nothing is connected.
    let program = program.display().to_string();
    let words = ["unshare", "--net", "--", &program];
    let outcome = outside(&words, Some(bytes(&lines))).status_is(0);
    let free = answers(&lines, &outcome.out());
    let refused_here = |text: &str| {
        let at = cases
            .iter()
            .position(|(line, _)| *line == self::line(text))
            .expect("a case");
        free[at].as_str()
    };
    assert_eq!(refused_here("socket 2 3 1"), "ok", "raw");
    assert_eq!(refused_here("socket 11 3 0"), "ok", "packet");
    let more = free.iter().filter(|answer| *answer == "ok").count();
    assert!(
        more > told.iter().filter(|answer| *answer == "ok").count() + 5,
        "{more}"
    );
}
