//! The `fleetwright` binary: passes its arguments to the command line of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleetwright::cli::main(std::env::args_os())
}
