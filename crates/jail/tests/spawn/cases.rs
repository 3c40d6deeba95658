//! What a sandbox is, seen from the host and from inside.

use std::collections::BTreeSet;

use crate::rig::{expect, make, spawner, spec};
use crate::{Case, Outcome};

pub(crate) const CASES: &[Case] = &[("first_light", first_light)];

fn first_light() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let sandbox = make(&mut spawner, &spec(), None).map_err(|error| format!("{error:?}"))?;
    println!("{:?}", sandbox.made);
    println!("{}", sandbox.args());
    println!("{}", sandbox.fds());
    println!("{}", sandbox.seen("status"));
    println!("{}", sandbox.seen("uid_map"));
    println!("{}", sandbox.seen("mountinfo"));
    println!("{}", sandbox.sh("id; pwd; ls -la / /dev /workspace /tmp /etc /proc /sys; nproc; free; df -h; cat /proc/self/mountinfo; ps aux; python3 -c 'import os;print(os.cpu_count())'; node -e 'console.log(os.cpus().length, os.totalmem())'").1);
    let _ = BTreeSet::<u8>::new();
    expect(true, "")
}
