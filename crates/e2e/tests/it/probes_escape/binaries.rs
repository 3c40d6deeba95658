//! P04: no program of ours can be overwritten from inside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use leasehold_e2e::{Instance, Need, Running, leasehold, need};
use sha2::{Digest, Sha256};

use super::{PATIENCE, await_workload, everybody, helper, outside, workspace_with};

const OVERWRITE: &str = include_str!("../../../helpers/overwrite.c");

fn hash(path: impl AsRef<Path>) -> [u8; 32] {
    Sha256::digest(fs::read(path).expect("read a program")).into()
}

#[test]
fn p04_no_program_of_ours_can_be_overwritten() {
    let test = "p04_no_program_of_ours";
    if !need(test, &[Need::Root]) {
        return;
    }
    let Some(program) = helper(test, "overwrite", OVERWRITE) else {
        return;
    };
    for who in everybody(test) {
        strike(&Instance::of(who), &program);
    }

    // The control: the same attack outside changes the program of a process that ends meanwhile.
    let instance = Instance::new();
    let victim = instance.scratch("victim").join("sleep");
    fs::copy("/bin/sleep", &victim).expect("copy a program");
    let whole = hash(&victim);
    let mut command = Command::new(&victim);
    let running = Running::start(command.arg("0.3"), None);
    let pid = running.pid().to_string();
    let told = outside(&[&program.display().to_string(), "400", &pid], None);
    assert!(!told.out().contains("opened 0\n"), "{}", told.story());
    assert_ne!(hash(&victim), whole, "the control does not bite");
    running.wait(PATIENCE);
}

/// Strikes in a sandbox; nothing of ours or of the host's changes.
#[track_caller]
fn strike(instance: &Instance, program: &Path) {
    let workspace = workspace_with(instance, program);
    // A shell of the guest's own whose interpreter is whatever program runs it.
    let script = Path::new(&workspace).join("sh");
    fs::write(&script, "#!/proc/self/exe\n").expect("write the script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("make it a program");
    let before = hash(leasehold());
    let shell = hash("/bin/sh");
    let guest = "cp /workspace/sh /bin/sh 2>/dev/null && echo replaced; \
        /workspace/helper 400 & for i in $(seq 200); do /workspace/sh 2>/dev/null; /bin/true; done; wait; echo end; sleep 60";
    let running = instance.start(["run", "--workspace", &workspace, "--", "sh", "-c", guest]);
    let (init, _) = await_workload(instance, "sh", || running.err());
    let agent = hash(format!("/proc/{init}/exe"));
    running.await_out("end", PATIENCE);
    let told = running.out();
    assert!(
        told.contains("looked yes\nopened 0\n") && !told.contains("replaced"),
        "{told}"
    );
    assert_eq!(
        hash(format!("/proc/{init}/exe")),
        agent,
        "the agent has changed"
    );
    assert_eq!(hash(leasehold()), before, "leasehold has changed");
    assert_eq!(hash("/bin/sh"), shell, "the host's shell has changed");
    drop(running);
    // The script itself as a command goes nowhere near our programs.
    let words = [
        "run",
        "-q",
        "--workspace",
        &workspace,
        "--",
        "/workspace/sh",
    ];
    assert_ne!(instance.cli(words).status, 0);
    assert_eq!(hash(leasehold()), before, "leasehold has changed");
}
