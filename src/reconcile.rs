//! The loop: follows the repository and the live state, and keeps them together.
//!
//! `step` is the whole of its mind: a pure function of a state, an event and the moment, which gives
//! effects. `drive` is its hands: it carries effects out through the ports and feeds back what came
//! of them. [`Status`] is its face: a plain snapshot, published after every step, of which metrics,
//! page and objects are views. What people ask of a running loop is a [`Request`].
//!
//! Invariants: nothing is decided from a read that failed, was partial or is old; capacity that goes
//! is replaced first; what is held back says why.

pub mod allow;
mod asked;
mod away;
mod commit;
mod costs;
mod current;
mod drive;
mod event;
mod face;
mod failing;
#[cfg(test)]
mod fixture;
mod health;
mod kept;
mod lane;
mod looks;
mod mail;
mod message;
mod past;
mod ports;
mod quiet;
mod request;
mod rest;
mod rival;
mod state;
mod status;
mod steer;
mod tighten;
mod timing;
mod trace;
mod uncordon;
mod view;
mod work;

#[cfg(doc)]
#[doc = include_str!("adr/0012-loop.md")]
pub mod adr_0012 {}

pub use crate::manifest::Mode;
pub use asked::Asked;
pub use drive::{Outside, drive};
pub use event::{Effect, Event, Head, Limits, NoCommit, Signal, Ticket};
pub use kept::{Applied, Approved, Kept, Launched, Leaving, Quarantine, Removed, SoldOut};
pub use message::{Kind, Message};
pub use past::{Crowds, Past as PastMoves};
pub use ports::{Desk, Planner, Signals, Source};
pub use request::Request;
pub use state::{Start, State, step};
pub use status::{
    ApprovedBy, AwayPhase, Breaker, Decided, Deed, Failure, Going, Held, HeldBy, KeptNow, Part,
    Past, PlanNow, RepositoryNow, SourceState, Status, Superseded, Suspension, Uncordoned,
    WorldNow,
};
pub use view::SHOWN_WITHIN;

/// How the names of loops begin, as the lease names them; in a cluster the name of their pod follows.
pub const LOOP: &str = "run/";

use std::sync::Arc;

use tokio::sync::watch;

/// Where the loop publishes: the latest [`Status`], and a wake-up at each new one.
///
/// A `tokio::sync::watch`: any number of readers, each of which may skip what it was too slow for.
#[derive(Debug)]
pub struct Board(watch::Sender<Arc<Status>>);

/// A reader of a [`Board`]. It works on any thread and in any runtime.
pub type Reader = watch::Receiver<Arc<Status>>;

impl Board {
    /// Returns a board that shows `first`, and a reader of it; clone the reader for more.
    #[must_use]
    pub fn new(first: Status) -> (Self, Reader) {
        let (sender, reader) = watch::channel(Arc::new(first));
        (Self(sender), reader)
    }

    /// Shows `status` in place of the one before.
    pub fn publish(&self, status: Status) {
        // Kept for readers that come later, too.
        self.0.send_replace(Arc::new(status));
    }
}
