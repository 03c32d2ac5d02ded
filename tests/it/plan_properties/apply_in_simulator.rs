//! Applies plans in the simulator.

use std::rc::Rc;
use std::sync::Arc;

use fleetwright::apply::{
    ApplySettings, ApplyStatus, ChangeOutcome, Outcome, Ports, Replan, Replanned, apply,
};
use fleetwright::catalog::Catalog;
use fleetwright::demand::{ShapeContext, pod_shape};
use fleetwright::model::desired::{Desired, Scale};
use fleetwright::model::observed::{Observed, Pod, write_world};
use fleetwright::model::storage::Storage;
use fleetwright::plan::Plan;
use fleetwright::plan::wire::UnschedulableRow;
use fleetwright::planner;
use fleetwright::simulator::{
    DeliveredWorkload, Delivery, ShapeFn, World, WorldInit, eksctl_groups,
};
use jiff::SignedDuration;

use super::proof_case::ProofCase;
use crate::conformance::{CaseInput, CasePlan};

/// Maximum time for the simulated world to settle.
const SETTLE_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Maximum number of plans until the plan is empty. One plan is not enough: kube-scheduler may
/// place pods on other nodes than planned. A later plan then removes nodes that became empty or
/// removable.
const PLANS_MAX: usize = 4;

impl ProofCase {
    /// Checks that after an apply in the simulator all placed pods run, and that further plans
    /// converge.
    pub(super) fn converges_when_applied(&self) -> Result<(), String> {
        // kube-scheduler may still place an unschedulable pod, so such plans are skipped.
        if self.unschedulable().iter().any(|count| *count > 0) {
            return Ok(());
        }
        // Some diagnostics announce that another plan is needed, or that a budget prevents a drain.
        let is_provisional = |text: &String| {
            text.contains("while nodes start or drain") || text.contains("never be drained")
        };
        if self.case_plan.plan.capacity.diagnostics.iter().any(|row| is_provisional(&row.message)) {
            return Ok(());
        }
        // In the simulator, joining instances of a case never join.
        if self.input.world.nodes.len() < self.input.world.instances.len() {
            return Ok(());
        }
        let (mut input, mut case_plan) = (self.input.with_world(self.input.world.clone()), None);
        for _ in 0..PLANS_MAX {
            let plan = case_plan.as_ref().unwrap_or(&self.case_plan);
            let world = apply_case(&input, plan, &self.desired);
            let world = world.map_err(|why| self.describe_failure(&format!("apply: {why}")))?;
            // A node of a case that is not Ready never becomes Ready.
            if world.nodes.values().any(|node| !node.ready) {
                return Ok(());
            }
            self.check_all_pods_run(&world).map_err(|why| self.describe_failure(&why))?;
            input = input.with_world(world);
            let next = input.plan(&[])?;
            let totals = next.plan.summary;
            // A static pool replaces its nodes one at a time, independent of pods.
            let is_fixed = |row: &UnschedulableRow| {
                row.reasons.iter().any(|reason| reason.reason == "fixed-size")
            };
            if next.plan.capacity.unschedulable.iter().any(is_fixed) {
                return Ok(());
            }
            if !next.plan.capacity.unschedulable.is_empty() {
                return Err(self.describe_failure(
                    &next.with_details("after the apply, pods are unschedulable:"),
                ));
            }
            if (totals.add, totals.change, totals.destroy) == (0, 0, 0) {
                return Ok(());
            }
            case_plan = Some(next);
        }
        let last = case_plan.as_ref().unwrap_or(&self.case_plan);
        Err(self.describe_failure(&last.with_details("after the applies, the plan is not empty:")))
    }

    fn check_all_pods_run(&self, world: &Observed) -> Result<(), String> {
        for group in &self.demand.groups {
            let of = |pod: &Pod| pod.owner.as_ref() == Some(&group.workload) && pod.node.is_some();
            let bound = world.pods.iter().filter(|pod| of(pod)).count();
            if bound < usize::try_from(group.counts.planned).unwrap_or(usize::MAX) {
                let at = |pod: &Pod| format!("{} on {:?}", pod.name, pod.node);
                let pods: Vec<String> = world.pods.iter().map(|pod| at(pod)).collect();
                let (name, pods) = (&group.workload, pods.join(", "));
                return Err(format!("{bound} pods of {name} run: {pods}"));
            }
        }
        Ok(())
    }
}

/// Applies `case_plan` in the simulator. Returns the observation after scheduling.
fn apply_case(
    input: &CaseInput,
    case_plan: &CasePlan,
    desired: &Desired,
) -> Result<Observed, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = directory.path().join("world.json");
    let world = with_zones_of_groups(input.world.clone(), desired);
    std::fs::write(file, write_world(&world)).map_err(|error| error.to_string())?;
    let context = Rc::new(desired.clone());
    let shape: ShapeFn = Rc::new(move |namespace, template| {
        pod_shape(namespace, template, &ShapeContext::new(&context))
    });
    let (cluster, now) = (input.world.cluster.clone(), input.world.taken_at);
    let init = WorldInit { cluster: cluster.clone(), now, seed: 1 };
    let world = World::open(directory.path(), &init, shape).map_err(|e| e.to_string())?;
    world.deliver(&delivery(desired, &case_plan.catalog)).map_err(|error| error.to_string())?;
    let replanner = CaseReplanner { input, desired, catalog: &case_plan.catalog };
    let catalog = Some(&case_plan.catalog);
    let settings = ApplySettings { catalog, ..ApplySettings::new(cluster, &replanner) };
    let ports = Ports { cloud: &world, cluster: &world, clock: &world };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let applied = runtime.block_on(apply(&case_plan.plan, &ports, &settings, &mut |_| {}));
    let receipt = applied.map_err(|error| error.to_string())?;
    // Pods that started before the cordon may block a removal. The next plan considers them.
    let is_deferred = |change: &ChangeOutcome| match &change.outcome {
        Outcome::Skipped { why } => why.contains("without the nodes that it removes"),
        Outcome::Abandoned { why } => why.contains("must not be disrupted now"),
        Outcome::Done
        | Outcome::AlreadyDone
        | Outcome::Dropped { .. }
        | Outcome::Continues { .. }
        | Outcome::Failed { .. } => change.outcome.is_settled(),
    };
    if receipt.verdict != ApplyStatus::Applied && !receipt.outcomes.iter().all(is_deferred) {
        return Err(format!("applied in part: {receipt:#?}"));
    }
    world.settle(SETTLE_MAX).map_err(|error| error.to_string())?;
    Ok(world.observed())
}

/// Plans a case again over a later observation.
#[derive(Debug)]
struct CaseReplanner<'a> {
    input: &'a CaseInput,
    desired: &'a Desired,
    catalog: &'a Catalog,
}

impl Replan for CaseReplanner<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        let input = self.input.with_world(observed.clone());
        let pinned = planner::revalidate(&input.inputs(self.desired, self.catalog), plan);
        Box::pin(std::future::ready(pinned))
    }
}

/// Returns the objects that a delivery tool would create.
fn delivery(desired: &Desired, catalog: &Catalog) -> Delivery {
    let replicas = |scale: &Scale| match scale {
        Scale::Replicas(count) => *count,
        Scale::Job { pods, completions, suspended: false } => {
            completions.unwrap_or(u32::MAX).min(*pods)
        }
        Scale::PerNode
        | Scale::Job { suspended: true, .. }
        | Scale::CronJob { .. }
        | Scale::ScaledJob(_)
        | Scale::Buffer(_) => 0,
    };
    let workloads = desired.workloads.values().map(|workload| {
        let template = Arc::clone(&workload.template);
        (
            workload.id.clone(),
            DeliveredWorkload {
                replicas: replicas(&workload.scale),
                first_ordinal: workload.first_ordinal,
                template,
            },
        )
    });
    Delivery {
        retained: desired.retained.clone(),
        retaining_namespaces: desired.retaining_namespaces.clone(),
        workloads: workloads.collect(),
        job_retries: [].into(),
        budgets: desired.disruption_budgets.clone(),
        namespaces: desired.namespaces.clone(),
        storage: declared_storage(desired),
        groups: eksctl_groups(desired, catalog),
        fargate_profiles: desired.fargate_profiles.clone(),
    }
}

/// Returns the observation with zones and instance types of live groups, which a case does not
/// state.
fn with_zones_of_groups(mut world: Observed, desired: &Desired) -> Observed {
    for group in desired.node_groups.values() {
        let live = world.groups.values_mut();
        for live in live.filter(|live| live.name.as_str() == format!("asg-{}", group.name)) {
            live.zones.clone_from(&group.zones);
            live.types.clone_from(&group.types);
        }
    }
    world
}

/// Returns the declared storage objects.
fn declared_storage(desired: &Desired) -> Storage {
    let (classes, volumes) = (desired.storage_classes.clone(), desired.volumes.clone());
    let mut storage = Storage { classes, volumes, ..Storage::default() };
    for ((namespace, name), declared) in &desired.claims {
        let claims = storage.claims.entry(namespace.clone()).or_default();
        claims.insert(name.clone(), declared.claim.clone());
    }
    storage
}
