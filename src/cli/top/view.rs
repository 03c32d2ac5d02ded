//! Builds the view of `top` from the repository, an observation and a plan.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::cli::error::CliError;
use crate::cli::repository::{FleetSettings, Repository};
use crate::cli::settings::TopSettings;
use crate::cli::{Console, cluster_pools, planning, source_tree, world};
use crate::demand::{ShapeContext, live_requests};
use crate::model::desired::{Desired, PoolSource};
use crate::model::ids::{Address, NodeName};
use crate::model::observed::{Completeness, Instance, InstanceState, Node, Observed};
use crate::model::units::Resources;
use crate::plan::wire::{
    Action, Amount, ExplainRow, NodeState, ResourceChange, ResourceKind, WorkloadKey, workload_key,
};
use crate::plan::{Plan, is_blocked};
use crate::planner::{self, Inputs};
use crate::render::{TopNode, TopState, TopView, unread_sentences};

/// Longest start of a node. A node that is not ready for longer has failed.
const START_MAX: SignedDuration = SignedDuration::from_mins(15);

/// The inputs of the view. The repository is read again only after its files have changed.
pub(super) struct TopSource {
    settings: TopSettings,
    repository: Option<(String, Repository)>,
}

impl TopSource {
    pub(super) fn new(settings: TopSettings) -> Self {
        Self { settings, repository: None }
    }

    /// Observes for the first time, and checks the names of pools. Later, a pool may be without
    /// nodes or no longer declared.
    pub(super) fn observe_first(&mut self, console: &mut Console) -> Result<TopView, CliError> {
        let view = self.observe_all(console)?;
        let declared = self.repository.iter().flat_map(|(_, read)| read.desired.pools.keys());
        let mut known: BTreeSet<String> = declared.map(ToString::to_string).collect();
        known.extend(view.nodes.iter().filter_map(|node| node.pool.clone()));
        check_pools(&self.settings.pools, &known)?;
        Ok(restrict(view, &self.settings.pools))
    }

    /// Reads, observes and plans.
    pub(super) fn observe(&mut self, console: &mut Console) -> Result<TopView, CliError> {
        let view = self.observe_all(console)?;
        Ok(restrict(view, &self.settings.pools))
    }

    /// Returns the view of all pools.
    fn observe_all(&mut self, console: &mut Console) -> Result<TopView, CliError> {
        let TopSettings { source, world: requested, .. } = &self.settings;
        let tree = source_tree::read(source)?;
        let fleet = FleetSettings::read(&tree);
        let choice = planning::world_choice(requested.as_ref(), source, &fleet)?;
        let repository = match self.repository.take() {
            // Pools of the cluster may have changed.
            Some((hash, repository))
                if hash == tree.base.tree && fleet.pools == PoolSource::Repository =>
            {
                repository
            }
            _ => cluster_pools::read_over(&tree, Some(&choice), source)?.0,
        };
        let (_, repository) = self.repository.insert((tree.base.tree.clone(), repository));
        let observed = world::observe(&choice, repository, None, console)?;
        let at = world::planning_time(&choice, None, &observed, console);
        let market = world::market(&choice, repository, &observed);
        let region = repository.fleet.region_of(&observed);
        let catalog = planning::catalog(&repository.fleet, &region, market.as_ref())?;
        let inputs = planning::inputs(source, repository, &choice, &observed, &catalog);
        let plan = planner::plan(&Inputs { at, ..inputs });
        Ok(view(&plan, &observed, &repository.desired, at))
    }
}

/// Checks that each of `pools` is declared or the pool of a node.
fn check_pools(pools: &[String], known: &BTreeSet<String>) -> Result<(), CliError> {
    let Some(unknown) = pools.iter().find(|pool| !known.contains(*pool)) else { return Ok(()) };
    let hint = if known.is_empty() {
        "no pool is declared".to_owned()
    } else {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        format!("known pools: {}", known.join(", "))
    };
    Err(CliError::text(format!("pool `{unknown}` is not declared and has no nodes")).hint(hint))
}

/// Keeps the nodes of `pools`, or all nodes if there are none.
fn restrict(mut view: TopView, pools: &[String]) -> TopView {
    if !pools.is_empty() {
        view.nodes.retain(|node| node.pool.as_ref().is_some_and(|pool| pools.contains(pool)));
    }
    view.pools = pools.to_vec();
    view
}

fn view(plan: &Plan, observed: &Observed, desired: &Desired, at: Timestamp) -> TopView {
    let usage = requests_by_node(observed, desired);
    let explains: BTreeMap<&Address, &ExplainRow> =
        plan.capacity.explain.iter().map(|row| (&row.address, row)).collect();
    let mut nodes = Vec::new();
    let rows = plan.resource_changes.iter();
    for row in rows.filter(|row| row.kind != ResourceKind::AutoscalingGroup) {
        let explain = explains.get(&row.address).copied();
        if let Some(before) = &row.change.before {
            let live = LiveNode::find(before, observed);
            let requested = before.node.as_ref().and_then(|name| usage.get(name)).cloned();
            nodes.push(TopNode {
                requested: requested.unwrap_or_default(),
                hourly: explain.and_then(|explain| explain.hourly_before),
                age: live.launched_at(before).map(|since| at.duration_since(since)),
                state: live.state(row, explain, at),
                ..node(row, before)
            });
        }
        if let Some(after) = row.change.after.as_ref().filter(|_| has(row, Action::Create)) {
            nodes.push(TopNode {
                requested: explain
                    .map(|explain| planned_requests(explain, plan))
                    .unwrap_or_default(),
                hourly: explain.and_then(|explain| explain.hourly_after),
                state: TopState::ToLaunch,
                ..node(row, after)
            });
        }
    }
    let cluster = &observed.cluster;
    let is_pending = |pod: &crate::model::observed::Pod| pod.is_active() && pod.node.is_none();
    let pending = observed.pods.iter().filter(|pod| is_pending(pod)).count();
    TopView {
        cluster: cluster.name.clone(),
        region: cluster.region.clone(),
        world: plan.capacity.base.world.name.clone(),
        taken_at: observed.taken_at,
        pools: Vec::new(),
        nodes,
        pending: u32::try_from(pending).unwrap_or(u32::MAX),
        notes: notes(plan, observed),
    }
}

fn has(row: &ResourceChange, action: Action) -> bool {
    row.change.actions.contains(&action)
}

/// Returns a node of the row without requests, price and age.
fn node(row: &ResourceChange, state: &NodeState) -> TopNode {
    let address = row.address.as_str();
    let prefix = format!("{}.", ResourceKind::Ec2Instance.as_str());
    TopNode {
        address: address.strip_prefix(&prefix).unwrap_or(address).to_owned(),
        name: state.node.as_ref().map(ToString::to_string),
        pool: state.pool.as_ref().map(ToString::to_string),
        instance_type: state.instance_type.as_ref().map(ToString::to_string),
        capacity_type: state.capacity_type.map(|kind| kind.to_string()),
        zone: state.zone.as_ref().map(ToString::to_string),
        requested: Amount::default(),
        allocatable: state.allocatable.clone(),
        hourly: None,
        age: None,
        state: TopState::Unchanged,
    }
}

/// The instance and the node of a row, as observed.
struct LiveNode<'o> {
    instance: Option<&'o Instance>,
    node: Option<&'o Node>,
}

impl<'o> LiveNode<'o> {
    fn find(state: &NodeState, observed: &'o Observed) -> Self {
        let instance = state.instance_id.as_ref().and_then(|id| observed.instances.get(id));
        let node = state.node.as_ref().and_then(|name| observed.nodes.get(name));
        Self { instance, node }
    }

    fn launched_at(&self, state: &NodeState) -> Option<Timestamp> {
        let launched = self.instance.map(|instance| instance.launched_at);
        launched.or(state.launched_at).or(self.node.map(|node| node.created_at))
    }

    fn state(&self, row: &ResourceChange, explain: Option<&ExplainRow>, at: Timestamp) -> TopState {
        let Self { instance, node } = *self;
        let is_cordoned = node.is_some_and(|node| node.unschedulable);
        if instance.is_some_and(|instance| !instance.is_active()) {
            TopState::Terminating
        } else if is_cordoned && node.is_some_and(|node| node.cordon_reason().is_some()) {
            TopState::Draining
        } else if has(row, Action::Delete) {
            if has(row, Action::Create) { TopState::ToReplace } else { TopState::ToRemove }
        } else if !node.is_some_and(|node| node.ready) {
            self.unready_state(at)
        } else if explain.is_some_and(is_blocked) {
            TopState::Blocked
        } else if is_cordoned {
            TopState::Cordoned
        } else {
            TopState::Unchanged
        }
    }

    /// Returns the state of a node that is not ready: it starts, or it has failed.
    fn unready_state(&self, at: Timestamp) -> TopState {
        if self.node.is_some_and(|node| node.was_ready) {
            return TopState::NotReady;
        }
        let pending = self.instance.is_some_and(|one| one.state == InstanceState::Pending);
        let since = self.node.map(|node| node.created_at);
        let since = since.or(self.instance.map(|instance| instance.launched_at));
        let is_new = since.is_none_or(|since| at.duration_since(since) < START_MAX);
        if pending || is_new { TopState::Starting } else { TopState::NotReady }
    }
}

/// Returns requests and number of the active pods of each node.
fn requests_by_node(observed: &Observed, desired: &Desired) -> BTreeMap<NodeName, Amount> {
    let context = ShapeContext::new(desired);
    let mut usage: BTreeMap<NodeName, Usage> = BTreeMap::new();
    for pod in observed.pods.iter().filter(|pod| pod.is_active()) {
        let Some(name) = &pod.node else { continue };
        let usage = usage.entry(name.clone()).or_default();
        usage.pods = usage.pods.saturating_add(1);
        if let Some(template) = observed.templates.get(&*pod.template) {
            usage.requests = usage.requests.plus(&live_requests(pod, template, &context));
        }
    }
    let amount = |usage: Usage| Amount { pods: usage.pods, ..Amount::from(&usage.requests) };
    usage.into_iter().map(|(name, usage)| (name, amount(usage))).collect()
}

#[derive(Default)]
struct Usage {
    requests: Resources,
    pods: i64,
}

/// Returns requests and number of the pods that the plan places on a node.
fn planned_requests(explain: &ExplainRow, plan: &Plan) -> Amount {
    let mut all = Resources::from(&explain.daemons);
    for row in &plan.capacity.demand {
        let key: WorkloadKey = workload_key(&row.workload).into();
        if let Some(pods) = explain.pods.get(&key) {
            all = all.plus(&Resources::from(&row.requests).times(i64::from(*pods)));
        }
    }
    let pods = explain.pods.values().fold(0_i64, |all, pods| all.saturating_add((*pods).into()));
    Amount { pods: pods.saturating_add(explain.daemons.pods), ..Amount::from(&all) }
}

/// Returns the limitations of the view.
fn notes(plan: &Plan, observed: &Observed) -> Vec<String> {
    let mut notes = Vec::new();
    if plan.errored {
        notes.push(
            "The inputs have errors, so the plan removes nothing; `fleetwright validate` lists them."
                .to_owned(),
        );
    }
    for (source, state) in &observed.sources {
        match state {
            Completeness::Complete => {}
            Completeness::Partial { reason } => {
                notes.push(format!("Only a part of {source} could be read: {reason}"));
            }
            Completeness::Failed { reason } => {
                notes.push(format!("{source} could not be read: {reason}"));
            }
        }
    }
    notes.extend(unread_sentences(plan));
    match plan.capacity.pods.unschedulable {
        0 => {}
        1 => notes.push("1 pod is unschedulable; `fleetwright plan` shows why.".to_owned()),
        n => notes.push(format!("{n} pods are unschedulable; `fleetwright plan` shows why.")),
    }
    match plan.capacity.pods.served_by_cluster_autoscaler {
        0 => {}
        n => notes.push(format!("Pods that cluster-autoscaler serves: {n}.")),
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::top::view;

    #[test]
    fn unknown_pool_is_an_error_and_an_empty_one_is_not() {
        let known = BTreeSet::from(["db".to_owned(), "web".to_owned()]);
        let pools = |name: &str| vec![name.to_owned()];
        assert!(check_pools(&pools("db"), &known).is_ok());
        let error = check_pools(&pools("wbe"), &known).expect_err("unknown");
        assert_eq!(error.hint_text().as_deref(), Some("known pools: db, web"));
        let restricted = restrict(view(3), &pools("db"));
        assert!(restricted.nodes.is_empty());
        assert_eq!(restricted.pools, ["db"]);
        assert_eq!(restrict(view(3), &pools("web")).nodes.len(), 3);
    }

    #[test]
    fn notes_name_unread_sources_and_unschedulable_pods() {
        let plan = crate::testing::sample_plan::plan();
        let cluster = plan.capacity.base.world.cluster.clone();
        let notes = notes(&plan, &Observed::empty(cluster, Timestamp::UNIX_EPOCH));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("Incomplete: 1 Helm chart was not rendered"), "{notes:?}");
        assert_eq!(notes[1], "3 pods are unschedulable; `fleetwright plan` shows why.");
    }
}
