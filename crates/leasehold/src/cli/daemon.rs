//! The flags of what speaks to a daemon, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use leasehold_core::name::Name;

/// `leasehold serve`.
#[derive(Debug, Default, Args)]
#[command(after_help = "\
Without a word of configuration: SQLite and objects in the state directory, a worker on this
machine, HTTP on 127.0.0.1:7431, and a first operator key in a file that only you can read.
On TERM or Ctrl-C it admits nothing more, lets running work end for the time of --drain, and goes;
what still runs then is taken up again by the next start.

Configuration file (TOML), every field optional:
  listen = \"127.0.0.1:7431\"
  plain_http = false        # whether plain HTTP may leave this machine
  running_max = 32          # runs at once
  warm = 2                  # untouched sandboxes kept parked
  drain = \"30s\"")]
pub(crate) struct ServeFlags {
    /// Where HTTP is served: ADDRESS:PORT, or a port of 127.0.0.1 (0 takes a free one) [default: 127.0.0.1:7431]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Most runs at once; of several tenants, those that have none get the last eighth [default: 16 for each core]
    #[arg(long, value_name = "COUNT")]
    pub(crate) running_max: Option<u32>,
    /// Untouched sandboxes kept parked; 0 keeps none [default: 2]
    #[arg(long, value_name = "COUNT")]
    pub(crate) warm: Option<u32>,
    /// How long running work may go on at the end [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) drain: Option<String>,
    /// Serve plain HTTP beyond this machine: something in front of it speaks TLS
    #[arg(long)]
    pub(crate) plain_http: bool,
}

/// What names a run of a daemon.
#[derive(Debug, Args)]
pub(crate) struct RunArg {
    /// Run id, or the beginning of one that no other run shares
    pub(crate) run: String,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold ps`.
#[derive(Debug, Args)]
pub(crate) struct PsFlags {
    /// Those that are over, too
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Only of this tool
    #[arg(long, value_name = "NAME")]
    pub(crate) tool: Option<String>,
    /// Show at most so many
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    pub(crate) last: u32,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold evidence`.
#[derive(Debug, Args)]
pub(crate) struct EvidenceFlags {
    /// Run id, or the beginning of one that no other run shares
    pub(crate) run: String,
    /// File to write [default: standard output]
    #[arg(short = 'o', long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// `leasehold explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainFlags {
    /// Run id, or a file that `leasehold evidence` wrote
    pub(crate) what: String,
}

/// `leasehold verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs no daemon and no network. Without --key it says which key signed, and that nobody vouches for
that key; with --key it is clean only if that key signed.
Exit status: 0 when everything holds and the cleanup was clean, 1 when not.")]
pub(crate) struct VerifyFlags {
    /// File that `leasehold evidence` wrote, or a run id
    pub(crate) what: String,
    /// Id of a key to trust (sha256:…), or a file with it; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Vec<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `leasehold tool`.
#[derive(Debug, Subcommand)]
pub(crate) enum ToolCommand {
    /// Check a tool.yaml; needs no daemon
    Check {
        /// The file, or the folder that has a tool.yaml
        path: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Publish a version; it can never change
    Publish {
        /// The file, or the folder that has a tool.yaml
        path: PathBuf,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// List published tools
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a tool, or one version of it
    Show {
        /// NAME or NAME@VERSION
        tool: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Warn whoever uses this version
    Deprecate(ToolStateFlags),
    /// Let nobody run this version
    Quarantine(ToolStateFlags),
    /// Let it be run again
    Activate(ToolStateFlags),
}

/// What changes the state of a version.
#[derive(Debug, Args)]
pub(crate) struct ToolStateFlags {
    /// NAME@VERSION
    pub(crate) tool: String,
    /// Why; shown to whoever asks for it
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<String>,
}

/// `leasehold tenant`.
#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// Make a tenant
    Create {
        /// Its name; can never be used again
        name: String,
    },
    /// List tenants
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Let it start nothing for now
    Suspend {
        /// Which
        name: String,
    },
    /// Let it go on
    Resume {
        /// Which
        name: String,
    },
}

/// `leasehold key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print its token, this once
    Create {
        /// Whose: the person or program
        principal: String,
        /// What it may do
        #[arg(long, value_name = "ROLE", default_value = "runner")]
        #[arg(value_parser = ["auditor", "runner", "developer", "admin", "operator"])]
        role: String,
        /// Tenant [default: your own]
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// Project
        #[arg(long, value_name = "NAME", default_value = "default")]
        project: String,
        /// A permission that tools may get from it; may be repeated
        #[arg(long = "grant", value_name = "PERMISSION")]
        grants: Vec<String>,
        /// How long it is good for, such as 12h [default: until it is revoked]
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
    },
    /// List keys
    Ls {
        /// Tenant [default: your own]
        #[arg(long, value_name = "NAME")]
        tenant: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Revoke a key at once
    Revoke {
        /// Key id
        key: String,
    },
}

/// Where a policy holds.
pub(super) const SCOPES: &str = "\
Scopes, outermost first; all that have a say meet, and the most restrictive wins:
  platform                everybody                 published by an operator
  platform/tenant/T       one tenant                published by an operator
  tenant/T                one tenant, by itself     published by its admins
  tenant/T/project/P      one project of it         published by its admins
  tenant/T/principal/N    one person or program     published by its admins
  tenant/T/tool/X         one tool, every version   published by its admins
What a tenant says can only narrow; trust and weight are given by the operator's two.";

/// `leasehold policy`.
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Check a policy document; needs no daemon
    Check {
        /// The file
        path: PathBuf,
        /// Where it is to hold: some fields may stand at some scopes alone
        #[arg(long, value_name = "SCOPE", default_value = "platform")]
        scope: String,
    },
    /// List policies in force, or show the one of a scope
    Show {
        /// platform, platform/tenant/T, tenant/T, tenant/T/project/P, tenant/T/principal/N or tenant/T/tool/X
        scope: Option<String>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Put a policy in force
    Set {
        /// As for `show`
        scope: String,
        /// The file
        path: PathBuf,
    },
    /// Say what the policies come to, for you if nobody is named, and which one set each value
    Explain {
        /// For a tool: NAME@VERSION
        #[arg(long, value_name = "TOOL")]
        tool: Option<String>,
        /// For another tenant: for operators
        #[arg(long, value_name = "NAME", value_parser = Name::parse)]
        tenant: Option<Name>,
        /// For a project; `default` in another tenant
        #[arg(long, value_name = "NAME", value_parser = Name::parse)]
        project: Option<Name>,
        /// For a principal
        #[arg(long, value_name = "NAME", value_parser = Name::parse)]
        principal: Option<Name>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}
