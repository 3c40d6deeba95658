//! The supervisor as a static program of its own, which `leasehold` carries and executes from memory.

fn main() -> std::process::ExitCode {
    leasehold_supervisor::program::main()
}
