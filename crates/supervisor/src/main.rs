//! The supervisor as a static program of its own, which `leasehold` carries.

fn main() -> std::process::ExitCode {
    leasehold_supervisor::program::main()
}
