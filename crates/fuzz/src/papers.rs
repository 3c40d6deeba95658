//! What a publisher or caller sends: manifests and archives.

use leasehold_control::archive::{self, Entry, Tree};
use leasehold_control::manifest::Manifest;

/// Manifests of tools, as the examples have them.
const MANIFESTS: [&str; 4] = [
    include_str!("../../../examples/tools/wordcount/tool.yaml"),
    include_str!("../../../examples/tools/linecheck/tool.yaml"),
    include_str!("../../../examples/tools/checksum/tool.yaml"),
    include_str!("../../../examples/tools/slug/tool.yaml"),
];

/// Reads a manifest; what is kept of it is read back to the same.
pub(crate) fn manifest(data: &[u8]) {
    let Ok(read) = Manifest::parse(data) else {
        return;
    };
    let kept = read.canonical().unwrap();
    let again = Manifest::parse(&kept).unwrap_or_else(|wrong| panic!("{wrong:?}"));
    assert_eq!(again.canonical().unwrap(), kept);
    drop(read.warnings());
}

pub(crate) fn manifest_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = MANIFESTS.map(|text| text.as_bytes().to_vec()).to_vec();
    let kept = seeds
        .clone()
        .into_iter()
        .filter_map(|text| Manifest::parse(&text).ok());
    let kept: Vec<_> = kept.map(|read| read.canonical().unwrap()).collect();
    seeds.extend(kept);
    seeds
}

/// Reads an archive; the tree in it is the same when it is packed and read again, and no name leads out of it.
pub(crate) fn archive(data: &[u8]) {
    let Ok(tree) = archive::unpack(data) else {
        return;
    };
    for name in tree.keys() {
        let inside =
            !name.starts_with('/') && !name.split('/').any(|part| matches!(part, "" | "." | ".."));
        assert!(inside, "{name:?}");
    }
    let packed = archive::pack(&tree).unwrap();
    assert_eq!(archive::unpack(&packed).unwrap(), tree);
}

pub(crate) fn archive_seeds() -> Vec<Vec<u8>> {
    let file = |content: &[u8], executable| Entry::File {
        executable,
        content: content.to_vec(),
    };
    let deep = format!("{0}/{0}/{1}", "d".repeat(60), "f".repeat(90));
    let tree = Tree::from([
        ("a".to_owned(), Entry::Folder),
        ("a/file".to_owned(), file(b"content", false)),
        (".tool/main.py".to_owned(), file(&[7; 600], true)),
        (deep, file(b"", false)),
    ]);
    vec![
        archive::pack(&Tree::new()).unwrap(),
        archive::pack(&tree).unwrap(),
    ]
}
