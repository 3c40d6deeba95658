//! The flags of `leasehold image`, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `leasehold image`.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Pull an image from its registry, check and unpack it
    Pull(PullFlags),
    /// Load an image from a file or directory: an OCI layout, or what `docker save` wrote
    Load(LoadFlags),
    /// List the images that are there
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show an image: layers, how it is started, what is odd about its root
    Show {
        /// Its name, its digest, or the first digits of it
        #[arg(value_name = "IMAGE")]
        image: String,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove names, and images that have none left; sandboxes that have one go on
    Rm {
        /// Names or digests
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
    },
    /// Free what no image and no sandbox refers to
    Gc {
        /// Only say what would be freed
        #[arg(long)]
        dry_run: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Read images again, all of them without a name, and say what is altered
    Verify {
        /// Names or digests
        #[arg(value_name = "IMAGE")]
        images: Vec<String>,
        /// Remove what is altered, so that the next pull or load of the image brings it again
        #[arg(long)]
        drop: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

/// `leasehold image pull`.
#[derive(Debug, Args)]
#[command(after_help = "\
A name without a registry is of docker.io, one without a tag of `latest`. What breaks off goes on where
it was when the same is pulled again. Plain HTTP goes to loopback, or with --plain-http to the registry
that is named. The password goes to the registry, and to the HTTPS token service it names.

Examples:
  leasehold image pull debian:12
  leasehold image pull registry.example.com/team/tool:1.2 --user ci --password-file token.txt
  leasehold image pull ghcr.io/owner/tool@sha256:…")]
pub(crate) struct PullFlags {
    /// Name of the image, such as debian:12
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// User name at the registry
    #[arg(long, value_name = "NAME", requires = "password_file")]
    pub(crate) user: Option<String>,
    /// File with the password or token, or - for standard input
    #[arg(long, value_name = "FILE", requires = "user")]
    pub(crate) password_file: Option<PathBuf>,
    /// What it has to run on, such as linux/arm64 [default: this machine]
    #[arg(long, value_name = "OS/CPU")]
    pub(crate) platform: Option<String>,
    /// Certificates to believe besides the host's own, in PEM
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Speak plain HTTP to this registry alone, which anybody on the way can read
    #[arg(long)]
    pub(crate) plain_http: bool,
    /// How long a connection may stand still before it is begun again [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub(crate) stall: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing of our own but errors
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

/// `leasehold image load`.
#[derive(Debug, Args)]
#[command(after_help = "\
What an archive calls its image is not taken as a name: --name gives it one.

Examples:
  leasehold image load tool.tar --name tool:1
  docker save tool:1 | leasehold image load - --name tool:1
  leasehold image load ./layout --which v2")]
pub(crate) struct LoadFlags {
    /// File or directory, or - for standard input
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,
    /// Name to give to it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Which image, by what the archive calls it, where it has several
    #[arg(long, value_name = "WORD")]
    pub(crate) which: Option<String>,
    /// What it has to run on, such as linux/arm64 [default: this machine]
    #[arg(long, value_name = "OS/CPU")]
    pub(crate) platform: Option<String>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing of our own but errors
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}
