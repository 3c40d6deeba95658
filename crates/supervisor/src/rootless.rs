//! Which ids an ordinary user may map: a range of `/etc/subuid` and `/etc/subgid`, or only the own.

use std::fs;
use std::path::Path;

use leasehold_jail::spawn::{RootlessIds, WORKLOAD_ID};

/// Ids one sandbox is given of a range at most.
const MOST: u32 = 65_536;

/// What this user may map. A range counts only where both files name one and the two set-uid
/// programs that map it are there.
pub(crate) fn find() -> RootlessIds {
    let uid = rustix::process::geteuid().as_raw();
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let name = user_name(&read("/etc/passwd"), uid);
    let tools = ["newuidmap", "newgidmap"].into_iter().all(|tool| {
        ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
            .into_iter()
            .any(|place| Path::new(place).join(tool).exists())
    });
    let uids = range(&read("/etc/subuid"), name.as_deref(), uid);
    let gids = range(&read("/etc/subgid"), name.as_deref(), uid);
    match (uids, gids) {
        (Some((uid_first, uids)), Some((gid_first, gids))) if tools => RootlessIds::Range {
            uid_first,
            gid_first,
            count: uids.min(gids).min(MOST),
        },
        _ => RootlessIds::Single,
    }
}

fn user_name(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The first range of a user, by name or by number, that is long enough for a workload.
fn range(text: &str, name: Option<&str>, uid: u32) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = Some(owner) == name || owner.parse() == Ok(uid);
        let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
        let usable = first > 0 && count > WORKLOAD_ID + 1 && first.checked_add(count).is_some();
        (ours && usable).then_some((first, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_by_name_or_number_and_short_ones_passed_over() {
        let text = "root:5:70000\nann:100000:500\n1000:200000:65536\nann:300000:65536\n";
        assert_eq!(range(text, Some("ann"), 1000), Some((200_000, 65_536)));
        assert_eq!(range(text, Some("ann"), 7), Some((300_000, 65_536)));
        assert_eq!(range(text, None, 8), None);
        assert_eq!(
            range("x:0:65536\nx:4294967295:65536\nx:a:b\n", Some("x"), 1),
            None
        );
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(user_name(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(user_name(passwd, 3), None);
    }
}
