//! EC2 over its API: the port [`Cloud`](crate::port::Cloud) for a real account.
//!
//! This module knows which calls there are, how their answers read, and how a machine is told to join
//! its cluster; types of the SDK stop here. It decides nothing: what is launched was decided in every
//! part. Invariants: what carries the tag of another cluster, or none, is neither listed nor touched;
//! every list is read to its last page; a call waits for its own bucket of tokens before it is made,
//! so that a throttled account is not made worse; user data reaches the launch template and nothing
//! else.

mod boot;
mod client;
mod cloud;
mod described;
mod fault;
mod group;
mod image;
mod instance;
mod joining;
mod launch;
mod limiter;
mod listed;
mod machine;
mod market;
mod network;
mod preflight;
mod queue;
mod quota;
mod reserved;
mod resolve;
mod sweep;
mod template;
mod timed;
mod trial;

pub use boot::{Boot, Endpoint};
pub use client::{Aws, AwsError};
pub use joining::Joining;
pub use machine::Machines;
pub use preflight::{NodeRole, Preflight};
pub use queue::{MESSAGES_MAX, Received};
pub use sweep::Swept;
