//! Pods that need no node, because Fargate runs them.
//!
//! A last step of demand: what a profile matches leaves the groups, so that nobody plans room for
//! it. EKS decides when a pod is made and never again: pods that run on EC2 keep their room there
//! until they are made anew, and pods that run on Fargate stay there. A pod that a profile matches
//! and that Fargate cannot run gets no node at all: it is named, and counted as one without a
//! place. Pods of DaemonSets are never matched, whatever their namespace.
//!
//! Invariant: the planned pods of a workload are those of its group and those named here.

use std::collections::{BTreeMap, BTreeSet};

use super::live_pods::LivePods;
use super::{Counts, Decider, Demand, PodGroup, PodShape};
use crate::model::desired::{Desired, Problem, Severity};
use crate::model::fargate::{
    COMPUTE_TYPE, EC2, EPHEMERAL_STORAGE_MAX, FargateProfile, FargateSize, LARGEST, PROFILE,
    SCHEDULER, select_profile,
};
use crate::model::ids::{NodeName, Origin, WorkloadId};
use crate::model::observed::{Observed, Pod, is_fargate_name};
use crate::model::pod::{PodSpec, PodTemplate};
use crate::model::units::Resources;

/// The pods of one workload that Fargate runs, or would if it could.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FargatePods {
    /// The workload.
    pub workload: WorkloadId,
    /// Where the repository declares it; `None` for pods that only the world knows.
    pub origin: Option<Origin>,
    /// How many pods the workload has in all, those on EC2 included.
    pub counts: Counts,
    /// Who decides how many there are.
    pub decided_by: Decider,
    /// How many of the planned ones are for Fargate.
    pub pods: u32,
    /// The profile that takes them, where it is known.
    pub profile: Option<String>,
    /// What each of them asks for.
    pub requests: Resources,
    /// What each of them gets, or why it gets nothing.
    pub size: Result<FargateSize, FargateRejection>,
    /// How many run on Fargate now, by size.
    pub running: BTreeMap<FargateSize, u32>,
}

/// Why Fargate does not run a pod that a profile matches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FargateRejection {
    /// What the pod has that Fargate does not: a sentence without an end.
    pub reason: String,
    /// What to do about it.
    pub remedy: String,
}

impl FargatePods {
    /// Returns how many pods get a machine of Fargate.
    #[must_use]
    pub fn pods_on_fargate(&self) -> u32 {
        if self.size.is_ok() { self.pods } else { 0 }
    }

    /// Returns how many pods get no machine at all.
    #[must_use]
    pub fn rejected_pods(&self) -> u32 {
        self.pods - self.pods_on_fargate()
    }
}

/// Moves the pods that Fargate takes out of the groups of `demand`.
pub(super) fn assign_fargate(
    demand: &mut Demand,
    desired: &Desired,
    observed: &Observed,
    live: &LivePods,
) {
    let mut profiles: BTreeMap<&str, &FargateProfile> =
        observed.fargate_profiles.values().map(|p| (p.name.as_str(), p)).collect();
    profiles.extend(desired.fargate_profiles.values().map(|p| (p.name.as_str(), p)));
    let nodes = observed.nodes.values().filter(|node| node.is_fargate()).map(|node| &node.name);
    let sorting = FargateAssignment { desired, observed, live, profiles, nodes: nodes.collect() };
    let groups = std::mem::take(&mut demand.groups);
    for mut group in groups {
        demand.problems.extend(sorting.warnings(&group));
        if let Some(taken) = sorting.take_fargate_pods(&mut group) {
            demand.problems.extend(rejection_error(&taken));
            demand.fargate.push(taken);
        }
        // What runs on EC2 is told by its group, even where none of it is planned any more.
        let is_all = demand.fargate.last().is_some_and(|last| last.workload == group.workload);
        if !is_all || group.counts.planned > 0 || !group.running.is_empty() {
            demand.groups.push(group);
        }
    }
}

struct FargateAssignment<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    live: &'a LivePods<'a>,
    /// Profiles by name; where both know one, the repository's.
    profiles: BTreeMap<&'a str, &'a FargateProfile>,
    /// Nodes of Fargate: few, where there are any, while each pod's node is asked about.
    nodes: BTreeSet<&'a NodeName>,
}

/// How many of a workload's pods are where.
struct ActivePods {
    /// Active pods that Fargate runs or will, by size.
    fargate: BTreeMap<FargateSize, u32>,
    /// Active pods that need a node of EC2 until they are made anew.
    ec2: u32,
}

impl ActivePods {
    fn on_fargate(&self) -> u32 {
        self.fargate.values().sum()
    }
}

impl FargateAssignment<'_> {
    /// Takes the share of Fargate out of `group`; `None` where there is none.
    fn take_fargate_pods(&self, group: &mut PodGroup) -> Option<FargatePods> {
        let there = self.active_pods(&group.workload);
        group.running.retain(|node, _| !self.is_fargate_node(node));
        let template = self.template(&group.workload)?;
        let planned = group.counts.planned;
        let profile = self.profile(&group.shape, template);
        let pods = match profile {
            Some(_) => planned - there.ec2.min(planned),
            // Pods stay where they are: a profile that nobody told us of may have taken them.
            None if opts_out(template) => 0,
            None => planned.min(there.on_fargate()),
        };
        if profile.is_none() && pods == 0 && there.fargate.is_empty() {
            return None;
        }
        let PodGroup { workload, origin, shape, counts, decided_by, .. } = &*group;
        let taken = FargatePods {
            workload: workload.clone(),
            origin: origin.clone(),
            counts: *counts,
            decided_by: decided_by.clone(),
            pods,
            profile: profile.map(|profile| profile.name.clone()),
            requests: shape.requests.clone(),
            size: fargate_size(shape, &template.spec),
            running: there.fargate,
        };
        retain_pods(group, planned - pods);
        Some(taken)
    }

    fn is_fargate_node(&self, node: &NodeName) -> bool {
        let gone = || is_fargate_name(node) && !self.observed.nodes.contains_key(node);
        self.nodes.contains(node) || gone()
    }

    fn active_pods(&self, workload: &WorkloadId) -> ActivePods {
        let mut there = ActivePods { fargate: BTreeMap::new(), ec2: 0 };
        for pod in self.live.pods_of(workload) {
            let template = self.observed.templates.get(&pod.template);
            if self.is_fargate_pod(pod, template.map(|template| &**template)) {
                let size =
                    template.and_then(|t| FargateSize::smallest_for(&self.live.requests(pod, t)));
                *there.fargate.entry(size.unwrap_or(LARGEST)).or_default() += 1;
            } else {
                there.ec2 = there.ec2.saturating_add(1);
            }
        }
        there
    }

    fn is_fargate_pod(&self, pod: &Pod, template: Option<&PodTemplate>) -> bool {
        let scheduler = template.and_then(|template| template.spec.scheduler_name.as_deref());
        pod.node.as_ref().map_or(scheduler == Some(SCHEDULER), |node| self.is_fargate_node(node))
    }

    /// Returns what the pods of a workload are made from.
    fn template(&self, workload: &WorkloadId) -> Option<&PodTemplate> {
        if let Some(declared) = self.desired.workloads.get(workload) {
            return Some(&declared.template);
        }
        let youngest =
            self.live.pods_of(workload).iter().max_by_key(|p| (p.created_at, &p.name))?;
        self.observed.templates.get(&youngest.template).map(|template| &**template)
    }

    fn profile(&self, shape: &PodShape, template: &PodTemplate) -> Option<&FargateProfile> {
        // Who names a node is bound to it by whoever made the pod, past every scheduler.
        if opts_out(template) || shape.nodes.name.is_some() {
            return None;
        }
        select_profile(self.profiles.values().copied(), shape.namespace.as_str(), &shape.labels)
    }

    /// Returns what a reader may have meant and EKS does not do.
    fn warnings(&self, group: &PodGroup) -> Vec<Problem> {
        let Some(origin) = group.origin.clone() else { return Vec::new() };
        let Some(template) = self.template(&group.workload) else { return Vec::new() };
        let warning = |message: String, hint: &str| Problem {
            origin: origin.clone(),
            severity: Severity::Warning,
            object: format!("{} {}", group.workload.kind, group.workload),
            message,
            hint: Some(hint.to_owned()),
        };
        let mut found = Vec::new();
        let takes = self.profile(&group.shape, template);
        if let Some(name) = template.annotations.get(PROFILE) {
            let where_to = takes.map_or_else(
                || "no profile matches the pods, so that they need nodes".to_owned(),
                |profile| format!("they go to profile {}, whose selectors match", profile.name),
            );
            found.push(warning(
                format!("its annotation {PROFILE}: {name} chooses no profile; {where_to}"),
                "profiles choose pods by namespace and labels; to ask for one of several that \
                 match, write it as a label",
            ));
        }
        if let Some(name) = template.labels.get(PROFILE).filter(|_| takes.is_none()) {
            let why = if opts_out(template) {
                format!("the annotation {COMPUTE_TYPE}: {EC2} keeps them on EC2")
            } else if self.profiles.contains_key(name.as_str()) {
                "its selectors do not match them".to_owned()
            } else {
                "there is no such profile in the repository or the world".to_owned()
            };
            found.push(warning(
                format!(
                    "its pods ask for Fargate profile {name} and need nodes all the same: {why}"
                ),
                "add a selector that matches them, or remove the label",
            ));
        }
        found
    }
}

fn opts_out(template: &PodTemplate) -> bool {
    template.annotations.get(COMPUTE_TYPE).is_some_and(|value| value == EC2)
}

/// Leaves `pods` of the group's pods to it: those that run on EC2, and those that nobody takes.
fn retain_pods(group: &mut PodGroup, pods: u32) {
    let gone = group.counts.planned - pods;
    let Counts { floor, live, ceiling, planned: _ } = group.counts.minus(gone);
    group.counts = Counts { floor, live, ceiling, planned: pods };
    if gone == 0 {
        return;
    }
    let mut left = pods;
    for part in &mut group.partitions {
        let running: u32 = part.running.values().sum();
        part.planned = part.planned.min(running).min(left);
        left -= part.planned;
    }
    group.partitions.retain(|part| part.planned > 0);
    if left > 0 {
        // Some wait for a node still; which of the parts they are is not known any more.
        group.partitions.clear();
    }
}

/// Returns what Fargate gives each pod of a shape made from `spec`, or what it cannot give.
///
/// # Errors
/// When the pod has something that Fargate has not, or is larger than its largest size.
pub fn fargate_size(shape: &PodShape, spec: &PodSpec) -> Result<FargateSize, FargateRejection> {
    let elsewhere = |what: &str| {
        format!("{what}, or keep the pods on EC2 with the annotation {COMPUTE_TYPE}: {EC2}")
    };
    let misfit = |reason: String, what: &str| FargateRejection { reason, remedy: elsewhere(what) };
    if let Some(container) =
        spec.init_containers.iter().chain(&spec.containers).find(|container| container.privileged)
    {
        return Err(misfit(
            format!("container {} is privileged, which Fargate does not allow", container.name),
            "remove `privileged`",
        ));
    }
    if spec.host_network {
        let reason = "they use hostNetwork, which Fargate does not have".to_owned();
        return Err(misfit(reason, "remove `hostNetwork`"));
    }
    if let Some(port) = shape.host_ports.first() {
        let reason = format!("they bind hostPort {}, which Fargate does not have", port.port);
        return Err(misfit(reason, "remove `hostPort`"));
    }
    if let Some((device, _)) = shape.requests.extended.iter().find(|(_, n)| **n > 0) {
        let reason = format!("they ask for {device}, which Fargate does not have");
        return Err(misfit(reason, "remove the request"));
    }
    if let Some(claim) = spec.resource_claims.first() {
        let reason = format!("they claim devices ({claim}), which Fargate does not have");
        return Err(misfit(reason, "remove the claim"));
    }
    if let Some(mount) = shape.volumes.iter().find(|mount| mount.driver.is_some()) {
        let driver = mount.driver.as_deref().unwrap_or_default();
        let reason = format!("{} is a volume of {driver}, which Fargate cannot attach", mount.name);
        return Err(misfit(reason, "use EFS"));
    }
    if let Some(wait) = shape.volumes.iter().find_map(super::PodVolume::problem_text) {
        return Err(misfit(wait, "see to the volume"));
    }
    let Resources { cpu, memory, ephemeral_storage, .. } = &shape.requests;
    let too_large = || {
        let reason = format!(
            "they ask for {}, more than the largest size of Fargate, 16 vCPU and 120 GB less \
             256 MiB for itself",
            Resources { cpu: *cpu, memory: *memory, ..Resources::default() }
        );
        misfit(reason, "ask for less")
    };
    if ephemeral_storage.0 > EPHEMERAL_STORAGE_MAX {
        let reason = "they ask for more ephemeral storage than Fargate has, 175 GiB".to_owned();
        return Err(misfit(reason, "ask for less"));
    }
    FargateSize::smallest_for(&shape.requests).ok_or_else(too_large)
}

/// Returns the error that pods are which nothing will ever run.
fn rejection_error(taken: &FargatePods) -> Option<Problem> {
    let FargateRejection { reason, remedy } = taken.size.as_ref().err()?;
    let origin = taken.origin.clone().filter(|_| taken.pods > 0)?;
    let profile = taken.profile.as_deref().unwrap_or_default();
    Some(Problem {
        origin,
        severity: Severity::Error,
        object: format!("{} {}", taken.workload.kind, taken.workload),
        message: format!("Fargate profile {profile} takes its pods and cannot run them: {reason}"),
        hint: Some(remedy.clone()),
    })
}

#[cfg(test)]
mod tests;
