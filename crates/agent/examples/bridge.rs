//! Puts an agent behind a TCP port, so that a stock client in its debug mode can talk to it.
//!
//! `bridge AGENT [ADDRESS]` starts the program AGENT, listens on ADDRESS
//! (127.0.0.1:49983 when absent) and passes every accepted socket over the channel. For tests by
//! hand; it confines nothing, and the agent acts on whatever tree it is started in.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode};

use leasehold_protocol::envd::PORT;
use leasehold_protocol::envd::channel::{Kind, READY, pass};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let agent = arguments.next().ok_or("which agent?")?;
    let address = match arguments.next() {
        Some(address) => address.into_string().map_err(|_| "address is no text")?,
        None => format!("127.0.0.1:{PORT}"),
    };
    let (channel, theirs) = UnixStream::pair()?;
    // The shell moves the channel to where the agent expects it.
    let mut child = Command::new("/bin/sh")
        .args(["-c", "exec \"$0\" 3<&0 </dev/null"])
        .arg(agent)
        .stdin(OwnedFd::from(theirs))
        .spawn()?;
    let mut ready = [0];
    std::io::Read::read_exact(&mut &channel, &mut ready)?;
    if ready != [READY] {
        return Err("agent says something else than that it is ready".into());
    }
    let listener = TcpListener::bind(address)?;
    for client in listener.incoming() {
        pass(&channel, Kind::Client, client?)?;
        if let Some(status) = child.try_wait()? {
            return Err(format!("agent ended: {status}").into());
        }
    }
    Ok(ExitCode::SUCCESS)
}
