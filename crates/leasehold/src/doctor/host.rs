//! Judging the host: pure functions over [`Facts`].

use super::facts::Facts;
use super::mend;
use super::report::{Check, Section, State};

/// Descriptors the supervisor needs for one parked sandbox, roughly.
const FILES_PER_SANDBOX: u64 = 16;
/// Processes of one parked sandbox.
const PROCESSES_PER_SANDBOX: u64 = 2;

fn check(what: &'static str, state: State, why: impl Into<String>) -> Check {
    Check::new(Section::Host, what, state, why)
}

/// Every line about the host itself.
pub(crate) fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![user_namespaces(facts)];
    if !facts.root() {
        checks.push(ids(facts));
    }
    checks.extend([
        seccomp(facts),
        landlock(facts),
        core_dumps(facts),
        tiocsti(facts),
        container(facts),
        room(facts),
    ]);
    checks
}

/// Backends beside the one that is tried for real.
pub(crate) fn other_backends(facts: &Facts) -> Vec<Check> {
    let found = match facts.oci_runtimes.as_slice() {
        [] => String::new(),
        names => format!(" ({} is installed)", names.join(", ")),
    };
    let runsc = if facts.runsc {
        " (runsc is installed)"
    } else {
        ""
    };
    let kvm = if facts.kvm {
        " (/dev/kvm opens; whether it works shows only a real boot)"
    } else {
        " (and /dev/kvm cannot be opened)"
    };
    [
        ("container", found),
        ("gvisor", runsc.to_owned()),
        ("microvm", kvm.to_owned()),
    ]
    .into_iter()
    .map(|(what, also)| {
        let why = format!("this build has no such backend{also}; asking for it is refused");
        Check::new(Section::Backends, what, State::NotHere, why)
    })
    .collect()
}

fn user_namespaces(facts: &Facts) -> Check {
    const WHAT: &str = "user namespaces";
    if facts.user_namespaces_max == Some(0) {
        return check(
            WHAT,
            State::Missing,
            "user.max_user_namespaces is 0: nobody may make one",
        )
        .mend(Some(mend::sysctl(
            facts,
            "user.max_user_namespaces",
            "65536",
        )))
        .breaks();
    }
    if facts.user_namespaces_max.is_none() {
        return check(
            WHAT,
            State::NotHere,
            "this kernel has none (CONFIG_USER_NS)",
        )
        .breaks();
    }
    if facts.root() {
        return check(WHAT, State::Ok, "root may make them");
    }
    if facts.unprivileged_userns == Some(0) {
        return check(
            WHAT,
            State::Missing,
            "kernel.unprivileged_userns_clone is 0: only root may make them",
        )
        .mend(Some(mend::sysctl(
            facts,
            "kernel.unprivileged_userns_clone",
            "1",
        )));
    }
    if facts.apparmor_userns == Some(1) {
        return check(
            WHAT,
            State::Missing,
            "kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu 23.10 and later): a \
             namespace can be made and nothing done in it, unless a profile allows this program",
        )
        .mend(Some(mend::apparmor_profile(facts)));
    }
    check(WHAT, State::Ok, "an ordinary user may make them")
}

fn ids(facts: &Facts) -> Check {
    const WHAT: &str = "ids of its own";
    if facts.id_tools && facts.id_range {
        return check(
            WHAT,
            State::Ok,
            "a range of ids can be mapped: two users inside",
        );
    }
    let lack = match (facts.id_tools, facts.id_range) {
        (false, true) => "newuidmap and newgidmap are not installed",
        (true, _) => "/etc/subuid and /etc/subgid name no range for this user",
        (false, false) => "neither newuidmap nor a range in /etc/subuid is there",
    };
    let why = format!("{lack}: our init and the command share one uid inside");
    check(WHAT, State::Missing, why).mend(Some(mend::id_range(facts)))
}

fn seccomp(facts: &Facts) -> Check {
    const WHAT: &str = "seccomp";
    match facts.seccomp {
        0 => check(
            WHAT,
            State::NotHere,
            "this kernel has no system call filters",
        )
        .breaks(),
        count => check(
            WHAT,
            State::Ok,
            format!("one program of {count} instructions"),
        ),
    }
}

fn landlock(facts: &Facts) -> Check {
    const WHAT: &str = "Landlock";
    match facts.landlock_abi {
        0 => {
            let modules = facts.modules.as_deref().unwrap_or("capability");
            let why = "not active: one layer less; every record says so (H28 landlock)";
            check(WHAT, State::Missing, why).mend(Some(format!(
                "{}sed -i 's/^GRUB_CMDLINE_LINUX=\"/&lsm=landlock,{modules} /' /etc/default/grub \
                 && {}update-grub && {}reboot",
                facts.sudo(),
                facts.sudo(),
                facts.sudo()
            )))
        }
        abi @ 1..6 => check(
            WHAT,
            State::Ok,
            format!("version {abi}: files are confined, abstract sockets and signals from 6 on"),
        ),
        abi => check(WHAT, State::Ok, format!("version {abi}")),
    }
}

/// A core limit of 1 stops the kernel from starting a program for a dump, and the workload cannot
/// change it. A socket in the pattern (Linux 6.16 and later) does not ask that limit.
fn core_dumps(facts: &Facts) -> Check {
    const WHAT: &str = "core dumps";
    let pattern = facts.core_pattern.as_deref().unwrap_or("");
    let shown: String = pattern.chars().take(80).collect();
    let mend = Some(mend::sysctl(facts, "kernel.core_pattern", "core"));
    match pattern.as_bytes().first() {
        Some(b'@') => check(
            WHAT,
            State::Missing,
            format!(
                "kernel.core_pattern is a socket ({shown}): a crash inside sends its memory to a \
                 host program, whatever its limits"
            ),
        )
        .mend(mend)
        .breaks(),
        Some(b'|') => check(
            WHAT,
            State::Missing,
            format!(
                "kernel.core_pattern starts a host program ({shown}): our core limit stops that, \
                 yet on a host with several tenants nothing should hang on it"
            ),
        )
        .mend(mend),
        _ => check(
            WHAT,
            State::Ok,
            "no program or socket of the host is given a dump",
        ),
    }
}

fn tiocsti(facts: &Facts) -> Check {
    const WHAT: &str = "TIOCSTI";
    match facts.legacy_tiocsti {
        Some(0) | None => check(WHAT, State::Ok, "nobody may type into a terminal"),
        Some(_) => check(
            WHAT,
            State::Missing,
            "dev.tty.legacy_tiocsti is on: any program may type into its terminal; sandboxes are \
             stopped by their filter, other programs of this host are not",
        )
        .mend(Some(mend::sysctl(facts, "dev.tty.legacy_tiocsti", "0"))),
    }
}

fn container(facts: &Facts) -> Check {
    const WHAT: &str = "container";
    match &facts.container {
        None => check(
            WHAT,
            State::Ok,
            "this is no container as far as can be seen",
        ),
        Some(kind) => check(
            WHAT,
            State::Ok,
            format!(
                "we are in a container ({kind}): its rules may forbid namespaces or mounts; \
                 what counts is the backend above, where it was tried"
            ),
        ),
    }
}

/// How many parked sandboxes fit, by the two numbers that run out first.
fn room(facts: &Facts) -> Check {
    const WHAT: &str = "room";
    const FEW: u64 = 200;
    let by_pids = facts.pid_max.unwrap_or(32_768) / PROCESSES_PER_SANDBOX;
    let by_files = facts.files_max.unwrap_or(u64::MAX) / FILES_PER_SANDBOX;
    let most = by_pids.min(by_files);
    let why = format!("about {most} sandboxes at one time, by process numbers and open files");
    if most >= FEW {
        return check(WHAT, State::Ok, why);
    }
    let command = if by_files < by_pids {
        "ulimit -Hn 65536".to_owned()
    } else {
        mend::sysctl(facts, "kernel.pid_max", "4194304")
    };
    check(WHAT, State::Missing, why).mend(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ordinary user on a host with everything.
    fn good() -> Facts {
        Facts {
            uid: 1000,
            user: Some("ann".to_owned()),
            kernel: "6.8.0".to_owned(),
            program: "/usr/bin/leasehold".into(),
            user_namespaces_max: Some(1_000),
            legacy_tiocsti: Some(0),
            core_pattern: Some("core".to_owned()),
            pid_max: Some(4_194_304),
            files_max: Some(65_536),
            landlock_abi: 6,
            seccomp: 200,
            id_tools: true,
            id_range: true,
            ..Facts::default()
        }
    }

    fn state(facts: &Facts, what: &str) -> (State, bool, Option<String>) {
        let check = checks(facts)
            .into_iter()
            .find(|check| check.what == what)
            .unwrap();
        (check.state, check.breaks_a_promise, check.mend)
    }

    #[test]
    fn a_good_host_has_nothing_to_mend() {
        for check in checks(&good()) {
            assert_eq!(
                (check.state, check.mend),
                (State::Ok, None),
                "{}",
                check.what
            );
        }
    }

    #[test]
    fn ubuntus_switch_is_seen_and_mended_for_this_program_only() {
        let facts = Facts {
            apparmor_userns: Some(1),
            ..good()
        };
        let (found, _, mend) = state(&facts, "user namespaces");
        assert_eq!(found, State::Missing);
        let mend = mend.unwrap();
        assert!(
            mend.contains("profile leasehold /usr/bin/leasehold flags=(unconfined) { userns, }")
        );
        let root = Facts { uid: 0, ..facts };
        assert_eq!(state(&root, "user namespaces").0, State::Ok);
    }

    #[test]
    fn every_bad_setting_has_its_state_and_one_command() {
        type Bend = fn(&mut Facts);
        let cases: [(&str, Bend, State, bool); 9] = [
            (
                "user namespaces",
                |f| f.user_namespaces_max = Some(0),
                State::Missing,
                true,
            ),
            (
                "user namespaces",
                |f| f.user_namespaces_max = None,
                State::NotHere,
                true,
            ),
            (
                "user namespaces",
                |f| f.unprivileged_userns = Some(0),
                State::Missing,
                false,
            ),
            (
                "ids of its own",
                |f| f.id_range = false,
                State::Missing,
                false,
            ),
            ("Landlock", |f| f.landlock_abi = 0, State::Missing, false),
            (
                "core dumps",
                |f| f.core_pattern = Some("|/bin/x %p".into()),
                State::Missing,
                false,
            ),
            (
                "core dumps",
                |f| f.core_pattern = Some("@/run/x".into()),
                State::Missing,
                true,
            ),
            (
                "TIOCSTI",
                |f| f.legacy_tiocsti = Some(1),
                State::Missing,
                false,
            ),
            ("room", |f| f.files_max = Some(1_024), State::Missing, false),
        ];
        for (what, bend, wanted, breaks) in cases {
            let mut facts = good();
            bend(&mut facts);
            let (found, broken, mend) = state(&facts, what);
            assert_eq!((found, broken), (wanted, breaks), "{what}");
            assert_eq!(mend.is_some(), wanted == State::Missing, "{what}");
        }
    }

    #[test]
    fn other_backends_are_not_claimed() {
        let facts = Facts {
            kvm: true,
            runsc: true,
            oci_runtimes: vec!["runc"],
            ..good()
        };
        let lines = other_backends(&facts);
        assert!(lines.iter().all(|line| line.state == State::NotHere));
        assert!(lines[0].why.contains("runc is installed"));
    }
}
