//! Replanning before an apply.

mod calling_off;
mod repeated_launches;

use super::*;
use crate::apply::Replan as _;
use crate::apply::{OpeningAnnotations, PodNomination};
use crate::catalog::Catalog;
use crate::model::ids::NodeName;
use crate::model::observed::{Instance, InstanceState, Node, PlannedPods, Pod, tag};
use crate::model::pod::{Taint, TaintEffect};
use crate::model::units::MilliCpu;
use crate::plan::wire::WaveStep;
use crate::plan::{RevalidatedPlan, planned_pods};
use crate::testing::apply::FaultyPorts;
use crate::testing::sample_plan;
use crate::testing::simulator::poll_once;
use crate::testing::world;

/// Counts how often it replans.
struct CountingPlanner(Cell<u32>);

impl RevisionPlanner for CountingPlanner {
    async fn plan(&self, _: Arc<Observed>, _: PlanScope) -> Plan {
        sample_plan::plan()
    }

    async fn reproduce(
        &self,
        _: Arc<Plan>,
        _: Arc<Observed>,
        _: PodScope,
    ) -> Option<RevalidatedPlan> {
        None
    }

    async fn revalidate(&self, plan: Arc<Plan>, _: Arc<Observed>, _: PodScope) -> RevalidatedPlan {
        self.0.set(self.0.get() + 1);
        let missing = vec!["planned again".into()];
        RevalidatedPlan { missing, ..RevalidatedPlan::as_approved(Plan::clone(&plan)) }
    }

    fn catalog(&self) -> &Catalog {
        unreachable!("nothing is launched here")
    }
}

/// A planner that only judges plans. It records the plans and observations that it judges.
struct JudgingPlanner<F> {
    judge: F,
    asked: RefCell<Vec<(Arc<Plan>, Arc<Observed>)>>,
}

impl<F> JudgingPlanner<F> {
    fn new(judge: F) -> Self {
        Self { judge, asked: RefCell::default() }
    }
}

impl<F: Fn(&Plan, &Observed) -> RevalidatedPlan> RevisionPlanner for JudgingPlanner<F> {
    async fn plan(&self, _: Arc<Observed>, _: PlanScope) -> Plan {
        unreachable!("an apply compares its plan")
    }

    async fn reproduce(
        &self,
        _: Arc<Plan>,
        _: Arc<Observed>,
        _: PodScope,
    ) -> Option<RevalidatedPlan> {
        unreachable!("the plan is not just made")
    }

    async fn revalidate(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        _: PodScope,
    ) -> RevalidatedPlan {
        let found = (self.judge)(&plan, &world);
        self.asked.borrow_mut().push((plan, world));
        found
    }

    fn catalog(&self) -> &Catalog {
        unreachable!("nothing is launched here")
    }
}

/// Returns the revalidation of a plan of commit `1` that no other commit follows.
fn revalidation<P>(
    planner: &P,
    plan: Plan,
    planned_world: Option<Observed>,
) -> Revalidation<'_, P> {
    Revalidation {
        planner,
        planners: PlannerCache { planners: Rc::default(), last_planned_commit: Rc::default() },
        commit: "1".to_owned(),
        is_begun: Cell::new(false),
        plan: Arc::new(plan),
        excluded_instances: Vec::new(),
        repeated_launches: BTreeMap::new(),
        launches_in_progress: Vec::new(),
        pods: PodScope::Declared,
        planned_world: planned_world.map(Arc::new),
    }
}

/// Makes a plan once more only for the same planned pods. Compared with any other plan, its
/// launches are not enough.
struct SearchingPlanner(PlannedPods);

impl RevisionPlanner for SearchingPlanner {
    async fn plan(&self, _: Arc<Observed>, _: PlanScope) -> Plan {
        sample_plan::plan()
    }

    async fn reproduce(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        _: PodScope,
    ) -> Option<RevalidatedPlan> {
        let is_same = world.planned_pods == self.0;
        is_same.then(|| RevalidatedPlan::as_approved(Plan::clone(&plan)))
    }

    async fn revalidate(&self, plan: Arc<Plan>, _: Arc<Observed>, _: PodScope) -> RevalidatedPlan {
        let missing = vec!["another node".into()];
        RevalidatedPlan { missing, ..RevalidatedPlan::as_approved(Plan::clone(&plan)) }
    }

    fn catalog(&self) -> &Catalog {
        unreachable!("nothing is launched here")
    }
}

#[test]
fn slow_plan_of_the_unchanged_world_is_not_refused() {
    let at_planning: PlannedPods = [("i-1".into(), [("a".to_owned(), 1)].into())].into();
    let planner = SearchingPlanner(at_planning.clone());
    let plan = sample_plan::plan();
    assert_ne!(planned_pods(&plan), at_planning);
    for (what, now, missing) in
        [("the same world", world(60, &["a"]), 0), ("another pod", world(60, &["a", "b"]), 1)]
    {
        let over = Observed { planned_pods: at_planning.clone(), ..world(0, &["a"]) };
        let revalidation = revalidation(&planner, plan.clone(), Some(over));
        let found = poll_once(revalidation.replan(&plan, &now)).expect("at once");
        assert_eq!(found.missing.len(), missing, "{what}");
    }
}

fn world(seconds: i64, pods: &[&str]) -> Observed {
    let at = Timestamp::from_second(1_000_000 + seconds).expect("a time");
    Observed::of_cluster("", at).with_pods(pods.iter().copied().map(world::pod))
}

#[test]
fn equal_observation_needs_no_replanning() {
    for (what, over, now, without, again) in [
        ("an equal observation", Some(world(0, &["a"])), world(5, &["a"]), vec![], 0),
        ("an older observation", Some(world(0, &["a"])), world(-5, &["a"]), vec![], 0),
        ("too long ago", Some(world(0, &["a"])), world(6, &["a"]), vec![], 1),
        ("another pod", Some(world(0, &["a"])), world(1, &["a", "b"]), vec![], 1),
        ("a deleted pod", Some(world(0, &["a"])), world(1, &[]), vec![], 1),
        (
            "an interrupted instance that is absent",
            Some(world(0, &[])),
            world(1, &[]),
            vec!["i-1".into()],
            0,
        ),
        ("not the last plan", None, world(0, &["a"]), vec![], 1),
    ] {
        let planner = CountingPlanner(Cell::new(0));
        let revalidation = Revalidation {
            excluded_instances: without,
            ..revalidation(&planner, sample_plan::plan(), over)
        };
        let revalidated =
            poll_once(revalidation.replan(&sample_plan::plan(), &now)).expect("at once");
        assert_eq!(planner.0.get(), again, "{what}");
        assert_eq!(revalidated.missing.len(), usize::try_from(again).expect("few"), "{what}");
        assert_eq!(revalidated.current, sample_plan::plan(), "{what}");
    }
}

/// Returns an observation with `a` pending and `b` running, with one pod moved.
fn on(pod: &str, node: Option<&str>) -> Observed {
    let mut world = world(0, &["a", "b"]);
    let pod = world.pods.iter_mut().find(|of| of.uid.as_str() == pod).expect("it");
    Arc::make_mut(pod).node = node.map(NodeName::from);
    world
}

fn over() -> Observed {
    on("b", Some("n"))
}

/// Returns the same with a changed node.
fn with_node(change: impl FnOnce(&mut Node)) -> Observed {
    let mut world = over();
    let mut node = world::node("n");
    change(&mut node);
    world.nodes.insert(node.name.clone(), node);
    world
}

/// Returns the same with an owned node of that age.
fn with_ours(ready: bool, minutes: i64) -> Observed {
    ours_as(minutes, |node| node.ready = ready)
}

fn ours_as(minutes: i64, change: impl FnOnce(&mut Node)) -> Observed {
    let age = SignedDuration::from_mins(minutes);
    let mut world = with_node(|node| {
        change(node);
        node.instance = Some("i-1".into());
        node.created_at = over().taken_at.checked_sub(age).expect("a time");
    });
    let instance = world::managed_instance("i-1", "");
    world.instances.insert(instance.id.clone(), instance);
    world
}

/// Returns how often the plan of one observation is made again for another.
fn times(plan: &Plan, over: Observed, now: &Observed) -> u32 {
    let planner = CountingPlanner(Cell::new(0));
    let revalidation = revalidation(&planner, plan.clone(), Some(over));
    poll_once(revalidation.replan(&sample_plan::plan(), now)).expect("at once");
    planner.0.get()
}

fn only_launches() -> Plan {
    sample_plan::plan().only(WaveStep::Launch)
}

#[test]
fn launch_in_progress_that_ec2_lists_by_now_needs_no_replanning() {
    let in_progress = |id: &str| {
        let mut instance = world::managed_instance(id, "");
        instance.tags.extend([(tag::CHANGE.to_owned(), "change".to_owned())]);
        instance
    };
    for (what, listed, counted, again) in [
        ("not listed", None, true, 0),
        ("listed", Some(in_progress("i-7")), true, 0),
        ("not counted", Some(in_progress("i-7")), false, 1),
    ] {
        let planner = CountingPlanner(Cell::new(0));
        let over = world(0, &["a"]).with_instance(in_progress("launch-change"));
        let launches_in_progress =
            if counted { vec![in_progress("launch-change")] } else { vec![] };
        let revalidation = Revalidation {
            launches_in_progress,
            ..revalidation(&planner, only_launches(), Some(over))
        };
        let now = listed.into_iter().fold(world(1, &["a"]), Observed::with_instance);
        poll_once(revalidation.replan(&only_launches(), &now)).expect("at once");
        assert_eq!(planner.0.get(), again, "{what}");
    }
}

#[test]
fn launch_plan_stays_valid_while_its_launches_are_needed() {
    let (launches, retires) = (only_launches(), sample_plan::plan());
    let more = || {
        let mut world = over();
        world.pods.extend(self::world(0, &["c"]).pods);
        world
    };
    let node = || with_node(|_| {});
    for (what, plan, over, now, again) in [
        ("another pending pod", &launches, over(), more(), 0),
        ("an unknown node", &launches, over(), node(), 1),
        ("the pending pod was bound", &launches, node(), on("a", Some("n")), 1),
        ("the pending pod was bound to a new node", &launches, over(), on("a", Some("n")), 1),
        ("a pod left its node", &launches, over(), world(0, &["a"]), 1),
        ("a pending pod was deleted", &launches, more(), over(), 1),
        ("it removes something", &retires, over(), more(), 1),
    ] {
        assert_eq!(times(plan, over, &now), again, "{what}");
    }
}

#[test]
fn plan_is_made_again_if_a_node_accepts_more() {
    let plan = only_launches();
    let is = || with_node(|_| {});
    let taint = |node: &mut Node| {
        let (key, effect) = ("storage".into(), TaintEffect::NoSchedule);
        node.taints.push(Taint { key, value: "full".into(), effect });
    };
    let silent = || with_node(|node| node.ready = false);
    for (what, over, now, again) in vec![
        ("an expected node became Ready", with_ours(false, 2), with_ours(true, 2), 0),
        ("its startup taint was removed", ours_as(2, taint), with_ours(true, 2), 0),
        ("a taint of an old node was removed", ours_as(20, taint), with_ours(true, 20), 1),
        (
            "a node past its startup timeout became Ready",
            with_ours(false, 20),
            with_ours(true, 20),
            1,
        ),
        ("a foreign node became Ready", silent(), is(), 1),
        ("it became unready", is(), silent(), 0),
        ("it was uncordoned", with_node(|node| node.unschedulable = true), is(), 1),
        ("it was cordoned", is(), with_node(|node| node.unschedulable = true), 0),
        ("a taint was removed", with_node(taint), is(), 1),
        ("a taint was added", is(), with_node(taint), 0),
        ("another node of the same name", is(), with_node(|node| node.uid = "m".into()), 1),
        ("more allocatable CPU", is(), with_node(|node| node.allocatable.cpu = MilliCpu(2_000)), 1),
    ] {
        assert_eq!(times(&plan, over, &now), again, "{what}");
    }
}

#[test]
fn replanning_excludes_interrupted_instances() {
    let with = |state: InstanceState| {
        let mut world = world(0, &["a"]);
        let instance = Instance { state, ..world::instance("i-1") };
        world.instances.insert(instance.id.clone(), instance);
        world
    };
    let (planner, whole) = (CountingPlanner(Cell::new(0)), with(InstanceState::Running));
    for (over, again) in [(with(InstanceState::Stopping), 0), (whole.clone(), 1)] {
        planner.0.set(0);
        let revalidation = Revalidation {
            excluded_instances: vec!["i-1".into()],
            ..revalidation(&planner, sample_plan::plan(), Some(over))
        };
        poll_once(revalidation.replan(&sample_plan::plan(), &whole)).expect("at once");
        assert_eq!(planner.0.get(), again);
    }
}

#[test]
fn interrupted_launch_in_progress_is_no_capacity() {
    let planner = CountingPlanner(Cell::new(0));
    let launched = world::managed_instance("i-7", "");
    let stopping = Instance { state: InstanceState::Stopping, ..launched.clone() };
    let over = world(0, &["a"]).with_instance(stopping);
    let revalidation = Revalidation {
        excluded_instances: vec!["i-7".into()],
        launches_in_progress: vec![launched],
        ..revalidation(&planner, sample_plan::plan(), Some(over))
    };
    let now = world(1, &["a"]);
    poll_once(revalidation.replan(&sample_plan::plan(), &now)).expect("at once");
    assert_eq!(planner.0.get(), 0, "the plan treats it as gone");
}

#[test]
fn pods_are_nominated_twice_before_any_node_opens() {
    for certain in [true, false] {
        let fleet = crate::testing::apply::closed_fleet();
        let nodes = fleet.observed().nodes;
        let node = nodes.into_values().find(Node::is_closed).expect("a closed node");
        let name = node.name.clone();
        let cluster = FaultyPorts::without_fault(&fleet);
        let guarded = LeaseGuard::new(&cluster, || certain);
        let pods: Vec<Arc<Pod>> = fleet.observed().pods.into_iter().take(2).collect();
        let nominations = pods.iter();
        let nominations: Vec<_> = nominations
            .map(|pod| PodNomination { pod: Arc::clone(pod), node: name.clone() })
            .collect();
        let opened =
            open_nodes(guarded, &fleet, nominations, vec![node], OpeningAnnotations::new());
        let end = poll_once(opened).expect("at once");
        let Event::NodesOpened(batch) = end else { panic!("{end:?}") };
        assert!(batch.nominations.iter().all(|(.., answer)| answer.is_ok() == certain));
        assert!(batch.nodes.iter().all(|(.., answer)| answer.is_ok() == certain));
        let round: Vec<_> = pods.iter().map(|pod| (Arc::clone(&pod.name), name.clone())).collect();
        let expected = if certain { [round.clone(), round].concat() } else { Vec::new() };
        assert_eq!(*cluster.nominated.borrow(), expected);
        assert_eq!(fleet.observed().nodes[&name].is_closed(), !certain);
    }
}
