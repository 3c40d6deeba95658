//! Which files are taken for programs.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::*;
use crate::wasm::testing::Folder;

/// A directory with both programs, which nobody else can write to.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    for program in [HOST_NAME, COMPILER_NAME] {
        folder.write(program, program.as_bytes());
        mode(&folder.path().join(program), 0o755);
    }
    mode(folder.path(), 0o755);
    folder
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn find(folder: &Folder) -> Result<Programs, ProgramsError> {
    Programs::find(&[folder.path().to_owned()])
}

#[test]
fn a_named_directory_is_the_only_one() {
    let binary = Path::new("/opt/leasehold/bin/leasehold");
    let beside = places(binary, None);
    assert_eq!(
        beside,
        [
            PathBuf::from("/opt/leasehold/bin/wasm"),
            PathBuf::from("/opt/leasehold/bin/../lib/leasehold")
        ]
    );
    assert_eq!(places(binary, Some("".into())), beside);
    assert_eq!(places(binary, Some("/x".into())), [PathBuf::from("/x")]);
}

#[test]
fn the_first_directory_that_has_both_is_taken() {
    let (half, whole) = (folder("half"), folder("whole"));
    fs::remove_file(half.path().join(COMPILER_NAME)).unwrap();
    let nowhere = half.path().join("nowhere");
    let looked = [nowhere, half.path().to_owned(), whole.path().to_owned()];
    let found = Programs::find(&looked).unwrap();
    assert_eq!(found.folder(), whole.path());
    assert_eq!(
        found.host_digest().unwrap(),
        Digest::of(HOST_NAME.as_bytes())
    );
    let error = Programs::find(&looked[..2]).unwrap_err();
    assert!(matches!(error, ProgramsError::Missing { .. }), "{error}");
    assert!(error.to_string().contains("nowhere"), "{error}");
    assert!(error.hint().contains("cargo xtask wasm"));
    let public = error.public();
    assert_eq!(public.kind, ErrorKind::Unsupported);
    assert!(!public.message.contains('/'), "{public}");
}

#[test]
fn what_somebody_else_could_have_written_is_refused() {
    type Harm = fn(&Path);
    let cases: [(&str, Harm); 5] = [
        ("group", |folder| mode(&folder.join(HOST_NAME), 0o775)),
        ("all", |folder| mode(&folder.join(COMPILER_NAME), 0o757)),
        ("folder", |folder| mode(folder, 0o777)),
        ("link", |folder| {
            let host = folder.join(HOST_NAME);
            fs::rename(&host, folder.join("elsewhere")).unwrap();
            symlink("elsewhere", host).unwrap();
        }),
        ("pipe", |folder| {
            let host = folder.join(HOST_NAME);
            fs::remove_file(&host).unwrap();
            rustix::fs::mkfifoat(CWD, &host, Mode::RWXU).unwrap();
        }),
    ];
    for (name, harm) in cases {
        let folder = folder(name);
        assert!(find(&folder).is_ok(), "{name}: refused before any harm");
        harm(folder.path());
        let error = find(&folder).map(drop).unwrap_err();
        assert!(
            matches!(error, ProgramsError::Refused { .. }),
            "{name}: {error}"
        );
    }
}

#[test]
fn another_users_file_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for strange in [HOST_NAME, ""] {
        let folder = folder("strange");
        chown(folder.path().join(strange), Some(4_711), None).unwrap();
        let error = find(&folder).map(drop).unwrap_err();
        assert!(error.to_string().contains("another user"), "{error}");
    }
}

#[test]
fn what_runs_is_what_was_found() {
    let folder = folder("swapped");
    let programs = find(&folder).unwrap();
    folder.write("other", b"something else");
    fs::rename(folder.path().join("other"), folder.path().join(HOST_NAME)).unwrap();
    let sealed = programs.host.sealed().unwrap();
    assert_eq!(sealed.digest, Digest::of(HOST_NAME.as_bytes()));
    // Written over in place: the copy that was made stays as it is.
    fs::write(folder.path().join(COMPILER_NAME), b"over").unwrap();
    assert_eq!(programs.compiler.digest().unwrap(), Digest::of(b"over"));
    let kept = Arc::as_ptr(&programs.host.sealed().unwrap());
    assert!(std::ptr::eq(kept, Arc::as_ptr(&sealed)));
}
