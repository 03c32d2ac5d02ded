//! The wire form of a plan, as design and JSON Schema document it.
//!
//! Readers ignore keys they do not know, so every struct here accepts more than it lists. Field
//! order is of no consequence: the canonical form sorts keys.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::{CapacityType, PriceSource};
// Views work on this form alone, so it hands on the types of other modules that it is made of.
pub use crate::demand::{Counts, Decider, DemandMode, Sizing};
pub use crate::fargate::{Rates as FargateRates, Size as FargateSize};
pub use crate::fleet::{ClusterIdentity, Completeness, KEY_LABEL};
use crate::ids::{
    Address, Digest, GroupName, InstanceId, InstanceTypeName, LabelKey, Labels, NodeName, Origin,
    PlanId, PoolName, ReservationId, Uid, WorkloadId, ZoneId, ZoneName,
};
pub use crate::pod::Taint;
pub use crate::solve::{
    Alternative, BlockReason, KeepReason, LaunchReason, Rejection, Relaxed, RetireReason,
    Unsteered, workload_key,
};
use crate::units::{MicroUsd, Resources};

/// The version of the plan format that this program writes.
///
/// 1.1 added: `capacity.comparison`, `capacity.base.guard`, `capacity.cost.breakdown`,
/// `capacity.disruption_budgets`, `launched_at` of nodes, `group` of states, the reason `resize`, the condition `group-is`,
/// `capacity.explain[].pods_before`, and `severity`, `findings` and `exceptions` of checks.
pub const FORMAT_VERSION: &str = "1.1";

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// `major.minor` of the format.
    pub format_version: String,
    /// Version of the program that made the plan.
    pub tool_version: String,
    /// The moment the plan is made for.
    pub timestamp: Timestamp,
    /// Whether the plan may be applied at all.
    pub applyable: bool,
    /// Whether the plan covers everything; false with `--target` or `--exclude`.
    pub complete: bool,
    /// Whether inputs had errors; such a plan removes nothing and is never applyable.
    pub errored: bool,
    /// One row for each node: what is there, what comes, what goes.
    pub resource_changes: Vec<ResourceChange>,
    /// What moved outside Git; shown, never applied.
    #[serde(default)]
    pub resource_drift: Vec<ResourceChange>,
    /// Findings of policies.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Totals.
    pub summary: Summary,
    /// Everything that is this program's own.
    pub capacity: Capacity,
}

/// One row: a resource, and what happens to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceChange {
    /// Address, unique within the plan.
    pub address: Address,
    /// `ec2_instance`, `kubernetes_node` or `autoscaling_group`.
    #[serde(rename = "type")]
    pub kind: ResourceKind,
    /// Pool, node or group name.
    pub name: String,
    /// Key within the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// What happens.
    pub change: Change,
    /// A hint why, in words of an open set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_reason: Option<String>,
}

/// The types of resource.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ResourceKind {
    /// An EC2 instance with its node.
    Ec2Instance,
    /// A node without an instance of ours.
    KubernetesNode,
    /// An Auto Scaling group.
    AutoscalingGroup,
}

impl ResourceKind {
    /// Returns the type as addresses write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ec2Instance => "ec2_instance",
            Self::KubernetesNode => "kubernetes_node",
            Self::AutoscalingGroup => "autoscaling_group",
        }
    }
}

/// Actions, and the state before and after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// `["create"]`, `["delete"]`, `["create","delete"]` (replace), `["update"]` or `["no-op"]`.
    pub actions: Vec<Action>,
    /// What is there; null where nothing is.
    pub before: Option<NodeState>,
    /// What will be there; null where nothing will be.
    pub after: Option<NodeState>,
    /// Keys of `after` that are known only once it is applied.
    #[serde(default)]
    pub after_unknown: BTreeMap<String, bool>,
}

/// One action.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Nothing changes.
    NoOp,
    /// Something new comes.
    Create,
    /// Something changes in place.
    Update,
    /// Something goes.
    Delete,
}

/// The state of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeState {
    /// Pool; absent for what belongs to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolName>,
    /// Instance type; absent where a node has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_type: Option<InstanceTypeName>,
    /// Zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<ZoneName>,
    /// Zone id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone_id: Option<ZoneId>,
    /// Capacity type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<CapacityType>,
    /// Image as the node class names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Labels.
    pub labels: Labels,
    /// Taints that stay.
    pub taints: Vec<Taint>,
    /// Taints that are gone once the node is initialized.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// What the node reports as capacity.
    pub capacity: Amount,
    /// What its pods may use, DaemonSet pods included.
    pub allocatable: Amount,
    /// Capacity reservation that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<ReservationId>,
    /// Keys of the labels whose values its pool leaves open: a launch keeps them as tags, so that
    /// the machine is known by them before its node has joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_labels: Vec<LabelKey>,
    /// Digest of pool template and node class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_digest: Option<String>,
    /// Instance id, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<InstanceId>,
    /// Node name, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Node UID, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<Uid>,
    /// When the instance was launched, where it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launched_at: Option<Timestamp>,
    /// Size of a group; present on its row alone, which has no amounts of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupSize>,
}

impl NodeState {
    /// Returns the state of what is no node.
    #[must_use]
    pub(super) fn nothing() -> Self {
        Self {
            pool: None,
            instance_type: None,
            zone: None,
            zone_id: None,
            capacity_type: None,
            image: None,
            labels: Labels::new(),
            taints: Vec::new(),
            startup_taints: Vec::new(),
            capacity: Amount::default(),
            allocatable: Amount::default(),
            reservation: None,
            open_labels: Vec::new(),
            spec_digest: None,
            instance_id: None,
            node: None,
            node_uid: None,
            launched_at: None,
            group: None,
        }
    }
}

/// The size of an Auto Scaling group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct GroupSize {
    /// Its name; absent where the world tells of no groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<GroupName>,
    /// Fewest members.
    pub min: u32,
    /// Most members.
    pub max: u32,
    /// Members that it is to have.
    pub desired: u32,
}

/// Resources with the unit in the key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Amount {
    /// CPU in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory in bytes.
    pub memory_bytes: i64,
    /// Ephemeral storage in bytes.
    #[serde(default)]
    pub ephemeral_storage_bytes: i64,
    /// Number of pods.
    pub pods: i64,
    /// Extended resources, in whole units.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extended: BTreeMap<String, i64>,
}

impl From<&Resources> for Amount {
    fn from(resources: &Resources) -> Self {
        let Resources { cpu, memory, ephemeral_storage, pods, extended } = resources;
        let extended = extended.iter().map(|(name, n)| (name.to_string(), *n)).collect();
        Self {
            cpu_milli: cpu.0,
            memory_bytes: memory.0,
            ephemeral_storage_bytes: ephemeral_storage.0,
            pods: *pods,
            extended,
        }
    }
}

/// A rule of a policy, and what it found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// Package and rule, such as `budget.deny`.
    pub name: String,
    /// `pass`, `fail`, `warn`, `error` or `unknown`; `fail` and `error` keep a plan from being
    /// applied.
    pub status: String,
    /// What it found, as messages.
    #[serde(default)]
    pub problems: Vec<String>,
    /// `deny`, `violation` or `warn`, as the rule's name has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<String>,
    /// What it found, with what each finding is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Exceptions that the policy makes from the rule, as messages; its findings do not count then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<String>,
}

/// One finding of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What is wrong.
    pub message: String,
    /// The row it is about, where the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// The place in the repository it is about, where the policy says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Whatever else the policy says about it, as text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// Totals over the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Rows that create, replacements included.
    pub add: u32,
    /// Rows that update.
    pub change: u32,
    /// Rows that delete, replacements included.
    pub destroy: u32,
    /// Rows that do both.
    pub replace: u32,
    /// Nodes that something forbids to touch.
    pub blocked: u32,
    /// Whether anything is deleted.
    pub destructive: bool,
    /// Nodes, members of groups included.
    pub nodes: NodeTotals,
}

/// Numbers of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NodeTotals {
    /// Nodes before.
    pub before: u32,
    /// Nodes launched.
    pub launch: u32,
    /// Nodes terminated.
    pub terminate: u32,
    /// Nodes after.
    pub after: u32,
}

/// What is this program's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capacity {
    /// Hash over the decisions alone: what is approved.
    pub digest: Digest,
    /// Hash of digest, commit and world: what is applied at most once.
    pub plan_id: PlanId,
    /// What the plan was made from.
    pub base: Base,
    /// When the plan may no longer be applied.
    pub expires_at: Timestamp,
    /// The order of changes.
    pub waves: Vec<Wave>,
    /// Totals over pods.
    pub pods: PodTotals,
    /// How the placement was found and tried.
    pub placement: Placement,
    /// Where new and moved pods go.
    pub placements: Vec<PlacementRow>,
    /// Pods without a place.
    pub unschedulable: Vec<UnschedulableRow>,
    /// Workloads whose size is not known.
    #[serde(default)]
    pub unresolved: Vec<UnresolvedRow>,
    /// Every workload: its counts, who decided, and where it is declared.
    pub demand: Vec<DemandRow>,
    /// What the fleet would come to at the least, the present and the most that autoscalers may
    /// choose; empty where no workload's number is left open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<ModeRow>,
    /// Workloads that run on every node that admits them, with what each of their pods asks for.
    #[serde(default)]
    pub daemons: Vec<DaemonRow>,
    /// Money.
    pub cost: Cost,
    /// Offerings that may stand in for launches.
    pub alternatives: Vec<AlternativesRow>,
    /// Why each row is as it is.
    pub explain: Vec<ExplainRow>,
    /// Problems of the inputs, and what a reader should know.
    #[serde(default)]
    pub diagnostics: Vec<Diagnostic>,
    /// Disruption budgets that the repository declares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disruption_budgets: Vec<DisruptionBudgetRow>,
    /// What this revision changes against another one, apart from what was pending anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// A disruption budget of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DisruptionBudgetRow {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// File and line.
    pub origin: Origin,
    /// Pods that must stay, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<String>,
    /// Pods that may go, as written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<String>,
}

/// What one revision changes against another, both planned over the same world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// The revision compared with, as the user named it.
    pub revision: String,
    /// Its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The digest of the plan that it would give.
    pub digest: Digest,
    /// Changes of this plan that the other revision would not make.
    pub caused: Vec<Address>,
    /// Changes of this plan that the other revision would make just the same.
    pub pending: Vec<Address>,
    /// Changes that the other revision would make and this plan does not, in words of one line.
    pub withdrawn: Vec<String>,
    /// Price per hour once the other revision's plan were applied.
    pub hourly_after: MicroUsd,
    /// What this revision adds to the price per hour.
    pub hourly_caused: MicroUsd,
    /// What was pending anyway adds to the price per hour.
    pub hourly_pending: MicroUsd,
    /// Workloads whose planned pods differ.
    #[serde(default)]
    pub workloads: Vec<ComparedWorkload>,
}

/// A workload whose planned pods differ between two revisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ComparedWorkload {
    /// Workload.
    pub workload: WorkloadId,
    /// Where this revision declares it; absent where it no longer does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Pods that the other revision plans.
    pub before: u32,
    /// Pods that this revision plans.
    pub after: u32,
}

/// Where the settings and policies that guard an apply were read, where that is not the tree that
/// was planned: a pull request must not loosen the rules that it is judged by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Guard {
    /// The revision, as the user named it.
    pub revision: String,
    /// Its commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the planned tree has other settings or policies than the guarding one.
    pub changed: bool,
}

/// What a plan was made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Base {
    /// The path that was planned, as the user named it.
    pub path: String,
    /// URL of the repository's `origin` without credentials; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Commit; absent outside a Git work tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// SHA-256 over paths and contents of the files read.
    pub tree: String,
    /// Whether the work tree differs from the commit.
    #[serde(default)]
    pub dirty: bool,
    /// What tools made of the files, by the path that was rendered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rendered: Vec<RenderedRow>,
    /// The world.
    pub world: BaseWorld,
    /// Which of a workload's counts the plan is made for.
    pub demand: DemandMode,
    /// What must still hold when the plan is applied.
    pub preconditions: Vec<Precondition>,
    /// Where guarding settings and policies were read, where that is another revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<Guard>,
}

/// A directory that a tool made manifests of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct RenderedRow {
    /// The directory below the path that was planned; empty for that path itself.
    pub path: String,
    /// The tool and its version.
    pub tool: String,
    /// SHA-256 over settings and files that it was made from.
    pub inputs: String,
}

/// The world a plan was made over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BaseWorld {
    /// `empty`, `live`, `file:NAME` or `sim:DIR`, as the user named it.
    pub name: String,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// When it was observed.
    pub taken_at: Timestamp,
    /// How complete each source is.
    pub sources: BTreeMap<String, Completeness>,
}

/// Something that must still hold when a change is applied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Precondition {
    /// The row it belongs to.
    pub address: Address,
    /// What must hold.
    #[serde(flatten)]
    pub condition: Condition,
}

/// A condition on the world.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "condition", rename_all = "kebab-case")]
pub enum Condition {
    /// The instance exists, is ours, and its node is this one.
    InstanceIs {
        /// Instance id.
        instance_id: InstanceId,
        /// UID of its node; absent where none had joined.
        node_uid: Option<Uid>,
    },
    /// The group is to have as many members as it had.
    GroupIs {
        /// The Auto Scaling group.
        group: GroupName,
        /// Its desired size.
        desired: u32,
    },
    /// No instance of ours has this key in this pool.
    KeyUnused {
        /// Pool.
        pool: PoolName,
        /// Key.
        key: String,
    },
    /// The workload's live replicas are at most the planned ones.
    ReplicasAtMost {
        /// Workload.
        workload: WorkloadId,
        /// The most.
        replicas: u32,
    },
}

/// Changes that may go on at the same time; the next wave waits for all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wave {
    /// What the wave does.
    pub step: WaveStep,
    /// The rows it does it to.
    pub addresses: Vec<Address>,
}

/// What a wave does.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum WaveStep {
    /// Launch, and wait until Ready.
    Launch,
    /// Cordon, drain, terminate.
    Retire,
}

/// Totals over pods; `total = placed + unschedulable + fargate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PodTotals {
    /// Pods planned, DaemonSet pods excluded.
    pub total: u32,
    /// Pods with a place.
    pub placed: u32,
    /// Pods without.
    pub unschedulable: u32,
    /// Pods that need no node.
    pub fargate: u32,
    /// Workloads whose size is not known.
    pub unresolved: u32,
    /// Running pods that a retirement moves.
    pub moved: u32,
}

/// How the placement was found and tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placement {
    /// `unsteered` or `steered`.
    pub mode: String,
    /// Orders in which the placement was rehearsed.
    pub orders: Vec<String>,
    /// Price per hour of the tightest packing found.
    pub packed_hourly: MicroUsd,
    /// Of a steered plan: what would be missing if no nomination were honoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsteered: Option<Unsteered>,
}

/// Pods of a workload that go to a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct PlacementRow {
    /// Workload.
    pub workload: WorkloadId,
    /// The row of the node.
    pub address: Address,
    /// How many pods.
    pub pods: u32,
}

/// Pods without a place, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnschedulableRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// How many pods.
    pub pods: u32,
    /// How many offerings were looked at.
    pub offerings: u32,
    /// How many of them each reason ruled out.
    pub reasons: Vec<Rejection>,
    /// The change that would help, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
    /// What kube-scheduler evicts for some of them, which it then lets in all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionRow>,
    /// Placed pods that wait in their stead where they come first, by workload: the most in any
    /// order that was rehearsed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub displaces: BTreeMap<String, u32>,
}

/// What is evicted for pods that have no place otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EvictionRow {
    /// How many of the pods are let in.
    pub lets_in: u32,
    /// The pods of lower priority that are evicted for them, by workload.
    pub evicts: BTreeMap<String, u32>,
}

/// A source whose size is not known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnresolvedRow {
    /// The object or source.
    pub object: String,
    /// File and line.
    pub origin: Origin,
    /// Why its size is not known.
    pub reason: String,
}

/// A workload's pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DemandRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// Counts.
    #[serde(flatten)]
    pub counts: Counts,
    /// Who decides.
    pub decided_by: Decider,
    /// What each pod asks for.
    pub requests: Amount,
    /// What of it Fargate runs; absent where it runs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fargate: Option<FargateRow>,
    /// The vertical autoscaler that decides what its pods ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sized_by: Option<Sizing>,
}

/// What [`Rejection::reason`] says of pods that a Fargate profile takes and Fargate cannot run.
pub const FARGATE_REASON: &str = "fargate";

/// The pods of a workload that need no node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateRow {
    /// The profile that takes them; absent where only the world tells that Fargate runs them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// How many of the planned ones it takes.
    pub pods: u32,
    /// What each of them gets; absent where Fargate cannot run them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<FargateSize>,
}

/// The fleet that one count of every autoscaled workload needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModeRow {
    /// Which count.
    pub mode: DemandMode,
    /// Nodes.
    pub nodes: u32,
    /// Their CPU, in thousandths of a core.
    pub cpu_milli: i64,
    /// Their memory, in bytes.
    pub memory_bytes: i64,
    /// Pods planned, DaemonSet pods excluded.
    pub pods: u32,
    /// Pods without a place.
    pub unschedulable: u32,
    /// Price per hour.
    pub hourly: MicroUsd,
}

/// A workload that runs on every node that admits it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonRow {
    /// Workload.
    pub workload: WorkloadId,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What each pod asks for.
    pub requests: Amount,
}

/// Money; every amount is in USD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Always `USD`.
    pub currency: String,
    /// Price per hour of what runs.
    pub hourly_before: MicroUsd,
    /// Price per hour once the plan is applied.
    pub hourly_after: MicroUsd,
    /// The difference.
    pub hourly_delta: MicroUsd,
    /// The difference in a month of 730 hours.
    pub monthly_delta: MicroUsd,
    /// A bound below the hourly price of every fleet that holds the same pods.
    pub lower_bound_hourly: MicroUsd,
    /// How far `hourly_after` is above the bound, in percent with two digits.
    pub gap_percent: String,
    /// Where prices come from.
    pub prices: PriceSource,
    /// How many nodes have an estimated price.
    pub estimated: u32,
    /// How many nodes have no known price and count as nothing.
    pub unpriced: u32,
    /// What Fargate costs, which is in none of the amounts above; absent where it runs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fargate: Option<FargateCost>,
    /// The same money in parts, and what is in it.
    #[serde(default, skip_serializing_if = "CostBreakdown::is_empty")]
    pub breakdown: CostBreakdown,
}

/// What Fargate costs, apart from nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateCost {
    /// Prices, from `fleetwright.yaml`; absent where it states none: then nothing is priced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<FargateRates>,
    /// What runs now.
    pub before: FargateBill,
    /// What is planned.
    pub after: FargateBill,
}

/// What Fargate runs at one time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FargateBill {
    /// Pods.
    pub pods: u32,
    /// CPU of their sizes, in thousandths of a vCPU.
    pub cpu_milli: i64,
    /// Memory of their sizes, in MiB.
    pub memory_mib: i64,
    /// Price per hour; absent where it is not priced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly: Option<MicroUsd>,
}

/// Money in parts, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CostBreakdown {
    /// By pool; what belongs to none stands under the empty name.
    pub by_pool: Vec<CostRow>,
    /// By zone.
    pub by_zone: Vec<CostRow>,
    /// By capacity type.
    pub by_capacity_type: Vec<CostRow>,
    /// Bounds of the price after, where prices are uncertain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<CostRange>,
    /// What commitments change; absent where none are declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub committed: Option<Committed>,
    /// What the figures hold, in words.
    pub included: Vec<String>,
    /// What they do not hold, in words.
    pub not_included: Vec<String>,
}

impl CostBreakdown {
    /// Returns whether nothing was broken down.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One part of the money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostRow {
    /// Pool, zone or capacity type.
    pub name: String,
    /// Nodes before.
    pub nodes_before: u32,
    /// Nodes after.
    pub nodes_after: u32,
    /// Price per hour before.
    pub hourly_before: MicroUsd,
    /// Price per hour after.
    pub hourly_after: MicroUsd,
}

/// Bounds of a price that is not known exactly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CostRange {
    /// The least that the fleet may cost per hour after.
    pub hourly_low: MicroUsd,
    /// The most.
    pub hourly_high: MicroUsd,
    /// Why there is a range, in words.
    pub because: Vec<String>,
}

/// What commitments that `fleetwright.yaml` declares make of the list prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Committed {
    /// Price per hour before, commitments included.
    pub hourly_before: MicroUsd,
    /// Price per hour after, commitments included.
    pub hourly_after: MicroUsd,
    /// Each commitment, and how much of it is used.
    pub commitments: Vec<CommitmentRow>,
}

/// A commitment, and how much of it is used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CommitmentRow {
    /// Its name in `fleetwright.yaml`.
    pub name: String,
    /// `savings-plan` or `reserved-instances`.
    pub kind: String,
    /// What is paid per hour whether or not it is used.
    pub hourly: MicroUsd,
    /// List price per hour of what it covers before.
    pub covers_before: MicroUsd,
    /// List price per hour of what it covers after.
    pub covers_after: MicroUsd,
    /// List price per hour that it could cover.
    pub capacity: MicroUsd,
}

/// Offerings that may stand in for one launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AlternativesRow {
    /// The row of the launch.
    pub address: Address,
    /// The offerings, cheapest first.
    pub offerings: Vec<Alternative>,
}

/// Why a row is as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExplainRow {
    /// The row.
    pub address: Address,
    /// Name of the group of rows that replace each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The reason.
    pub reason: Reason,
    /// Why the rest of a replacement goes; present on rows that both create and delete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retire_reason: Option<RetireReason>,
    /// Price per hour before; absent where nothing was, or where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_before: Option<MicroUsd>,
    /// Price per hour after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hourly_after: Option<MicroUsd>,
    /// Planned pods on the node, DaemonSet pods excluded, by `namespace/kind/name`.
    pub pods: BTreeMap<String, u32>,
    /// Pods that ran on the node, DaemonSet pods and pods without a place in the plan excluded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pods_before: BTreeMap<String, u32>,
    /// What DaemonSet pods take of the node.
    pub daemons: Amount,
    /// What was looked at and not taken.
    #[serde(default)]
    pub rejected: Vec<Rejection>,
    /// Names of the node overlays that changed its price or its capacity.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlays: Vec<String>,
    /// Demands for distinct values (`minValues`) that the launch and what may stand in for it do
    /// not meet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub relaxed: Vec<Relaxed>,
}

/// The reason of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "kebab-case")]
pub enum Reason {
    /// Why it is launched.
    Launch {
        /// Reason.
        because: LaunchReason,
    },
    /// Why it goes.
    Retire {
        /// Reason.
        because: RetireReason,
    },
    /// Who comes to a group, and who goes.
    Resize {
        /// Members launched.
        launch: u32,
        /// Members that go, by id.
        terminate: Vec<InstanceId>,
    },
    /// Why it stays.
    Keep {
        /// Reason.
        because: KeepReason,
    },
}

/// A problem of the inputs, or something a reader should know.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// `error`, `warning` or `note`.
    pub severity: String,
    /// File and line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub object: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}
