//! Competing autoscalers: while another one runs, the controller only plans, since the two would
//! fight over nodes.
//!
//! An autoscaler counts only if it has a running pod in a namespace that tenants cannot write to.
//! Otherwise any user who may create a Deployment could stop the controller.
//! EKS Auto Mode has no pods: it is detected by its nodes, and by the node pools that EKS reports.

use jiff::{SignedDuration, Timestamp};

use super::state::ControllerState;
use crate::model::competing_autoscaler::{CompetingAutoscaler, competing_autoscalers};
use crate::model::ids::WorkloadId;
use crate::model::observed::{Observed, PodPhase};
use crate::model::saturating_time::later;

/// Text shown while EKS reports that Auto Mode launches nodes for pending pods.
pub(super) const AUTO_MODE: &str = "EKS Auto Mode has node pools of its own";

/// Interval between two checks: each scans all pods.
const CHECK_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// The controller only plans for at least this long after an Auto Mode node was observed: taking
/// turns, both would launch.
const AUTO_MODE_HOLD: SignedDuration = SignedDuration::from_mins(10);

/// Detected competing autoscalers.
#[derive(Debug, Clone)]
pub(super) struct CompetingAutoscalers {
    /// Description of the autoscaler detected in the cluster.
    pub(super) detected: Option<String>,
    /// Time of the next check.
    pub(super) due: Timestamp,
    /// True if EKS reports that Auto Mode launches nodes for pending pods, whichever commit is
    /// served.
    auto_mode: bool,
}

impl CompetingAutoscalers {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { detected: None, due: now, auto_mode: false }
    }

    /// Returns a description of the competing autoscaler, if any.
    pub(super) fn description(&self) -> Option<&str> {
        self.auto_mode.then_some(AUTO_MODE).or(self.detected.as_deref())
    }
}

impl ControllerState {
    /// Detects competing autoscalers; a change leads to a new plan.
    pub(super) fn detect_competing_autoscalers(&mut self, observed: &Observed) {
        if self.now < self.competing_autoscalers.due {
            return;
        }
        self.competing_autoscalers.due = later(self.now, CHECK_INTERVAL);
        let namespaces =
            self.revisions.served.as_ref().and_then(|head| head.autoscaler_namespaces.as_ref());
        let other = competing_autoscalers(observed, namespaces)
            .into_iter()
            .find(|other| is_running(observed, other));
        let other = other.map(|other| format!("{} runs as {}", other.kind, other.workload));
        let auto = auto_mode_node(observed);
        if auto.is_some() {
            self.competing_autoscalers.due = later(self.now, AUTO_MODE_HOLD);
        }
        let other = other.or(auto);
        if other != self.competing_autoscalers.detected {
            // Pending messages are left to the other autoscaler. Interruptions in progress
            // continue.
            if other.is_some() {
                self.interruptions.messages.clear();
            }
            self.competing_autoscalers.detected = other;
            self.planning.replan_at = self.now;
        }
    }

    /// Records whether EKS reports Auto Mode. As with any other autoscaler, pending messages are
    /// dropped and a new plan is made.
    pub(super) fn set_auto_mode(&mut self, runs: bool) {
        if runs != self.competing_autoscalers.auto_mode {
            self.competing_autoscalers.auto_mode = runs;
            self.interruptions.messages.clear();
            self.planning.replan_at = self.now;
        }
    }
}

/// Returns a description of an Auto Mode node, if any.
fn auto_mode_node(observed: &Observed) -> Option<String> {
    let node = observed.nodes.values().find(|node| node.is_auto_mode())?;
    Some(format!("EKS Auto Mode runs the node {}", node.name))
}

/// Returns whether a pod of the autoscaler runs.
fn is_running(observed: &Observed, other: &CompetingAutoscaler) -> bool {
    let of = |owner: &WorkloadId| owner.to_string() == other.workload;
    let mut pods = observed.pods.iter().filter(|pod| pod.owner.as_ref().is_some_and(of));
    pods.any(|pod| pod.phase == PodPhase::Running && pod.is_active())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Event, Mode, StartOptions, step};
    use super::*;
    use crate::model::observed::{ClusterIdentity, Pod};
    use crate::testing::controller::{ControllerHarness, at};
    use crate::testing::pods::deployment;
    use crate::testing::world::{live_workload, pod};

    /// Returns a world with a controller that has a pod of this phase, or none.
    fn world(seconds: i64, phase: Option<PodPhase>) -> Event {
        let owner = deployment("kube-system", "karpenter");
        let pod = |phase| Pod { phase, ..pod("karpenter-1").owned_by(&owner) };
        let observed = Observed::of_cluster("", at(seconds))
            .with_workload(live_workload(&owner, 2))
            .with_pods(phase.map(pod));
        Event::Observed(Arc::new(observed))
    }

    #[test]
    fn karpenter_in_a_tenant_namespace_is_ignored() {
        let Event::Observed(seen) = world(0, Some(PodPhase::Running)) else {
            panic!("not an observation")
        };
        let mut seen = Observed::clone(&seen);
        let owner = WorkloadId { namespace: "shop".into(), ..seen.workloads[0].id.clone() };
        seen.workloads[0].id = owner.clone();
        let pod = Pod { owner: Some(owner), namespace: "shop".into(), ..Pod::clone(&seen.pods[0]) };
        seen.pods = vec![Arc::new(pod)];
        let mut harness = ControllerHarness::with_mode(Mode::Full);
        harness.observe(100, seen);
        assert_eq!(
            (harness.state().competing_autoscaler(), harness.state().mode()),
            (None, Mode::Full)
        );
    }

    #[test]
    fn auto_mode_is_detected_by_eks_report_or_by_node() {
        let mut harness = ControllerHarness::with_mode(Mode::Full);
        let says = |harness: &mut ControllerHarness, second: i64, auto_mode: bool| {
            let head = harness.state().revisions.served.clone().expect("it was read");
            let head = super::super::Revision { auto_mode, ..super::super::Revision::clone(&head) };
            harness.step_at(second, Event::BranchRead(Ok(Arc::new(head))));
            harness.state().mode()
        };
        assert_eq!(says(&mut harness, 1, true), Mode::Observe);
        assert_eq!(harness.state().status().competing_autoscaler.as_deref(), Some(AUTO_MODE));
        assert!(!harness.state().accepts_messages());
        assert_eq!(says(&mut harness, 2, false), Mode::Full);
        // Its nodes come and go; the controller does not take turns with it.
        for (second, is_there, expected) in [
            (100, false, Mode::Full),
            (200, true, Mode::Observe),
            (300, false, Mode::Observe),
            (799, false, Mode::Observe),
            (800, false, Mode::Full),
        ] {
            let mut seen = crate::testing::controller::world(second);
            let node = seen.nodes.values_mut().next().expect("a node");
            if is_there {
                node.labels.insert("eks.amazonaws.com/compute-type".into(), "auto".into());
            }
            harness.observe(second, seen);
            assert_eq!(
                harness.state().mode(),
                expected,
                "{:?}",
                harness.state().competing_autoscaler()
            );
        }
    }

    #[test]
    fn auto_mode_counts_while_its_commit_waits_for_ci() {
        let mut harness = ControllerHarness::with_mode(Mode::Full);
        let served = harness.state().revisions.served.clone().expect("it was read");
        let mut newer = super::super::Revision::clone(&served);
        newer.commit = "newer".to_owned();
        newer.controller.applied_by = crate::model::desired::AppliedBy::Ci;
        for (second, auto_mode, expected) in [(1, true, Mode::Observe), (2, false, Mode::Full)] {
            let head = super::super::Revision { auto_mode, ..newer.clone() };
            harness.step_at(second, Event::BranchRead(Ok(Arc::new(head))));
            assert_eq!(harness.state().mode(), expected);
            assert_eq!(
                harness.state().revisions.served.as_ref().map(|head| &*head.commit),
                Some(&*served.commit)
            );
        }
    }

    #[test]
    fn competing_autoscaler_stops_changes_until_it_is_gone() {
        let (identity, cluster) = ("a".to_owned(), ClusterIdentity::default());
        let mode = Some(Mode::Full);
        let mut state = ControllerState::new(StartOptions {
            started_at: at(0),
            identity,
            cluster,
            mode,
            once: false,
        });
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
            let reported = state.competing_autoscaler().map(str::to_owned);
            let named = "karpenter runs as kube-system/karpenter";
            assert_eq!(reported.as_deref(), (expected == Mode::Observe).then_some(named));
            assert_eq!(state.handles_interruptions(), expected != Mode::Observe, "{seconds} s");
        }
    }
}
