//! The texts that make limits look like a machine: `/proc/{cpuinfo,meminfo,stat,loadavg}` and
//! `/sys/devices/system/cpu`, `/sys/fs/cgroup`. Pure functions from limits to text.

use std::fmt::Write as _;

/// A text and where it is shown, below its set's directory.
pub(super) struct Text {
    /// Relative path; its directories are made as needed.
    pub(super) path: String,
    /// Contents.
    pub(super) text: String,
}

/// The files of one set that are bound over a file of the same name in `/proc`.
pub(super) const PROC_FILES: [&std::ffi::CStr; 4] = [c"cpuinfo", c"loadavg", c"meminfo", c"stat"];

/// A boot id that is the same for every sandbox on every host.
pub(super) const BOOT_ID: &str = "00000000-0000-4000-8000-000000000000\n";

/// Most of `/proc/cpuinfo` looked at.
const CPUINFO_MAX: usize = 4 << 20;

/// Every text for a sandbox on these cores with this memory. `cpuinfo` and `stat` are the host's.
pub(super) fn texts(cores: &[u32], memory_bytes: u64, cpuinfo: &str, stat: &str) -> Vec<Text> {
    let mut all = vec![
        text("cpuinfo", cpu_info(cores, cpuinfo)),
        text("loadavg", "0.00 0.00 0.00 1/2 2\n".into()),
        text("meminfo", memory_info(memory_bytes)),
        text("stat", statistics(cores, stat)),
    ];
    let list = ranges(cores);
    let cpu = "sys/devices/system/cpu";
    // Per-processor allocators index by the number of the running processor, which is a host number,
    // and size their tables by `possible`: it must reach the highest one.
    let highest = cores.iter().copied().max().unwrap_or(0);
    let possible = if highest == 0 {
        "0\n".to_owned()
    } else {
        format!("0-{highest}\n")
    };
    for (name, contents) in [
        ("online", list.clone()),
        ("present", list),
        ("possible", possible),
        ("offline", "\n".into()),
        ("kernel_max", format!("{highest}\n")),
    ] {
        all.push(text(&format!("{cpu}/{name}"), contents));
    }
    for core in cores {
        let siblings = format!("{core}\n");
        let path = format!("{cpu}/cpu{core}/topology/thread_siblings_list");
        all.push(text(&path, siblings));
    }
    let quota = cores.len() as u64 * 100_000;
    for (name, contents) in [
        ("memory.max", format!("{memory_bytes}\n")),
        ("cpu.max", format!("{quota} 100000\n")),
        ("memory.high", "max\n".into()),
        ("memory/memory.limit_in_bytes", format!("{memory_bytes}\n")),
        (
            "memory/memory.soft_limit_in_bytes",
            "9223372036854771712\n".into(),
        ),
        ("cpu/cpu.cfs_quota_us", format!("{quota}\n")),
        ("cpu/cpu.cfs_period_us", "100000\n".into()),
    ] {
        all.push(text(&format!("sys/fs/cgroup/{name}"), contents));
    }
    all
}

fn text(path: &str, text: String) -> Text {
    Text {
        path: path.to_owned(),
        text,
    }
}

/// Kernel list format: `0-2,5`.
fn ranges(cores: &[u32]) -> String {
    let mut sorted = cores.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut out = String::new();
    let mut at = 0;
    while at < sorted.len() {
        let first = sorted[at];
        while at + 1 < sorted.len() && sorted[at + 1] == sorted[at] + 1 {
            at += 1;
        }
        let comma = if out.is_empty() { "" } else { "," };
        let _ = match sorted[at] {
            last if last == first => write!(out, "{comma}{first}"),
            last => write!(out, "{comma}{first}-{last}"),
        };
        at += 1;
    }
    out.push('\n');
    out
}

/// The blocks of the host's `/proc/cpuinfo` for these cores. Where the host's text is not of blocks
/// that begin with a processor's number, as many bare blocks.
fn cpu_info(cores: &[u32], host: &str) -> String {
    let mut end = host.len().min(CPUINFO_MAX);
    while !host.is_char_boundary(end) {
        end -= 1;
    }
    let host = &host[..end];
    let mut out = String::new();
    for core in cores {
        let block = host
            .split("\n\n")
            .find(|block| block_number(block) == Some(*core));
        match block {
            Some(block) => out.push_str(block.trim_end()),
            None => {
                let _ = write!(out, "processor\t: {core}");
            }
        }
        out.push_str("\n\n");
    }
    out
}

fn block_number(block: &str) -> Option<u32> {
    let (name, number) = block.trim_start().lines().next()?.split_once(':')?;
    (name.trim() == "processor")
        .then(|| number.trim().parse().ok())
        .flatten()
}

fn memory_info(bytes: u64) -> String {
    let total = bytes / 1024;
    let mut out = String::new();
    for (name, kib) in [
        ("MemTotal", total),
        ("MemFree", total),
        ("MemAvailable", total),
        ("Buffers", 0),
        ("Cached", 0),
        ("SwapCached", 0),
        ("Active", 0),
        ("Inactive", 0),
        ("Active(anon)", 0),
        ("Inactive(anon)", 0),
        ("Active(file)", 0),
        ("Inactive(file)", 0),
        ("Unevictable", 0),
        ("Mlocked", 0),
        ("SwapTotal", 0),
        ("SwapFree", 0),
        ("Dirty", 0),
        ("Writeback", 0),
        ("AnonPages", 0),
        ("Mapped", 0),
        ("Shmem", 0),
        ("KReclaimable", 0),
        ("Slab", 0),
        ("SReclaimable", 0),
        ("SUnreclaim", 0),
        ("KernelStack", 0),
        ("PageTables", 0),
        ("CommitLimit", total),
        ("Committed_AS", 0),
        ("VmallocTotal", 34_359_738_367),
        ("VmallocUsed", 0),
        ("VmallocChunk", 0),
    ] {
        let label = format!("{name}:");
        let _ = writeln!(out, "{label:<16}{kib:>8} kB");
    }
    out
}

/// Boot time is the host's, so that start times of processes come out right; counters are none.
fn statistics(cores: &[u32], host: &str) -> String {
    let boot = host
        .lines()
        .find_map(|line| line.strip_prefix("btime "))
        .and_then(|number| number.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let idle = 100 * cores.len();
    let mut out = format!("cpu  0 0 0 {idle} 0 0 0 0 0 0\n");
    for core in cores {
        let _ = writeln!(out, "cpu{core} 0 0 0 100 0 0 0 0 0 0");
    }
    let _ = write!(
        out,
        "intr 0\nctxt 0\nbtime {boot}\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n\
         softirq 0 0 0 0 0 0 0 0 0 0 0\n"
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(cores: &[u32], path: &str) -> String {
        let host = "processor\t: 0\nmodel\t: A\n\nprocessor\t: 1\nmodel\t: B\n\n";
        texts(cores, 64 << 20, host, "cpu 1\nbtime 77\n")
            .into_iter()
            .find(|text| text.path == path)
            .map(|text| text.text)
            .unwrap()
    }

    #[test]
    fn lists_are_in_kernel_format() {
        assert_eq!(ranges(&[3, 0, 1, 2, 7, 9, 10]), "0-3,7,9-10\n");
        assert_eq!(ranges(&[4]), "4\n");
    }

    #[test]
    fn only_the_given_cores_show_with_the_hosts_model() {
        assert_eq!(shown(&[1], "cpuinfo"), "processor\t: 1\nmodel\t: B\n\n");
        assert_eq!(shown(&[5], "cpuinfo"), "processor\t: 5\n\n");
        assert_eq!(shown(&[1], "sys/devices/system/cpu/online"), "1\n");
        assert_eq!(shown(&[1], "sys/devices/system/cpu/possible"), "0-1\n");
        assert!(shown(&[1], "stat").contains("\ncpu1 0 "));
        assert!(shown(&[1], "stat").contains("\nbtime 77\n"));
    }

    #[test]
    fn memory_is_the_limit_and_swap_is_none() {
        let text = shown(&[0], "meminfo");
        assert!(text.starts_with("MemTotal:          65536 kB\n"), "{text}");
        assert!(text.contains("SwapTotal:             0 kB\n"), "{text}");
        assert_eq!(shown(&[0], "sys/fs/cgroup/memory.max"), "67108864\n");
    }
}
