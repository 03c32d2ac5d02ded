//! Groups that Cluster Autoscaler scales up: it manages them, they may grow as far as stated, and
//! their nodes can hold the stated pods.

use super::Violations;
use super::context::{CheckContext, count};
use crate::catalog::InstanceType;
use crate::model::cluster_autoscaler::AutoscalerFlags;
use crate::model::desired::{NodeGroup, Scale};
use crate::model::ids::{InstanceTypeName, WorkloadKind};
use crate::model::observed::{Group, Instance};
use crate::model::pod::untolerated;
use crate::model::units::Resources;
use crate::plan::wire::AutoscalerGrowthRow;

/// Namespaces in which tenants create no Deployment.
pub(super) const SYSTEM_NAMESPACES: [&str; 3] = ["cluster-autoscaler", "karpenter", "kube-system"];
/// Part of the address of a group, before its name.
const ADDRESS_PREFIX: &str = "autoscaling_group.";

pub(super) fn check(context: &CheckContext<'_>, violations: &mut Violations) {
    for row in &context.plan.capacity.cluster_autoscaler {
        let mut fault = |text: String| {
            violations.report_row("autoscaler/growth", &row.address, text);
        };
        if row.nodes == 0 || row.pods.is_empty() || row.pods.values().any(|pods| *pods == 0) {
            fault("it grows by no node, or for no pod".to_owned());
        }
        let Some(flags) = flags_of(context, &row.autoscaler) else {
            fault(format!("{} is no Cluster Autoscaler with known flags", row.autoscaler));
            continue;
        };
        let Some(group) = GrownGroup::from_row(context, row) else {
            fault("there is no such group".to_owned());
            continue;
        };
        if group.live.is_some_and(|live| live.suspended.iter().any(|it| it == "Launch")) {
            fault("Auto Scaling launches no node in it".to_owned());
        }
        match group.maximum(flags) {
            None => fault(format!("{} does not select it", row.autoscaler)),
            Some(most) => {
                if row.maximum > most || group.there.saturating_add(row.nodes) > most {
                    fault(format!("it grows above its maximum, {most}"));
                }
            }
        }
        pods(context, row, &group, flags, &mut fault);
    }
}

/// Checks that the nodes of the group can hold the pods.
fn pods(
    context: &CheckContext<'_>,
    row: &AutoscalerGrowthRow,
    group: &GrownGroup<'_>,
    flags: &AutoscalerFlags,
    fault: &mut impl FnMut(String),
) {
    let mut sum = Resources::default();
    let pool = group.declared.and_then(|group| context.pool(&group.name));
    for (key, pods) in &row.pods {
        let Some(demand) = context.groups.get(key) else {
            fault(format!("{key} is no workload with pods"));
            continue;
        };
        let shape = &demand.shape;
        if shape.priority < flags.priority_cutoff() {
            fault(format!("Cluster Autoscaler does not scale up for the priority of {key}"));
        }
        if let Some(taint) = pool.and_then(|pool| untolerated(&pool.taints, &shape.tolerations)) {
            fault(format!("{key} does not tolerate its taint {}", taint.key));
        }
        sum = sum.plus(&shape.requests.times(i64::from(*pods)));
    }
    let kinds = group.types.iter().map(|name| context.facts.catalog.types.get(*name));
    let size = |kind: &InstanceType| (kind.vcpus * 1_000, kind.memory_mib << 20);
    // Auto Scaling may choose the smallest type for each node. Starting members may have other types
    // than those that the planner counts.
    let bound = |a: i64, b: i64| if group.has_listed_types { a.min(b) } else { a.max(b) };
    let both = |a: (i64, i64), b: (i64, i64)| (bound(a.0, b.0), bound(a.1, b.1));
    let sizes: Option<Vec<_>> = kinds.map(|kind| kind.map(size)).collect();
    let Some((cpu, memory)) = sizes.and_then(|all| all.into_iter().reduce(both)) else {
        return fault("its types are unknown".to_owned());
    };
    let nodes = i64::from(row.nodes);
    if sum.cpu.0 > cpu.saturating_mul(nodes) || sum.memory.0 > memory.saturating_mul(nodes) {
        fault(format!("{nodes} nodes are too few for its pods"));
    }
}

/// Returns the flags of the Cluster Autoscaler with this name, if it is declared or runs where
/// tenants create no Deployment.
fn flags_of<'a>(context: &CheckContext<'a>, name: &str) -> Option<&'a AutoscalerFlags> {
    let (desired, observed) = (context.facts.desired, context.facts.observed);
    let live = observed.workloads.iter().filter(|live| live.replicas > 0);
    let live =
        live.filter_map(|live| Some((&live.id, observed.templates.get(live.template.as_ref()?)?)));
    let declared = desired.workloads.values().filter(|one| one.scale != Scale::Replicas(0));
    let declared = declared.map(|one| (&one.id, &one.template));
    let mut named = live.chain(declared).filter(|(id, _)| {
        let is_trusted = match &desired.autoscaler_namespaces {
            Some(namespaces) => namespaces.contains(&id.namespace),
            None => SYSTEM_NAMESPACES.contains(&id.namespace.as_str()),
        };
        id.kind == WorkloadKind::Deployment && id.to_string() == name && is_trusted
    });
    named.find_map(|(_, template)| template.cluster_autoscaler.as_deref())
}

/// A group that Cluster Autoscaler scales up, as the repository or the world has it.
struct GrownGroup<'a> {
    declared: Option<&'a NodeGroup>,
    live: Option<&'a Group>,
    types: Vec<&'a InstanceTypeName>,
    /// False if the types are those of the members that exist.
    has_listed_types: bool,
    /// Number of members that exist or are launched.
    there: u32,
}

impl<'a> GrownGroup<'a> {
    fn from_row(context: &CheckContext<'a>, row: &AutoscalerGrowthRow) -> Option<Self> {
        let (desired, observed) = (context.facts.desired, context.facts.observed);
        let name = row.address.as_str().strip_prefix(ADDRESS_PREFIX)?;
        let declared = desired.node_groups.get(name);
        let live = match declared {
            Some(group) => {
                let mut live = observed.groups.values();
                live.find(|live| group.matches_live_group(&live.name, &live.tags))
            }
            None => Some(observed.groups.get(name)?),
        };
        let is_member = |instance: &&Instance| {
            let of = instance.group.as_ref().map(|of| &of.name);
            instance.is_active() && of.is_some() && of == live.map(|live| &live.name)
        };
        let members: Vec<&Instance> = observed.instances.values().filter(is_member).collect();
        let declared_types = declared.into_iter().flat_map(|group| &group.types);
        let mut types: Vec<&InstanceTypeName> = declared_types.collect();
        if types.is_empty() {
            types.extend(live.into_iter().flat_map(|live| &live.types));
        }
        let has_listed_types = !types.is_empty();
        if !has_listed_types {
            types.extend(members.iter().map(|member| &member.instance_type));
        }
        let launched = context.rows.iter().filter(|row| {
            let pool = row.after.and_then(|state| state.pool.as_ref());
            row.action.creates() && pool.is_some_and(|pool| pool.as_str() == name)
        });
        let there = count(&members).saturating_add(count(launched));
        Some(Self { declared, live, types, has_listed_types, there })
    }

    /// Returns the maximum size of the group, if the flags select it.
    fn maximum(&self, flags: &AutoscalerFlags) -> Option<u32> {
        let most = self.live.map(|live| live.max).or_else(|| Some(self.declared?.max))?;
        let stated = self.live.and_then(|live| flags.groups.get(&live.name));
        if let Some((_, stated)) = stated {
            return Some(most.min(*stated));
        }
        let tags = self.live.map(|live| &live.tags).or_else(|| Some(&self.declared?.tags))?;
        let mut discovery = flags.discovery.iter().filter(|wanted| !wanted.is_empty());
        let has_all = discovery.any(|wanted| {
            wanted.iter().all(|(tag, value)| match (tags.get(tag), value) {
                (Some(held), Some(value)) => held == value,
                (held, None) => held.is_some(),
                (None, Some(_)) => false,
            })
        });
        has_all.then_some(most)
    }
}
