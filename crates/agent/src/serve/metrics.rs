//! What the guest sees of its own use: `GET /metrics`, `Usage` and `Ports`.
//!
//! Nobody outside believes these numbers; they are for the caller's information.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use leasehold_protocol::envd::bootstrap::{GuestUsage, ListeningPort, Ports};
use leasehold_protocol::envd::http::Metrics;
use tokio::time::Instant;

use super::procfs;
use super::state::Shared;

/// Clock ticks of `/proc` per second, a constant of Linux's user interface.
const TICKS: u64 = 100;
/// Bytes of a page, as far as `/proc` counts in pages here.
const PAGE: u64 = 4_096;
/// Bytes read of one table of sockets.
const TABLE_BYTES: usize = 4 << 20;
/// Bytes read of `/proc/meminfo`.
const MEMINFO_BYTES: usize = 16 << 10;

/// Remembers the last look at processor time.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Cell<Option<(Instant, u64)>>,
}

impl Meter {
    /// Share of all processors used since the last look, in percent with two digits.
    fn look(&self, ticks: u64, processors: u32) -> f64 {
        let now = Instant::now();
        let Some((then, before)) = self.last.replace(Some((now, ticks))) else {
            return 0.0;
        };
        let passed = now.duration_since(then).as_secs_f64() * f64::from(processors.max(1));
        let used = ticks.saturating_sub(before) as f64 / TICKS as f64;
        if passed <= 0.0 {
            return 0.0;
        }
        ((used / passed * 10_000.0).round() / 100.0).min(100.0)
    }
}

/// Bytes used and total of the file system that holds the scratch directories.
fn disk() -> (u64, u64) {
    let stat = ["/home/user", "/workspace", "/"]
        .iter()
        .find_map(|path| rustix::fs::statvfs(*path).ok());
    stat.map_or((0, 0), |stat| {
        let total = stat.f_blocks.saturating_mul(stat.f_frsize);
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        (total.saturating_sub(free), total)
    })
}

fn seconds_now() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec
}

/// Everything `GET /metrics` tells.
pub(super) fn metrics(shared: &Shared) -> Metrics {
    let cpu_count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let ticks = procfs::processes().iter().map(|one| one.ticks).sum();
    let meminfo = procfs::small_file(Path::new("/proc/meminfo"), MEMINFO_BYTES);
    let meminfo = meminfo.unwrap_or_default();
    let value = |name| procfs::memory(&meminfo, name);
    let mem_total = value("MemTotal").unwrap_or(0);
    let mem_free = value("MemAvailable").or(value("MemFree")).unwrap_or(0);
    let mem_used = mem_total.saturating_sub(mem_free);
    let (disk_used, disk_total) = disk();
    Metrics {
        ts: seconds_now(),
        cpu_count,
        cpu_used_pct: shared.meter.look(ticks, cpu_count),
        mem_total_mib: mem_total >> 20,
        mem_used_mib: mem_used >> 20,
        mem_total,
        mem_used,
        mem_cache: value("Cached").unwrap_or(0),
        disk_used,
        disk_total,
    }
}

/// Everything `Usage` tells.
pub(super) fn usage(shared: &Shared) -> GuestUsage {
    let processes = procfs::processes();
    let (disk_used, disk_total) = disk();
    GuestUsage {
        processes: processes.len() as u32,
        started: shared.processes.count() as u32,
        connections: shared.connections.get() as u32,
        watchers: shared.watchers.count() as u32,
        cpu_ms: processes.iter().map(|one| one.ticks).sum::<u64>() * 1_000 / TICKS,
        resident_bytes: processes.iter().map(|one| one.pages).sum::<u64>() * PAGE,
        disk_used,
        disk_total,
    }
}

/// Listening TCP ports.
pub(super) fn ports() -> Ports {
    let mut ports: Vec<ListeningPort> = ["/proc/self/net/tcp", "/proc/self/net/tcp6"]
        .iter()
        .filter_map(|path| procfs::small_file(Path::new(path), TABLE_BYTES).ok())
        .flat_map(|table| {
            table
                .lines()
                .skip(1)
                .filter_map(listener)
                .collect::<Vec<_>>()
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    Ports { ports }
}

/// Reads one line of the kernel's table, if it is a listening socket.
fn listener(line: &str) -> Option<ListeningPort> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    if *fields.get(3)? != LISTEN {
        return None;
    }
    Some(ListeningPort {
        port: u16::from_str_radix(port, 16).ok()?,
        address: ip(address)?.to_string(),
        uid: fields.get(7)?.parse().ok()?,
    })
}

/// The kernel writes each 32-bit word of an address in its own byte order.
fn ip(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Some(IpAddr::V6(Ipv6Addr::from(
                <[u8; 16]>::try_from(bytes).ok()?,
            )))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_read_from_the_kernel_s_table() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 3245 1";
        let port = listener(line).unwrap();
        assert_eq!((port.port, port.uid), (8080, 1000));
        assert_eq!(port.address, "127.0.0.1");
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("garbage"), None);
        let six = ip("00000000000000000000000001000000").unwrap();
        assert_eq!(six.to_string(), "::1");
        assert_eq!(ip("zz"), None);
    }

    #[test]
    fn our_own_listener_is_seen() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(ports().ports.iter().any(|one| one.port == port));
        drop(socket);
        assert!(!ports().ports.iter().any(|one| one.port == port));
    }
}
