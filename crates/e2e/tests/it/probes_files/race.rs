//! P36: names that change under the collection, by another sandbox that shares the folder.

use std::fs;
use std::time::Duration;

use leasehold_e2e::{Instance, Need, need};

use super::{leaks, rows, secret};
use crate::probes_resource::hostile;

const SWAPPER: &str = include_str!("../../../helpers/swapper.c");
const COLLECTIONS: usize = 25;
/// Pairs of a file and a link, and of a folder and a link.
const PAIRS: usize = 12;

#[test]
fn p36_swaps_by_a_neighbour_never_bring_the_hosts_files() {
    let test = "p36_swaps_by_a_neighbour_never_bring_the_hosts_files";
    if !need(test, &[Need::Root]) {
        return;
    }
    let instance = Instance::new();
    let secret = secret(&instance);
    let Some(swapper) = hostile(test, &instance, "swapper", SWAPPER) else {
        return;
    };
    let shared = std::path::PathBuf::from(&swapper.workspace);
    let mut words = vec!["40".to_owned()];
    for pair in 0..PAIRS {
        let (file, link) = (format!("f{pair}"), format!("f{pair}-link"));
        fs::write(shared.join(&file), "mine").unwrap();
        std::os::unix::fs::symlink(&secret, shared.join(&link)).unwrap();
        let (folder, way) = (format!("d{pair}"), format!("d{pair}-link"));
        fs::create_dir(shared.join(&folder)).unwrap();
        fs::write(shared.join(&folder).join("secret"), "mine").unwrap();
        std::os::unix::fs::symlink(secret.parent().unwrap(), shared.join(&way)).unwrap();
        words.extend([file, link, folder, way]);
    }
    let at = format!("{}:rw", swapper.workspace);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let head = ["run", "--workspace", &at, "--", "./helper"];
    let neighbour = instance.start([&head[..], &words].concat());
    neighbour.await_out("up", Duration::from_secs(20));

    let out = instance.scratch("out");
    let place = out.display().to_string();
    let flags = [
        "--json",
        "--artifact",
        "f*",
        "--artifact",
        "d*/**",
        "--out",
        &place,
    ];
    let (mut taken, mut linked) = (0, 0);
    for _ in 0..COLLECTIONS {
        let head = ["run", "--workspace", &at];
        let outcome = instance.cli([&head, &flags[..], &["--", "true"]].concat());
        let outcome = outcome.status_is(0).within(Duration::from_secs(20));
        let record = outcome.json();
        assert!(leaks(&out).is_empty(), "{record:#}");
        for (path, fate) in rows(&record) {
            taken += usize::from(fate == "taken" && !path.ends_with("-link"));
            linked += usize::from(fate == "symlink" && !path.ends_with("-link"));
        }
        fs::remove_dir_all(&out).ok();
        fs::create_dir(&out).unwrap();
    }
    // Both faces were met, else nothing was raced.
    assert!(taken > 0 && linked > 0, "{taken} files, {linked} links");
    assert!(leaks(&instance.state()).is_empty());
    // The control, while the same neighbour still swaps: who looks first and then reads is fooled.
    let fooled = (0..200_000).any(|at| {
        let path = shared.join(format!("f{}", at % PAIRS));
        let fine = fs::symlink_metadata(&path).is_ok_and(|seen| seen.is_file());
        fine && fs::read_to_string(&path).is_ok_and(|text| text == super::CANARY)
    });
    assert!(fooled, "nobody was fooled: there was no race");
    neighbour.signal(rustix::process::Signal::INT);
    neighbour.wait(Duration::from_secs(20)).status_is(130);
}
