//! Several orders open with one spawner, which carries out some of them at the same time.

use std::os::fd::AsFd;
use std::time::Duration;

use leasehold_jail::spawn::{MakeFds, MakeStep, ORDERS_MAX, SpawnError};

use crate::rig::{Sandbox, expect, pair, spawner, spec};
use crate::{Case, Outcome};

pub(crate) const CASES: &[Case] = &[(
    "orders_at_the_same_time_are_answered_in_their_order",
    in_their_order,
)];

/// The order that cannot be carried out.
const LATE: usize = 3;

/// Every answer is that of its own order, the failure of one among them.
fn in_their_order() -> Outcome {
    let mut spawner = spawner(None).map_err(|error| format!("{error:?}"))?;
    let mut sockets = Vec::new();
    for number in 0..ORDERS_MAX {
        let mut order = spec();
        order.memory_bytes = (64 + number as u64) << 20;
        if number == LATE {
            order.deadline = Duration::from_millis(1);
        }
        let ((ours, init), (_stub_ours, stub)) = (pair(), pair());
        let fds = MakeFds {
            init: init.as_fd(),
            stub: stub.as_fd(),
            workspace: None,
            disk: None,
            layers: None,
            cgroup: None,
            cgroup_procs: &[],
        };
        spawner
            .order(&order, fds)
            .map_err(|error| format!("{number}: {error:?}"))?;
        sockets.push(ours);
    }
    for (number, socket) in sockets.into_iter().enumerate() {
        let answer = spawner.take(Duration::from_secs(30));
        if number == LATE {
            let step = answer.as_ref().err().and_then(SpawnError::step);
            expect(step == Some(MakeStep::Deadline), format!("{answer:?}"))?;
            continue;
        }
        let made = answer.map_err(|error| format!("{number}: {error:?}"))?;
        let sandbox = Sandbox::new(made, socket);
        let shown = sandbox.out("grep MemTotal: /proc/meminfo | tr -dc 0-9")?;
        let wanted = ((64 + number as u64) << 10).to_string();
        expect(shown == wanted, format!("{number}: {shown} KiB"))?;
        let inside = sandbox.out("readlink /proc/self/ns/pid")?;
        let told = format!("pid:[{}]", sandbox.made.namespaces.pid);
        expect(inside == told, format!("{number}: {inside}, not {told}"))?;
    }
    Ok(())
}
