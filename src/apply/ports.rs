//! Ports: the operations that observation and apply need from external systems.
//!
//! The production adapters (`aws`, `kube`) and the simulator implement the same traits, and callers
//! do not depend on the implementation. Operations are idempotent where the external system allows
//! it, and their outcome states the effect. They do not wait, retry or decide.

use std::future::Future;

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

pub use authorizer::{Authorizer, Caller};
pub use cloud::{
    Cloud, CloudInventory, LaunchOffering, LaunchOutcome, LaunchRequest, LaunchedInstance, Tagger,
};
pub use cluster::{Cluster, ClusterObjects, CordonOutcome, EvictOutcome, NodeAndPods};
pub use object_store::{ObjectStore, StoredObject, StoredObjectHead};
pub use prerequisite::{Prerequisite, PrerequisiteState};

mod authorizer;
mod cloud;
mod cluster;
mod object_store;
mod prerequisite;

/// Error of a port operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{verb} failed: {reason}")]
pub struct PortError {
    /// Name of the operation, such as `launch instance`.
    pub verb: String,
    /// Reason without secrets.
    pub reason: String,
    /// Effect of the call.
    pub effect: CallEffect,
}

impl PortError {
    /// Returns true if a retry may succeed.
    pub fn is_transient(&self) -> bool {
        self.effect != CallEffect::Refused
    }
}

/// Returns the error and its sources on one line, without repeated texts.
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only the adapters use it"))]
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Effect of a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEffect {
    /// The call had no effect, and the same call fails again.
    Refused,
    /// The call had no effect, for example because of throttling. A retry may succeed.
    NotApplied,
    /// The effect is unknown. A retry may succeed.
    Unknown,
}

impl CallEffect {
    /// Returns the effect of a failed call if only its transience is known.
    pub fn from_transience(transient: bool) -> Self {
        if transient { Self::Unknown } else { Self::Refused }
    }
}

/// Time source.
pub trait Clock {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
    /// Waits for `duration`.
    fn sleep(&self, duration: SignedDuration) -> impl Future<Output = ()>;
    /// Lets other tasks run after a long computation. The default implementation does nothing.
    fn yield_now(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

/// A comment on a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgeComment {
    /// ID of the comment.
    pub id: u64,
    /// Login of the author.
    pub author: String,
    /// Text of the comment.
    pub body: String,
}

/// State of a commit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitState {
    /// The check passed.
    Success,
    /// The check failed.
    Failure,
}

/// A commit status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// Name of the status, such as `fleetwright/plan`.
    pub context: String,
    /// State of the check.
    pub state: CommitState,
    /// Description in one line.
    pub description: String,
}

/// Error of a forge.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ForgeError {
    /// The token is missing, invalid or expired.
    #[error("the forge rejects the token: {0}")]
    Unknown(String),
    /// The token lacks a permission.
    #[error("the forge refuses: {0}")]
    Refused(String),
    /// The object does not exist, or the token cannot read it.
    #[error("not found on the forge: {0}")]
    NotFound(String),
    /// The request is rejected, for example because a comment is too long.
    #[error("the forge rejects the content: {0}")]
    Unprocessable(String),
    /// The forge is unreachable, returns errors or limits the rate, after several attempts.
    #[error("the forge cannot be reached: {0}")]
    Unavailable(String),
}

/// The Markdown of comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommentSyntax {
    /// With HTML.
    GitHub,
    /// With HTML, and with commands at the beginning of lines.
    GitLab,
    /// Without HTML.
    Plain,
}

/// A code review platform, such as GitHub.
pub trait Forge {
    /// Returns the Markdown that comments are written in.
    fn syntax(&self) -> CommentSyntax {
        CommentSyntax::GitHub
    }
    /// Returns the author name of comments written with this token.
    ///
    /// # Errors
    /// If the forge rejects the request or cannot be reached, as for all methods.
    fn author(&self) -> Result<String, ForgeError>;
    /// Returns the comments of a pull request, oldest first.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn comments(&self, pull: u64) -> Result<Vec<ForgeComment>, ForgeError>;
    /// Adds a comment.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn create(&self, pull: u64, body: &str) -> Result<(), ForgeError>;
    /// Updates a comment.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn update(&self, pull: u64, id: u64, body: &str) -> Result<(), ForgeError>;
    /// Deletes a comment.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn delete(&self, pull: u64, id: u64) -> Result<(), ForgeError>;
    /// Sets a commit status.
    ///
    /// # Errors
    /// See [`Forge::author`].
    fn set_status(&self, commit: &str, status: &CommitStatus) -> Result<(), ForgeError>;
}
