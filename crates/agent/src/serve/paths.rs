//! How a caller's path becomes an absolute one, before anything is looked at on disk.

use leasehold_protocol::envd::code::{CallError, Code};

use super::bounds;
use super::users::User;

fn invalid(message: String) -> CallError {
    CallError::new(Code::InvalidArgument, message)
}

/// Absolute path of what a caller named: absolute paths as they are, `~` and relative ones from the
/// user's home, an empty one is `default` or the home.
///
/// # Errors
/// When the path is too long, holds a NUL byte, or names somebody else's home.
pub(super) fn resolve(path: &str, user: &User, default: Option<&str>) -> Result<String, CallError> {
    let path = match (path, default) {
        ("", Some(default)) => default,
        (path, _) => path,
    };
    if path.len() > bounds::PATH_BYTES {
        let most = bounds::PATH_BYTES;
        return Err(invalid(format!(
            "path of {} bytes: most is {most}",
            path.len()
        )));
    }
    if path.contains('\0') {
        return Err(invalid("path holds a NUL byte".to_owned()));
    }
    if path.starts_with('/') {
        return Ok(path.to_owned());
    }
    let below = match path.strip_prefix('~') {
        None => path,
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest,
        Some(_) => {
            return Err(invalid(format!(
                "path {path:?} is in the home of another user"
            )));
        }
    };
    Ok(clean(&format!("{}/{below}", user.home)))
}

/// Takes out `.`, `..` and double slashes of an absolute path, by its text alone.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Last part of an absolute path; `/` for the root.
pub(super) fn name(path: &str) -> &str {
    match path.trim_end_matches('/').rsplit('/').next() {
        None | Some("") => "/",
        Some(name) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "user".into(),
            uid: 1000,
            gid: 1000,
            home: "/home/user".into(),
        }
    }

    #[test]
    fn paths_resolve_from_the_home() {
        for (path, want) in [
            ("/a/../b", "/a/../b"),
            ("", "/home/user"),
            ("~", "/home/user"),
            ("~/x/./y", "/home/user/x/y"),
            ("a//b/../c", "/home/user/a/c"),
            ("../other", "/home/other"),
            ("../../../..", "/"),
        ] {
            assert_eq!(resolve(path, &user(), None).unwrap(), want);
        }
        assert_eq!(resolve("", &user(), Some("/work")).unwrap(), "/work");
        assert_eq!(
            resolve("x", &user(), Some("/work")).unwrap(),
            "/home/user/x"
        );
    }

    #[test]
    fn hostile_paths_are_refused() {
        for path in ["~root/x", "a\0b", &"x".repeat(5_000)] {
            assert!(resolve(path, &user(), None).is_err());
        }
    }

    #[test]
    fn names_are_the_last_part() {
        for (path, want) in [("/a/b", "b"), ("/a/b/", "b"), ("/", "/"), ("//", "/")] {
            assert_eq!(name(path), want);
        }
    }
}
