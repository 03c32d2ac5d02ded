//! Kubernetes over its API: the port [`Cluster`] for a real cluster.
//!
//! This module knows how the API server is asked and what its objects look like; types of the client
//! library stop here. It decides nothing, waits for nothing, and retries no write: a verb that fails
//! says whether trying again may help. Invariants: every list is a consistent read and is read to its
//! last page, or the whole read fails; what cannot be read is an error, never a smaller cluster; each
//! write names the UID of what it means, so that an object which took the name of another is left
//! alone.

#[cfg(doc)]
#[doc = include_str!("adr/0010-no-capacity.md")]
pub mod adr_0010 {}

#[cfg(doc)]
#[doc = include_str!("adr/0013-in-the-cluster.md")]
pub mod adr_0013 {}

mod client;
mod gate;
mod lease;
mod list;
mod memory;
mod node;
mod note;
mod objects;
mod piece;
mod pod;
mod preflight;
mod register;
mod scaling;
mod watch;
mod workload;
mod write;

pub use client::{ConnectError, Kubernetes};
pub use lease::{Held, Lease, LeaseError, RENEW_EVERY};
pub use memory::Memory;
pub use note::{About, Note};
pub use watch::{News, Watched};

use ::kube::Error;

use crate::port::{Fate, PortError, with_causes};

/// Returns the error of a verb in the words of the port.
///
/// Of what the server said only its message is kept: bodies of objects may hold secrets.
fn port_error(verb: &str, error: &Error) -> PortError {
    let (reason, transient) = if let Error::Api(status) = error {
        let code = status.code;
        (format!("{} ({code})", status.message), code == 429 || code >= 500)
    } else if matches!(error, Error::HyperError(_) | Error::Service(_)) {
        (format!("the API server cannot be reached: {}", with_causes(error)), true)
    } else {
        (error.to_string(), false)
    };
    PortError { verb: verb.to_owned(), reason, fate: Fate::of(transient) }
}
