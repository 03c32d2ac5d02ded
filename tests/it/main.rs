//! Integration tests: the layers of the source, and scripts that drive the real binary.

mod layers;
