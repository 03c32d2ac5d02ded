//! Pods that run on Fargate instead of nodes.
//!
//! As the last step of the demand, pods that match a profile leave the groups, so that they use no
//! node capacity. EKS decides once, at the creation of a pod. Pods on EC2 keep their capacity until
//! they are replaced, and pods on Fargate stay there.
//!
//! A matching pod that Fargate cannot run gets no node. It is reported as an error and counts as
//! unschedulable. Pods of DaemonSets never match, in any namespace.
//!
//! Invariant: the planned pods of a workload are the pods of its group plus its [`FargatePods`].

use std::collections::{BTreeMap, BTreeSet};

use super::live_pods::LivePods;
use super::{Counts, Decider, Demand, PodGroup, PodShape};
use crate::model::code::Code;
use crate::model::desired::{Desired, Problem};
use crate::model::fargate::{
    COMPUTE_TYPE, EC2, EPHEMERAL_STORAGE_MAX, FargateProfile, FargateSize, LARGEST, PROFILE,
    SCHEDULER, select_profile,
};
use crate::model::ids::{LabelValue, NodeName, Origin, WorkloadId};
use crate::model::observed::{Observed, Pod, is_fargate_name};
use crate::model::pod::{PodSpec, PodTemplate};
use crate::model::requirement::key;
use crate::model::units::Resources;

/// Pods of one workload that match a Fargate profile or run on Fargate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FargatePods {
    /// Identity of the workload.
    pub workload: WorkloadId,
    /// File and line of the declaration; `None` for pods that exist only in the cluster.
    pub origin: Option<Origin>,
    /// Number of all pods of the workload, including pods on EC2.
    pub counts: Counts,
    /// Source of the number of pods.
    pub decided_by: Decider,
    /// Number of planned pods for Fargate.
    pub pods: u32,
    /// Name of the matching profile; `None` if no known profile matches the running pods.
    pub profile: Option<String>,
    /// Requests of each pod.
    pub requests: Resources,
    /// Fargate size of each pod, or the reason why Fargate cannot run it.
    pub size: Result<FargateSize, FargateRejection>,
    /// Number of pods that run on Fargate now, by size.
    pub running: BTreeMap<FargateSize, u32>,
}

/// Reason why Fargate cannot run a pod that matches a profile.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FargateRejection {
    /// Unsupported feature of the pod, as a clause without a final period.
    pub reason: String,
    /// Suggested change.
    pub remedy: String,
}

impl FargatePods {
    /// Returns the number of pods that run on Fargate.
    pub fn pods_on_fargate(&self) -> u32 {
        if self.size.is_ok() { self.pods } else { 0 }
    }

    /// Returns the number of pods that Fargate cannot run.
    pub fn rejected_pods(&self) -> u32 {
        self.pods - self.pods_on_fargate()
    }
}

/// Moves pods from the groups of `demand` to Fargate.
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
    let assignment =
        FargateAssignment { desired, observed, live, profiles, nodes: nodes.collect() };
    let groups = std::mem::take(&mut demand.groups);
    for mut group in groups {
        demand.problems.extend(assignment.warnings(&group));
        if let Some(fargate_pods) = assignment.take_fargate_pods(&mut group) {
            demand.problems.extend(rejection_error(&fargate_pods));
            demand.fargate.push(fargate_pods);
        }
        // Keep the group while it has pods on EC2, even if none of them is planned any more.
        let is_all = demand.fargate.last().is_some_and(|last| last.workload == group.workload);
        if !is_all || group.counts.planned > 0 || group.active() > 0 {
            demand.groups.push(group);
        }
    }
}

struct FargateAssignment<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    live: &'a LivePods<'a>,
    /// Profiles by name; a declared profile overrides the observed one.
    profiles: BTreeMap<&'a str, &'a FargateProfile>,
    /// Names of the Fargate nodes, indexed because each pod's node is looked up.
    nodes: BTreeSet<&'a NodeName>,
}

/// Active pods of a workload by compute type.
struct ActivePods {
    /// Active pods on Fargate or assigned to it, by size.
    fargate: BTreeMap<FargateSize, u32>,
    /// Active pods that need an EC2 node until they are replaced.
    ec2: u32,
}

impl ActivePods {
    fn on_fargate(&self) -> u32 {
        self.fargate.values().sum()
    }
}

impl FargateAssignment<'_> {
    /// Moves the Fargate pods of `group` out of it; returns `None` if there are none.
    fn take_fargate_pods(&self, group: &mut PodGroup) -> Option<FargatePods> {
        let active = self.active_pods(&group.workload);
        group.running.retain(|node, _| !self.is_fargate_node(node));
        group.ending.retain(|node, _| !self.is_fargate_node(node));
        let template = self.template(&group.workload)?;
        let planned = group.counts.planned;
        let profile = self.profile(&group.shape, template);
        let pods = match profile {
            Some(_) => planned - active.ec2.min(planned),
            // Running pods stay on Fargate: an unknown profile may have matched them.
            None if is_pinned_to_ec2(template) => 0,
            None => planned.min(active.on_fargate()),
        };
        if profile.is_none() && pods == 0 && active.fargate.is_empty() {
            return None;
        }
        let PodGroup { workload, origin, shape, counts, decided_by, .. } = &*group;
        let fargate_pods = FargatePods {
            workload: workload.clone(),
            origin: origin.clone(),
            counts: *counts,
            decided_by: decided_by.clone(),
            pods,
            profile: profile.map(|profile| profile.name.clone()),
            requests: shape.requests.clone(),
            size: fargate_size(shape, &template.spec),
            running: active.fargate,
        };
        retain_ec2_pods(group, planned - pods);
        Some(fargate_pods)
    }

    fn is_fargate_node(&self, node: &NodeName) -> bool {
        let is_deleted = || is_fargate_name(node) && !self.observed.nodes.contains_key(node);
        self.nodes.contains(node) || is_deleted()
    }

    fn active_pods(&self, workload: &WorkloadId) -> ActivePods {
        let mut active = ActivePods { fargate: BTreeMap::new(), ec2: 0 };
        for pod in self.live.pods_of(workload) {
            let template = self.observed.templates.get(&*pod.template);
            if self.is_fargate_pod(pod, template.map(|template| &**template)) {
                let size =
                    template.and_then(|t| FargateSize::smallest_for(&self.live.requests(pod, t)));
                *active.fargate.entry(size.unwrap_or(LARGEST)).or_default() += 1;
            } else {
                active.ec2 = active.ec2.saturating_add(1);
            }
        }
        active
    }

    fn is_fargate_pod(&self, pod: &Pod, template: Option<&PodTemplate>) -> bool {
        let scheduler = template.and_then(|template| template.spec.scheduler_name.as_deref());
        pod.node.as_ref().map_or(scheduler == Some(SCHEDULER), |node| self.is_fargate_node(node))
    }

    /// Returns the pod template of a workload.
    fn template(&self, workload: &WorkloadId) -> Option<&PodTemplate> {
        if let Some(declared) = self.desired.workloads.get(workload) {
            return Some(&declared.template);
        }
        let youngest =
            self.live.pods_of(workload).iter().max_by_key(|p| (p.created_at, &p.name))?;
        self.observed.templates.get(&*youngest.template).map(|template| &**template)
    }

    fn profile(&self, shape: &PodShape, template: &PodTemplate) -> Option<&FargateProfile> {
        // Pods with `nodeName` bypass every scheduler.
        if is_pinned_to_ec2(template) || shape.nodes.name.is_some() {
            return None;
        }
        select_profile(self.profiles.values().copied(), shape.namespace.as_str(), &shape.labels)
    }

    /// Returns warnings about labels and annotations that EKS ignores.
    fn warnings(&self, group: &PodGroup) -> Vec<Problem> {
        let Some(origin) = group.origin.clone() else { return Vec::new() };
        let Some(template) = self.template(&group.workload) else { return Vec::new() };
        let warning = |message: String, hint: &str| {
            Problem::warning(
                origin.clone(),
                format!("{} {}", group.workload.kind, group.workload),
                message,
            )
            .hint(hint)
        };
        let mut found = Vec::new();
        let profile = self.profile(&group.shape, template);
        if let Some(name) = template.annotations.get(PROFILE) {
            let where_to = profile.map_or_else(
                || "no profile matches the pods, so that they need nodes".to_owned(),
                |profile| format!("they go to profile {}, whose selectors match", profile.name),
            );
            found.push(warning(
                format!("its annotation {PROFILE}: {name} chooses no profile; {where_to}"),
                "profiles choose pods by namespace and labels; to ask for one of several that \
                 match, write it as a label",
            ));
        }
        if let Some(name) = template.labels.get(PROFILE).filter(|_| profile.is_none()) {
            let why = if is_pinned_to_ec2(template) {
                format!("the annotation {COMPUTE_TYPE}: {EC2} keeps them on EC2")
            } else if self.profiles.contains_key(name.as_str()) {
                "its selectors do not match them".to_owned()
            } else {
                "there is no such profile in the repository or the world".to_owned()
            };
            found.push(warning(
                format!("its pods select Fargate profile {name} but run on nodes: {why}"),
                "add a selector that matches them, or remove the label",
            ));
        }
        found
    }
}

fn is_pinned_to_ec2(template: &PodTemplate) -> bool {
    template.annotations.get(COMPUTE_TYPE).is_some_and(|value| value == EC2)
}

/// Reduces the group to `pods` pods: the running pods on EC2, and pods that Fargate does not run.
fn retain_ec2_pods(group: &mut PodGroup, pods: u32) {
    let excess = group.counts.planned - pods;
    let Counts { floor, live, ceiling, planned: _ } = group.counts.minus(excess);
    group.counts = Counts { floor, live, ceiling, planned: pods };
    if excess == 0 {
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
        // Some pods are still pending, and their partition is unknown.
        group.partitions.clear();
    }
}

/// Returns the Fargate size of each pod with a shape made from `spec`.
///
/// # Errors
/// If the pod uses a feature that Fargate does not support, or exceeds the largest size.
pub fn fargate_size(shape: &PodShape, spec: &PodSpec) -> Result<FargateSize, FargateRejection> {
    let remedy_for = |what: &str| {
        format!("{what}, or keep the pods on EC2 with the annotation {COMPUTE_TYPE}: {EC2}")
    };
    let rejection =
        |reason: String, what: &str| FargateRejection { reason, remedy: remedy_for(what) };
    if let Some(container) =
        spec.init_containers.iter().chain(&spec.containers).find(|container| container.privileged)
    {
        return Err(rejection(
            format!("container {} is privileged, which Fargate does not allow", container.name),
            "remove `privileged`",
        ));
    }
    let runs = |key: &str, value: &str| {
        let state = Some(LabelValue::from(value));
        let mut alternatives = shape.nodes.any_of.iter();
        alternatives.any(|of| of.get(key).is_none_or(|set| set.contains(state.as_ref())))
    };
    for (key, value) in [(key::OS, "linux"), (key::ARCH, "amd64")] {
        if !runs(key, value) {
            let reason = format!("they admit no node with {key}: {value}, as all of Fargate have");
            return Err(rejection(reason, "change the node selector"));
        }
    }
    if spec.host_network {
        let reason = "they use hostNetwork, which Fargate does not have".to_owned();
        return Err(rejection(reason, "remove `hostNetwork`"));
    }
    if let Some(port) = shape.host_ports.first() {
        let reason = format!("they bind hostPort {}, which Fargate does not have", port.port);
        return Err(rejection(reason, "remove `hostPort`"));
    }
    if let Some(claim) = spec.resource_claims.first() {
        let reason = format!("they claim devices ({claim}), which Fargate does not have");
        return Err(rejection(reason, "remove the claim"));
    }
    if let Some((device, _)) = shape.requests.extended.iter().find(|(_, n)| **n > 0) {
        let reason = format!("they ask for {device}, which Fargate does not have");
        return Err(rejection(reason, "remove the request"));
    }
    if let Some(mount) = shape.volumes.iter().find(|mount| mount.driver.is_some()) {
        let driver = mount.driver.as_deref().unwrap_or_default();
        let reason = format!("{} is a volume of {driver}, which Fargate cannot attach", mount.name);
        return Err(rejection(reason, "use EFS"));
    }
    if let Some(problem) = shape.volumes.iter().find_map(super::PodVolume::problem_text) {
        return Err(rejection(problem, "see to the volume"));
    }
    let Resources { cpu, memory, ephemeral_storage, .. } = &shape.requests;
    let too_large = || {
        let reason = format!(
            "they ask for {}, more than the largest size of Fargate, 16 vCPU and 120 GB less \
             256 MiB for itself",
            Resources { cpu: *cpu, memory: *memory, ..Resources::default() }
        );
        rejection(reason, "ask for less")
    };
    if ephemeral_storage.0 > EPHEMERAL_STORAGE_MAX {
        let reason = "they ask for more ephemeral storage than Fargate has, 175 GiB".to_owned();
        return Err(rejection(reason, "ask for less"));
    }
    FargateSize::smallest_for(&shape.requests).ok_or_else(too_large)
}

/// Returns the error for pods that Fargate cannot run.
fn rejection_error(fargate_pods: &FargatePods) -> Option<Problem> {
    let FargateRejection { reason, remedy } = fargate_pods.size.as_ref().err()?;
    let origin = fargate_pods.origin.clone().filter(|_| fargate_pods.pods > 0)?;
    let profile = fargate_pods.profile.as_deref().unwrap_or_default();
    Some(
        Problem::error(
            origin,
            format!("{} {}", fargate_pods.workload.kind, fargate_pods.workload),
            format!("Fargate profile {profile} takes its pods and cannot run them: {reason}"),
        )
        .hint(remedy.clone())
        .code(Code::Fargate),
    )
}

#[cfg(test)]
mod tests;
