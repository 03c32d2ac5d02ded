//! What is planned again before a plan is carried out, and what is not.

use super::*;
use crate::catalog::Catalog;
use crate::fleet::{Instance, InstanceState, Node, fixture as fleet};
use crate::plan::wire::WaveStep;
use crate::pod::{Taint, TaintEffect};
use crate::reconcile::{Kept, Signal};
use crate::render::fixture;
use crate::sim::fixture::poll_once;
use crate::units::MilliCpu;

/// Counts how often it plans again.
struct Counting(Cell<u32>);

impl Planner for Counting {
    async fn plan(&self, _: Arc<Observed>, _: Limits) -> Plan {
        fixture::plan()
    }

    async fn pinned(&self, plan: Arc<Plan>, _: Arc<Observed>, _: bool) -> Pinned {
        self.0.set(self.0.get() + 1);
        let missing = vec!["planned again".into()];
        Pinned { missing, ..Pinned::as_approved(Plan::clone(&plan)) }
    }

    fn catalog(&self) -> &Catalog {
        unreachable!("nothing is launched here")
    }
}

fn world(seconds: i64, pods: &[&str]) -> Observed {
    let at = Timestamp::from_second(1_000_000 + seconds).expect("a time");
    let mut world = Observed::empty(ClusterIdentity::default(), at);
    world.pods.extend(pods.iter().map(|name| fleet::pod(name).into()));
    world
}

#[test]
fn what_was_just_planned_over_the_same_world_is_not_planned_again() {
    for (what, over, now, without, again) in [
        ("the same world", Some(world(0, &["a"])), world(5, &["a"]), vec![], 0),
        ("an older look", Some(world(0, &["a"])), world(-5, &["a"]), vec![], 0),
        ("too long ago", Some(world(0, &["a"])), world(6, &["a"]), vec![], 1),
        ("another pod", Some(world(0, &["a"])), world(1, &["a", "b"]), vec![], 1),
        ("a pod that went", Some(world(0, &["a"])), world(1, &[]), vec![], 1),
        (
            "a machine that goes and is not there",
            Some(world(0, &[])),
            world(1, &[]),
            vec!["i-1".into()],
            0,
        ),
        ("a plan that was not the last", None, world(0, &["a"]), vec![], 1),
    ] {
        let planner = Counting(Cell::new(0));
        let over = over.map(Arc::new);
        let plan = Arc::new(fixture::plan());
        let pinning = Pinning { planner: &planner, plan, without, running: false, over };
        let pinned = poll_once(pinning.replan(&fixture::plan(), &now)).expect("at once");
        assert_eq!(planner.0.get(), again, "{what}");
        assert_eq!(pinned.missing.len(), usize::try_from(again).expect("few"), "{what}");
        assert_eq!(pinned.now, fixture::plan(), "{what}");
    }
}

/// Returns a world in which `a` waits and `b` runs, but for where one of them is.
fn on(pod: &str, node: Option<&str>) -> Observed {
    let mut world = world(0, &["a", "b"]);
    let pod = world.pods.iter_mut().find(|of| of.uid.as_str() == pod).expect("it");
    Arc::make_mut(pod).node = node.map(NodeName::from);
    world
}

fn over() -> Observed {
    on("b", Some("n"))
}

/// Returns the same with the node, as `change` has it.
fn with_node(change: impl FnOnce(&mut Node)) -> Observed {
    let mut world = over();
    let mut node = fleet::node("n");
    change(&mut node);
    world.nodes.insert(node.name.clone(), node);
    world
}

/// Returns the same with a node of that age whose machine is ours.
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
    let instance = fleet::ours("i-1", "");
    world.instances.insert(instance.id.clone(), instance);
    world
}

/// Returns how often a plan is made again that was made over another world.
fn times(plan: &Plan, over: Observed, now: &Observed) -> u32 {
    let (planner, over) = (Counting(Cell::new(0)), Some(Arc::new(over)));
    let (plan, without) = (Arc::new(plan.clone()), Vec::new());
    let pinning = Pinning { planner: &planner, plan, without, running: false, over };
    poll_once(pinning.replan(&fixture::plan(), now)).expect("at once");
    planner.0.get()
}

fn only_launches() -> Plan {
    let mut launches = fixture::plan();
    launches.capacity.waves.retain(|wave| wave.step == WaveStep::Launch);
    launches
}

#[test]
fn a_plan_that_only_launches_is_not_made_again_while_all_that_it_launches_is_needed() {
    let (launches, retires) = (only_launches(), fixture::plan());
    let more = || {
        let mut world = over();
        world.pods.extend(self::world(0, &["c"]).pods);
        world
    };
    let node = || with_node(|_| {});
    for (what, plan, over, now, again) in [
        ("another pod waits", &launches, over(), more(), 0),
        ("a node that is not known", &launches, over(), node(), 1),
        ("who waited got a place", &launches, node(), on("a", Some("n")), 1),
        ("who waited has a node", &launches, over(), on("a", Some("n")), 1),
        ("a pod left its node", &launches, over(), world(0, &["a"]), 1),
        ("who waited is gone", &launches, more(), over(), 1),
        ("it removes something", &retires, over(), more(), 1),
    ] {
        assert_eq!(times(plan, over, &now), again, "{what}");
    }
}

#[test]
fn a_plan_is_made_again_where_a_node_takes_more_than_it_did() {
    let plan = only_launches();
    let is = || with_node(|_| {});
    let taint = |node: &mut Node| {
        let (key, effect) = ("storage".into(), TaintEffect::NoSchedule);
        node.taints.push(Taint { key, value: "full".into(), effect });
    };
    let silent = || with_node(|node| node.ready = false);
    for (what, over, now, again) in vec![
        ("one that was counted on is Ready", with_ours(false, 2), with_ours(true, 2), 0),
        ("its startup taint went", ours_as(2, taint), with_ours(true, 2), 0),
        ("a taint of one that is old went", ours_as(20, taint), with_ours(true, 20), 1),
        ("one that was given up is Ready", with_ours(false, 20), with_ours(true, 20), 1),
        ("one of others is Ready", silent(), is(), 1),
        ("it fell silent", is(), silent(), 0),
        ("it is cordoned no more", with_node(|node| node.unschedulable = true), is(), 1),
        ("it is cordoned", is(), with_node(|node| node.unschedulable = true), 0),
        ("a taint went", with_node(taint), is(), 1),
        ("a taint came", is(), with_node(taint), 0),
        ("it is another's of its name", is(), with_node(|node| node.uid = "m".into()), 1),
        ("more", is(), with_node(|node| node.allocatable.cpu = MilliCpu(2_000)), 1),
    ] {
        assert_eq!(times(&plan, over, &now), again, "{what}");
    }
}

#[test]
fn a_plan_made_without_a_machine_that_goes_is_of_the_world_without_it() {
    let with = |state: InstanceState| {
        let mut world = world(0, &["a"]);
        let instance = Instance { state, ..fleet::instance("i-1") };
        world.instances.insert(instance.id.clone(), instance);
        world
    };
    let (planner, whole) = (Counting(Cell::new(0)), with(InstanceState::Running));
    for (over, again) in [(with(InstanceState::Stopping), 0), (whole.clone(), 1)] {
        planner.0.set(0);
        let (plan, without) = (Arc::new(fixture::plan()), vec!["i-1".into()]);
        let over = Some(Arc::new(over));
        let pinning = Pinning { planner: &planner, plan, without, running: false, over };
        poll_once(pinning.replan(&fixture::plan(), &whole)).expect("at once");
        assert_eq!(planner.0.get(), again);
    }
}

/// Writes down who is nominated; the lease is as certain as it says.
struct Certain(bool, RefCell<Vec<NodeName>>);

impl Signals for Certain {
    async fn next(&self) -> Signal {
        std::future::pending().await
    }

    async fn acknowledge(&self, _: &str) -> Result<(), PortError> {
        Ok(())
    }

    fn may_write(&self) -> bool {
        self.0
    }
}

impl Desk for Certain {
    async fn recall(&self) -> Result<Kept, PortError> {
        Ok(Kept::default())
    }

    async fn save(&self, _: &Kept) -> Result<(), PortError> {
        Ok(())
    }

    async fn nominate(&self, _: &Pod, node: &NodeName) -> Result<(), PortError> {
        self.1.borrow_mut().push(node.clone());
        Ok(())
    }
}

#[test]
fn no_pod_is_nominated_while_the_lease_is_not_certain() {
    for certain in [true, false] {
        let outside = Certain(certain, RefCell::default());
        let pod = Box::new(fleet::pod("a"));
        let end = poll_once(nominate((&outside, &outside), pod, "n".into())).expect("at once");
        let Event::Nominated { end, .. } = end else { panic!("{end:?}") };
        assert_eq!((end.is_ok(), outside.1.borrow().len()), (certain, usize::from(certain)));
    }
}
