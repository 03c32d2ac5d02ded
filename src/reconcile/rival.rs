//! Others who make and remove nodes: while one of them runs the loop only plans, since they would fight.
//!
//! A controller counts that has a pod which runs, where no tenant could have made it ([`rivals`]): a name alone
//! fights for nothing, and whoever may make a Deployment could stop the loop by it. EKS Auto Mode has no pods: it
//! counts by a node of its own, and by what EKS says of its node pools.

use jiff::{SignedDuration, Timestamp};

use super::kept::later;
use super::state::State;
use crate::fleet::{Observed, PodPhase};
use crate::ids::WorkloadId;
use crate::rival::{Rival, rivals};

/// What is said where EKS says that Auto Mode launches for whatever pods wait.
pub(super) const AUTO_MODE: &str = "EKS Auto Mode has node pools of its own";

/// Between two looks for them: each goes through all pods.
const LOOK_EVERY: SignedDuration = SignedDuration::from_mins(1);
/// How long the loop only plans at least once Auto Mode has had a node: where both took turns, both would launch.
const AUTO_MODE_KEPT: SignedDuration = SignedDuration::from_mins(10);

/// What is known of others.
#[derive(Debug, Clone)]
pub(super) struct Rivals {
    /// Who was seen in the cluster, in words.
    pub(super) found: Option<String>,
    /// When they are looked for again.
    pub(super) due: Timestamp,
    /// Whether EKS Auto Mode launches for whatever pods wait: as EKS says it, whichever commit is served.
    auto_mode: bool,
}

impl Rivals {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { found: None, due: now, auto_mode: false }
    }

    /// Returns who else makes and removes nodes, in words.
    pub(super) fn in_words(&self) -> Option<&str> {
        self.auto_mode.then_some(AUTO_MODE).or(self.found.as_deref())
    }
}

impl State {
    /// Notes who else makes and removes nodes; what was held back because of them is planned again.
    pub(super) fn look_for_rivals(&mut self, observed: &Observed) {
        if self.now < self.rivals.due {
            return;
        }
        self.rivals.due = later(self.now, LOOK_EVERY);
        let homes = self.head.as_ref().and_then(|head| head.autoscaler_namespaces.as_ref());
        let rival = rivals(observed, homes).into_iter().find(|rival| runs(observed, rival));
        let rival = rival.map(|rival| format!("{} runs as {}", rival.kind, rival.workload));
        let auto = of_auto_mode(observed);
        if auto.is_some() {
            self.rivals.due = later(self.now, AUTO_MODE_KEPT);
        }
        let rival = rival.or(auto);
        if rival != self.rivals.found {
            // What was received and is not taken off yet is theirs to see. What goes already goes on.
            if rival.is_some() {
                self.mail.clear();
            }
            self.rivals.found = rival;
            self.replan_at = self.now;
        }
    }

    /// Notes whether EKS Auto Mode launches, as EKS says. As with any other autoscaler: what is not taken off yet is for
    /// others to see, and plans are made anew.
    pub(super) fn hears_of_auto_mode(&mut self, runs: bool) {
        if runs != self.rivals.auto_mode {
            self.rivals.auto_mode = runs;
            self.mail.clear();
            self.replan_at = self.now;
        }
    }
}

/// Returns by which node it is seen that EKS Auto Mode makes and removes nodes.
fn of_auto_mode(observed: &Observed) -> Option<String> {
    let node = observed.nodes.values().find(|node| node.is_of_auto_mode())?;
    Some(format!("EKS Auto Mode keeps the node {}", node.name))
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

    use super::super::fixture::Story;
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
    fn what_a_tenant_calls_karpenter_stops_nothing() {
        let Event::World(seen) = world(0, Some(PodPhase::Running)) else { return };
        let mut seen = Observed::clone(&seen);
        let owner = WorkloadId { namespace: "shop".into(), ..seen.workloads[0].id.clone() };
        seen.workloads[0].id = owner.clone();
        let pod = Pod { owner: Some(owner), namespace: "shop".into(), ..Pod::clone(&seen.pods[0]) };
        seen.pods = vec![Arc::new(pod)];
        let mut story = Story::of(Mode::Full);
        story.next(100, Event::World(Arc::new(seen)));
        assert_eq!((story.state().rival(), story.state().mode()), (None, Mode::Full));
    }

    #[test]
    fn auto_mode_has_the_loop_only_plan_by_what_eks_says_or_by_a_node_of_its_own() {
        let mut story = Story::of(Mode::Full);
        let says = |story: &mut Story, second: i64, auto_mode: bool| {
            let head = story.state().head.clone().expect("it was read");
            let head = super::super::Head { auto_mode, ..super::super::Head::clone(&head) };
            story.next(second, Event::Head(Ok(Arc::new(head))));
            story.state().mode()
        };
        assert_eq!(says(&mut story, 1, true), Mode::Observe);
        assert_eq!(story.state().status().rival.as_deref(), Some(AUTO_MODE));
        assert!(!story.state().takes_messages());
        assert_eq!(says(&mut story, 2, false), Mode::Full);
        // Its nodes come and go; the loop does not take turns with it.
        for (second, is_there, expected) in [
            (100, false, Mode::Full),
            (200, true, Mode::Observe),
            (300, false, Mode::Observe),
            (799, false, Mode::Observe),
            (800, false, Mode::Full),
        ] {
            let mut seen = super::super::fixture::world(second);
            let node = seen.nodes.values_mut().next().expect("a node");
            if is_there {
                node.labels.insert("eks.amazonaws.com/compute-type".into(), "auto".into());
            }
            story.next(second, Event::World(Arc::new(seen)));
            assert_eq!(story.state().mode(), expected, "{:?}", story.state().rival());
        }
    }

    #[test]
    fn auto_mode_counts_while_the_commit_that_was_read_with_it_waits_for_ci() {
        let mut story = Story::of(Mode::Full);
        let served = story.state().head.clone().expect("it was read");
        let mut newer = super::super::Head::clone(&served);
        newer.commit = "newer".to_owned();
        newer.controller.merged_by = crate::manifest::MergedBy::Ci;
        for (second, auto_mode, expected) in [(1, true, Mode::Observe), (2, false, Mode::Full)] {
            let head = super::super::Head { auto_mode, ..newer.clone() };
            story.next(second, Event::Head(Ok(Arc::new(head))));
            assert_eq!(story.state().mode(), expected);
            assert_eq!(
                story.state().head.as_ref().map(|head| &*head.commit),
                Some(&*served.commit)
            );
        }
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
