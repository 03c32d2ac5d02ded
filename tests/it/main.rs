//! Integration tests: the layers of the source, and stories told through the real binary.
//!
//! A story is a file of `scripts/`; `script` says what its lines mean. What a story cannot say, because
//! it needs bytes of its own making or a thousand rounds, stands in a module of its own.
//! `UPDATE_GOLDEN=1 cargo test --test it` writes what is compared with a file (`golden/`, `plans/`)
//! instead of comparing it; the difference is then reviewed like prose.

mod adopt;
mod binary;
mod browser;
mod conformance;
mod delivery;
mod deploy;
mod face;
mod golden;
mod hostile;
#[path = "../bench/large.rs"]
mod large;
mod layers;
#[cfg(feature = "kubernetes")]
mod live;
mod optimum;
mod order;
mod overlays;
mod page;
mod permissions;
#[cfg(feature = "sandbox")]
mod preview;
mod proof;
mod reconcile;
mod rehearsal;
#[path = "../bench/replay.rs"]
mod replay;
mod review;
#[cfg(feature = "sandbox")]
mod sandbox;
mod saved;
mod script;
mod scripts;
#[path = "../seeds/mod.rs"]
mod seeds;
mod signed;
mod traces;
