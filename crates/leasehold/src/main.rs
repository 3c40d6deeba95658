//! The command line of Leasehold. This file is glue: it parses, hands over, and leaves with the
//! status it is given.

mod artifacts;
mod bench;
mod carried;
mod cli;
mod doctor;
mod env;
mod fault;
mod gather;
mod image;
mod place;
mod policy;
mod prune;
mod remote;
mod run;
mod serve;
mod show;
mod supervise;
mod table;
mod template;
mod tool;
mod voice;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use cli::{Cli, Command};
use fault::Fault;
use leasehold_backend::process::start::Begun;
use leasehold_jail::schedule::be_prompt;

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == image::UNPACK)
    {
        return ExitCode::from(leasehold_image::unpack::child::main());
    }
    let begun = is_run().then(place::begin).flatten();
    if let Some(flags) = cli::quick::run(std::env::args_os().skip(1)) {
        return end(dispatch(Command::Run(Box::new(flags)), begun));
    }
    let parsed = cli::help::command()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    end(dispatch(cli.command, begun))
}

/// Whether the first word is that of a run, which will probably need a supervisor.
fn is_run() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == "run")
}

fn end(outcome: Result<ExitCode, Fault>) -> ExitCode {
    outcome.unwrap_or_else(|fault| {
        voice::fault(&fault);
        ExitCode::from(fault.status())
    })
}

/// Tells what is wrong with the flags, or the help that was asked for.
fn refuse(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg)
        && !word.starts_with('-')
        && is_run()
    {
        voice::hint(&format!(
            "the command comes after two dashes: leasehold run -- {word}"
        ));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

fn dispatch(command: Command, begun: Option<Begun>) -> Result<ExitCode, Fault> {
    // Who refuses us this makes us slower and nothing else.
    let _ = be_prompt();
    let status = match command {
        Command::Supervisor(flags) => supervise::supervisor(&flags),
        Command::Run(flags) => run::main(&flags, begun),
        Command::Show(flags) => show::show(&flags),
        Command::Runs(flags) => show::runs(&flags),
        Command::Logs(flags) => show::logs(&flags),
        Command::Artifacts(flags) => artifacts::main(&flags),
        Command::Attach(flags) => {
            let paths = place::paths()?;
            match show::find(&paths, &flags.run) {
                Ok(run) => run::attach(&paths, &run, &flags),
                Err(fault) => {
                    let of_daemon = remote::look::find(&paths, &flags.run)?;
                    let (remote, run) = of_daemon.ok_or(fault)?;
                    remote::look::attach(&remote, &run, &flags)
                }
            }
        }
        Command::Pool(flags) => supervise::pool(&flags),
        Command::Stop => supervise::stop(),
        Command::Doctor(flags) => doctor::main(&flags),
        Command::Image(command) => image::main(&command),
        Command::Template(command) => template::main(&command),
        Command::Bench(flags) => bench::main(&flags),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::help::command(), "leasehold", &mut script);
            voice::data(&script).map(|()| 0)
        }
        Command::Serve(flags) => serve::main(&flags),
        Command::Ps(flags) => remote::runs::ps(&flags),
        Command::Cancel(flags) => remote::runs::cancel(&flags),
        Command::Evidence(flags) => remote::proof::evidence(&flags),
        Command::Verify(flags) => remote::proof::verify(&flags),
        Command::Explain(flags) => remote::proof::explain(&flags),
        Command::Tool(command) => remote::admin::tool(&command),
        Command::Tenant(command) => remote::admin::tenant(&command),
        Command::Key(command) => remote::admin::key(&command),
        Command::Policy(command) => remote::admin::policy(&command),
        Command::Sweep(flags) => supervise::sweep(&flags),
        Command::Prune(flags) => prune::prune(&flags),
    };
    status.map(ExitCode::from)
}
