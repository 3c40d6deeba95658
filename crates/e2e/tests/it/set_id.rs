//! A command with a writable workspace leaves no file that runs as the caller. Asks nothing of how.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use leasehold_e2e::Instance;

/// Makes a file by each way and gives it mode 4755 or 6755.
const SCRIPT: &str = "cd /workspace
cp /bin/true a; chmod 4755 a; chmod 2755 a
python3 -c 'import os; os.open(\"b\", os.O_CREAT | os.O_WRONLY, 0o6755)'
python3 -c 'import os; os.mknod(\"c\", 0o106755)'
touch d; chmod 755 d; test \"$(stat -c %a d)\" = 755";

#[test]
fn no_file_of_a_writable_workspace_runs_as_the_caller() {
    let instance = Instance::new();
    let folder = instance.scratch("shared");
    let at = format!("{}:rw", folder.display());
    instance.sh(&["--workspace", &at], SCRIPT).status_is(0);
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().mode();
        assert_eq!(mode & 0o6000, 0, "{:?}: {mode:o}", entry.file_name());
        seen += 1;
    }
    assert!(seen >= 2, "the script made nothing");
    // The control: in a workspace that is gone with the sandbox the same modes are possible.
    let outcome = instance.sh(&[], "cd /workspace; touch a; chmod 4755 a; stat -c %a a");
    assert_eq!(outcome.out().trim(), "4755", "{}", outcome.story());
}
