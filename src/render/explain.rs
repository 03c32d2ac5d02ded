//! Explanations of pods, nodes and pools of a plan.

mod pool;

pub use pool::PoolExplanation;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use thiserror::Error;

use super::amount::{amount, count, list};
use super::detail::{WORKLOADS_MAX, write_block};
use super::findings::{write_growth, write_unschedulable};
use super::reason::{decider, rejection, row_reason, wave, workloads};
use super::row::{PlanRow, rows};
use super::text_page::{StyledText, TableColumn, TextPage, TextStyle, Tone, plain};
use crate::model::desired::Desired;
use crate::model::ids::{InstanceId, NodeName, Origin, PLACE_MARK, WorkloadId};
use crate::model::reason::drifted_field_text;
use crate::model::similar_name::nearest_of;
use crate::plan::Plan;
use crate::plan::wire::{
    Action, AutoscalerGrowthRow, Change, DaemonRow, Decider, DemandRow, DriftedField, NodeState,
    Rejection, ResourceChange, Sizing, UnresolvedRow, UnschedulableRow, Wave, workload_key,
};

/// Most nodes named with a rejected alternative.
const NODES_NAMED_MAX: usize = 3;

/// Most candidates in an error.
const CANDIDATES_MAX: usize = 5;

/// The error of a failed explanation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ExplainError {
    /// The plan has no such pod or node.
    #[error("the plan has no workload, node, instance, address or pool `{query}`")]
    Unknown {
        /// The requested name.
        query: String,
        /// The nearest names in the plan.
        similar: Vec<String>,
    },
    /// The size of the named object is not known.
    #[error("`{object}` ({origin}) is unresolved, so none of its pods are planned: {reason}")]
    Unresolved {
        /// The object or source.
        object: String,
        /// File and line.
        origin: Origin,
        /// The reason why its size is not known.
        reason: String,
    },
    /// Several workloads have the name.
    #[error("`{query}` names more than one workload")]
    Ambiguous {
        /// The requested name.
        query: String,
        /// The full names of the workloads.
        candidates: Vec<String>,
    },
}

impl ExplainError {
    /// Returns a hint about valid names.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { similar, .. } if similar.is_empty() => {
                "name a workload as NAMESPACE/NAME, a node by its address, name or instance id, or a \
                 pool as nodepool/NAME"
                    .to_owned()
            }
            Self::Unresolved { .. } => {
                "`fleetwright validate` lists its problems, and unresolved objects".to_owned()
            }
            Self::Unknown { similar: names, .. } | Self::Ambiguous { candidates: names, .. } => {
                format!("did you mean {}?", names.join(" or "))
            }
        }
    }
}

/// An explanation of a part of a plan.
#[derive(Debug)]
pub enum Explanation<'a> {
    /// The pods of a workload.
    Pod(PodExplanation<'a>),
    /// A node.
    Node(NodeExplanation<'a>),
    /// A pool.
    Pool(PoolExplanation<'a>),
}

/// The rows of a plan about the pods of one workload.
#[derive(Debug)]
pub struct PodExplanation<'a> {
    plan: &'a Plan,
    workload: &'a WorkloadId,
    demand: Option<&'a DemandRow>,
    daemon: Option<&'a DaemonRow>,
    unschedulable: Option<&'a UnschedulableRow>,
}

/// The rows of a plan about one node.
#[derive(Debug)]
pub struct NodeExplanation<'a> {
    plan: &'a Plan,
    row: PlanRow<'a>,
}

/// Finds `query`: the address, node name or instance id of a row; a workload as `name`,
/// `namespace/name` or `namespace/Kind/name`; or a pool as `nodepool/name` or `name`. The planned
/// repository `desired` adds the declaration of a pool.
///
/// # Errors
/// Fails if the plan has no such name, or several workloads with it.
pub fn explain<'a>(
    plan: &'a Plan,
    desired: Option<&'a Desired>,
    query: &str,
) -> Result<Explanation<'a>, ExplainError> {
    if let Some(node) = explain_node(plan, query) {
        return Ok(Explanation::Node(node));
    }
    let found = explain_pod(plan, query).map(Explanation::Pod);
    let pool = || pool::explain_pool(plan, desired, query).map(Explanation::Pool);
    match found {
        Err(ExplainError::Unknown { query, mut similar }) => pool().ok_or_else(|| {
            let pools = pool::similar_names(plan, desired, &query);
            if query.contains('/') && !pools.is_empty() {
                similar.clear();
            }
            similar.extend(pools);
            ExplainError::Unknown { query, similar }
        }),
        other => other,
    }
}

/// Finds the row whose address, node name or instance id is `query`.
fn explain_node<'a>(plan: &'a Plan, query: &str) -> Option<NodeExplanation<'a>> {
    let row = rows(plan).into_iter().find(|row| names_of(row.resource).contains(&query))?;
    Some(NodeExplanation { plan, row })
}

fn names_of(resource: &ResourceChange) -> Vec<&str> {
    let states = [&resource.change.before, &resource.change.after].into_iter().flatten();
    let own = states.flat_map(|state| {
        let node = state.node.as_ref().map(NodeName::as_str);
        node.into_iter().chain(state.instance_id.as_ref().map(InstanceId::as_str))
    });
    own.chain([resource.address.as_str()]).collect()
}

/// Finds the workload with the name `query`.
fn explain_pod<'a>(plan: &'a Plan, query: &str) -> Result<PodExplanation<'a>, ExplainError> {
    let known = known_workloads(plan);
    let named: Vec<&WorkloadId> =
        known.values().copied().filter(|workload| is_named(workload, query)).collect();
    match named.as_slice() {
        [workload] => Ok(pod_explanation(plan, workload)),
        [] => Err(unresolved(plan, query).unwrap_or_else(|| ExplainError::Unknown {
            query: query.to_owned(),
            similar: similar(plan, query),
        })),
        several => Err(ExplainError::Ambiguous {
            query: query.to_owned(),
            candidates: several.iter().map(|w| workload_key(w)).take(CANDIDATES_MAX).collect(),
        }),
    }
}

/// Returns the error of an unresolved object with the name `query`.
fn unresolved(plan: &Plan, query: &str) -> Option<ExplainError> {
    let is_meant = |object: &str| {
        let (kind, full) = object.rsplit_once(' ').unwrap_or(("", object));
        let (namespace, name) = full.split_once('/').unwrap_or(("", full));
        [object, full, name].contains(&query) || query == format!("{namespace}/{kind}/{name}")
    };
    let row = plan.capacity.unresolved.iter().find(|row| is_meant(&row.object))?;
    let UnresolvedRow { object, origin, reason, running: _ } = row.clone();
    Some(ExplainError::Unresolved { object, origin, reason })
}

fn pod_explanation<'a>(plan: &'a Plan, workload: &'a WorkloadId) -> PodExplanation<'a> {
    let capacity = &plan.capacity;
    PodExplanation {
        plan,
        workload,
        demand: capacity.demand.iter().find(|row| &row.workload == workload),
        daemon: capacity.daemons.iter().find(|row| &row.workload == workload),
        unschedulable: capacity.unschedulable.iter().find(|row| &row.workload == workload),
    }
}

fn known_workloads(plan: &Plan) -> BTreeMap<String, &WorkloadId> {
    let capacity = &plan.capacity;
    let demand = capacity.demand.iter().map(|row| &row.workload);
    let daemons = capacity.daemons.iter().map(|row| &row.workload);
    let unschedulable = capacity.unschedulable.iter().map(|row| &row.workload);
    demand.chain(daemons).chain(unschedulable).map(|id| (workload_key(id), id)).collect()
}

fn is_named(workload: &WorkloadId, query: &str) -> bool {
    if [workload_key(workload), workload.to_string()].iter().any(|whole| whole == query) {
        return true;
    }
    let WorkloadId { namespace, name, kind } = workload;
    // The prefix of a generated name stands for it.
    let name = name.split_once(PLACE_MARK).map_or(&**name, |(prefix, _)| prefix);
    match query.split('/').collect::<Vec<_>>().as_slice() {
        [one] => *one == name,
        [space, one] => *space == namespace.as_str() && *one == name,
        [space, of, one] => {
            *space == namespace.as_str() && of.eq_ignore_ascii_case(kind.as_str()) && *one == name
        }
        _ => false,
    }
}

fn similar(plan: &Plan, query: &str) -> Vec<String> {
    let workloads = known_workloads(plan);
    // A workload may be named without its kind, and without its namespace.
    let written = |id: &WorkloadId| match query.split('/').count() {
        1 => id.name.to_string(),
        2 => id.to_string(),
        _ => workload_key(id),
    };
    let mut names: BTreeSet<(String, String)> =
        workloads.values().map(|id| (written(id), id.to_string())).collect();
    // A row may have the same name before and after.
    let of_rows = plan.resource_changes.iter().flat_map(names_of);
    names.extend(of_rows.map(|name| (name.to_owned(), name.to_owned())));
    nearest_of(query, names.iter().map(|(written, name)| (written.as_str(), name.clone())))
}

impl Explanation<'_> {
    /// Returns the explanation as text.
    pub fn text(&self, style: &TextStyle) -> String {
        let mut page = TextPage::new(style);
        match self {
            Self::Pod(pod) => pod.write(&mut page),
            Self::Node(node) => node.write(&mut page),
            Self::Pool(pool) => pool.write(&mut page),
        }
        page.finish()
    }

    /// Returns the explanation as JSON.
    pub fn json(&self) -> Value {
        match self {
            Self::Pod(pod) => pod.json(),
            Self::Node(node) => node.json(),
            Self::Pool(pool) => pool.json(),
        }
    }
}

impl<'a> PodExplanation<'a> {
    fn origin(&self) -> Option<&'a Origin> {
        let demand = self.demand.and_then(|row| row.origin.as_ref());
        let daemon = self.daemon.and_then(|row| row.origin.as_ref());
        demand.or(daemon).or(self.unschedulable.and_then(|row| row.origin.as_ref()))
    }

    /// Returns the rows with pods of the workload, and their number of pods.
    fn nodes(&self) -> Vec<(PlanRow<'a>, u32)> {
        let key = workload_key(self.workload);
        let with_pods = |row: PlanRow<'a>| Some((row, *row.explain?.pods.get(key.as_str())?));
        rows(self.plan).into_iter().filter_map(with_pods).filter(|(_, pods)| *pods > 0).collect()
    }

    fn write(&self, page: &mut TextPage) {
        let origin = self.origin().map_or_else(String::new, |origin| format!("  {origin}"));
        let key = workload_key(self.workload);
        page.line([StyledText::new(&key, Tone::Strong), StyledText::new(&origin, Tone::Faint)]);
        if let Some(DemandRow { counts, decided_by, requests, fargate, sized_by, .. }) = self.demand
        {
            page.text(format!(
                "  {} planned, decided by {}",
                count(counts.planned, "pod"),
                decider(decided_by, self.plan)
            ));
            page.text(format!(
                "  floor {}, live {}, ceiling {}",
                counts.floor, counts.live, counts.ceiling
            ));
            if let Decider::Autoscaler { next: Some(next), .. } = decided_by {
                page.text(format!("  its next step is {}", count(*next, "pod")));
            }
            page.text(format!("  each needs {}", amount(requests)));
            if let Some(taken) = fargate {
                page.text(format!("  {}", super::fargate::workload_text(taken)));
            }
            if let Some(Sizing { autoscaler, origin, because, applied }) = sized_by {
                let verb = if *applied { "sized by" } else { "not sized by" };
                page.text(format!("  {verb} {autoscaler} at {origin} ({because})"));
            }
        }
        for rule in self.demand.map_or(&[][..], |row| &row.rules) {
            page.text(format!("  {rule}"));
        }
        if let Some(daemon) = self.daemon {
            page.text("  one pod on every node that admits it");
            page.text(format!("  each needs {}", amount(&daemon.requests)));
        }
        let nodes = self.nodes();
        if !nodes.is_empty() {
            page.gap();
            let key = workload_key(self.workload);
            let cells = |(row, pods): &(PlanRow<'_>, u32)| node_cells(row, *pods, &key);
            page.table(&NODE_COLUMNS, &nodes.iter().map(cells).collect::<Vec<_>>());
            self.write_elsewhere(page);
            for (text, addresses) in not_taken(&nodes) {
                let of = list(&addresses, NODES_NAMED_MAX);
                page.text(format!("     rejected for {of}: {text}"));
            }
        }
        if let Some(row) = self.unschedulable {
            page.gap();
            write_unschedulable(page, self.plan, &[row]);
        }
        for row in self.growths() {
            page.gap();
            write_growth(page, row);
        }
    }

    /// Returns the groups that Cluster Autoscaler scales up for pods of the workload.
    fn growths(&self) -> Vec<&AutoscalerGrowthRow> {
        let key = workload_key(self.workload);
        let rows = self.plan.capacity.cluster_autoscaler.iter();
        rows.filter(|row| row.pods.contains_key(&key)).collect()
    }

    /// Writes why the other planned nodes have no pod of the workload.
    fn write_elsewhere(&self, page: &mut TextPage) {
        let reasons = self.demand.map_or(&[][..], |row| &row.elsewhere);
        if !reasons.is_empty() {
            let nodes: u32 = reasons.iter().map(|reason| reason.count).sum();
            page.text(format!("     not on the other {}:", count(nodes, "node")));
        }
        for Rejection { reason, detail, count } in reasons {
            page.text(format!("       {count} {reason} ({detail})"));
        }
    }

    fn json(&self) -> Value {
        let nodes = self.nodes();
        let key = workload_key(self.workload);
        let place = |(row, pods): &(PlanRow<'_>, u32)| {
            let stay = staying(row, &key, *pods);
            json!({
                "address": row.resource.address,
                "pods": pods,
                "stay": stay,
                "come": pods - stay,
                "not_taken": row.explain.map(|explain| &explain.rejected),
                "actions": row.resource.change.actions,
                "instance_type": state_of(row.resource).map(|state| &state.instance_type),
                "zone": state_of(row.resource).map(|state| &state.zone),
                "because": row.explain.map(|_| row_reason(row)),
            })
        };
        json!({
            "workload": self.workload,
            "origin": self.origin(),
            "demand": self.demand,
            "daemon": self.daemon,
            "nodes": nodes.iter().map(place).collect::<Vec<_>>(),
            "unschedulable": self.unschedulable,
            "cluster_autoscaler": self.growths(),
        })
    }
}

/// Returns how many pods of a workload run on a node now and stay.
fn staying(row: &PlanRow<'_>, key: &str, pods: u32) -> u32 {
    let Change { actions, after, .. } = &row.resource.change;
    let is_kept = after.is_some() && !actions.contains(&Action::Create);
    let ran = row.explain.and_then(|explain| explain.pods_before.get(key)).copied().unwrap_or(0);
    if is_kept { ran.min(pods) } else { 0 }
}

/// Returns the rejected alternatives of the nodes, each with the addresses of its nodes. They account
/// for all pods on the nodes.
fn not_taken(nodes: &[(PlanRow<'_>, u32)]) -> Vec<(String, Vec<String>)> {
    let mut rejected: Vec<(String, Vec<String>)> = Vec::new();
    for explain in nodes.iter().filter_map(|(row, _)| row.explain) {
        for text in explain.rejected.iter().map(rejection) {
            let address = explain.address.to_string();
            match rejected.iter_mut().find(|(known, _)| *known == text) {
                Some((_, addresses)) => addresses.push(address),
                None => rejected.push((text, vec![address])),
            }
        }
    }
    rejected.truncate(WORKLOADS_MAX);
    rejected
}

const NODE_COLUMNS: [TableColumn; 7] = [
    TableColumn::left("", 3),
    TableColumn::left("node", 44),
    TableColumn::right("pods"),
    TableColumn::right("stay"),
    TableColumn::left("type", 20),
    TableColumn::left("zone", 20),
    TableColumn::last("why"),
];

fn node_cells(row: &PlanRow<'_>, pods: u32, key: &str) -> Vec<StyledText> {
    let state = state_of(row.resource);
    let of = |text: Option<String>| plain(text.unwrap_or_default());
    vec![
        row.symbol.span(),
        plain(row.resource.address.as_str()),
        plain(pods.to_string()),
        plain(staying(row, key, pods).to_string()),
        of(state.and_then(|state| state.instance_type.as_ref().map(ToString::to_string))),
        of(state.and_then(|state| state.zone.as_ref().map(ToString::to_string))),
        plain(row_reason(row)),
    ]
}

/// Returns the planned state of a node, otherwise its current state.
fn state_of(resource: &ResourceChange) -> Option<&NodeState> {
    resource.change.after.as_ref().or(resource.change.before.as_ref())
}

impl NodeExplanation<'_> {
    /// Returns the waves of the row, numbered from 1.
    fn waves(&self) -> Vec<(usize, &Wave)> {
        let address = &self.row.resource.address;
        let waves = self.plan.capacity.waves.iter().enumerate();
        waves.filter(|(_, w)| w.addresses.contains(address)).map(|(i, w)| (i + 1, w)).collect()
    }

    fn write(&self, page: &mut TextPage) {
        write_block(page, self.plan, &[&self.row]);
        for DriftedField { field, is, declared } in
            self.row.explain.map_or(&[][..], |explain| &explain.differences)
        {
            let text = drifted_field_text(field, is, declared);
            page.text(format!("        differs   {text}"));
        }
        let all = self.plan.capacity.waves.len();
        for (index, found) in self.waves() {
            page.text(format!("        wave {index} of {all}: {}", wave(found.step)));
        }
        if let Some(explain) = self.row.explain.filter(|e| e.pods.len() > WORKLOADS_MAX) {
            page.gap();
            page.text(format!("        all pods: {}", workloads(&explain.pods, usize::MAX)));
        }
    }

    fn json(&self) -> Value {
        let address = &self.row.resource.address;
        let capacity = &self.plan.capacity;
        let conditions = capacity.base.preconditions.iter().filter(|p| &p.address == address);
        let wave = |(index, wave): (usize, &Wave)| json!({ "wave": index, "step": wave.step });
        json!({
            "row": self.row.resource,
            "explain": self.row.explain,
            "because": self.row.explain.map(|_| row_reason(&self.row)),
            "waves": self.waves().into_iter().map(wave).collect::<Vec<_>>(),
            "alternatives": capacity.alternatives.iter().find(|row| &row.address == address).map(|row| &row.offerings),
            "preconditions": conditions.collect::<Vec<_>>(),
        })
    }
}
