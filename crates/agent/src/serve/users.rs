//! Users and groups, read from `/etc/passwd` and `/etc/group` by ourselves.
//!
//! The agent is static and has no name service. The files are the image's, hence hostile: they are
//! read bounded, without following a FIFO or device, and odd lines are skipped. Where the image has
//! no `root` or `user`, they exist all the same: the sandbox itself runs as uid 1000.

use std::collections::BTreeMap;
use std::path::Path;

use leasehold_jail::exec::{Actor, Ids};
use leasehold_protocol::envd::code::{CallError, Code};

use super::bounds;
use super::procfs;

/// A user of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    /// Name.
    pub(super) name: String,
    /// User id inside.
    pub(super) uid: u32,
    /// Group id inside.
    pub(super) gid: u32,
    /// Home directory, absolute.
    pub(super) home: String,
}

impl User {
    /// As whom file work for this user is done.
    pub(super) fn actor(&self) -> Actor {
        if self.uid == 0 {
            Actor::Root
        } else {
            Actor::User(self.ids())
        }
    }

    /// Its ids.
    pub(super) fn ids(&self) -> Ids {
        Ids {
            uid: self.uid,
            gid: self.gid,
        }
    }
}

/// Name of the user that acts where nobody is named.
pub(super) const DEFAULT: &str = "user";

const BUILT_IN: &str = "root:x:0:0::/root:\nuser:x:1000:1000::/home/user:\n";
const BUILT_IN_GROUPS: &str = "root:x:0:\nuser:x:1000:\n";

fn parse_line(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let (name, _password) = (fields.next()?, fields.next()?);
    let (uid, gid) = (fields.next()?, fields.next()?);
    let (_comment, home) = (fields.next()?, fields.next()?);
    let known = !name.is_empty() && !name.starts_with(['#', '+', '-']);
    (known && home.starts_with('/')).then_some(User {
        name: name.to_owned(),
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: home.to_owned(),
    })
}

fn find(accounts: &str, name: &str) -> Option<User> {
    accounts
        .lines()
        .chain(BUILT_IN.lines())
        .filter_map(parse_line)
        .find(|user| user.name == name)
}

/// Looks a user up.
///
/// # Errors
/// `unauthenticated` when there is none of this name.
pub(super) fn look_up(name: &str) -> Result<User, CallError> {
    let accounts = procfs::small_file(Path::new("/etc/passwd"), bounds::ACCOUNTS_BYTES);
    find(&accounts.unwrap_or_default(), name)
        .ok_or_else(|| CallError::new(Code::Unauthenticated, format!("invalid username: {name:?}")))
}

/// Names of users and groups by number.
#[derive(Debug, Default)]
pub(super) struct Names {
    users: BTreeMap<u32, String>,
    groups: BTreeMap<u32, String>,
}

impl Names {
    /// Reads both files.
    pub(super) fn load() -> Self {
        let read = |path| procfs::small_file(Path::new(path), bounds::ACCOUNTS_BYTES);
        Self::parse(
            &read("/etc/passwd").unwrap_or_default(),
            &read("/etc/group").unwrap_or_default(),
        )
    }

    fn parse(accounts: &str, groups: &str) -> Self {
        let mut names = Self::default();
        for user in accounts
            .lines()
            .chain(BUILT_IN.lines())
            .filter_map(parse_line)
        {
            names.users.entry(user.uid).or_insert(user.name);
        }
        for line in groups.lines().chain(BUILT_IN_GROUPS.lines()) {
            let mut fields = line.split(':');
            if let (Some(name), Some(_), Some(Ok(gid))) = (
                fields.next(),
                fields.next(),
                fields.next().map(str::parse::<u32>),
            ) {
                names.groups.entry(gid).or_insert_with(|| name.to_owned());
            }
        }
        names
    }

    /// Name of a user, or its number.
    pub(super) fn user(&self, uid: u32) -> String {
        self.users
            .get(&uid)
            .cloned()
            .unwrap_or_else(|| uid.to_string())
    }

    /// Name of a group, or its number.
    pub(super) fn group(&self, gid: u32) -> String {
        self.groups
            .get(&gid)
            .cloned()
            .unwrap_or_else(|| gid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/bash\n#user:x:1:1::/x:\nuser:x:1001:1002::/home/u:/bin/sh\nbad:x:y:0::/:\nrelative:x:5:5::home:\n";

    #[test]
    fn users_are_found_in_the_file_first_and_built_in_else() {
        let user = find(ACCOUNTS, "user").unwrap();
        assert_eq!(
            (user.uid, user.gid, user.home.as_str()),
            (1001, 1002, "/home/u")
        );
        let user = find("", "user").unwrap();
        assert_eq!((user.uid, user.home.as_str()), (1000, "/home/user"));
        for name in ["", "#user", "bad", "relative", "nobody-here", "0"] {
            assert!(find(ACCOUNTS, name).is_none(), "{name}");
        }
    }

    #[test]
    fn numbers_have_names_where_the_files_know_them() {
        let names = Names::parse(ACCOUNTS, "staff:x:50:a,b\nbroken\n");
        assert_eq!(names.user(1001), "user");
        assert_eq!(names.user(77), "77");
        assert_eq!(names.group(50), "staff");
        assert_eq!(names.group(1000), "user");
    }
}
