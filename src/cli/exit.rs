//! Exit codes.

use std::process::ExitCode;

/// The result of a command. Scripts rely on the codes, so their meaning never changes.
///
/// If several apply to a plan, the order is 1, then 6, then 2, then 0. Unschedulable pods do not by
/// themselves change the exit code. The table of `docs/src/reference/exit-codes.md` is written from
/// the comments below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done, or nothing to do (0).
    Done,
    /// An error, including usage errors (1).
    Failed,
    /// `plan`, `drift` and `diff` with `--detailed-exitcode`: there are changes (2).
    Changes,
    /// A precondition fails, a change is missing, or the digest differs from the approved one (3).
    Stale,
    /// Another apply holds the lock (4).
    Locked,
    /// Approval or another requirement is missing (5).
    NotApproved,
    /// A policy denies the plan (6).
    Denied,
    /// Partly applied; apply the same plan once more (7).
    Partly,
    /// Outside the windows for changes (8).
    OutsideWindow,
    /// The plan cannot be read, or was altered (9).
    UnreadablePlan,
    /// The plan, or the world, is of another cluster (10).
    OtherCluster,
    /// The plan has expired (11).
    Expired,
    /// Interrupted (130, as in shells).
    Interrupted,
}

impl Exit {
    /// All exits, in the order of their codes.
    pub(super) const ALL: [Self; 13] = [
        Self::Done,
        Self::Failed,
        Self::Changes,
        Self::Stale,
        Self::Locked,
        Self::NotApproved,
        Self::Denied,
        Self::Partly,
        Self::OutsideWindow,
        Self::UnreadablePlan,
        Self::OtherCluster,
        Self::Expired,
        Self::Interrupted,
    ];

    /// Returns the meaning in a few words.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "error",
            Self::Changes => "changes",
            Self::Stale => "stale",
            Self::Locked => "locked",
            Self::NotApproved => "not approved",
            Self::Denied => "denied by policy",
            Self::Partly => "partly applied",
            Self::OutsideWindow => "outside the window",
            Self::UnreadablePlan => "unreadable plan",
            Self::OtherCluster => "other cluster",
            Self::Expired => "expired",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns the meaning for help and documentation.
    pub(super) fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done; nothing to do",
            Self::Failed => "error, usage errors included",
            Self::Changes => {
                "`plan`, `drift` and `diff` with `--detailed-exitcode`: there are changes"
            }
            Self::Stale => {
                "stale: a precondition fails, a change is missing, or the digest is not the \
                 approved one"
            }
            Self::Locked => "locked by another apply",
            Self::NotApproved => "approval or another requirement missing",
            Self::Denied => "denied by policy",
            Self::Partly => "partly applied; apply the same plan once more",
            Self::OutsideWindow => "outside the window",
            Self::UnreadablePlan => "the plan cannot be read, or was altered",
            Self::OtherCluster => "the plan, or the world, is of another cluster",
            Self::Expired => "the plan has expired",
            Self::Interrupted => "interrupted",
        }
    }

    /// Returns the exit code of the process.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Changes => 2,
            Self::Stale => 3,
            Self::Locked => 4,
            Self::NotApproved => 5,
            Self::Denied => 6,
            Self::Partly => 7,
            Self::OutsideWindow => 8,
            Self::UnreadablePlan => 9,
            Self::OtherCluster => 10,
            Self::Expired => 11,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
