//! A process of a sandbox as the host sees it, and the record it is compared with. No tests here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::descriptors_of;

/// What was seen of a process: keys with values, in which what differs from run to run is replaced.
pub(super) type Snapshot = BTreeSet<(String, String)>;

/// Everything the host tells of a process.
pub(super) fn of(pid: i32) -> Snapshot {
    let mut seen = Snapshot::new();
    let proc = format!("/proc/{pid}");
    let ids = Ids::of(pid);
    status(&proc, &ids, &mut seen);
    maps(&proc, &mut seen);
    namespaces(&proc, &mut seen);
    mounts(&proc, &mut seen);
    limits(&proc, &mut seen);
    groups(&proc, &mut seen);
    for (number, target) in descriptors_of(pid) {
        add(
            &mut seen,
            format!("fd {number}"),
            descriptor(&proc, number, &target),
        );
    }
    for link in ["root", "cwd", "exe"] {
        let target = fs::read_link(format!("{proc}/{link}"));
        let target = target.map_or_else(|_| "unreadable".to_owned(), |to| to.display().to_string());
        add(&mut seen, link.to_owned(), target);
    }
    for file in ["oom_score_adj", "personality", "setgroups", "attr/current"] {
        let text = fs::read_to_string(format!("{proc}/{file}"));
        let text = text.unwrap_or_else(|error| format!("{:?}", error.kind()));
        add(
            &mut seen,
            file.to_owned(),
            text.trim_end_matches(['\n', '\0']).to_owned(),
        );
    }
    let environment = fs::read(format!("{proc}/environ")).unwrap_or_default();
    for entry in environment
        .split(|byte| *byte == 0)
        .filter(|entry| !entry.is_empty())
    {
        let entry = String::from_utf8_lossy(entry);
        let (name, value) = entry.split_once('=').unwrap_or((&entry, ""));
        add(&mut seen, format!("env {name}"), value.to_owned());
    }
    seen
}

fn add(seen: &mut Snapshot, key: String, value: String) {
    seen.insert((key, value));
}

/// How ids outside are counted inside.
struct Ids(Vec<(u32, u32, u32)>);

impl Ids {
    fn of(pid: i32) -> Self {
        let text = fs::read_to_string(format!("/proc/{pid}/uid_map")).unwrap_or_default();
        Self(text.lines().filter_map(triple).collect())
    }

    fn inside(&self, id: &str) -> String {
        let Ok(outside) = id.parse::<u32>() else {
            return id.to_owned();
        };
        let range = self
            .0
            .iter()
            .find(|(_, from, count)| (*from..from.saturating_add(*count)).contains(&outside));
        range.map_or_else(
            || format!("unmapped {outside}"),
            |(inside, from, _)| (inside + outside - from).to_string(),
        )
    }
}

fn triple(line: &str) -> Option<(u32, u32, u32)> {
    let mut words = line.split_whitespace().map(|word| word.parse().ok());
    Some((words.next()??, words.next()??, words.next()??))
}

/// The main thread's status; other threads must have the same rights.
fn status(proc: &str, ids: &Ids, seen: &mut Snapshot) {
    let main = fs::read_to_string(format!("{proc}/status")).unwrap_or_default();
    for line in main.lines() {
        let (key, value) = line.split_once(':').unwrap_or((line, ""));
        let value = match key {
            "Uid" | "Gid" | "Groups" => value.split_whitespace().map(|id| ids.inside(id)).collect(),
            _ => value
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        };
        add(seen, format!("status {key}"), value.join(" "));
    }
    let rights = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|line| {
                ["Cap", "NoNewPrivs", "Seccomp", "Uid", "Gid"]
                    .iter()
                    .any(|head| line.starts_with(head))
            })
            .map(str::to_owned)
            .collect()
    };
    let tasks = fs::read_dir(format!("{proc}/task")).into_iter().flatten();
    for task in tasks.filter_map(Result::ok) {
        let other = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        if rights(&other) != rights(&main) {
            add(
                seen,
                "thread".to_owned(),
                format!("has other rights: {other}"),
            );
        }
    }
}

fn maps(proc: &str, seen: &mut Snapshot) {
    for file in ["uid_map", "gid_map"] {
        let text = fs::read_to_string(format!("{proc}/{file}")).unwrap_or_default();
        for (inside, outside, count) in text.lines().filter_map(triple) {
            let whom = match outside {
                0x6000_0000.. => "leased",
                1000 => "caller",
                _ => "other",
            };
            add(seen, format!("{file} {inside}"), format!("{whom} {count}"));
            if outside == 0 {
                add(
                    seen,
                    file.to_owned(),
                    "contains root of the host".to_owned(),
                );
            }
        }
    }
}

/// Namespaces: the host's, or others.
fn namespaces(proc: &str, seen: &mut Snapshot) {
    let listing = fs::read_dir(format!("{proc}/ns")).into_iter().flatten();
    for entry in listing.filter_map(Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let theirs = fs::read_link(entry.path()).ok();
        let ours = fs::read_link(Path::new("/proc/self/ns").join(&name)).ok();
        let whose = if theirs == ours { "of the host" } else { "own" };
        add(seen, format!("ns {name}"), whose.to_owned());
    }
}

fn mounts(proc: &str, seen: &mut Snapshot) {
    let table = fs::read_to_string(format!("{proc}/mountinfo")).unwrap_or_default();
    for line in table.lines() {
        let (left, right) = line.split_once(" - ").unwrap_or((line, ""));
        let left: Vec<&str> = left.split(' ').collect();
        let peers = left.get(6..).unwrap_or_default().join(" ");
        let peers = if peers.is_empty() { "private" } else { &peers };
        let kind = right.split(' ').next().unwrap_or_default();
        let at = left.get(4).unwrap_or(&"");
        let flags = left.get(5).unwrap_or(&"");
        add(
            seen,
            format!("mount {at}"),
            format!("{flags} {peers} {kind}"),
        );
    }
}

fn limits(proc: &str, seen: &mut Snapshot) {
    let table = fs::read_to_string(format!("{proc}/limits")).unwrap_or_default();
    for line in table.lines().skip(1) {
        let mut columns = line
            .split("  ")
            .map(str::trim)
            .filter(|text| !text.is_empty());
        let name = columns.next().unwrap_or_default();
        let values: Vec<&str> = columns.take(2).collect();
        let name = name.strip_prefix("Max ").unwrap_or(name);
        add(seen, format!("limit {name}"), values.join(" "));
    }
}

/// Groups: the root of the hierarchy, one of ours, or where the host put the caller.
fn groups(proc: &str, seen: &mut Snapshot) {
    let table = fs::read_to_string(format!("{proc}/cgroup")).unwrap_or_default();
    for line in table.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let name = parts.next().unwrap_or_default();
        let path = parts.next().unwrap_or_default();
        let place = if path.contains("/leasehold-") {
            "ours"
        } else {
            "the caller's"
        };
        add(seen, format!("cgroup {name}"), place.to_owned());
    }
}

/// What a descriptor leads to, without the number of what has no name, and how it was opened.
fn descriptor(proc: &str, number: i32, target: &str) -> String {
    let kind = match target.split_once(":[") {
        Some((kind @ ("pipe" | "socket"), _)) => kind,
        _ => target,
    };
    let info = fs::read_to_string(format!("{proc}/fdinfo/{number}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = u32::from_str_radix(flags.unwrap_or_default().trim(), 8).unwrap_or(3);
    let access = ["reads", "writes", "both", "unknown"][(flags & 3) as usize];
    format!("{kind} {access}")
}

/// One line of the record.
#[derive(Debug)]
struct Line {
    optional: bool,
    key: String,
    value: String,
}

/// The lines of a record that hold for these words, such as `root` or `init`. A line is
/// `[word word] key = value`; every word in brackets must be among those that hold, `?` makes the line
/// optional, and `*` in key or value stands for anything.
pub(super) fn differences(record: &str, words: &[&str], seen: &Snapshot) -> Vec<String> {
    let lines: Vec<Line> = record
        .lines()
        .filter_map(|line| parse(line, words))
        .collect();
    let holds = |line: &Line, (key, value): &(String, String)| {
        like(&line.key, key) && like(&line.value, value)
    };
    let mut found: Vec<String> = seen
        .iter()
        .filter(|one| !lines.iter().any(|line| holds(line, one)))
        .map(|(key, value)| format!("seen, not on record: {key} = {value}"))
        .collect();
    for line in lines.iter().filter(|line| !line.optional) {
        if !seen.iter().any(|one| holds(line, one)) {
            found.push(format!(
                "on record, not seen: {} = {}",
                line.key, line.value
            ));
        }
    }
    found
}

fn parse(line: &str, words: &[&str]) -> Option<Line> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let (tags, rest) = match line.strip_prefix('[') {
        Some(rest) => rest.split_once(']').expect("a closed bracket"),
        None => ("", line),
    };
    let tags: Vec<&str> = tags.split_whitespace().collect();
    let (key, value) = rest.split_once(" =").expect("a key and a value");
    tags.iter()
        .all(|tag| *tag == "?" || words.contains(tag))
        .then(|| Line {
            optional: tags.contains(&"?"),
            key: key.trim().to_owned(),
            value: value.trim().to_owned(),
        })
}

/// Whether a text is like a pattern with stars.
fn like(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
            (0..=text.len())
                .filter(|at| text.is_char_boundary(*at))
                .any(|at| like(rest, &text[at..]))
        }),
    }
}
