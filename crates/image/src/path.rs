//! Names in archives: what they mean below one root.

use crate::limits::Limits;

/// The components of a name below the root. A leading `/` and `.` go; nothing leads upwards.
///
/// # Errors
/// With what is wrong with the name. The root itself has no components.
pub fn components(name: &[u8], depth: usize) -> Result<Vec<&[u8]>, String> {
    if name.is_empty() {
        return Err("it has no name".to_owned());
    }
    if name.len() > Limits::PATH_BYTES {
        return Err(format!(
            "its name is beyond the limit `path` of {} bytes",
            Limits::PATH_BYTES
        ));
    }
    if name.contains(&0) {
        return Err("its name has a NUL in it".to_owned());
    }
    let mut parts = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("its name leads upwards".to_owned()),
            _ if part.len() > Limits::COMPONENT_BYTES => {
                return Err(format!(
                    "a part of its name is beyond the limit `name` of {} bytes",
                    Limits::COMPONENT_BYTES
                ));
            }
            _ => parts.push(part),
        }
        if parts.len() > depth {
            return Err(format!("its name is beyond the limit `depth` of {depth}"));
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_root() {
        let parts = |name: &str| {
            components(name.as_bytes(), 4).map(|parts| {
                let parts = parts.into_iter().map(String::from_utf8_lossy);
                parts.collect::<Vec<_>>().join("|")
            })
        };
        assert_eq!(parts("./a/b/").unwrap(), "a|b");
        assert_eq!(parts("/etc//passwd").unwrap(), "etc|passwd");
        assert_eq!(parts("./").unwrap(), "");
        for (name, why) in [
            ("", "no name"),
            ("../x", "upwards"),
            ("a/../../x", "upwards"),
            ("a/..", "upwards"),
            ("a\0b", "NUL"),
            ("a/b/c/d/e", "`depth`"),
        ] {
            assert!(parts(name).unwrap_err().contains(why), "{name}");
        }
        assert!(parts(&"x".repeat(256)).unwrap_err().contains("`name`"));
        assert!(parts(&"x/".repeat(3_000)).unwrap_err().contains("`path`"));
    }
}
