//! Finding and becoming a program, as `execvpe` does, within the declared environment.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use leasehold_jail::sys;

/// `PATH` where the environment declares none.
pub const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Files to try for a program, in order. A name with a slash is itself; an empty name is nothing.
fn candidates(name: &[u8], env: &[Vec<u8>]) -> Vec<Vec<u8>> {
    if name.is_empty() {
        return Vec::new();
    }
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let declared = env.iter().find_map(|entry| entry.strip_prefix(b"PATH="));
    declared
        .unwrap_or(DEFAULT_PATH)
        .split(|byte| *byte == b':')
        .map(|directory| {
            let directory = if directory.is_empty() {
                b"."
            } else {
                directory
            };
            [directory, b"/", name].concat()
        })
        .collect()
}

/// Strings as C takes them; `None` when one holds a NUL byte.
fn c_strings(strings: &[Vec<u8>]) -> Option<Vec<CString>> {
    strings
        .iter()
        .map(|string| CString::new(string.as_slice()).ok())
        .collect()
}

/// Becomes the program. Comes back only with the error number: `EACCES` when a file of that name was
/// found that may not be executed, `ENOENT` when none was found.
#[must_use]
pub fn become_program(argv: &[Vec<u8>], env: &[Vec<u8>]) -> i32 {
    let Some(name) = argv.first() else {
        return libc_errno::EINVAL;
    };
    let (Some(args), Some(vars)) = (c_strings(argv), c_strings(env)) else {
        return libc_errno::EINVAL;
    };
    let mut worst = libc_errno::ENOENT;
    for candidate in candidates(name, env) {
        let Ok(path) = CString::new(candidate) else {
            return libc_errno::EINVAL;
        };
        match sys::exec(&path, &args, &vars).raw_os_error() {
            Some(libc_errno::ENOENT | libc_errno::ENOTDIR) => {}
            Some(libc_errno::EACCES) => worst = libc_errno::EACCES,
            other => return other.unwrap_or(libc_errno::EINVAL),
        }
    }
    worst
}

/// Becomes the program in a file. Comes back only with the error number. A script cannot be one: the kernel
/// would have to open it by name.
#[must_use]
pub fn become_file(file: &OwnedFd, argv: &[Vec<u8>], env: &[Vec<u8>]) -> i32 {
    let (Some(args), Some(vars)) = (c_strings(argv), c_strings(env)) else {
        return libc_errno::EINVAL;
    };
    let error = sys::exec_fd(file.as_fd(), &args, &vars);
    error.raw_os_error().unwrap_or(libc_errno::EINVAL)
}

/// The few error numbers told apart here.
mod libc_errno {
    use rustix::io::Errno;

    pub(super) const ENOENT: i32 = Errno::NOENT.raw_os_error();
    pub(super) const ENOTDIR: i32 = Errno::NOTDIR.raw_os_error();
    pub(super) const EACCES: i32 = Errno::ACCESS.raw_os_error();
    pub(super) const EINVAL: i32 = Errno::INVAL.raw_os_error();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, env: &[&str]) -> Vec<String> {
        let env: Vec<Vec<u8>> = env.iter().map(|entry| entry.as_bytes().to_vec()).collect();
        candidates(name.as_bytes(), &env)
            .into_iter()
            .map(|path| String::from_utf8(path).unwrap())
            .collect()
    }

    #[test]
    fn the_declared_path_is_searched() {
        assert_eq!(names("ls", &["PATH=/a:/b", "PATH=/c"]), ["/a/ls", "/b/ls"]);
        assert_eq!(names("ls", &["XPATH=/a", "PATH=:/b"]), ["./ls", "/b/ls"]);
        assert_eq!(names("./ls", &["PATH=/a"]), ["./ls"]);
        assert!(names("", &["PATH=/a"]).is_empty());
        assert_eq!(names("ls", &["A=1"]).first().unwrap(), "/usr/local/sbin/ls");
        assert_eq!(names("ls", &[]).len(), 6);
    }

    #[test]
    fn missing_and_forbidden_are_told_apart() {
        let env = [b"PATH=/nowhere:/etc:/usr".to_vec()];
        let errno = |name: &str| become_program(&[name.as_bytes().to_vec()], &env);
        assert_eq!(errno("no-such-program"), libc_errno::ENOENT);
        assert_eq!(errno("passwd"), libc_errno::EACCES);
        assert_eq!(errno("/usr"), libc_errno::EACCES);
        assert_eq!(errno("/etc/passwd/x"), libc_errno::ENOENT);
        assert_eq!(errno("a\0b"), libc_errno::EINVAL);
        assert_eq!(become_program(&[], &env), libc_errno::EINVAL);
    }
}
