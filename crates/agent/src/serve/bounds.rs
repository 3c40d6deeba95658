//! Every bound of the agent mode, in one place (invariant I10). Whoever reaches one is told its
//! name and value.

use std::time::Duration;

/// Bytes of one request's head.
pub(super) const HEAD_BYTES: usize = 64 << 10;
/// Header lines of one request.
pub(super) const HEADERS: usize = 64;
/// Open connections at one time.
pub(super) const CONNECTIONS: usize = 512;
/// Time in which a request's head must arrive; an idle connection is closed after it too.
pub(super) const HEAD_TIME: Duration = Duration::from_secs(120);
/// Bytes of a client's unary request.
pub(super) const UNARY_BYTES: usize = 4 << 20;
/// Bytes of the host's unary request, injected files included.
pub(super) const HOST_UNARY_BYTES: usize = 16 << 20;
/// Time in which the body of a call must arrive.
pub(super) const BODY_TIME: Duration = Duration::from_secs(30);
/// Longest silence within an upload or an input stream before it is given up.
pub(super) const SILENCE: Duration = Duration::from_secs(120);

/// Processes started by the agent at one time.
pub(super) const PROCESSES: usize = 256;
/// Bytes of arguments and environments of all of them together, which `List` tells.
pub(super) const PROCESS_WORDS: usize = 16 << 20;
/// Readers of one process's output at one time.
pub(super) const SUBSCRIBERS: usize = 16;
/// Frames waiting for one reader; after that the process waits.
pub(super) const QUEUED_FRAMES: usize = 4;
/// Bytes read from a process at once, hence of one output event before its base64.
pub(super) const OUTPUT_PIECE: usize = 32 << 10;
/// Quiet time after the end of a process after which its still open output is not waited for.
pub(super) const QUIET_AFTER_EXIT: Duration = Duration::from_millis(500);
/// Bytes taken from the output after the end of a process, at most.
pub(super) const BYTES_AFTER_EXIT: usize = 4 << 20;
/// Outputs that are read and dropped because something still holds them after the end.
pub(super) const DRAINED: usize = 64;
/// How long the end of a process is remembered for a late `Connect`.
pub(super) const ENDED_TIME: Duration = Duration::from_secs(30);
/// How many ends are remembered.
pub(super) const ENDED: usize = 256;
/// Time in which a child must have become its program.
pub(super) const START_TIME: Duration = Duration::from_secs(30);
/// How long a caller waits for a killed process to vanish.
pub(super) const KILL_TIME: Duration = Duration::from_secs(2);
/// Bytes of a tag.
pub(super) const TAG_BYTES: usize = 256;
/// Columns and lines of a terminal.
pub(super) const TERMINAL_SIDE: u32 = 10_000;
/// Least and most seconds between keepalives.
pub(super) const KEEPALIVE: std::ops::RangeInclusive<u64> = 1..=3_600;
/// Seconds between keepalives when the caller names none.
pub(super) const KEEPALIVE_DEFAULT: u64 = 90;

/// Short file operations at one time; each is a process.
pub(super) const OPERATIONS: usize = 8;
/// Long file operations at one time; each is a process.
pub(super) const LONG_OPERATIONS: usize = 4;
/// Time of one file operation that is not known to be long.
pub(super) const OPERATION_TIME: Duration = Duration::from_secs(60);
/// Time of a removal or composition.
pub(super) const LONG_OPERATION_TIME: Duration = Duration::from_secs(600);
/// Bytes of an operation's answer.
pub(super) const ANSWER_BYTES: usize = 6 << 20;
/// Bytes of a path.
pub(super) const PATH_BYTES: usize = 4_096;
/// Entries of one listing.
pub(super) const LISTED: usize = 10_000;
/// Depth of a listing.
pub(super) const LIST_DEPTH: u32 = 64;
/// Nesting of a tree that is removed.
pub(super) const REMOVE_DEPTH: usize = 16_384;
/// Bytes read from a file that says it has none (as those of `/proc` do).
pub(super) const SIZELESS_BYTES: usize = 4 << 20;
/// Bytes of a download read at once.
pub(super) const DOWNLOAD_PIECE: usize = 64 << 10;
/// Files in one upload.
pub(super) const UPLOADS: usize = 1_024;
/// Bytes of the head of one part of a multipart body.
pub(super) const PART_HEAD_BYTES: usize = 16 << 10;
/// Files in one composition.
pub(super) const COMPOSED: usize = 1_024;
/// Bytes of a metadata key.
pub(super) const METADATA_KEY: usize = 246;
/// Bytes of all metadata of a file, stored names included.
pub(super) const METADATA_BYTES: usize = 4_096;
/// Bytes read of `/etc/passwd` and `/etc/group`.
pub(super) const ACCOUNTS_BYTES: usize = 256 << 10;

/// Watchers at one time; each is a process.
pub(super) const WATCHERS: usize = 32;
/// Directories one watcher watches.
pub(super) const WATCHED: usize = 8_192;
/// Events kept for a watcher that is asked now and then.
pub(super) const KEPT_EVENTS: usize = 8_192;
/// Bytes of them.
pub(super) const KEPT_BYTES: usize = 2 << 20;
/// Time in which a watcher answers.
pub(super) const WATCHER_TIME: Duration = Duration::from_secs(10);
