//! What people ask of a running loop.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ids::{Address, Digest};

/// Something that somebody asks of the loop. Whoever passes it on has checked that they may.
///
/// The loop takes requests from a bounded `tokio::sync::mpsc` channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// The plan with this digest may be carried out.
    Approve {
        /// What is approved.
        digest: Digest,
        /// Who approves.
        by: String,
    },
    /// A row of a pool that asks for it (`terminate: confirm`) may go.
    Confirm {
        /// The row.
        address: Address,
        /// Who confirms.
        by: String,
    },
    /// Nothing new is begun, until the moment or for ever.
    Suspend {
        /// Why.
        reason: String,
        /// When it ends by itself.
        until: Option<Timestamp>,
        /// Who asks.
        by: String,
    },
    /// A suspension ends.
    Resume {
        /// Who asks.
        by: String,
    },
    /// Approval, windows and the wait for CI are passed over until the moment; no rule of safety is.
    BreakGlass {
        /// Why.
        reason: String,
        /// When it ends.
        until: Timestamp,
        /// Who asks.
        by: String,
    },
    /// A breaker that latched is opened again.
    Reset {
        /// Its name.
        breaker: String,
        /// Who asks.
        by: String,
    },
}
