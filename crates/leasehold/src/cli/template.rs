//! The flags of `leasehold template`, as they are typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `leasehold template`.
#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Build templates: python, javascript, or a name of your own with packages in it
    Build(BuildFlags),
    /// List the templates that are there
    Ls {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove templates; runs that have one go on
    Rm {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// `leasehold template build`.
#[derive(Debug, Args)]
#[command(after_help = "\
Needs python3 with pip, for javascript node (18 or newer) with npm, and their registries. Nothing is
taken but what is pinned by version and digest, and wheels of pure Python for --requirements.
What is there and still current is not built again.

Examples:
  leasehold template build --wasm python javascript
  leasehold template build --wasm mine --packages ./site-packages
  leasehold template build --wasm mine --requirements requirements.txt
  leasehold run --isolation wasm --interpreter mine -- script.py")]
pub(crate) struct BuildFlags {
    /// As WebAssembly, which is the one kind there is
    #[arg(long, required = true)]
    pub(crate) wasm: bool,
    /// Names: python, javascript, or one of your own (letters, digits, - and _)
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Interpreter of a name of your own: python or javascript [default: python]
    #[arg(long, value_name = "KIND")]
    pub(crate) interpreter: Option<String>,
    /// Folder of importable modules to bake in, such as `pip install --target` makes
    #[arg(long, value_name = "DIR", conflicts_with = "requirements")]
    pub(crate) packages: Option<PathBuf>,
    /// List of requirements to bake in; pip takes wheels of pure Python alone
    #[arg(long, value_name = "FILE")]
    pub(crate) requirements: Option<PathBuf>,
    /// Module of those packages that is not imported in the build; may be repeated
    #[arg(long, value_name = "MODULE")]
    pub(crate) lazy: Vec<String>,
    /// Build again although what is there is current
    #[arg(long)]
    pub(crate) again: bool,
}
