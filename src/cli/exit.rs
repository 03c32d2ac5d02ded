//! Exit codes.

use std::process::ExitCode;

/// Declares the exits. The comment of each is its only description: `--help` and
/// `docs/src/reference/exit-codes.md` show it.
macro_rules! exits {
    ($(#[doc = $meaning:literal] $name:ident = $code:literal, $label:literal;)+) => {
        /// The result of a command. Scripts rely on the codes, so their meaning never changes.
        ///
        /// If several apply to a plan, the order is 1, then 6, then 12, then 2, then 0. Unschedulable
        /// pods do not by themselves change the exit code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Exit {
            $(#[doc = $meaning] $name,)+
        }

        impl Exit {
            /// All exits, in the order of their codes.
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];

            /// Returns the meaning in a few words.
            pub(super) fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)+
                }
            }

            /// Returns the meaning as a sentence.
            pub(super) fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning.trim_ascii(),)+
                }
            }

            /// Returns the exit code of the process.
            pub fn code(self) -> u8 {
                match self {
                    $(Self::$name => $code,)+
                }
            }
        }
    };
}

exits! {
    /// Done, or nothing to do.
    Done = 0, "done";
    /// An error, including usage errors.
    Failed = 1, "error";
    /// `plan`, `drift` and `diff` with `--detailed-exitcode`: there are changes.
    Changes = 2, "changes";
    /// A precondition fails, a change is missing, or the digest differs from the approved one.
    Stale = 3, "stale";
    /// Another apply holds the lock.
    Locked = 4, "locked";
    /// Approval or another requirement is missing.
    NotApproved = 5, "not approved";
    /// A policy denies the plan.
    Denied = 6, "denied by policy";
    /// Partly applied; apply the same plan once more, or plan once more if it has expired.
    Partly = 7, "partly applied";
    /// Outside the windows for changes.
    OutsideWindow = 8, "outside the window";
    /// The plan cannot be read, or was altered.
    UnreadablePlan = 9, "unreadable plan";
    /// The plan, or the world, is of another cluster.
    OtherCluster = 10, "other cluster";
    /// The plan has expired.
    Expired = 11, "expired";
    /// `plan` with `--detailed-exitcode`: a part of the inputs was not read, with or without changes.
    Incomplete = 12, "incomplete";
    /// Interrupted.
    Interrupted = 130, "interrupted";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
