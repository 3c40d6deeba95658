//! The commands that mend, in one place. Each is one line for a POSIX shell.

use super::facts::Facts;

/// Sets a kernel setting now. Whether it is kept over a restart is the operator's choice.
pub(crate) fn sysctl(facts: &Facts, name: &str, value: &str) -> String {
    format!("{}sysctl -w {name}={value}", facts.sudo())
}

/// An AppArmor profile that lets this program, and no other, make user namespaces. The switch for the
/// whole host would do too and open it for everybody.
pub(crate) fn apparmor_profile(facts: &Facts) -> String {
    format!(
        "printf 'abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile leasehold {} \
         flags=(unconfined) {{ userns, }}\\n' | sudo tee /etc/apparmor.d/leasehold >/dev/null && \
         sudo apparmor_parser -r /etc/apparmor.d/leasehold",
        facts.program.display()
    )
}

/// Tools and a range of ids for an ordinary user.
pub(crate) fn id_range(facts: &Facts) -> String {
    let range = format!(
        "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {}",
        facts.user.as_deref().unwrap_or("\"$(id -un)\"")
    );
    match (facts.id_tools, facts.id_range) {
        (false, true) => "sudo apt-get install -y uidmap".to_owned(),
        (false, false) => format!("sudo apt-get install -y uidmap && {range}"),
        (true, _) => range,
    }
}

/// Gives an ordinary user control groups, or moves what is in the way.
pub(crate) fn control_groups(facts: &Facts, reason: &str) -> Option<String> {
    let uid = facts.uid;
    if reason.contains("read-only") {
        return Some(format!(
            "{}mount -o remount,rw /sys/fs/cgroup",
            facts.sudo()
        ));
    }
    if facts.root() {
        // A container's own group cannot pass controllers on while processes are in it.
        return reason.contains("processes of its own").then(|| {
            "mkdir -p /sys/fs/cgroup/init && for p in $(cat /sys/fs/cgroup/cgroup.procs); do \
             echo $p >/sys/fs/cgroup/init/cgroup.procs; done"
                .to_owned()
        });
    }
    if facts.systemd && facts.pure_v2 {
        return Some(if facts.scope_off {
            "unset LEASEHOLD_SCOPE".to_owned()
        } else if reason.contains("no systemd manager") {
            let user = facts.user.as_deref().unwrap_or("\"$(id -un)\"");
            format!("sudo loginctl enable-linger {user}")
        } else if reason.contains("is not delegated") {
            "sudo mkdir -p /etc/systemd/system/user@.service.d && printf \
             '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | sudo tee \
             /etc/systemd/system/user@.service.d/delegate.conf >/dev/null && sudo systemctl \
             daemon-reload && echo 'log out and in again'"
                .to_owned()
        } else if reason.contains("systemd did not answer") {
            "systemctl --user daemon-reexec".to_owned()
        } else {
            "systemd-run --user --scope -p Delegate=yes \"$SHELL\"".to_owned()
        });
    }
    if facts.pure_v2 {
        return Some(format!(
            "sudo sh -c 'g=/sys/fs/cgroup/user-{uid}; mkdir -p $g/shell && for d in \
             /sys/fs/cgroup $g; do echo +memory +pids +cpu >$d/cgroup.subtree_control; done; \
             chown -R {uid} $g && echo '$$' >$g/shell/cgroup.procs'"
        ));
    }
    Some(format!(
        "sudo sh -c 'for h in memory pids cpu cpuacct unified; do g=/sys/fs/cgroup/$h/user-{uid}; \
         [ -d ${{g%/*}} ] || continue; mkdir -p $g && chown -R {uid} $g && echo '$$' \
         >$g/cgroup.procs; done'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_host_gets_its_own_command() {
        let mut facts = Facts {
            uid: 1000,
            ..Facts::default()
        };
        let v1 = control_groups(&facts, "not writable by uid 1000").unwrap();
        assert!(
            v1.contains("unified; do") && v1.contains("user-1000"),
            "{v1}"
        );
        facts.pure_v2 = true;
        let v2 = control_groups(&facts, "not writable by uid 1000").unwrap();
        assert!(v2.contains("subtree_control"), "{v2}");
        facts.systemd = true;
        let scope = control_groups(&facts, "not writable by uid 1000").unwrap();
        assert!(scope.starts_with("systemd-run --user --scope -p Delegate=yes"));
        let none = "; no systemd manager of this user listens at /run/user/1000/systemd/private";
        let linger = control_groups(&facts, none).unwrap();
        assert!(
            linger.starts_with("sudo loginctl enable-linger "),
            "{linger}"
        );
        let silent = control_groups(&facts, "; systemd did not answer within 2000 ms").unwrap();
        assert_eq!(silent, "systemctl --user daemon-reexec");
        facts.scope_off = true;
        let off = control_groups(&facts, "not writable by uid 1000").unwrap();
        assert_eq!(off, "unset LEASEHOLD_SCOPE");
        facts.scope_off = false;
        let cpu = control_groups(&facts, "controller cpu is not delegated to /x").unwrap();
        assert!(cpu.contains("Delegate=cpu"), "{cpu}");
        facts.uid = 0;
        assert_eq!(control_groups(&facts, "odd"), None);
        let busy = control_groups(&facts, "below /x, which has processes of its own").unwrap();
        assert!(busy.contains("/init/cgroup.procs"), "{busy}");
        assert!(
            control_groups(&facts, "mounted read-only")
                .unwrap()
                .starts_with("mount ")
        );
    }

    #[test]
    fn only_what_is_lacking_is_installed() {
        let facts = Facts {
            uid: 1000,
            user: Some("ann".to_owned()),
            id_tools: true,
            ..Facts::default()
        };
        assert!(!id_range(&facts).contains("apt-get"));
        assert!(id_range(&facts).ends_with(" ann"));
        let facts = Facts {
            id_tools: false,
            id_range: true,
            ..facts
        };
        assert_eq!(id_range(&facts), "sudo apt-get install -y uidmap");
    }
}
