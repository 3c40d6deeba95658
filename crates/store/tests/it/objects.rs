//! Objects: what was put comes back to the byte, what was changed never does.

use leasehold_core::digest::Digest;
use leasehold_store::objects::{ObjectError, Objects, READ_MAX};

use crate::scratch::Scratch;

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

fn files_below(scratch: &Scratch, sub: &str) -> usize {
    let mut count = 0;
    let mut open = vec![scratch.path().join(sub)];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                false => count += 1,
            }
        }
    }
    count
}

#[tokio::test]
async fn what_was_put_comes_back_to_the_byte() {
    let scratch = Scratch::new();
    let objects = Objects::local(scratch.path()).unwrap();
    for len in [0, 1, 1 << 20, (1 << 20) + 1, 3_500_000] {
        let content = bytes(len);
        let mut upload = objects.upload(u64::MAX);
        for chunk in content.chunks(777_777) {
            upload.write(chunk).await.unwrap();
        }
        let stored = upload.finish().await.unwrap();
        assert_eq!(stored.digest, Digest::of(&content));
        assert_eq!(objects.size(&stored.digest).await.unwrap(), len as u64);
        let back = objects.read(&stored.digest, 0..READ_MAX).await.unwrap();
        assert!(back == content, "{len} bytes came back otherwise");
        let part = objects.read(&stored.digest, 5..9).await.unwrap();
        assert_eq!(part, content.get(5..9).unwrap_or_default());
    }
    assert_eq!(files_below(&scratch, "incoming"), 0);
    assert_eq!(files_below(&scratch, "sha256"), 5);
}

#[tokio::test]
async fn what_was_changed_is_put_aside_and_never_given() {
    let scratch = Scratch::new();
    let objects = Objects::local(scratch.path()).unwrap();
    let stored = objects.put(b"as it was").await.unwrap();
    // Compared and remembered: a change afterwards must show all the same.
    objects.read(&stored.digest, 0..4).await.unwrap();
    let hex = stored.digest.hex();
    let path = scratch.path().join("sha256").join(&hex[..2]).join(&hex);
    for changed in [&b"as it waS"[..], b"as it was and more"] {
        objects.put(b"as it was").await.unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&path, changed).unwrap();
        let read = objects.read(&stored.digest, 0..4).await;
        assert!(matches!(read, Err(ObjectError::Damaged(_))), "{read:?}");
        let again = objects.read(&stored.digest, 0..4).await;
        assert!(matches!(again, Err(ObjectError::NotFound(_))), "{again:?}");
        let aside = scratch.path().join("quarantine").join(&hex);
        assert_eq!(std::fs::read(aside).unwrap(), changed);
    }
    objects.put(b"as it was").await.unwrap();
    assert_eq!(objects.read(&stored.digest, 0..5).await.unwrap(), b"as it");
}

#[tokio::test]
async fn bounds_hold_and_nothing_half_written_stays() {
    let scratch = Scratch::new();
    let objects = Objects::local(scratch.path()).unwrap();
    let mut upload = objects.upload(3 << 20);
    upload.write(&bytes(2 << 20)).await.unwrap();
    let more = upload.write(&bytes((1 << 20) + 1)).await;
    assert!(matches!(more, Err(ObjectError::TooLarge { max }) if max == 3 << 20));
    drop(upload);
    let long = objects.read(&Digest::of(b"x"), 0..READ_MAX + 1).await;
    assert!(matches!(long, Err(ObjectError::LongRead { .. })));
    assert_eq!(files_below(&scratch, "sha256"), 0);
    // What a killed process left is gone at the next start.
    std::fs::create_dir_all(scratch.path().join("incoming")).unwrap();
    std::fs::write(scratch.path().join("incoming/7#1"), "half").unwrap();
    // A small one is staged beside its place, and the whole ones there stay.
    let whole = objects.put(b"whole").await.unwrap();
    let hex = Digest::of(b"half").hex();
    let shard = scratch.path().join("sha256").join(&hex[..2]);
    std::fs::create_dir_all(&shard).unwrap();
    std::fs::write(shard.join(format!("{hex}#1")), "ha").unwrap();
    assert_eq!(files_below(&scratch, "sha256"), 2);
    let next = Objects::local(scratch.path()).unwrap();
    assert_eq!(files_below(&scratch, "incoming"), 0);
    assert_eq!(files_below(&scratch, "sha256"), 1);
    assert_eq!(next.size(&whole.digest).await.unwrap(), 5);
}

#[tokio::test]
async fn a_collector_sees_all_and_removes_one() {
    let scratch = Scratch::new();
    let objects = Objects::local(scratch.path()).unwrap();
    let mut put = Vec::new();
    for number in 0..40_u32 {
        put.push(objects.put(&number.to_le_bytes()).await.unwrap());
    }
    let mut seen = Vec::new();
    for first in 0..=255 {
        let listed = objects.list(first).await.unwrap();
        assert!(
            listed
                .iter()
                .all(|one| one.stored.digest.bytes()[0] == first)
        );
        assert!(listed.iter().all(|one| one.age.as_secs() < 3_600));
        seen.extend(listed.into_iter().map(|one| one.stored));
    }
    put.sort_by_key(|stored| stored.digest);
    seen.sort_by_key(|stored| stored.digest);
    assert_eq!(seen, put);
    let hour = std::time::Duration::from_secs(3_600);
    assert!(!objects.delete(&put[0].digest, hour).await.unwrap());
    assert_eq!(objects.size(&put[0].digest).await.unwrap(), 4);
    for _ in 0..2 {
        let gone = objects
            .delete(&put[0].digest, std::time::Duration::ZERO)
            .await;
        assert!(gone.unwrap());
    }
    let gone = objects.size(&put[0].digest).await;
    assert!(matches!(gone, Err(ObjectError::NotFound(_))));
}
