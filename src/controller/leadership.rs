//! Leadership of this replica, and the end of its process.

use jiff::Timestamp;

/// The lease of the cluster, as this replica knows it.
#[derive(Debug, Clone)]
enum Lease {
    Held { since: Timestamp },
    NotHeld { holder: Option<String>, is_held_by_apply: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifecycle {
    Running,
    Stopping,
    Exited,
}

/// Whether this replica leads, and whether its process ends.
#[derive(Debug, Clone)]
pub(super) struct Leadership {
    lease: Lease,
    lifecycle: Lifecycle,
}

impl Leadership {
    pub(super) fn new() -> Self {
        let lease = Lease::NotHeld { holder: None, is_held_by_apply: false };
        Self { lease, lifecycle: Lifecycle::Running }
    }

    pub(super) fn gain(&mut self, now: Timestamp) {
        self.lease = Lease::Held { since: now };
    }

    pub(super) fn lose(&mut self, holder: Option<String>, is_held_by_apply: bool) {
        self.lease = Lease::NotHeld { holder, is_held_by_apply };
    }

    pub(super) fn stop(&mut self) {
        if !self.has_exited() {
            self.lifecycle = Lifecycle::Stopping;
        }
    }

    pub(super) fn exit(&mut self) {
        self.lifecycle = Lifecycle::Exited;
    }

    pub(super) fn is_leader(&self) -> bool {
        self.leader_since().is_some()
    }

    pub(super) fn leader_since(&self) -> Option<Timestamp> {
        match self.lease {
            Lease::Held { since } => Some(since),
            Lease::NotHeld { .. } => None,
        }
    }

    /// Returns the holder of the lease, if it is another process.
    pub(super) fn holder(&self) -> Option<&str> {
        match &self.lease {
            Lease::NotHeld { holder, .. } => holder.as_deref(),
            Lease::Held { .. } => None,
        }
    }

    /// Returns true while an apply holds the lease. An apply does not receive interruption
    /// messages.
    pub(super) fn is_held_by_apply(&self) -> bool {
        matches!(self.lease, Lease::NotHeld { is_held_by_apply: true, .. })
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lifecycle != Lifecycle::Running
    }

    pub(super) fn has_exited(&self) -> bool {
        self.lifecycle == Lifecycle::Exited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_knows_no_other_holder() {
        let mut leadership = Leadership::new();
        leadership.lose(Some("ci".to_owned()), true);
        assert_eq!((leadership.holder(), leadership.is_held_by_apply()), (Some("ci"), true));
        leadership.gain(Timestamp::UNIX_EPOCH);
        assert_eq!((leadership.holder(), leadership.is_held_by_apply()), (None, false));
        assert_eq!(leadership.leader_since(), Some(Timestamp::UNIX_EPOCH));
        leadership.lose(None, false);
        assert!(!leadership.is_leader());
    }
}
