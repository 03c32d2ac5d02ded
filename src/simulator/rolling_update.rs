//! The limits of rolling updates of Deployments.

/// The limits of a rolling update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollingUpdate {
    /// Pods beyond the desired number (`maxSurge`).
    pub surge: RolloutShare,
    /// Pods below the desired number (`maxUnavailable`).
    pub unavailable: RolloutShare,
}

/// A number of pods, or a share of the desired number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutShare {
    /// A number of pods.
    Count(u32),
    /// Percent of the desired number.
    Percent(u32),
}

impl Default for RollingUpdate {
    /// Returns the defaults of Kubernetes.
    fn default() -> Self {
        Self { surge: RolloutShare::Percent(25), unavailable: RolloutShare::Percent(25) }
    }
}

impl RollingUpdate {
    /// Returns the most pods beyond and below `desired`. The first is rounded up, the second down.
    /// If both are zero, one pod may be unavailable, as in Kubernetes.
    pub(super) fn limits(self, desired: usize) -> (usize, usize) {
        let percent = |share: u32| desired.saturating_mul(usize::try_from(share).unwrap_or(100));
        let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let surge = match self.surge {
            RolloutShare::Count(pods) => count(pods),
            RolloutShare::Percent(share) => percent(share).div_ceil(100),
        };
        let unavailable = match self.unavailable {
            RolloutShare::Count(pods) => count(pods),
            RolloutShare::Percent(share) => percent(share) / 100,
        };
        (surge, if surge == 0 { unavailable.max(1) } else { unavailable })
    }
}
