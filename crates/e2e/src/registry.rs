//! A real registry on loopback, and images for it, made of Debian's packages on the spot.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::binary::target;
use crate::skips::which;
use crate::wait::until;

/// Where `cargo xtask setup` unpacks what must not be installed: the package would start a service.
fn unpacked(program: &str) -> PathBuf {
    target().join("tools/usr/bin").join(program)
}

/// The registry's program, if there is one.
#[must_use]
pub fn registry_program() -> Option<PathBuf> {
    let own = unpacked("docker-registry");
    own.is_file()
        .then_some(own)
        .or_else(|| which("docker-registry"))
}

/// How a registry is protected.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Protection {
    /// By TLS, with a certificate of its own authority, `ca.pem` in its folder.
    pub tls: bool,
    /// By name and password: `name` and `word`.
    pub password: bool,
}

/// A registry that runs until it is dropped.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    folder: PathBuf,
    port: u16,
    protection: Protection,
}

impl Registry {
    /// Starts one in a folder of the test's own.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(folder: &Path, protection: Protection) -> Self {
        let program = registry_program().expect("docker-registry");
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("its number").port();
        drop(free);
        let shown = folder.display();
        let mut config = format!(
            "version: 0.1\nlog: {{level: info, formatter: json, accesslog: {{disabled: true}}}}\n\
             storage: {{filesystem: {{rootdirectory: {shown}/data}}}}\n\
             http:\n  addr: 127.0.0.1:{port}\n"
        );
        if protection.tls {
            certificates(folder);
            config.push_str(&format!(
                "  tls: {{certificate: {shown}/cert.pem, key: {shown}/key.pem}}\n"
            ));
        }
        if protection.password {
            // Of the word `word`.
            let script = "import crypt; print('name:' + crypt.crypt('word', '$2b$05$' + 'a' * 22))";
            let line = Command::new("python3")
                .args(["-W", "ignore", "-c", script])
                .output()
                .expect("python3");
            fs::write(folder.join("passwords"), line.stdout).expect("passwords");
            config.push_str(&format!(
                "auth: {{htpasswd: {{realm: test, path: {shown}/passwords}}}}\n"
            ));
        }
        fs::write(folder.join("config.yml"), config).expect("its configuration");
        let log = File::create(folder.join("log")).expect("its log");
        let child = Command::new(program)
            .args(["serve", "config.yml"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("its log"))
            .stderr(log)
            .spawn()
            .expect("start the registry");
        let registry = Self {
            child,
            folder: folder.to_owned(),
            port,
            protection,
        };
        until("the registry to answer", Duration::from_secs(20), || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        registry
    }

    /// Its host and port.
    #[must_use]
    pub fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What it has written down.
    ///
    /// # Panics
    /// When that cannot be read.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).expect("its log")
    }

    /// How often it has sent a blob.
    #[must_use]
    pub fn sent(&self, digest: &str) -> usize {
        let path = format!("/blobs/{digest}\"");
        self.log()
            .lines()
            .filter(|line| line.contains("response completed") && line.contains("\"GET\""))
            .filter(|line| line.contains(&path))
            .count()
    }

    /// Copies an image of a layout to it.
    ///
    /// # Panics
    /// When that fails.
    pub fn push(&self, layout: &str, name: &str) {
        let mut copy = Command::new("skopeo");
        copy.args([
            "--insecure-policy",
            "copy",
            "--quiet",
            "--dest-tls-verify=false",
        ]);
        if self.protection.password {
            copy.args(["--dest-creds", "name:word"]);
        }
        copy.arg(format!("oci:{layout}"))
            .arg(format!("docker://{}/{name}", self.host()));
        done(&mut copy);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program to its good end.
///
/// # Panics
/// When it fails, with what it said.
pub fn done(command: &mut Command) {
    let out = command
        .stdin(Stdio::null())
        .output()
        .expect("start a program");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {said}");
}

/// An authority, and a certificate of it for loopback.
fn certificates(folder: &Path) {
    let extension =
        "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n";
    fs::write(folder.join("extension"), extension).expect("extension");
    let script = "
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj '/CN=test authority' -keyout ca.key -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/CN=registry' -keyout key.pem -out request.pem
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extension -out cert.pem
";
    done(Command::new("sh").args(["-ec", script]).current_dir(folder));
}

/// A layout with an image of busybox at the tag `1`, of two layers: the programs, and a file of so many random
/// bytes at `/data`. Returns what `umoci` and `skopeo` call it.
///
/// # Panics
/// When a program that makes it fails.
#[must_use]
pub fn busybox_layout(folder: &Path, bytes: u64) -> String {
    let lower = "mkdir -p etc tmp; chmod 1777 tmp; \
        echo root:x:0:0:root:/:/bin/sh > etc/passwd; echo removed > etc/removed";
    let upper = format!("head -c {bytes} /dev/urandom > data; rm etc/removed; chown 33:33 data");
    let config = [
        "--config.cmd",
        "/bin/sh",
        "--config.env",
        "A=b",
        "--config.user",
        "33",
    ];
    image_layout(folder, &[lower, &upper], &config)
}

/// A layout with an image at the tag `1`: a layer for each script, which is run in the image's root, the lowest
/// first, and has busybox with all its names in `bin` to begin with; and what `umoci config` is told. Returns what
/// `umoci` and `skopeo` call it.
///
/// # Panics
/// When a program that makes it fails.
#[must_use]
pub fn image_layout(folder: &Path, layers: &[&str], config: &[&str]) -> String {
    let shell = |script: &str, place: &Path| {
        done(Command::new("sh").args(["-ec", script]).current_dir(place));
    };
    let root = folder.join("bundle/rootfs");
    shell(
        r#"
umoci init --layout layout
umoci new --image layout:1
umoci unpack --image layout:1 bundle
mkdir -p bundle/rootfs/bin
cp "$(command -v busybox)" bundle/rootfs/bin/busybox
for name in $(busybox --list); do [ $name = busybox ] || ln -s busybox bundle/rootfs/bin/$name; done
"#,
        folder,
    );
    for script in layers {
        shell(script, &root);
        shell(
            "umoci repack --refresh-bundle --image layout:1 bundle",
            folder,
        );
    }
    shell("rm -rf bundle", folder);
    if !config.is_empty() {
        let mut set = Command::new("umoci");
        set.args(["config", "--image", "layout:1"]).args(config);
        done(set.current_dir(folder));
    }
    format!("{}/layout:1", folder.display())
}
