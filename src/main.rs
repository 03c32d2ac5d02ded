//! The `fleetwright` binary: hands its arguments to the library's command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    fleetwright::cli::main(std::env::args_os())
}
