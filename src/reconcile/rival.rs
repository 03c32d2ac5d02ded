//! Others who make and remove nodes: while one of them runs the loop only plans, since they would fight.
//!
//! One counts that has a pod which runs: a name alone fights for nothing, and whoever may make a Deployment
//! could stop the loop by it.

use jiff::SignedDuration;

use super::kept::later;
use super::state::State;
use crate::adopt::{Rival, rivals};
use crate::fleet::{Observed, PodPhase};
use crate::ids::WorkloadId;

/// Between two looks for them: each goes through all pods.
const LOOK_EVERY: SignedDuration = SignedDuration::from_mins(1);

impl State {
    /// Notes who else makes and removes nodes; what was held back because of them is planned again.
    pub(super) fn look_for_rivals(&mut self, observed: &Observed) {
        if self.now < self.rival_due {
            return;
        }
        self.rival_due = later(self.now, LOOK_EVERY);
        let rival = rivals(observed).into_iter().find(|rival| runs(observed, rival));
        let rival = rival.map(|rival| format!("{} runs as {}", rival.kind, rival.workload));
        if rival != self.rival {
            // What was received and is not taken off yet is theirs to see. What goes already goes on.
            if rival.is_some() {
                self.mail.clear();
            }
            self.rival = rival;
            self.replan_at = self.now;
        }
    }
}

/// Returns whether a pod of a rival runs.
fn runs(observed: &Observed, rival: &Rival) -> bool {
    let of = |owner: &WorkloadId| owner.to_string() == rival.workload;
    let mut pods = observed.pods.iter().filter(|pod| pod.owner.as_ref().is_some_and(of));
    pods.any(|pod| pod.phase == PodPhase::Running && pod.is_active())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::super::{Event, Mode, Start, step};
    use super::*;
    use crate::fleet::{ClusterIdentity, LiveWorkload, Pod};
    use crate::ids::WorkloadKind;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).expect("a time")
    }

    /// Returns a world with a controller that has a pod of this phase, or none.
    fn world(seconds: i64, phase: Option<PodPhase>) -> Event {
        let mut observed = Observed::empty(ClusterIdentity::default(), at(seconds));
        let owner = WorkloadId {
            namespace: "kube-system".into(),
            kind: WorkloadKind::Deployment,
            name: "karpenter".into(),
        };
        observed.workloads.push(LiveWorkload {
            id: owner.clone(),
            replicas: 2,
            first_ordinal: 0,
            delivered: false,
            template: None,
        });
        observed.pods.extend(phase.map(|phase| {
            Arc::new(Pod {
                namespace: "kube-system".into(),
                name: "karpenter-1".into(),
                uid: "u".into(),
                owner: Some(owner),
                template: "t".to_owned(),
                node: None,
                phase,
                created_at: at(0),
                terminating: false,
                mirror: false,
                started_at: None,
                granted: [].into(),
            })
        }));
        Event::World(Arc::new(observed))
    }

    #[test]
    fn whoever_comes_later_has_the_loop_only_plan_until_they_have_gone() {
        let (identity, cluster) = ("a".to_owned(), ClusterIdentity::default());
        let mode = Some(Mode::Full);
        let mut state = State::new(Start { at: at(0), identity, cluster, mode, once: false });
        let runs = Some(PodPhase::Running);
        for (seconds, phase, expected) in [
            (0, Some(PodPhase::Pending), Mode::Full),
            (59, runs, Mode::Full),
            (60, runs, Mode::Observe),
            (61, None, Mode::Observe),
            (120, None, Mode::Full),
        ] {
            state = step(state, world(seconds, phase), at(seconds)).0;
            assert_eq!(state.mode(), expected, "after {seconds} s");
            let said = state.rival().map(str::to_owned);
            let named = "karpenter runs as kube-system/karpenter";
            assert_eq!(said.as_deref(), (expected == Mode::Observe).then_some(named));
            assert_eq!(state.heeds_interruptions(), expected != Mode::Observe, "{seconds} s");
        }
    }
}
