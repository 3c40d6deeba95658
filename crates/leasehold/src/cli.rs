//! The flags as they are typed. Nothing is decided here: `run::request` makes sense of them.

pub(crate) mod daemon;
pub(crate) mod help;
pub(crate) mod image;
pub(crate) mod quick;
pub(crate) mod template;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  leasehold run -- python3 -c 'print(6*7)'
  leasehold run --memory 256M --timeout 30s --workspace . --artifact 'out/*' --out . -- make
  leasehold show RUN     what happened, after it is gone
  leasehold serve        the same as a service; then `leasehold run` uses it

Exit status: 0 success; 1 what was checked does not hold; 2 wrong words, names, files or rights;
125 the host, the daemon or we cannot do it; that of `run` is told in `leasehold run --help`.";

/// Bounded computers on lease: run a command in a sandbox, see how it ended, prove nothing is left.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = format!("{EXAMPLES}\n\n{}", crate::env::help()))]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands; `help` says which are shown together.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one command, or a published tool, in a sandbox of its own
    Run(Box<RunFlags>),
    /// List the runs made without a daemon, newest first
    Runs(RunsFlags),
    /// Show the record of a run
    Show(ShowFlags),
    /// Print what a run wrote
    Logs(LogsFlags),
    /// List the files that were kept of a run, or write them to a directory
    Artifacts(ArtifactsFlags),
    /// Follow a run again, from its first byte or from a later one
    Attach(AttachFlags),
    /// Export what proves a run
    Evidence(daemon::EvidenceFlags),
    /// Check what proves a run, offline, and name each fault
    Verify(daemon::VerifyFlags),
    /// Explain a run in words: boundary, identity, state, mediation, trust, cleanup
    Explain(daemon::ExplainFlags),
    /// Serve tenants over HTTP: tools, policies, queues, evidence
    Serve(daemon::ServeFlags),
    /// List the runs of a daemon, newest first
    Ps(daemon::PsFlags),
    /// Ask a daemon to end a run
    Cancel(daemon::RunArg),
    /// Check, publish and list the tools of a daemon
    #[command(subcommand)]
    Tool(daemon::ToolCommand),
    /// Check, set and explain the policies of a daemon
    #[command(subcommand, after_help = daemon::SCOPES)]
    Policy(daemon::PolicyCommand),
    /// Make and list the tenants of a daemon
    #[command(subcommand)]
    Tenant(daemon::TenantCommand),
    /// Make, list and revoke the keys of a daemon
    #[command(subcommand)]
    Key(daemon::KeyCommand),
    /// Pull, load, list, check and remove images
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Build, list and remove snapshot templates: interpreters that have started
    #[command(subcommand)]
    Template(template::TemplateCommand),
    /// Make every limit bite on this host, and say what mends those that do not
    Doctor(DoctorFlags),
    /// Measure this host beside other runtimes
    Bench(BenchFlags),
    /// Keep untouched sandboxes parked, so that runs with the same limits start at once
    Pool(Box<PoolFlags>),
    /// Find and remove what no live supervisor owns
    Sweep(SweepFlags),
    /// Remove the output of old runs; each supervisor does it too, by the same rule
    Prune(PruneFlags),
    /// End the supervisor and every sandbox of it
    Stop,
    /// Print a completion script for a shell
    Completion {
        /// For which shell
        shell: clap_complete::Shell,
    },
    /// The process that parents sandboxes; started by whoever needs it
    #[command(hide = true)]
    Supervisor(SupervisorFlags),
}

/// What bounds a sandbox, as typed. Each is checked and made a promise by `run::request`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Limits (asked means enforced or refused)")]
pub(crate) struct LimitFlags {
    /// Processor share in cores, such as 0.5 or 2 [default: 1]
    #[arg(long, value_name = "CORES")]
    pub(crate) cpu: Option<String>,
    /// Memory of the whole sandbox, such as 512M; no swap [default: 512M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<String>,
    /// Bytes below /workspace, /tmp and /home/user, or anywhere in an image [default: 256M, at most half the memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<String>,
    /// Files and directories on that disk [default: 65536]
    #[arg(long, value_name = "COUNT")]
    pub(crate) inodes: Option<String>,
    /// Processes and threads of the command at one time, its first one counted [default: 256]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pids: Option<String>,
    /// Open files of one process [default: 1024]
    #[arg(long, value_name = "COUNT")]
    pub(crate) files: Option<String>,
    /// Wall time, such as 30s or 5m [default: 10m]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<String>,
    /// Processor time of the whole sandbox [default: no limit but the wall time]
    #[arg(long, value_name = "TIME")]
    pub(crate) cpu_time: Option<String>,
    /// Time between TERM and KILL [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub(crate) grace: Option<String>,
    /// Bytes kept of each of standard output and error [default: 64M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) output_limit: Option<String>,
    /// At the output limit: cut (drop the rest) or kill [default: cut]
    #[arg(long, value_name = "WHAT")]
    pub(crate) on_output_limit: Option<String>,
    /// Go on although this host cannot enforce an asked limit; the record says so
    #[arg(long)]
    pub(crate) allow_unenforced: bool,
}

/// How strong the boundary must be, as typed.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Boundary")]
pub(crate) struct BoundaryFlags {
    /// process, wasm, container, gvisor or microvm [default: process]
    #[arg(long, value_name = "KIND")]
    pub(crate) isolation: Option<String>,
    /// first-party, verified or untrusted: raises the boundary, never lowers it [default: first-party]
    #[arg(long, value_name = "CLASS")]
    pub(crate) trust: Option<String>,
}

/// `leasehold run`.
#[derive(Debug, Default, Args)]
#[command(after_help = "\
Standard input: a pipe or a file is passed on; a terminal only with --stdin or --tty.
Environment inside: PATH, HOME, USER, LOGNAME, LANG (and TERM with --tty) and what --env names.
With --json the command's own output is not printed: the record comes on standard output at the
end and says where the logs are. Through a daemon it is the run as HTTP answers it (docs/API.md);
--alone gives the other form always.
In an image: its variables, directory and user count where no flag says otherwise; the command is
looked up by its PATH, and is user 1000 where it names none. Its user 0 has no capability either.
What is written anywhere goes to --disk and is gone afterwards.
WebAssembly: a module starts no process and has no terminal. Through a daemon it has /workspace only
with --workspace, --artifact or --workdir /workspace, which take it a sandbox of its own; without
them it is one of many in a process of its tenant's, and starts in a fraction of a millisecond.
Exit status: the command's own; 2 refused as asked, 65 a tool's output does not fit its schema,
124 timeout, 125 no sandbox, 126/127 not executable/not found, 130 cancelled, 137 a limit ended it,
128+n signal n. Ctrl-C ends it with grace, twice at once.

Examples:
  leasehold run -- python3 -c 'print(6*7)'
  leasehold run --memory 256M --timeout 30s --workspace . -- make test
  leasehold run --workspace data:ro --artifact 'out/*.csv' --out . -- sh job.sh
  leasehold run --isolation wasm -- tool.wasm in.txt
  leasehold run --interpreter python -- script.py
  leasehold run --image debian:12 -- cat /etc/os-release
  leasehold run -it -- bash")]
pub(crate) struct RunFlags {
    /// The command and its arguments, after `--`
    #[arg(last = true, required_unless_present_any = ["tool", "interpreter", "image"], value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    /// Run a published tool instead of a command: NAME or NAME@VERSION (needs a daemon)
    #[arg(long, value_name = "TOOL", group = "leaves", conflicts_with_all = ["command", "alone", "tty", "workdir"])]
    pub(crate) tool: Option<String>,
    /// Input of the tool: JSON, @FILE, or - for standard input [default: {}]
    #[arg(long, value_name = "JSON", requires = "tool")]
    pub(crate) input: Option<String>,
    /// Run in the file system of an image, in place of this host's system directories: NAME[:TAG][@sha256:…]. A
    /// daemon pulls it where it has to; alone it is one that is here (`leasehold image`), its first digits do, and
    /// without a command its own is run
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["tool", "interpreter", "warm", "fuel", "deterministic"])]
    pub(crate) image: Option<String>,
    /// Use no daemon, even if one is there
    #[arg(long)]
    pub(crate) alone: bool,
    /// What a daemon alone understands.
    #[command(flatten)]
    pub(crate) daemon: DaemonFlags,
    /// Pass standard input on, even from a terminal
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// Never read standard input
    #[arg(short = 'n', long, conflicts_with_all = ["stdin", "tty"])]
    pub(crate) no_stdin: bool,
    /// Give it a terminal of its own, joined to this one (^] three times ends it)
    #[arg(short = 't', long)]
    pub(crate) tty: bool,
    /// Environment inside: NAME=VALUE, or NAME alone for the value here
    #[arg(short = 'e', long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// Working directory inside [default: the image's, else /workspace]
    #[arg(short = 'w', long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Directory at /workspace: DIR or DIR:clone (copy on write, thrown away), DIR:ro, or DIR:rw
    /// (changed in place; what this host's tools may execute of it afterwards is told)
    #[arg(long, value_name = "DIR[:MODE]")]
    pub(crate) workspace: Option<OsString>,
    /// Keep files below /workspace that match; may be repeated (a tool says itself which it leaves)
    #[arg(long, value_name = "GLOB", group = "leaves")]
    pub(crate) artifact: Vec<String>,
    /// Directory that kept files are written to [default: left with the record]
    #[arg(long, value_name = "DIR", requires = "leaves")]
    pub(crate) out: Option<PathBuf>,
    /// Write artifacts that this host's tools may execute by themselves, such as git hooks, too
    #[arg(long, requires = "out")]
    pub(crate) unsafe_artifacts: bool,
    /// Use a pre-warmed interpreter: python
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) warm: Option<String>,
    /// Run a script, or code, with an interpreter in WebAssembly: python, javascript, or the name of
    /// a template of your own (`leasehold template`)
    #[arg(long, value_name = "NAME", conflicts_with = "tool")]
    pub(crate) interpreter: Option<String>,
    /// WebAssembly: at most so many instructions, as the engine weighs them
    #[arg(long, value_name = "COUNT", conflicts_with = "tool")]
    pub(crate) fuel: Option<String>,
    /// WebAssembly: fixed clocks and random numbers of a seed, so that equal input gives equal output
    /// [default SEED: 0]
    #[arg(long, value_name = "SEED", num_args = 0..=1, require_equals = true, conflicts_with = "tool")]
    pub(crate) deterministic: Option<Option<u64>>,
    /// Print the record as JSON at the end instead of the command's output
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing of our own but errors
    #[arg(short = 'q', long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Return when removal was observed, not when the outcome is fixed (with --json always)
    #[arg(long)]
    pub(crate) wait_cleanup: bool,
    /// What bounds it.
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    /// How strong the boundary must be.
    #[command(flatten)]
    pub(crate) boundary: BoundaryFlags,
}

/// What a run is asked of a daemon alone.
#[derive(Debug, Default, Args)]
pub(crate) struct DaemonFlags {
    /// When a registry is asked for the image: never, missing, always (needs a daemon) [default: missing]
    #[arg(long, value_name = "WHEN", requires = "image", value_parser = ["never", "missing", "always"])]
    pub(crate) pull: Option<String>,
    /// Longest wait in the queue, such as 5s (needs a daemon) [default: 1m]
    #[arg(long, value_name = "TIME")]
    pub(crate) max_wait: Option<String>,
    /// Place in the queue of its tenant, -1000 to 1000; higher goes first (needs a daemon) [default: 0]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<i64>,
}

/// `leasehold show`.
#[derive(Debug, Args)]
pub(crate) struct ShowFlags {
    /// Run id, or the beginning of one that no other run shares
    pub(crate) run: String,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold runs`.
#[derive(Debug, Args)]
pub(crate) struct RunsFlags {
    /// Show at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) last: usize,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold logs`.
#[derive(Debug, Args)]
pub(crate) struct LogsFlags {
    /// Run id, or the beginning of one that no other run shares
    pub(crate) run: String,
    /// Standard error instead of standard output
    #[arg(long)]
    pub(crate) stderr: bool,
    /// Go on until the run is over
    #[arg(short = 'f', long)]
    pub(crate) follow: bool,
    /// Bytes as they are, even on a terminal
    #[arg(long)]
    pub(crate) raw: bool,
}

/// `leasehold artifacts`.
#[derive(Debug, Args)]
pub(crate) struct ArtifactsFlags {
    /// Run id, or the beginning of one that no other run shares
    pub(crate) run: String,
    /// Only these, as for `run --artifact`: out/*.csv, report.pdf, a directory
    #[arg(value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Directory to write them to, made if it is not there [default: they are listed]
    #[arg(short = 'o', long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Write those that this host's tools may execute, too
    #[arg(long, requires = "out")]
    pub(crate) unsafe_artifacts: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachFlags {
    /// Run id, or the beginning of one that no other run shares
    pub(crate) run: String,
    /// Where to begin in each of its outputs: start, end (what comes from now on), or a byte
    #[arg(long, value_name = "OFFSET", default_value = "start")]
    pub(crate) from: String,
    /// Print nothing of our own but errors
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

/// `leasehold pool`.
#[derive(Debug, Args)]
pub(crate) struct PoolFlags {
    /// How many; 0 empties the pool of this kind
    pub(crate) count: u32,
    /// Use a pre-warmed interpreter: python
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) warm: Option<String>,
    /// What bounds each.
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
}

/// `leasehold sweep`.
#[derive(Debug, Args)]
pub(crate) struct SweepFlags {
    /// Say what would be removed, remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold prune`.
#[derive(Debug, Args)]
#[command(after_help = "\
Output, which is both streams and the collected files, goes by age, number of runs and bytes,
whichever is reached first. The record of a run stays, says when its output went, and goes by a
number of its own. The newest run keeps both; a run that is not over is not touched. The rule is
that of the LEASEHOLD_KEEP_ variables (`leasehold --help`); a flag takes the place of one of its
bounds.

Exit status: 125 when something could not be removed.")]
pub(crate) struct PruneFlags {
    /// Say what would be removed, remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Output of runs that ended so long ago, such as 7d or 12h
    #[arg(long, value_name = "TIME")]
    pub(crate) older_than: Option<String>,
    /// Output of all but so many runs, at least 1
    #[arg(long, value_name = "COUNT")]
    pub(crate) keep: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 when everything promised here holds, else 1.")]
pub(crate) struct DoctorFlags {
    /// Only look; make no sandbox and breach nothing
    #[arg(long)]
    pub(crate) no_probes: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchFlags {
    /// Which backend: process or wasm
    #[arg(default_value = "process")]
    pub(crate) backend: String,
    /// Runs of each measured thing, interleaved
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    pub(crate) runs: u32,
    /// Seconds of the sustained part
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) sustain: u32,
    /// Only these parts of process: latency, service, concurrency, sustain, memory, python, sweep
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Of wasm: a program that has the engine's library alone, to be measured beside ours; `cargo build --release
    /// -p leasehold-wasm --example library` makes it
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) library: Option<PathBuf>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold supervisor`.
#[derive(Debug, Default, Args)]
pub(crate) struct SupervisorFlags {
    /// Seconds without anything to do after which it goes
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle: Option<u64>,
    /// Waits to be told that it is wanted, at the socket that is its standard output
    #[arg(long, hide = true)]
    pub(crate) leashed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_needs_the_two_dashes() {
        assert!(Cli::try_parse_from(["leasehold", "run", "true"]).is_err());
        let cli = Cli::try_parse_from(["leasehold", "run", "--", "ls", "--json"]).unwrap();
        let Command::Run(flags) = cli.command else {
            panic!("not a run");
        };
        assert_eq!(flags.command, ["ls", "--json"]);
        assert!(!flags.json);
    }
}
