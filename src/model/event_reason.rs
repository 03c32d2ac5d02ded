//! Reasons of the Kubernetes events that Fleetwright writes, with their type and their meaning.

use std::fmt;

/// Declares the reasons. The comment of each is its meaning on the reference page `events.md`.
macro_rules! reasons {
    ($($subject:ident $kind:ident { $(#[doc = $meaning:literal] $reason:ident;)+ })+) => {
        /// The reason of a Kubernetes event. Reasons are stable.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum EventReason {
            $($(#[doc = $meaning] $reason,)+)+
        }

        impl EventReason {
            /// All reasons, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$($(Self::$reason,)+)+];

            /// Returns the reason as events write it.
            pub const fn as_str(self) -> &'static str {
                match self { $($(Self::$reason => stringify!($reason),)+)+ }
            }

            /// Returns the kind of the object that the event is about.
            pub const fn object(self) -> &'static str {
                match self { $($(Self::$reason)|+ => stringify!($subject),)+ }
            }

            /// Returns the type of the event: `Normal` or `Warning`.
            pub const fn event_type(self) -> &'static str {
                match self { $($(Self::$reason)|+ => stringify!($kind),)+ }
            }

            /// Returns the meaning as a sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $($(Self::$reason => $meaning.trim_ascii(),)+)+ }
            }
        }
    };
}

reasons! {
    Node Normal {
        /// The node of a launched instance is ready.
        Ready;
        /// An apply drains the node: no new pods are scheduled.
        Cordoned;
        /// An apply evicts pods from the node.
        Evicting;
    }
    Node Warning {
        /// A drain was abandoned or interrupted, so the node accepts new pods.
        Uncordoned;
        /// The termination grace period of the node ends, so an apply deletes its last pods.
        PodsDeleted;
        /// The instance is interrupted, so the controller cordoned the node.
        Terminating;
    }
    CapacityPlan Normal {
        /// The controller applied all changes of the plan.
        Applied;
        /// Break-glass ended: plans need their approval.
        BreakGlassEnded;
    }
    CapacityPlan Warning {
        /// The controller applied the plan, and some changes failed or were abandoned.
        PartlyApplied;
        /// The apply was refused before its first change.
        Refused;
        /// Break-glass started: approvals, windows and CI are bypassed.
        BreakGlassStarted;
    }
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
