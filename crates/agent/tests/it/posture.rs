//! What a command finds itself to be.

use std::collections::BTreeMap;

use crate::sandbox::{Sandbox, able, request, run};

fn status_of(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name, value.trim()))
        .collect()
}

#[test]
fn i12_a_command_has_the_whole_posture() {
    if !able("i12_a_command_has_the_whole_posture") {
        return;
    }
    let outcome = run(&["cat", "/proc/self/status"]);
    let status = status_of(&outcome.stdout);
    let ids = "1000\t1000\t1000\t1000";
    let none = "0000000000000000";
    for (name, want) in [
        ("Uid", ids),
        ("Gid", ids),
        ("Groups", ""),
        ("Umask", "0022"),
        ("CapInh", none),
        ("CapPrm", none),
        ("CapEff", none),
        ("CapBnd", none),
        ("CapAmb", none),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Seccomp_filters", "1"),
        ("SigBlk", none),
        ("SigIgn", none),
        ("SigCgt", none),
    ] {
        assert_eq!(status.get(name), Some(&want), "{name}");
    }
}

/// With one id the command is uid 0 inside, and still nothing.
#[test]
fn i12_a_shared_id_is_no_power() {
    if !able("i12_a_shared_id_is_no_power") {
        return;
    }
    let script = "cat /proc/self/status; cat /proc/1/environ; cat /proc/1/maps; kill -9 1; mount -t tmpfs x /tmp; \
        su -c true; echo end";
    for (mode, argv) in [
        (&[][..], vec!["bash", "-c", script]),
        (
            &["--warm", "python"],
            vec![
                "python3",
                "-c",
                "print(open('/proc/self/status').read(), 'end')",
            ],
        ),
    ] {
        let sandbox = Sandbox::boot_with(mode, 1).awaited();
        let mut wanted = request(&argv);
        wanted.ids = (0, 0);
        let outcome = sandbox.run(&wanted, b"");
        let status = status_of(&outcome.stdout);
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(
                status.get(name),
                Some(&"0000000000000000"),
                "{name}: {outcome:?}"
            );
        }
        assert_eq!(status.get("Uid"), Some(&"0\t0\t0\t0"));
        assert!(outcome.stdout.ends_with("end\n"), "{outcome:?}");
        if mode.len() == 1 {
            assert_eq!(
                outcome.stderr.matches("ermission denied").count(),
                3,
                "{outcome:?}"
            );
        }
    }
}

/// The same file without the program under test shows other values, so the test above can fail.
#[test]
fn without_the_posture_the_machine_shows_through() {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let status = status_of(&text);
    assert_ne!(status.get("CapBnd"), Some(&"0000000000000000"));
    assert_ne!(status.get("Seccomp_filters"), Some(&"1"));
}

#[test]
fn only_the_standard_descriptors_cross() {
    if !able("only_the_standard_descriptors_cross") {
        return;
    }
    // The fourth is the directory that `ls` reads.
    let outcome = run(&["ls", "/proc/self/fd"]);
    assert_eq!(outcome.stdout, "0\n1\n2\n3\n");
}

#[test]
fn limits_are_the_requests() {
    if !able("limits_are_the_requests") {
        return;
    }
    let mut wanted = request(&["cat", "/proc/self/limits"]);
    wanted.files = 77;
    wanted.cpu_seconds = 5;
    let outcome = Sandbox::parked(&[]).run(&wanted, b"");
    let limits: Vec<String> = outcome
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for want in [
        "Max core file size 1 1 bytes",
        "Max open files 77 77 files",
        "Max cpu time 5 6 seconds",
        "Max realtime priority 0 0",
        "Max nice priority 0 0",
        "Max pending signals 4096 4096 signals",
    ] {
        assert!(
            limits.iter().any(|line| line == want),
            "{want}: {limits:#?}"
        );
    }
}

#[test]
fn init_is_out_of_reach() {
    if !able("init_is_out_of_reach") {
        return;
    }
    let script = "cat /proc/1/environ; cat /proc/1/maps; readlink /proc/1/exe /proc/1/fd/3; \
        kill -9 1; kill -0 1; echo end";
    let outcome = run(&["bash", "-c", script]);
    assert_eq!(outcome.stdout, "end\n", "{outcome:?}");
    assert_eq!(
        outcome.stderr.matches("ermission denied").count(),
        2,
        "{outcome:?}"
    );
    assert_eq!(
        outcome.stderr.matches("not permitted").count(),
        2,
        "{outcome:?}"
    );
}

#[test]
fn writing_is_for_a_few_places() {
    if !able("writing_is_for_a_few_places") {
        return;
    }
    let script = "for d in /tmp /dev/shm /home/user; do \
            mkdir $d/a && echo x > $d/a/f && mv $d/a/f $d/g && ln $d/g $d/h && ln -s g $d/s && \
            mkfifo $d/p && rm -r $d/a && echo \"$d well\"; done; \
        echo x > /dev/null && echo x > /dev/zero && head -c1 /dev/urandom > /dev/null && echo well; \
        mkdir /home/other; echo x > /home/f; echo x > /proc/self/comm; echo x > /dev/shm/../f";
    let outcome = run(&["bash", "-c", script]);
    assert_eq!(
        outcome.stdout, "/tmp well\n/dev/shm well\n/home/user well\nwell\n",
        "{outcome:?}"
    );
    // `/home` belongs to the workload here, so it is Landlock that refuses.
    assert_eq!(
        outcome.stderr.matches("ermission denied").count(),
        4,
        "{outcome:?}"
    );
}

#[test]
fn ordinary_programs_live_within_the_table() {
    if !able("ordinary_programs_live_within_the_table") {
        return;
    }
    let cases: [(&str, &[&str], &str); 7] = [
        (
            "/usr/bin/bash",
            &["-c", "x=$(echo a | tr a b); echo $x"],
            "b\n",
        ),
        (
            "/usr/bin/python3",
            &[
                "-c",
                "import threading,subprocess as s\nt=threading.Thread(target=lambda:print(s.check_output(['echo','a']).decode().strip()))\nt.start();t.join()",
            ],
            "a\n",
        ),
        ("/usr/bin/perl", &["-e", "print 6*7, \"\\n\""], "42\n"),
        (
            "/usr/bin/node",
            &[
                "-e",
                "new (require('worker_threads').Worker)('console.log(6*7)',{eval:true})",
            ],
            "42\n",
        ),
        ("/usr/bin/gcc", &["--version"], ""),
        ("/usr/bin/git", &["init", "-q", "repo"], ""),
        ("/usr/bin/curl", &["--version"], ""),
    ];
    for (program, arguments, want) in cases {
        if !std::path::Path::new(program).exists() {
            eprintln!("SKIP ordinary_programs_live_within_the_table: {program} is not here");
            continue;
        }
        let argv: Vec<&str> = std::iter::once(program)
            .chain(arguments.iter().copied())
            .collect();
        let outcome = run(&argv);
        assert_eq!(outcome.code(), Some(0), "{program}: {outcome:?}");
        assert!(
            want.is_empty() || outcome.stdout == want,
            "{program}: {outcome:?}"
        );
    }
}
