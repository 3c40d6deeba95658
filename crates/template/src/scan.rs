//! Nothing of the machine that built a template may be in it.

use std::path::Path;

use memchr::memmem;

use crate::BuildError;

/// Overwrites every mention of the folder of the build, with as many bytes that say nothing: an engine keeps
/// the arguments it was started with.
pub(crate) fn neutralize(bytes: &mut [u8], folder: &Path) {
    let needle = bare(&folder.to_string_lossy()).to_owned();
    for needle in [needle.clone().into_bytes(), wide(&needle)] {
        let unit = if needle.get(1) == Some(&0) { 2 } else { 1 };
        let found: Vec<usize> = memmem::find_iter(bytes, &needle).collect();
        for at in found {
            for byte in bytes[at..at + needle.len()].iter_mut().step_by(unit) {
                *byte = b'/';
            }
        }
    }
}

/// Refuses a component in which one of `texts` is, in either of the encodings that interpreters use.
pub(crate) fn check(bytes: &[u8], texts: &[String]) -> Result<(), BuildError> {
    for text in texts {
        let bare = bare(text);
        for needle in [bare.as_bytes().to_vec(), wide(bare)] {
            if memmem::find(bytes, &needle).is_some() {
                return Err(BuildError::Leak(text.clone()));
            }
        }
    }
    Ok(())
}

/// A path without the slash at its start: as WASI tells a directory's name.
fn bare(path: &str) -> &str {
    path.trim_start_matches('/')
}

/// A text as UTF-16, low byte first.
fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_machine_is_found_in_both_encodings() {
        let secret = vec!["/build/here".to_owned()];
        let plain = b"..xbuild/here/f..".to_vec();
        let wide: Vec<u8> = [&b"..."[..], &wide("/build/here"), b".."].concat();
        assert!(check(b"../build/elsewhere..", &secret).is_ok());
        for bytes in [plain, wide] {
            assert!(matches!(check(&bytes, &secret), Err(BuildError::Leak(_))));
        }
    }

    #[test]
    fn the_folder_of_the_build_is_taken_out_and_nothing_moves() {
        let folder = Path::new("/build/here");
        let mut bytes = [
            b"a/build/here/f /build/here.".to_vec(),
            wide("/build/here|"),
        ]
        .concat();
        let length = bytes.len();
        neutralize(&mut bytes, folder);
        assert_eq!(bytes.len(), length);
        assert!(bytes.starts_with(b"a////////////f ///////////."));
        assert!(check(&bytes, &["/build/here".to_owned()]).is_ok());
        assert!(memmem::find(&bytes, &wide("///////////|")).is_some());
    }
}
