//! The parked interpreter must not be told from a fresh one by what it prints or how it ends.

use leasehold_protocol::guest::{Control, ExecRequest, ExecStep, StubReply};
use rustix::io::Errno;

use crate::sandbox::{Sandbox, able, request};

const WARM: [&str; 2] = ["--warm", "python"];

fn ready(name: &str) -> bool {
    let here = std::path::Path::new("/usr/bin/python3").exists();
    if !here {
        eprintln!("SKIP {name}: /usr/bin/python3 is not here");
    }
    here && able(name)
}

/// Runs the same request both ways and compares everything.
fn both(wanted: &ExecRequest, input: &[u8]) {
    let cold = Sandbox::parked(&[]).run(wanted, input);
    let warm = Sandbox::parked(&WARM).run(wanted, input);
    let name = String::from_utf8_lossy(&wanted.argv.join(&b' ')).into_owned();
    assert_eq!(warm.stdout, cold.stdout, "{name}");
    assert_eq!(warm.stderr, cold.stderr, "{name}");
    assert_eq!(warm.status, cold.status, "{name}");
}

#[test]
fn it_does_what_a_fresh_one_does() {
    if !ready("it_does_what_a_fresh_one_does") {
        return;
    }
    let show = "import sys, os; print(sys.argv, sys.path, sys.orig_argv, __name__, __spec__, \
        __loader__, sorted(globals()), os.getcwd(), sorted(os.environ.items()), sys.stdout.encoding, \
        sys.stdin.errors, sys.stdout.errors, sys.stdout.line_buffering, sys.dont_write_bytecode, \
        sys.stdin.isatty(), sys.modules['__main__'].__dict__ is globals(), sys.executable, \
        sys.stdout.name, sys.stdout.mode, repr(sys.stdin), repr(sys.stderr))";
    let cases: [&[&str]; 24] = [
        &["python3", "-c", show, "a", "b c"],
        &["python3", "-I", "-c", show],
        &["/usr/bin/python3", "-Ic", show, "x"],
        &["python3", "-S", "-c", show],
        &["python3", "-uBc", show],
        &["python3", "-c", "print('é☃')"],
        &["python3", "-c", "import sys; sys.exit(7)"],
        &["python3", "-c", "import sys; sys.exit('text')"],
        &["python3", "-c", "raise SystemExit"],
        &["python3", "-c", "def f(): 1/0\nprint('a')\nf()"],
        &["python3", "-c", "a b"],
        &[
            "python3",
            "-c",
            "try: 1/0\nexcept Exception as e: raise ValueError('x') from e",
        ],
        &["python3", "-c", "import os; os.kill(os.getpid(), 15)"],
        &["python3", "-c", "raise KeyboardInterrupt"],
        &[
            "python3",
            "-c",
            "import atexit; atexit.register(print, 'bye'); print('hi')",
        ],
        &[
            "python3",
            "-c",
            "import threading,time; threading.Thread(target=lambda:(time.sleep(.1),print('t'))).start()",
        ],
        &[
            "python3",
            "-c",
            "import sys; print(sys.stdin.read().upper(), end='')",
        ],
        &["python3", "-"],
        &["python3", "-m", "json.tool"],
        &["python3", "-m", "no_such_module"],
        &["python3", "no_such_file.py"],
        &["python3", "--version"],
        &[
            "python3",
            "-O",
            "-c",
            "import sys; print(sys.flags.optimize)",
        ],
        &[
            "sh",
            "-c",
            "kill -0 $$ && echo $0 && cat /proc/self/status | grep -E '^(Sig|Cap|Seccomp)'",
        ],
    ];
    for argv in cases {
        let input: &[u8] = match argv {
            ["python3", "-"] => b"import sys\nprint(sys.argv, __name__)\n1/0\n",
            _ => b"{\"a\": 1}\n",
        };
        both(&request(argv), input);
    }
}

#[test]
fn scripts_and_environment_are_honoured() {
    if !ready("scripts_and_environment_are_honoured") {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/script.py");
    both(&request(&["python3", script, "a"]), b"");
    both(&request(&["python3", "-I", script]), b"");
    for extra in [
        "PYTHONUNBUFFERED=1",
        "PYTHONPATH=/usr/share:relative",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONIOENCODING=latin-1",
        "PYTHONHASHSEED=0",
        "TZ=Asia/Tokyo",
        "LC_ALL=C",
    ] {
        let code = "import sys, os, time; print(sys.path, sys.stdout.encoding, time.tzname, \
            sys.dont_write_bytecode, sys.stdout.write_through, sorted(os.environ))";
        let mut wanted = request(&["python3", "-c", code]);
        wanted.env.push(extra.as_bytes().to_vec());
        both(&wanted, b"");
    }
}

#[test]
fn it_is_the_workload_and_random_is_fresh() {
    if !ready("it_is_the_workload_and_random_is_fresh") {
        return;
    }
    let code = "import random, os; print(random.random()); print(open('/proc/self/status').read()); \
        print(sorted(os.listdir('/proc/self/fd')))";
    let outcomes: Vec<String> = (0..2)
        .map(|_| {
            Sandbox::parked(&WARM)
                .run(&request(&["python3", "-c", code]), b"")
                .stdout
        })
        .collect();
    for text in &outcomes {
        for want in [
            "Uid:\t1000\t1000",
            "CapBnd:\t0000000000000000",
            "Seccomp_filters:\t1",
            "['0', '1', '2', '3']",
        ] {
            assert!(text.contains(want), "{want}: {text}");
        }
    }
    assert_ne!(outcomes[0].lines().next(), outcomes[1].lines().next());
}

#[test]
fn a_warm_terminal_is_the_commands_own() {
    if !ready("a_warm_terminal_is_the_commands_own") {
        return;
    }
    let sandbox = Sandbox::parked(&WARM);
    let code =
        "import os, sys; print(os.ttyname(0), os.get_terminal_size(), sys.stdout.line_buffering)";
    let mut wanted = request(&["python3", "-c", code]);
    wanted.tty = Some((33, 101));
    sandbox.transmit(&wanted.encode(), &[]);
    let Some((StubReply::Tty, mut fds)) = sandbox.reply() else {
        panic!("no terminal came");
    };
    assert!(sandbox.reply().is_none());
    let mut text = String::new();
    // Ends with an error, after what was written.
    let _ = std::io::Read::read_to_string(&mut std::fs::File::from(fds.remove(0)), &mut text);
    assert!(
        text.contains("/dev/pts/0 os.terminal_size(columns=101, lines=33) True"),
        "{text}"
    );
}

#[test]
fn what_stopped_a_warm_command_is_told() {
    if !ready("what_stopped_a_warm_command_is_told") {
        return;
    }
    type Change = fn(&mut ExecRequest);
    let cases: [(Change, ExecStep, Errno, i32); 5] = [
        (
            |r| r.argv = vec![b"no-such-program".to_vec()],
            ExecStep::Exec,
            Errno::NOENT,
            127,
        ),
        (
            |r| r.argv = vec![b"/etc/passwd".to_vec()],
            ExecStep::Exec,
            Errno::ACCESS,
            126,
        ),
        (
            |r| r.cwd = b"/root".to_vec(),
            ExecStep::Cwd,
            Errno::ACCESS,
            126,
        ),
        (
            |r| r.ids = (1001, 1001),
            ExecStep::Posture,
            Errno::PERM,
            126,
        ),
        (
            |r| r.tty = Some((1, 1)),
            ExecStep::Message,
            Errno::PROTO,
            126,
        ),
    ];
    for (change, step, errno, code) in cases {
        let sandbox = Sandbox::parked(&WARM);
        let mut wanted = request(&["python3", "-c", "1"]);
        change(&mut wanted);
        let pipes = sandbox.send(&wanted);
        let errno = errno.raw_os_error();
        let reply = sandbox.reply().map(|(reply, _)| reply);
        assert_eq!(reply, Some(StubReply::Failed { step, errno }));
        assert_eq!(
            sandbox.hear(),
            Some(Control::MainExited { status: code << 8 })
        );
        drop(pipes);
    }
}

/// Comparing says nothing if the parked one starts a fresh one: here it must not.
#[test]
fn it_runs_in_place() {
    if !ready("it_runs_in_place") {
        return;
    }
    let code = "import sys; print('csv' in sys.modules)";
    let cases: [&[&str]; 4] = [
        &["python3", "-c", code],
        &["/usr/bin/python3", "-ISuBc", code],
        &["python3", "-"],
        &["python3", "/dev/stdin"],
    ];
    for argv in cases {
        let wanted = request(argv);
        let warm = Sandbox::parked(&WARM).run(&wanted, code.as_bytes());
        let cold = Sandbox::parked(&[]).run(&wanted, code.as_bytes());
        assert_eq!(cold.stdout, "False\n", "{argv:?}: {cold:?}");
        // A pipe is no file to be read twice: a fresh one does that.
        let place = argv[1] != "/dev/stdin";
        let want = if place { "True\n" } else { "False\n" };
        assert_eq!(warm.stdout, want, "{argv:?}: {warm:?}");
    }
}
