//! Messages of `filesystem.Filesystem`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::process::Empty;

/// Request of `Stat`, `MakeDir`, `Remove`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PathRequest {
    /// Absolute, `~`, or relative to the user's home.
    pub path: String,
}

/// Request of `Move`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MoveRequest {
    /// From.
    pub source: String,
    /// To.
    pub destination: String,
}

/// Request of `ListDir`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirRequest {
    /// Which directory.
    pub path: String,
    /// How deep; 0 means 1.
    pub depth: u32,
}

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FileType {
    /// Something else: device, socket, FIFO, or a link to nowhere.
    #[default]
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    /// Regular file.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// Directory.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// Symbolic link. Never sent: a link reports its target's type and [`EntryInfo::is_symlink`].
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// What is known of one file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryInfo {
    /// Last part of the path.
    pub name: String,
    /// Its kind; for a link the kind of what it leads to.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Absolute path.
    pub path: String,
    /// Bytes.
    #[serde(with = "long")]
    pub size: i64,
    /// Permission bits; for a link those of what it leads to.
    pub mode: u32,
    /// Kind and permissions as `ls` writes them.
    pub permissions: String,
    /// Name of the owner, or its number.
    pub owner: String,
    /// Name of the group, or its number.
    pub group: String,
    /// Last modification, RFC 3339.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub modified_time: String,
    /// Where a link leads to, fully resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// What uploads attached to it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Whether it is a symbolic link.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_symlink: bool,
}

/// 64-bit integers travel as text and are read from text or number.
mod long {
    use super::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &i64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            Number(i64),
        }
        match Either::deserialize(from)? {
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
            Either::Number(number) => Ok(number),
        }
    }
}

/// Answer of `Stat`, `MakeDir`, `Move`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryResponse {
    /// The entry.
    pub entry: EntryInfo,
}

/// Answer of `ListDir`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirResponse {
    /// Depth first, in the order of names.
    pub entries: Vec<EntryInfo>,
}

/// Request of `WatchDir` and `CreateWatcher`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatchRequest {
    /// Which directory.
    pub path: String,
    /// With everything below it, also what is made later.
    pub recursive: bool,
    /// Whether events carry the entry, where it is still there.
    pub include_entry: bool,
    /// Whether a network mount may be watched although its events are unreliable.
    pub allow_network_mounts: bool,
}

/// What happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum EventType {
    /// Nothing known.
    #[default]
    #[serde(rename = "EVENT_TYPE_UNSPECIFIED")]
    Unspecified,
    /// It was made or moved here.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// It was written.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// It was removed.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// It was moved away.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// Its permissions, owner or times changed.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

/// One change below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesystemEvent {
    /// Path relative to the watched directory.
    pub name: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// The entry, where asked for and still there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// One message of the stream of `WatchDir`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchEvent {
    /// The watch is in place. Always the first message.
    Start(Empty),
    /// Something changed.
    Filesystem(Box<FilesystemEvent>),
    /// Nothing changed for the interval the caller named.
    Keepalive(Empty),
}

/// Answer of `CreateWatcher`; request of `GetWatcherEvents` and `RemoveWatcher`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatcherId {
    /// Name of the watcher.
    pub watcher_id: String,
}

/// Answer of `GetWatcherEvents`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WatcherEvents {
    /// What happened since the last call.
    pub events: Vec<FilesystemEvent>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_shape_of_the_wire() {
        let entry = EntryInfo {
            name: "a".into(),
            kind: FileType::File,
            path: "/a".into(),
            size: 1 << 40,
            mode: 0o644,
            permissions: "-rw-r--r--".into(),
            owner: "user".into(),
            group: "user".into(),
            modified_time: "2026-01-01T00:00:00Z".into(),
            ..EntryInfo::default()
        };
        let text = serde_json::to_string(&entry).unwrap();
        assert_eq!(
            text,
            r#"{"name":"a","type":"FILE_TYPE_FILE","path":"/a","size":"1099511627776","mode":420,"permissions":"-rw-r--r--","owner":"user","group":"user","modifiedTime":"2026-01-01T00:00:00Z"}"#
        );
        assert_eq!(serde_json::from_str::<EntryInfo>(&text).unwrap(), entry);
    }

    #[test]
    fn watch_events_have_the_shape_of_the_wire() {
        let event = WatchEvent::Filesystem(Box::new(FilesystemEvent {
            name: "d/f".into(),
            kind: EventType::Chmod,
            entry: None,
        }));
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(
            text,
            r#"{"filesystem":{"name":"d/f","type":"EVENT_TYPE_CHMOD"}}"#
        );
        let start = serde_json::to_string(&WatchEvent::Start(Empty {})).unwrap();
        assert_eq!(start, r#"{"start":{}}"#);
    }
}
