//! Names of environment variables that a manifest or a caller may set.

/// Most variables of one run that are named by a manifest or caller.
pub const VARIABLES_MAX: usize = 256;
/// Longest name in bytes.
pub const NAME_MAX: usize = 128;
/// Longest value in bytes.
pub const VALUE_MAX: usize = 64 << 10;

/// Starts of names that steer loaders, or are Leasehold's own.
const STARTS: [&str; 3] = ["LD_", "DYLD_", "LEASEHOLD_"];

/// Names that steer the C library on behalf of a program, so that no caller reaches a helper's.
const LIBRARY: [&str; 12] = [
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "LOCPATH",
    "MALLOC_TRACE",
    "NLSPATH",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "TZDIR",
    "NIS_PATH",
];

/// Names that say where a proxy is; only the egress rules of a run decide that.
const PROXIES: [&str; 6] = [
    "ALL_PROXY",
    "FTP_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "RSYNC_PROXY",
];

/// Checks one name.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let shown: String = name.chars().take(64).collect();
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !first || !rest || name.len() > NAME_MAX {
        return Err(format!(
            "{shown:?}: expected a name of A-Z, a-z, 0-9 and `_`, at most {NAME_MAX} long, that starts with no digit"
        ));
    }
    let upper = name.to_ascii_uppercase();
    let why = if STARTS.iter().any(|start| upper.starts_with(start)) {
        "names that start with LD_, DYLD_ or LEASEHOLD_ steer the loader or are internal"
    } else if LIBRARY.contains(&upper.as_str()) {
        "it steers the C library"
    } else if PROXIES.contains(&upper.as_str()) {
        "proxies are set by the egress rules alone"
    } else {
        return Ok(());
    };
    Err(format!("{shown:?} may not be set: {why}"))
}

/// Checks one value.
///
/// # Errors
/// What is wrong with it; the value itself is not repeated, since it may be secret.
pub fn check_value(value: &str) -> Result<(), String> {
    if value.len() > VALUE_MAX {
        return Err(format!("{} bytes: most is {VALUE_MAX}", value.len()));
    }
    if value.contains('\0') {
        return Err("has a NUL byte".to_owned());
    }
    Ok(())
}

/// Whether a name sounds like that of a secret, which belongs among the credentials.
#[must_use]
pub fn sounds_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    [
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "API_KEY",
        "PRIVATE_KEY",
    ]
    .iter()
    .any(|word| upper.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p68_names_that_steer_loader_proxy_or_ourselves_are_refused() {
        for name in [
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "ld_audit",
            "GLIBC_TUNABLES",
            "HTTP_PROXY",
            "https_proxy",
            "no_proxy",
            "LEASEHOLD_STATE_DIR",
            "leasehold_x",
            "",
            "1A",
            "A=B",
            "A B",
            "A\0",
            "Ä",
            "HOSTALIASES",
        ] {
            assert!(check_name(name).is_err(), "{name:?} was taken");
        }
        for name in ["PATH", "HOME", "LANG", "_x", "MY_PROXY_NAME", "OLD_VALUE"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        assert!(sounds_secret("github_token") && !sounds_secret("LANG"));
    }
}
