//! Removals that are called off while the launches before them boot.

use super::*;

/// A planner with a fixed plan, which records the observations that it plans from.
struct FixedPlanner {
    current: Plan,
    asked: RefCell<Vec<Arc<Observed>>>,
}

impl FixedPlanner {
    fn new(current: Plan) -> Self {
        Self { current, asked: RefCell::default() }
    }
}

impl RevisionPlanner for FixedPlanner {
    async fn plan(&self, _: Arc<Observed>, _: PlanScope) -> Plan {
        unreachable!("an apply compares its plan")
    }

    async fn revalidate(&self, _: Arc<Plan>, world: Arc<Observed>, _: PodScope) -> RevalidatedPlan {
        self.asked.borrow_mut().push(world);
        RevalidatedPlan::as_approved(self.current.clone())
    }

    fn catalog(&self) -> &Catalog {
        unreachable!("nothing is launched here")
    }
}

/// Returns the planners of a controller that planned commit `2` last.
fn planners<P>(newest: &Rc<P>) -> PlannerCache<P> {
    PlannerCache {
        planners: Rc::new(RefCell::new(vec![("2".to_owned(), Rc::clone(newest))])),
        last_planned_commit: Rc::new(RefCell::new("2".to_owned())),
    }
}

/// Returns a plan with launches and removals, and with pods on no node.
fn exchange() -> Plan {
    let mut plan = sample_plan::plan();
    plan.capacity.explain.iter_mut().for_each(|row| row.pods.clear());
    plan
}

/// Returns an observation with a launched instance.
fn launched_world() -> Observed {
    world(60, &["a"]).with_instance(world::managed_instance("i-new", ""))
}

fn launched() -> std::collections::BTreeSet<InstanceId> {
    ["i-new".into()].into()
}

#[test]
fn removals_are_judged_by_the_newest_commit() {
    let own = CountingPlanner(Cell::new(0));
    let newest = Rc::new(CountingPlanner(Cell::new(0)));
    let plan = sample_plan::plan();
    let revalidation =
        Revalidation { planners: planners(&newest), ..revalidation(&own, plan.clone(), None) };
    for counts in [(1, 0), (1, 1), (1, 2)] {
        poll_once(revalidation.replan(&plan, &launched_world())).expect("at once");
        assert_eq!((own.0.get(), newest.0.get()), counts);
    }
}

#[test]
fn removals_are_called_off_if_the_newest_plan_differs() {
    let errored = || Plan { errored: true, ..exchange().only(WaveStep::Launch) };
    for (what, newest, is_called_off) in [
        ("the same changes", exchange(), false),
        ("its nodes stay", exchange().only(WaveStep::Launch), true),
        ("it launches nothing", exchange().only(WaveStep::Retire), true),
        ("its inputs have errors", errored(), false),
    ] {
        let (own, newest) = (FixedPlanner::new(exchange()), Rc::new(FixedPlanner::new(newest)));
        let revalidation =
            Revalidation { planners: planners(&newest), ..revalidation(&own, exchange(), None) };
        let (launched, world) = (launched(), launched_world());
        let why = poll_once(revalidation.call_off(&launched, &world)).expect("at once");
        assert_eq!(why.is_some(), is_called_off, "{what}");
        assert!(own.asked.borrow().is_empty(), "{what}");
        let asked = newest.asked.borrow();
        assert_eq!(asked.len(), 1, "{what}");
        assert!(!asked[0].instances.contains_key("i-new"), "as if it was not launched: {what}");
        assert_eq!(asked[0].pods.len(), 1, "{what}");
    }
}

#[test]
fn removals_are_planned_again_only_if_demand_has_changed() {
    // The pods that the sample plan places on its launches do not exist.
    for (what, plan, asked) in [("as planned", exchange(), 0), ("pods end", sample_plan::plan(), 1)]
    {
        let own = FixedPlanner::new(exchange().only(WaveStep::Launch));
        let revalidation = revalidation(&own, plan, None);
        let (launched, world) = (launched(), launched_world());
        let why = poll_once(revalidation.call_off(&launched, &world)).expect("at once");
        assert_eq!(own.asked.borrow().len(), asked, "{what}");
        assert_eq!(why.is_some(), asked > 0, "{what}");
    }
}
