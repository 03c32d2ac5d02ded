//! `completions`: prints a completion script for a shell.

use clap_complete::Shell;

use super::error::CliError;
use super::{Console, Exit};

pub(super) fn run(
    shell: Shell,
    command: &mut clap::Command,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "fleetwright", &mut script);
    console.print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
