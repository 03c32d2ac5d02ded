//! Plans carried out in the simulated world.

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

/// How long the world may take to come to rest.
const SETTLE_MAX: SignedDuration = SignedDuration::from_mins(30);

/// Plans after which nothing is left to plan: more than one, because kube-scheduler does not put
/// pods where a plan has them, and a node that it left empty, or that should leave and no longer has
/// to stay, is for the next plan to see.
const PLANS_MAX: usize = 4;

impl ProofCase {
    /// Applied in the simulated world, every pod that the plan places runs, and plan after plan comes
    /// to rest.
    pub(super) fn applied_comes_to_rest(&self) -> Result<(), String> {
        // A pod that is left out takes room all the same where kube-scheduler finds it some.
        if self.left().iter().any(|count| *count > 0) {
            return Ok(());
        }
        // A plan that says so itself may have to be made again before everything runs.
        // A budget that lets no pod go ends a drain of whatever kube-scheduler puts on a node that goes.
        let said = |text: &String| {
            text.contains("while nodes start or drain") || text.contains("never be drained")
        };
        if self.made.plan.capacity.diagnostics.iter().any(|row| said(&row.message)) {
            return Ok(());
        }
        // The world's instances join at their time, and those of a case never do.
        if self.given.world.nodes.len() < self.given.world.instances.len() {
            return Ok(());
        }
        let (mut given, mut made) = (self.given.in_world(self.given.world.clone()), None);
        for _ in 0..PLANS_MAX {
            let plan = made.as_ref().unwrap_or(&self.made);
            let world = out(&given, plan, &self.desired);
            let world = world.map_err(|why| self.story(&format!("apply: {why}")))?;
            // Nor does one of a case become Ready, for which a plan may wait a while.
            if world.nodes.values().any(|node| !node.ready) {
                return Ok(());
            }
            self.runs_everything(&world).map_err(|why| self.story(&why))?;
            given = given.in_world(world);
            let next = given.plan(&[])?;
            let totals = next.plan.summary;
            // Nodes of a pool with a fixed number are replaced in turn, whomever the new ones hold.
            let is_fixed = |row: &UnschedulableRow| {
                row.reasons.iter().any(|reason| reason.reason == "fixed-size")
            };
            if next.plan.capacity.unschedulable.iter().any(is_fixed) {
                return Ok(());
            }
            if !next.plan.capacity.unschedulable.is_empty() {
                return Err(self.story(&next.with_story("applied, pods are left out:")));
            }
            if (totals.add, totals.change, totals.destroy) == (0, 0, 0) {
                return Ok(());
            }
            made = Some(next);
        }
        let last = made.as_ref().unwrap_or(&self.made);
        Err(self.story(&last.with_story("applied, plan after plan leaves more to plan:")))
    }

    fn runs_everything(&self, world: &Observed) -> Result<(), String> {
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

/// Returns the world that comes of `made` when it is applied and the scheduler has acted.
fn out(given: &CaseInput, made: &CasePlan, desired: &Desired) -> Result<Observed, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = directory.path().join("world.json");
    let world = with_zones_of_groups(given.world.clone(), desired);
    std::fs::write(file, write_world(&world)).map_err(|error| error.to_string())?;
    let context = Rc::new(desired.clone());
    let shape: ShapeFn = Rc::new(move |namespace, template| {
        pod_shape(namespace, template, &ShapeContext::new(&context))
    });
    let (cluster, now) = (given.world.cluster.clone(), given.world.taken_at);
    let genesis = WorldInit { cluster: cluster.clone(), now, seed: 1 };
    let world = World::open(directory.path(), &genesis, shape).map_err(|e| e.to_string())?;
    world.deliver(&delivery(desired, &made.catalog)).map_err(|error| error.to_string())?;
    let again = CaseReplanner { given, desired, catalog: &made.catalog };
    let catalog = Some(&made.catalog);
    let settings = ApplySettings { catalog, ..ApplySettings::new(cluster, &again) };
    let ports = Ports { cloud: &world, cluster: &world, clock: &world };
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let applied = runtime.block_on(apply(&made.plan, &ports, &settings, &mut |_| {}));
    let receipt = applied.map_err(|error| error.to_string())?;
    // What came to a node before it was cordoned may have to stay there: the next plan knows.
    let is_for_later = |change: &ChangeOutcome| match &change.outcome {
        Outcome::Skipped { why } => why.contains("by now it is not as approved"),
        Outcome::GivenUp { why } => why.contains("asks not to be moved"),
        Outcome::Done | Outcome::AlreadyDone | Outcome::Dropped { .. } | Outcome::Failed { .. } => {
            change.outcome.is_settled()
        }
    };
    if receipt.verdict != ApplyStatus::Applied && !receipt.outcomes.iter().all(is_for_later) {
        return Err(format!("applied in part: {receipt:#?}"));
    }
    world.settle(SETTLE_MAX).map_err(|error| error.to_string())?;
    Ok(world.observed())
}

/// Plans a case again over what its world has become.
#[derive(Debug)]
struct CaseReplanner<'a> {
    given: &'a CaseInput,
    desired: &'a Desired,
    catalog: &'a Catalog,
}

impl Replan for CaseReplanner<'_> {
    fn replan<'r>(&'r self, plan: &'r Plan, observed: &'r Observed) -> Replanned<'r> {
        let given = self.given.in_world(observed.clone());
        let pinned = planner::plan_pinned(&given.inputs(self.desired, self.catalog), plan);
        Box::pin(std::future::ready(pinned))
    }
}

/// Returns what a delivery tool would bring the world to.
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
        workloads: workloads.collect(),
        budgets: desired.disruption_budgets.clone(),
        namespaces: desired.namespaces.clone(),
        storage: declared_storage(desired),
        groups: eksctl_groups(desired, catalog),
        fargate_profiles: desired.fargate_profiles.clone(),
    }
}

/// Returns the world with what a case does not say of live groups: where and of what they make members.
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

/// Returns the storage objects that the tree declares.
fn declared_storage(desired: &Desired) -> Storage {
    let (classes, volumes) = (desired.storage_classes.clone(), desired.volumes.clone());
    let mut storage = Storage { classes, volumes, ..Storage::default() };
    for ((namespace, name), declared) in &desired.claims {
        let claims = storage.claims.entry(namespace.clone()).or_default();
        claims.insert(name.clone(), declared.claim.clone());
    }
    storage
}
