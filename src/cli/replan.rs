//! Plans again before an apply.

use std::cell::RefCell;

use tokio::task::yield_now;

use super::console::Console;
use super::policy::Judge;
use super::repository::Repository;
use crate::apply::{Replan, Replanned};
use crate::catalog::Catalog;
use crate::model::observed::Observed;
use crate::plan::wire::{Base, BaseWorld, Check, Decider};
use crate::plan::{Plan, RevalidatedPlan, difference, planned_pods};
use crate::planner::{self, Inputs, Scope};
use crate::render::difference_text;

/// The inputs of the repeated plan.
#[derive(Debug)]
pub(super) struct Replanner<'a> {
    pub(super) repository: &'a Repository,
    pub(super) catalog: &'a Catalog,
    /// Policies that judge the approved plan by current numbers.
    judge: Option<&'a Judge>,
    /// The last repeated plan.
    now: RefCell<Option<Plan>>,
}

impl<'a> Replanner<'a> {
    pub(super) fn new(repository: &'a Repository, catalog: &'a Catalog) -> Self {
        Self { repository, catalog, judge: None, now: RefCell::new(None) }
    }

    pub(super) fn judged_by(self, judge: &'a Judge) -> Self {
        Self { judge: Some(judge), ..self }
    }

    /// Shows the difference between the approved plan and the current one. It is advice alone.
    pub(super) fn show_difference(&self, approved: &Plan, console: &mut Console) {
        let Some(now) = self.now.take() else { return };
        let text = difference_text(&difference(approved, &now), &console.message_style());
        // The repeated plan covers the whole fleet.
        let of = if approved.complete { "" } else { " of the whole fleet" };
        console.report_raw(&format!("\nThe approved plan, and the current plan{of}:\n\n{text}\n"));
    }
}

fn denial_text(check: &Check) -> String {
    format!("{}: {}", check.name, check.problems.join(", "))
}

impl Replan for Replanner<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        Box::pin(self.revalidated(plan, observed))
    }
}

impl Replanner<'_> {
    async fn revalidated(&self, plan: &Plan, observed: &Observed) -> RevalidatedPlan {
        // The lease is renewed on this thread, and each planning of a large fleet takes seconds.
        yield_now().await;
        let mut revalidated = if let Some(reproduced) = self.reproduced(plan, observed) {
            reproduced
        } else {
            yield_now().await;
            self.with_planned_pods(plan, observed)
        };
        if let Some(judge) = self.judge {
            let mut judged = revalidated.with_current_numbers(plan);
            judge.judge(&mut judged);
            let denials = judged.checks.iter().filter(|check| check.status.is_denial());
            revalidated.denied = denials.map(denial_text).collect();
        }
        self.now.replace(Some(revalidated.current.clone()));
        revalidated
    }

    /// Returns the result for the world as it is, if its plan has the approved digest.
    fn reproduced(&self, plan: &Plan, observed: &Observed) -> Option<RevalidatedPlan> {
        self.with_inputs(plan, observed.clone(), |inputs| planner::reproduce(inputs, plan))
    }

    /// Returns the result for the world with the approved pods planned on their nodes. The pods of
    /// nodes that start are packed as the approved plan packs them.
    fn with_planned_pods(&self, plan: &Plan, observed: &Observed) -> RevalidatedPlan {
        let observed = Observed { planned_pods: planned_pods(plan), ..observed.clone() };
        self.with_inputs(plan, observed, |inputs| planner::revalidate(inputs, plan))
    }

    /// Calls `compute` with the inputs of the approved plan, as they are now.
    fn with_inputs<T>(
        &self,
        plan: &Plan,
        mut observed: Observed,
        compute: impl FnOnce(&Inputs) -> T,
    ) -> T {
        let base = &plan.capacity.base;
        // The approved plan counted these workloads as removed, because a compared revision
        // declared them.
        let removed = plan.capacity.demand.iter().filter(|row| row.decided_by == Decider::Removed);
        observed.mark_delivered(removed.map(|row| row.workload.clone()));
        let world = BaseWorld::new(base.world.name.clone(), &observed);
        let steer = plan.capacity.placement.unsteered.is_some();
        compute(&Inputs {
            desired: &self.repository.desired,
            observed: &observed,
            catalog: self.catalog,
            base: Base { world, preconditions: Vec::new(), ..base.clone() },
            at: observed.taken_at,
            demand: base.demand,
            is_forecast: false,
            scope: Scope::default(),
            settings: crate::solver::Settings { steer, ..self.repository.fleet.solve },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::Path;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use serde_json::Value;

    use super::*;
    use crate::adapters::git::read_tree;
    use crate::cli::tests::run_command;
    use crate::cli::{Exit, embedded};
    use crate::model::requirement::{key, label};
    use crate::plan::canonical;
    use crate::testing::pods::topology_spread;
    use crate::testing::simulator::run;
    use crate::testing::{Scenario, requirement, workload_id};

    const SETTINGS: &str = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: { name: t }\n\
        spec: { cluster: { name: t, region: us-east-1, zones: [us-east-1a] } }\n";
    const POOL: &str = "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: { name: web }\nspec:\n  \
        template:\n    spec:\n      requirements:\n      \
        - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }\n      \
        - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }\n      \
        nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }\n---\n\
        apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: { name: web }\nspec:\n  \
        role: web\n  amiSelectorTerms: [{ alias: al2023@latest }]\n  \
        subnetSelectorTerms: [{ tags: { x: z } }]\n  \
        securityGroupSelectorTerms: [{ tags: { x: z } }]\n";

    fn workload(name: &str, replicas: u32, cpu: &str) -> String {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name} }}\nspec:\n  \
             replicas: {replicas}\n  selector: {{ matchLabels: {{ app: {name} }} }}\n  template:\n    \
             metadata: {{ labels: {{ app: {name} }} }}\n    spec:\n      containers: \
             [{{ name: c, image: c, resources: {{ requests: {{ cpu: {cpu}, memory: 1Gi }} }} }}]\n"
        )
    }

    fn write(directory: &Path, name: &str, text: &str) {
        fs::write(directory.join(name), text).expect("written");
    }

    /// Edits each field of a plan, or of the first two elements of a list, in several ways.
    fn edits(value: &Value, at: &str, found: &mut Vec<(String, Value)>) {
        let mut add = |value: Value| found.push((at.to_owned(), value));
        match value {
            Value::Null => {}
            Value::Bool(is_set) => add(Value::Bool(!is_set)),
            Value::Number(number) => {
                let number = number.as_u64().unwrap_or(0);
                add((number + 1).into());
                add((number + 99).into());
            }
            Value::String(text) => {
                add(format!("{text}x").into());
                add("2099-01-01T00:00:00Z".into());
                add("0.000001".into());
                add("removed".into());
            }
            Value::Array(items) => {
                add(Value::Array(Vec::new()));
                for (index, item) in items.iter().enumerate().take(2) {
                    edits(item, &format!("{at}/{index}"), found);
                }
            }
            Value::Object(map) => {
                for (key, item) in map {
                    let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                    found.push((path.clone(), Value::Null));
                    edits(item, &path, found);
                }
            }
        }
    }

    /// Most accepted edits of one field that are compared.
    const EDITS_MAX: u32 = 3;

    /// Returns the plan with one edit, if a reader accepts it. The file has the right checksum.
    fn accepted(plan: &Value, at: &str, edit: &Value) -> Option<Plan> {
        let mut edited = plan.clone();
        match (edit, at.rsplit_once('/')) {
            (Value::Null, Some((parent, key))) => {
                let key = key.replace("~1", "/").replace("~0", "~");
                edited.pointer_mut(parent)?.as_object_mut()?.remove(&key);
            }
            _ => *edited.pointer_mut(at)? = edit.clone(),
        }
        let plan: Plan = serde_json::from_value(edited).ok()?;
        Plan::from_json(&plan.to_json()).ok()
    }

    /// A plan that launches, removes and leaves a pod unschedulable, and what it was made from.
    fn saved_plan(tree: &Path) -> (Plan, Observed, Observed, Repository) {
        write(tree, "fleetwright.yaml", SETTINGS);
        write(tree, "pool.yaml", POOL);
        write(tree, "a.yaml", &workload("a", 3, "1500m"));
        let world = tree.join("world");
        let sim = format!("sim:{}", world.display());
        let (path, file) = (tree.display().to_string(), tree.join("p.json"));
        let file = file.display().to_string();
        let at = ["--at", "2026-09-01T10:00:00Z"];
        let first = [&["apply", &path, "--world", &sim, "--auto-approve"][..], &at].concat();
        let ran = run_command(&first);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        write(tree, "a.yaml", &workload("a", 1, "1500m"));
        write(tree, "b.yaml", &workload("b", 1, "64"));
        write(tree, "c.yaml", &workload("c", 5, "700m"));
        let ran = run_command(&["plan", &path, "--world", &sim, "--out", &file]);
        assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
        let plan = Plan::from_json(&fs::read_to_string(file).expect("saved")).expect("a plan");
        let repository = Repository::read(&read_tree(tree).expect("a tree"));
        let taken_at = plan.capacity.base.world.taken_at;
        let observed = embedded::observe(&world, &repository, taken_at).expect("observed");
        // The other world has lost an instance, so the second plan differs from the approved one.
        let other = without_an_instance(&observed);
        (plan, observed, other, repository)
    }

    #[test]
    fn approval_covers_everything_that_the_second_planning_reads() {
        let tree = tempfile::tempdir().expect("a directory");
        let (plan, observed, other, repository) = saved_plan(tree.path());
        assert!(plan.capacity.pods.unschedulable > 0, "a pod is unschedulable");
        let catalog = Catalog::load(&repository.fleet.region, &repository.fleet.zones);
        let catalog = catalog.expect("a catalog");
        let replanner = Replanner::new(&repository, &catalog);
        let outcome = |plan: &Plan, world: &Observed| {
            format!("{:?}", run(replanner.revalidated(plan, world)))
        };
        // The unchanged world is planned as it is, and the other one with the planned pods as well.
        assert!(replanner.reproduced(&plan, &observed).is_some());
        assert!(replanner.reproduced(&plan, &other).is_none());
        let expected = [&observed, &other].map(|world| (world, outcome(&plan, world)));
        assert_ne!(expected[0].1, expected[1].1, "the worlds differ");
        let mut json: Value = serde_json::from_str(&plan.to_json()).expect("JSON");
        // An attacker writes the checksum anew.
        json.as_object_mut().expect("an object").remove("checksum");
        let mut found = Vec::new();
        edits(&json, "", &mut found);
        let mut outside = BTreeSet::new();
        let mut tried: BTreeMap<Vec<&str>, u32> = BTreeMap::new();
        for (at, edit) in &found {
            // A few edits of each field are enough, in whatever row.
            let field = at.split('/').filter(|part| part.parse::<usize>().is_err()).take(5);
            let tried = tried.entry(field.collect()).or_default();
            if *tried >= EDITS_MAX {
                continue;
            }
            let Some(edited) = accepted(&json, at, edit).filter(|edited| *edited != plan) else {
                continue;
            };
            *tried += 1;
            for (world, expected) in &expected {
                let found = outcome(&edited, world);
                assert_eq!(found, *expected, "{at} = {edit} is read and not approved");
            }
            let list = at.split('/').filter(|part| part.parse::<usize>().is_err());
            outside.insert(list.take(3).collect::<Vec<_>>().join("/"));
        }
        // The walk reaches fields that nothing covers, and they are the views of the plan.
        let views = canonical::compact(&outside).expect("text");
        assert!(outside.contains("/capacity/cost") && outside.len() > 5, "{views}");
        // The requests of a launch follow the prices of its alternatives.
        let parts = ["pods", "base", "placement", "alternatives"];
        for read in parts.map(|part| format!("/capacity/{part}")) {
            assert!(!outside.contains(&read), "{read}: {views}");
        }
        assert!(!outside.contains("/timestamp"), "{views}");
    }

    /// Returns a repository that declares only its settings.
    fn repository_of_settings() -> Repository {
        let tree = tempfile::tempdir().expect("a directory");
        write(tree.path(), "fleetwright.yaml", SETTINGS);
        Repository::read(&read_tree(tree.path()).expect("a tree"))
    }

    /// Returns a scenario with two empty nodes, and its plan for three pods that spread over zones.
    /// It launches a node in a third zone. Its pods are edited: the two nodes have all of them.
    fn plan_with_edited_pods(settings: crate::solver::Settings) -> (Scenario, Plan) {
        let mut scenario = Scenario::new(&["m5.large"], 200, 256);
        scenario.settings = settings;
        let template = scenario.template();
        template.labels = [label("app", "a")].into();
        template.spec.topology_spread = vec![topology_spread(key::ZONE, 1, "a")];
        let zones = requirement(key::ZONE, &["us-east-1a", "us-east-1b"]);
        scenario.pool().requirements.push(zones);
        scenario.scale(2);
        for launch in scenario.solve().target.launches {
            scenario.launch(&launch.node);
        }
        assert_eq!(scenario.observed.nodes.len(), 2);
        scenario.pool().requirements.pop();
        scenario.scale(3);
        let mut plan = scenario.plan();
        assert_eq!(plan.summary.add, 1);
        let existing = plan.resource_changes.iter().filter(|row| row.change.before.is_some());
        let existing: BTreeSet<_> = existing.map(|row| row.address.clone()).collect();
        let rows = plan.capacity.explain.iter_mut();
        let rows = rows.filter(|row| existing.contains(&row.address));
        let counts = rows.zip([2, 1]).flat_map(|(row, pods)| {
            row.pods.values_mut().map(move |count| std::mem::replace(count, pods))
        });
        assert_eq!(counts.collect::<Vec<_>>(), [1, 1]);
        (scenario, plan.with_identity())
    }

    fn without_an_instance(observed: &Observed) -> Observed {
        let mut other = observed.clone();
        other.remove_instances(&observed.instances.keys().take(1).cloned().collect());
        other
    }

    /// Returns how often a future is polled until it is ready.
    fn polls(future: impl Future) -> u32 {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        (1..100).find(|_| future.as_mut().poll(&mut context).is_ready()).expect("it ends")
    }

    #[test]
    fn other_tasks_run_before_each_planning() {
        let mut repository = repository_of_settings();
        let (scenario, plan) = plan_with_edited_pods(repository.fleet.solve);
        repository.desired = scenario.desired.clone();
        let replanner = Replanner::new(&repository, &scenario.catalog);
        let other = without_an_instance(&scenario.observed);
        assert_eq!(polls(replanner.replan(&plan, &scenario.observed)), 2, "one planning");
        assert_eq!(polls(replanner.replan(&plan, &other)), 3, "two plannings");
    }

    #[test]
    fn plan_of_the_unchanged_world_is_current() {
        let mut repository = repository_of_settings();
        let (scenario, plan) = plan_with_edited_pods(repository.fleet.solve);
        repository.desired = scenario.desired.clone();
        let replanner = Replanner::new(&repository, &scenario.catalog);
        let observed = &scenario.observed;
        // With the planned pods on their nodes, nothing is launched.
        let planned = replanner.with_planned_pods(&plan, observed);
        assert_ne!(planned.current.capacity.digest, plan.capacity.digest);
        let found = run(replanner.revalidated(&plan, observed));
        assert_eq!(found.current.capacity.digest, plan.capacity.digest);
        let expected = RevalidatedPlan::as_approved(found.current.clone());
        assert_eq!(format!("{found:?}"), format!("{expected:?}"), "it applies unchanged");
        // The planned pods count in every other world.
        let other = without_an_instance(observed);
        let found = run(replanner.revalidated(&plan, &other));
        let expected = replanner.with_planned_pods(&plan, &other);
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }

    #[test]
    fn removed_workload_counts_as_removed_in_both_plannings() {
        let mut repository = repository_of_settings();
        let mut scenario = Scenario::new(&["m5.large"], 1500, 1024);
        scenario.settings = repository.fleet.solve;
        scenario.step(2);
        scenario.desired.workloads.clear();
        let observed = scenario.observed.clone();
        scenario.observed.mark_delivered([workload_id()]);
        let plan = scenario.plan();
        assert!(plan.summary.destroy > 0);
        repository.desired = scenario.desired.clone();
        let replanner = Replanner::new(&repository, &scenario.catalog);
        assert!(replanner.reproduced(&plan, &observed).is_some());
        let planned = replanner.with_planned_pods(&plan, &observed);
        assert_eq!(planned.current.capacity.digest, plan.capacity.digest);
    }
}
