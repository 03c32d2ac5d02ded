//! Judgments of removals by two commits: while the launches before them boot, and after.

use super::*;
use crate::testing::plan::instance_address;

/// Returns a planner with a fixed result.
fn fixed(found: RevalidatedPlan) -> JudgingPlanner<impl Fn(&Plan, &Observed) -> RevalidatedPlan> {
    JudgingPlanner::new(move |_: &Plan, _: &Observed| found.clone())
}

/// Returns the planners of a controller that planned commit `2` last.
fn planners<P>(last: &Rc<P>) -> PlannerCache<P> {
    PlannerCache {
        planners: Rc::new(RefCell::new(vec![("2".to_owned(), Rc::clone(last))])),
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

/// Returns the same plan without the launch at an address.
fn without_launch(pool: &str, key: &str) -> Plan {
    let (mut plan, address) = (exchange(), instance_address(pool, key));
    for wave in plan.capacity.waves.iter_mut().filter(|wave| wave.step == WaveStep::Launch) {
        wave.addresses.retain(|one| *one != address);
    }
    plan
}

fn approved(plan: Plan) -> RevalidatedPlan {
    RevalidatedPlan::as_approved(plan)
}

/// Makes the result of a planner.
type Made = fn() -> RevalidatedPlan;

/// Returns the result for launches that a commit declares otherwise.
fn declared_otherwise() -> RevalidatedPlan {
    RevalidatedPlan { undeclared: vec!["another image".to_owned()], ..approved(exchange()) }
}

#[test]
fn commit_planned_last_judges_removals_beside_that_of_the_plan() {
    let free = || approved(exchange());
    let needed = || {
        let blocked_removal = Some("one more pod would be unschedulable".to_owned());
        RevalidatedPlan { blocked_removal, ..approved(exchange()) }
    };
    let frozen = || {
        let frozen = Some("the budget of the pool is exceeded".to_owned());
        RevalidatedPlan { frozen, ..approved(exchange()) }
    };
    let errored = || approved(Plan { errored: true, ..exchange() });
    let rows: [(&str, Made, Made, bool); 6] = [
        ("both agree", free, free, false),
        ("the last one needs the nodes", needed, free, true),
        ("the last one has errors", errored, free, true),
        ("the last one declares the launches otherwise", declared_otherwise, free, true),
        ("only that of the plan needs the nodes", free, needed, true),
        ("only that of the plan has a strict budget", free, frozen, true),
    ];
    for (what, last, own, is_blocked) in rows {
        let (own, last) = (fixed(own()), Rc::new(fixed(last())));
        let revalidation =
            Revalidation { planners: planners(&last), ..revalidation(&own, exchange(), None) };
        let (plan, world) = (exchange(), launched_world());
        poll_once(revalidation.replan(&plan, &world)).expect("at once");
        let asked = (own.asked.borrow().len(), last.asked.borrow().len());
        assert_eq!(asked, (1, 0), "nothing was written yet: {what}");
        let found = poll_once(revalidation.replan(&plan, &world)).expect("at once");
        let blocker = found.removal_freeze().or(found.blocked_removal);
        assert_eq!(blocker.is_some(), is_blocked, "{what}: {blocker:?}");
        assert_eq!(last.asked.borrow().len(), 1, "{what}");
    }
}

#[test]
fn removals_are_judged_for_the_part_that_is_done() {
    let own = fixed(approved(exchange()));
    let revalidation = revalidation(&own, exchange(), Some(world(0, &["a"])));
    poll_once(revalidation.replan(&exchange(), &world(1, &["a"]))).expect("at once");
    assert!(own.asked.borrow().is_empty(), "the plan was just made");
    // Every launch failed at once, so the observation is still the same.
    let part = exchange().only(WaveStep::Retire);
    poll_once(revalidation.replan(&part, &world(2, &["a"]))).expect("at once");
    let asked = own.asked.borrow();
    assert_eq!(asked.len(), 1);
    assert_eq!(*asked[0].0, part);
}

#[test]
fn removals_are_called_off_if_the_commit_planned_last_differs() {
    let errored = || Plan { errored: true, ..exchange().only(WaveStep::Launch) };
    for (what, last, is_called_off) in [
        ("the same changes", approved(exchange()), false),
        ("its nodes stay", approved(exchange().only(WaveStep::Launch)), true),
        ("it launches nothing", approved(exchange().only(WaveStep::Retire)), true),
        ("one replacement launches nothing", approved(without_launch("batch", "2")), true),
        ("new pods need one node less", approved(without_launch("web", "9")), false),
        ("it declares the launches otherwise", declared_otherwise(), true),
        ("its inputs have errors", approved(errored()), false),
    ] {
        let own = fixed(approved(exchange()));
        let last = Rc::new(fixed(last));
        let revalidation =
            Revalidation { planners: planners(&last), ..revalidation(&own, exchange(), None) };
        let (launched, world) = (launched(), launched_world());
        let why = poll_once(revalidation.call_off(&launched, &world)).expect("at once");
        assert_eq!(why.is_some(), is_called_off, "{what}");
        assert!(own.asked.borrow().is_empty(), "{what}");
        let asked = last.asked.borrow();
        assert_eq!(asked.len(), 1, "{what}");
        let (_, world) = &asked[0];
        assert!(!world.instances.contains_key("i-new"), "as if it was not launched: {what}");
        assert_eq!(world.pods.len(), 1, "{what}");
    }
}

/// Returns the plan with a second replacement, and with the rows of replacements in these groups.
fn two_replacements(groups: [&str; 2]) -> Plan {
    let mut plan = exchange();
    let second = ["1", "10"].map(|key| instance_address("web", key));
    for row in &mut plan.capacity.explain {
        if second.contains(&row.address) {
            row.group = Some(groups[1].to_owned());
        } else if row.group.is_some() {
            row.group = Some(groups[0].to_owned());
        }
    }
    plan
}

#[test]
fn launch_takes_the_place_of_one_launch_although_groups_differ() {
    for (lost, is_called_off) in [(None, false), (Some("10"), true)] {
        let mut now = two_replacements(["all", "all"]);
        let lost = lost.map(|key| instance_address("web", key));
        for wave in now.capacity.waves.iter_mut().filter(|wave| wave.step == WaveStep::Launch) {
            wave.addresses.retain(|one| Some(one) != lost.as_ref());
        }
        let own = fixed(approved(exchange()));
        let last = Rc::new(fixed(approved(now)));
        let planned = two_replacements(["first", "second"]);
        let revalidation =
            Revalidation { planners: planners(&last), ..revalidation(&own, planned, None) };
        let (launched, world) = (launched(), launched_world());
        let why = poll_once(revalidation.call_off(&launched, &world)).expect("at once");
        assert_eq!(why.is_some(), is_called_off, "{lost:?}: {why:?}");
    }
}

#[test]
fn removals_are_planned_again_only_if_demand_has_changed() {
    // The pods that the sample plan places on its launches do not exist.
    for (what, plan, asked) in [("as planned", exchange(), 0), ("pods end", sample_plan::plan(), 1)]
    {
        let own = fixed(approved(exchange().only(WaveStep::Launch)));
        let revalidation = revalidation(&own, plan, None);
        let (launched, world) = (launched(), launched_world());
        let why = poll_once(revalidation.call_off(&launched, &world)).expect("at once");
        assert_eq!(own.asked.borrow().len(), asked, "{what}");
        assert_eq!(why.is_some(), asked > 0, "{what}");
    }
}
