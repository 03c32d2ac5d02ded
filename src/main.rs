//! The `fleetwright` binary: hands its arguments to the library's command line.

fn main() {}
