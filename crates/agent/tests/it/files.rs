//! Files through the agent: whose rights count, what is refused, what comes back.

use std::io::Write as _;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use leasehold_protocol::envd::bootstrap::GuestUsage;
use leasehold_protocol::envd::filesystem::{EntryInfo, EntryResponse, FileType, ListDirResponse};
use serde_json::{Value, json};

use crate::client::{Agent, Response};
use crate::sandbox::able;

const ROOT: &str = "authorization: Basic cm9vdDo=";
const RAW: &str = "content-type: application/octet-stream";

fn filesystem(agent: &Agent, method: &str, message: &Value) -> Response {
    agent.call(&format!("/filesystem.Filesystem/{method}"), message)
}

fn stat(agent: &Agent, path: &str) -> EntryInfo {
    let reply: EntryResponse = filesystem(agent, "Stat", &json!({"path": path})).json();
    reply.entry
}

#[test]
fn entries_are_told_as_the_wire_says() {
    if !able("entries_are_told_as_the_wire_says") {
        return;
    }
    let agent = Agent::boot();
    let up = agent.upload("d/a.txt", b"hello");
    assert_eq!(
        up.text(),
        r#"[{"name":"a.txt","path":"/home/user/d/a.txt","type":"file"}]"#
    );
    let entry = stat(&agent, "~/d/a.txt");
    assert_eq!(
        (entry.kind, entry.size, entry.mode),
        (FileType::File, 5, 0o644)
    );
    assert_eq!(entry.permissions, "-rw-r--r--");
    assert_eq!(
        (entry.path.as_str(), entry.name.as_str()),
        ("/home/user/d/a.txt", "a.txt")
    );
    agent.run("ln -s a.txt d/link; mkdir d/sub; ln -s nowhere d/lost");
    let link = stat(&agent, "d/link");
    assert!(link.is_symlink);
    assert_eq!(link.symlink_target.as_deref(), Some("/home/user/d/a.txt"));
    assert_eq!(link.kind, FileType::File);
    let listed: ListDirResponse = filesystem(&agent, "ListDir", &json!({"path": "d"})).json();
    let names: Vec<&str> = listed
        .entries
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    assert_eq!(names, ["a.txt", "link", "lost", "sub"]);
}

#[test]
fn the_tree_keeps_its_rules() {
    if !able("the_tree_keeps_its_rules") {
        return;
    }
    let agent = Agent::boot();
    agent.upload("d/a.txt", b"hello");
    agent.run("ln -s a.txt d/link");
    let made = filesystem(&agent, "MakeDir", &json!({"path": "x/y"}));
    assert_eq!(made.json::<EntryResponse>().entry.kind, FileType::Directory);
    for (method, message, code) in [
        ("MakeDir", json!({"path": "x/y"}), "already_exists"),
        ("MakeDir", json!({"path": "d/a.txt"}), "invalid_argument"),
        ("Stat", json!({"path": "absent"}), "not_found"),
        ("ListDir", json!({"path": "absent"}), "not_found"),
        ("ListDir", json!({"path": "d/a.txt"}), "invalid_argument"),
        (
            "Move",
            json!({"source": "absent", "destination": "z"}),
            "not_found",
        ),
        ("Stat", json!({"path": "~root/x"}), "invalid_argument"),
        ("Stat", json!({"path": "a\u{0}b"}), "invalid_argument"),
        (
            "Stat",
            json!({"path": "x".repeat(9_000)}),
            "invalid_argument",
        ),
        ("Remove", json!({"path": "/"}), "invalid_argument"),
        ("Chmod", json!({}), "unimplemented"),
    ] {
        assert_eq!(
            filesystem(&agent, method, &message).code(),
            code,
            "{method} {message}"
        );
    }
    let moved = filesystem(
        &agent,
        "Move",
        &json!({"source": "d", "destination": "n/e"}),
    );
    assert_eq!(moved.json::<EntryResponse>().entry.path, "/home/user/n/e");
    // Between mounts too.
    let moved = filesystem(
        &agent,
        "Move",
        &json!({"source": "n", "destination": "/tmp/n"}),
    );
    assert_eq!(moved.status, 200, "{}", moved.text());
    assert_eq!(agent.download("/tmp/n/e/link").text(), "hello");
    for _ in 0..2 {
        let removed = filesystem(&agent, "Remove", &json!({"path": "/tmp/n"}));
        assert_eq!((removed.status, removed.text().as_str()), (200, "{}"));
    }
    assert_eq!(
        filesystem(&agent, "Stat", &json!({"path": "/tmp/n"})).code(),
        "not_found"
    );
}

/// P97: what the user may not, the API may not for the user.
#[test]
fn p97_file_work_has_the_rights_of_the_user() {
    if !able("p97_file_work_has_the_rights_of_the_user") {
        return;
    }
    let agent = Agent::boot();
    let secret = agent.ask(
        "POST",
        "/files?path=/tmp/r/secret&username=root",
        &[RAW],
        b"s3cret",
    );
    assert_eq!(secret.status, 200, "{}", secret.text());
    let chmod = json!({"path": "/tmp/r/secret"});
    let owner = agent
        .client()
        .call("/filesystem.Filesystem/Stat", &[ROOT], &chmod);
    assert_eq!(owner.json::<EntryResponse>().entry.owner, "root");
    let script = crate::client::shell("chmod 600 /tmp/r/secret");
    assert_eq!(
        agent
            .start(&script, &[ROOT])
            .0
            .finish()
            .ended
            .unwrap()
            .exit_code,
        0
    );
    assert_eq!(agent.download("/tmp/r/secret").status, 403);
    assert_eq!(agent.upload("/tmp/r/secret", b"x").status, 403);
    let remove = filesystem(&agent, "Remove", &json!({"path": "/tmp/r"}));
    assert_eq!(remove.code(), "permission_denied");
    // The control: root may, by its capabilities over files, also into the user's closed places.
    let read = agent.ask("GET", "/files?path=/tmp/r/secret&username=root", &[], b"");
    assert_eq!(read.text(), "s3cret");
    agent.run("mkdir -m 700 closed; echo own > closed/f; chmod 600 closed/f");
    let read = agent.ask(
        "GET",
        "/files?path=/home/user/closed/f&username=root",
        &[],
        b"",
    );
    assert_eq!(read.text(), "own\n");
    let nobody = agent.ask(
        "GET",
        "/files?path=/tmp/r/secret&username=nobody-here",
        &[],
        b"",
    );
    assert_eq!(nobody.status, 401);
    // Nor is anything outside the writable places written, by anybody.
    for user in ["user", "root"] {
        let path = format!("/files?path=/etc/new&username={user}");
        assert_eq!(agent.ask("POST", &path, &[RAW], b"x").status, 403);
    }
}

/// P97: the agent's own things are no files of the API.
#[test]
fn p97_the_agent_itself_is_no_file() {
    if !able("p97_the_agent_itself_is_no_file") {
        return;
    }
    let agent = Agent::boot();
    let pid = agent.pid;
    for user in ["user", "root"] {
        for path in [
            "self/exe",
            "self/fd/3",
            "self/root/etc/hostname",
            "self/cwd/etc/hostname",
        ] {
            let path = format!("/files?path=/proc/{path}&username={user}");
            assert_ne!(agent.ask("GET", &path, &[], b"").status, 200, "{path}");
        }
        for path in ["mem", "environ", "exe", "fd/3", "maps", "auxv"] {
            for process in [pid.to_string(), "1".to_owned()] {
                let path = format!("/files?path=/proc/{process}/{path}&username={user}");
                for method in ["GET", "POST"] {
                    assert_ne!(agent.ask(method, &path, &[RAW], b"x").status, 200, "{path}");
                }
            }
        }
    }
    // The control: what is no secret of `/proc` is read, although it tells no size.
    let read = agent.download("/proc/self/status");
    assert_eq!(read.status, 200, "{}", read.text());
    assert!(read.text().contains("Uid:\t1000"), "{}", read.text());
}

#[test]
fn p97_what_never_ends_is_refused_or_cut() {
    if !able("p97_what_never_ends_is_refused_or_cut") {
        return;
    }
    let agent = Agent::boot();
    agent.run("mkfifo fifo; truncate -s 1T sparse; ln -s /dev/zero zero; mkdir dir");
    let start = Instant::now();
    for path in ["fifo", "/dev/zero", "zero", "dir", "/dev/null"] {
        assert_eq!(agent.download(path).status, 400, "{path}");
        assert_eq!(agent.upload(path, b"x").status, 400, "{path}");
    }
    assert!(start.elapsed() < Duration::from_secs(15));
    // A file of a terabyte is streamed; a client that leaves ends it, and memory stays.
    let mut client = agent.client();
    client.send("GET", "/files?path=sparse", &[], b"");
    let mut head = [0; 4_096];
    std::io::Read::read_exact(&mut client.socket, &mut head).unwrap();
    drop(client);
    let part = agent.ask(
        "GET",
        "/files?path=sparse",
        &["range: bytes=1099511627770-"],
        b"",
    );
    assert_eq!((part.status, part.body.len()), (206, 6));
    assert_eq!(
        part.header("content-range"),
        Some("bytes 1099511627770-1099511627775/1099511627776")
    );
    let outside = agent.ask(
        "GET",
        "/files?path=sparse",
        &["range: bytes=1099511627776-"],
        b"",
    );
    assert_eq!(outside.status, 416);
    // A directory of many entries is a typed refusal.
    agent.run("mkdir many; cd many; seq 10001 | xargs touch");
    let listed = filesystem(&agent, "ListDir", &json!({"path": "many"}));
    assert_eq!(listed.code(), "resource_exhausted");
    assert_eq!(
        filesystem(&agent, "Remove", &json!({"path": "many"})).status,
        200
    );
    // A deep one is listed to a bound and removed whole. (Landlock makes each step cost its depth.)
    let deep = "python3 -c '\nimport os\nos.mkdir(\"deep\"); os.chdir(\"deep\")\nfor _ in range(1200): os.mkdir(\"d\"); os.chdir(\"d\")'";
    assert_eq!(agent.run(deep).ended.unwrap().exit_code, 0);
    let listed = filesystem(
        &agent,
        "ListDir",
        &json!({"path": "deep", "depth": 4_000_000}),
    );
    assert_eq!(listed.json::<ListDirResponse>().entries.len(), 64);
    assert_eq!(
        filesystem(&agent, "Remove", &json!({"path": "deep"})).status,
        200
    );
    assert_eq!(agent.run("ls -d deep many 2>/dev/null").stdout, "");
}

/// A client that leaves frees what its request had begun.
#[test]
fn p97_cancelled_work_ends() {
    if !able("p97_cancelled_work_ends") {
        return;
    }
    let agent = Agent::boot();
    agent.run(
        "mkdir big; for i in $(seq 60); do mkdir big/$i; (cd big/$i; seq 300 | xargs touch); done",
    );
    let mut clients = Vec::new();
    for _ in 0..40 {
        let mut client = agent.client();
        let body = br#"{"path":"big","depth":9}"#;
        client.send(
            "POST",
            "/filesystem.Filesystem/ListDir",
            &["content-type: application/json"],
            body,
        );
        clients.push(client);
    }
    drop(clients);
    let start = Instant::now();
    loop {
        let usage: GuestUsage = agent.host("Usage", &json!({})).json();
        // Init, stub, agent.
        if usage.connections == 0 && usage.processes <= 3 {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{usage:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn uploads_come_in_every_shape() {
    if !able("uploads_come_in_every_shape") {
        return;
    }
    let agent = Agent::boot();
    let form = ["content-type: multipart/form-data; boundary=b0"];
    let body = b"--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"m/one\"\r\n\r\n1\r\n--b0\r\nContent-Disposition: form-data; name=\"other\"\r\n\r\nskipped\r\n--b0\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/tmp/m/two\"\r\n\r\n\r\n--b0--\r\n";
    let up: Value = agent.ask("POST", "/files", &form, body).json();
    assert_eq!(up[0]["path"], "/home/user/m/one");
    assert_eq!(
        up[1],
        json!({"name": "two", "path": "/tmp/m/two", "type": "file"})
    );
    assert_eq!(agent.download("m/one").text(), "1");
    assert_eq!(agent.download("/tmp/m/two").body.len(), 0);
    let twice = agent.ask("POST", "/files?path=same", &form, body);
    assert_eq!(twice.status, 400);
    assert!(twice.text().contains("multiple files to the same path"));
    let cut = agent.ask("POST", "/files", &form, &body[..90]);
    assert_eq!(cut.status, 400);
    let packed = [RAW, "content-encoding: gzip"];
    let text = "packed ".repeat(100_000);
    let up = agent.ask("POST", "/files?path=g", &packed, &gzip(text.as_bytes()));
    assert_eq!(up.status, 200);
    assert_eq!(agent.download("g").text(), text);
    let down = agent.ask("GET", "/files?path=g", &["accept-encoding: gzip"], b"");
    assert_eq!(down.header("content-encoding"), Some("gzip"));
    assert!(down.body.len() < 10_000);
    let mut plain = String::new();
    std::io::Read::read_to_string(
        &mut flate2::read::GzDecoder::new(&down.body[..]),
        &mut plain,
    )
    .unwrap();
    assert_eq!(plain, text);
    let refused = agent.ask(
        "GET",
        "/files?path=g",
        &["accept-encoding: identity;q=0"],
        b"",
    );
    assert_eq!(refused.status, 406);
    assert_eq!(
        agent
            .ask("POST", "/files?path=g", &packed, b"no gzip")
            .status,
        400
    );
    assert_eq!(
        agent
            .ask(
                "POST",
                "/files?path=g",
                &[RAW, "content-encoding: br"],
                b"x"
            )
            .status,
        400
    );
    assert_eq!(
        agent
            .ask("POST", "/files?path=g", &["content-type: text/plain"], b"x")
            .status,
        400
    );
    assert_eq!(agent.ask("POST", "/files", &[RAW], b"x").status, 400);
    assert_eq!(agent.ask("PUT", "/files?path=g", &[RAW], b"x").status, 405);
}

#[test]
fn metadata_lasts_until_the_next_upload() {
    if !able("metadata_lasts_until_the_next_upload") {
        return;
    }
    let agent = Agent::boot();
    let with = [RAW, "X-Metadata-Author: mish", "x-metadata-n: 1"];
    let up = agent.ask("POST", "/files?path=m", &with, b"x");
    let up: Value = up.json();
    assert_eq!(up[0]["metadata"], json!({"author": "mish", "n": "1"}));
    assert_eq!(stat(&agent, "m").metadata.len(), 2);
    agent.upload("m", b"y");
    assert!(stat(&agent, "m").metadata.is_empty());
    let long = format!("x-metadata-a: {}", "v".repeat(5_000));
    assert_eq!(
        agent
            .ask("POST", "/files?path=n", &[RAW, &long], b"x")
            .status,
        400
    );
    assert_eq!(
        filesystem(&agent, "Stat", &json!({"path": "n"})).code(),
        "not_found"
    );
}

/// A full disk has a status of its own, also when a small body becomes a large file.
#[test]
fn a_full_disk_is_said() {
    if !able("a_full_disk_is_said") {
        return;
    }
    let agent = Agent::boot();
    let bomb = gzip(&vec![0; 200 << 20]);
    assert!(bomb.len() < 300_000);
    let packed = [RAW, "content-encoding: gzip"];
    let full = agent.ask("POST", "/files?path=bomb", &packed, &bomb);
    assert_eq!(full.status, 507);
    assert_eq!(
        full.json::<Value>()["message"],
        "not enough disk space available"
    );
    let kib = agent.run(&format!(
        "awk '/VmHWM/{{print $2}}' /proc/{}/status",
        agent.pid
    ));
    assert!(
        kib.stdout.trim().parse::<u64>().unwrap() < 65_536,
        "{kib:?}"
    );
    let made = filesystem(&agent, "MakeDir", &json!({"path": "room/for/this"}));
    assert!(made.status == 200 || made.code() == "resource_exhausted");
    assert_eq!(
        filesystem(&agent, "Remove", &json!({"path": "bomb"})).status,
        200
    );
    assert_eq!(agent.upload("small", b"x").status, 200);
}

#[test]
fn files_are_composed() {
    if !able("files_are_composed") {
        return;
    }
    let agent = Agent::boot();
    for part in ["1", "2", "3"] {
        agent.upload(&format!("p{part}"), part.as_bytes());
    }
    let compose = |message: Value| {
        let body = message.to_string();
        agent.ask(
            "POST",
            "/files/compose",
            &["content-type: application/json"],
            body.as_bytes(),
        )
    };
    let done = compose(json!({"source_paths": ["p1", "p2", "p3"], "destination": "d/whole"}));
    assert_eq!(
        done.text(),
        r#"{"name":"whole","path":"/home/user/d/whole","type":"file"}"#
    );
    assert_eq!(agent.download("d/whole").text(), "123");
    assert_eq!(agent.download("p1").status, 404);
    assert_eq!(
        compose(json!({"source_paths": ["p1"], "destination": "d/whole"})).status,
        404
    );
    assert_eq!(agent.download("d/whole").text(), "123");
    for bad in [
        json!({"source_paths": [], "destination": "x"}),
        json!({"source_paths": ["d/whole"]}),
        json!({"source_paths": ["d/whole"], "destination": "d/whole"}),
        json!({"source_paths": ["d"], "destination": "x"}),
    ] {
        assert_eq!(compose(bad.clone()).status, 400, "{bad}");
    }
}

/// In a sticky directory not even root may open somebody's file as if it were new.
#[test]
fn overwriting_keeps_the_owner_and_follows_links() {
    if !able("overwriting_keeps_the_owner_and_follows_links") {
        return;
    }
    let agent = Agent::boot();
    agent.upload("/tmp/mine", b"user");
    let up = agent.ask(
        "POST",
        "/files?path=/tmp/mine&username=root",
        &[RAW],
        b"root",
    );
    assert_eq!(up.status, 200, "{}", up.text());
    assert_eq!(agent.download("/tmp/mine").text(), "root");
    agent.run("ln -s later dangling");
    assert_eq!(agent.upload("dangling", b"made").status, 200);
    assert_eq!(agent.download("later").text(), "made");
}
