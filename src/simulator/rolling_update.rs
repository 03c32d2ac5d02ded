//! The limits of rolling updates of Deployments.

use crate::model::desired::RolloutShare;

/// The limits of a rolling update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollingUpdate {
    /// Pods beyond the desired number (`maxSurge`).
    pub surge: RolloutShare,
    /// Pods below the desired number (`maxUnavailable`).
    pub unavailable: RolloutShare,
}

impl Default for RollingUpdate {
    /// Returns the defaults of Kubernetes.
    fn default() -> Self {
        Self { surge: RolloutShare::DEFAULT, unavailable: RolloutShare::DEFAULT }
    }
}

impl RollingUpdate {
    /// Returns the most pods beyond and below `desired`. If both are zero, one pod may be
    /// unavailable, as in Kubernetes.
    pub(super) fn limits(self, desired: usize) -> (usize, usize) {
        let replicas = u32::try_from(desired).unwrap_or(u32::MAX);
        let pods = |pods: u32| usize::try_from(pods).unwrap_or(usize::MAX);
        let surge = pods(self.surge.rounded_up(replicas));
        let unavailable = pods(self.unavailable.rounded_down(replicas));
        (surge, if surge == 0 { unavailable.max(1) } else { unavailable })
    }
}
