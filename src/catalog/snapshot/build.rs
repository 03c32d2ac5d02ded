//! Compresses the catalogue snapshot, so that the repository keeps readable lines and the binary
//! stays small.

fn main() {}
