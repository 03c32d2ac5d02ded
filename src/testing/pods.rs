//! Pod templates, and the rules of pods.

use std::sync::Arc;

use crate::demand::{Counts, Decider, NodeChoice, PodGroup, PodShape};
use crate::model::ids::{Labels, WorkloadId, WorkloadKind};
use crate::model::pod::{
    Container, ContainerResources, Expression, HostPort, NodeInclusion, PodAffinity,
    PodAffinityTerm, PodSpec, PodTemplate, Selector, Taint, TaintEffect, TopologySpread,
    WhenUnsatisfiable,
};
use crate::model::requirement::{Operator, Requirements};
use crate::model::units::{Bytes, MilliCpu, Resources};

pub(crate) fn deployment(namespace: &str, name: &str) -> WorkloadId {
    let kind = WorkloadKind::Deployment;
    WorkloadId { namespace: namespace.into(), name: name.into(), kind }
}

/// Returns the resources of one pod.
pub(crate) fn resources(cpu_milli: i64, memory_mib: i64) -> Resources {
    let (cpu, memory) = (MilliCpu(cpu_milli), Bytes::mib(memory_mib));
    Resources { cpu, memory, pods: 1, ..Resources::default() }
}

/// Returns a pod template with one container that requests `cpu_milli` and `memory_mib`.
pub(crate) fn template(cpu_milli: i64, memory_mib: i64) -> PodTemplate {
    template_requesting(&[("cpu", cpu_milli), ("memory", memory_mib << 20)])
}

/// Returns a pod template with one container, `app`.
pub(crate) fn template_requesting(requests: &[(&str, i64)]) -> PodTemplate {
    let requests = requests.iter().map(|(name, amount)| ((*name).into(), *amount)).collect();
    let resources = ContainerResources { requests, ..ContainerResources::default() };
    let container = Container { name: "app".into(), resources, ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    PodTemplate { spec, ..PodTemplate::default() }
}

/// Returns the shape of pods without requests and rules.
pub(crate) fn shape(namespace: &str) -> PodShape {
    PodShape {
        namespace: namespace.into(),
        labels: Labels::new(),
        requests: Resources::default(),
        nodes: NodeChoice { any_of: vec![Requirements::default()], ..NodeChoice::default() },
        tolerations: Vec::new(),
        host_ports: Vec::new(),
        spread: Vec::new(),
        affinity: PodAffinity::default(),
        anti_affinity: PodAffinity::default(),
        volumes: Vec::new(),
        priority: 0,
        preempts: true,
        do_not_disrupt: false,
        presumed: Resources::default(),
        unsupported: Vec::new(),
        default_spread: None,
    }
}

/// Returns the pods of a workload, none of which is running.
pub(crate) fn pod_group(workload: WorkloadId, shape: PodShape, planned: u32) -> PodGroup {
    PodGroup {
        workload,
        origin: None,
        shape: Arc::new(shape),
        counts: Counts { floor: planned, live: planned, ceiling: planned, planned },
        decided_by: Decider::Git,
        running: [].into(),
        ending: [].into(),
        partitions: Vec::new(),
    }
}

/// Returns an expression that requires one of these values.
pub(crate) fn one_of(key: &str, values: &[&str]) -> Expression {
    let values = values.iter().map(|value| (*value).into()).collect();
    Expression { key: key.into(), operator: Operator::In, values }
}

pub(crate) fn selector(key: &str, value: &str) -> Selector {
    Selector(vec![one_of(key, &[value])])
}

/// Returns a term that selects the pods with label `app`, in the namespace of the pod.
pub(crate) fn affinity_term(topology_key: &str, app: &str) -> PodAffinityTerm {
    PodAffinityTerm {
        selector: Some(selector("app", app)),
        topology_key: topology_key.into(),
        namespaces: Vec::new(),
        namespace_selector: None,
        match_label_keys: Vec::new(),
        mismatch_label_keys: Vec::new(),
    }
}

/// Returns a hard constraint that counts the pods with label `app`.
pub(crate) fn topology_spread(topology_key: &str, max_skew: i32, app: &str) -> TopologySpread {
    TopologySpread {
        max_skew,
        topology_key: topology_key.into(),
        when_unsatisfiable: WhenUnsatisfiable::DoNotSchedule,
        selector: Some(selector("app", app)),
        match_label_keys: Vec::new(),
        min_domains: None,
        node_affinity_policy: NodeInclusion::Honor,
        node_taints_policy: NodeInclusion::Ignore,
    }
}

pub(crate) fn host_port(port: u16, protocol: &str, ip: &str) -> HostPort {
    HostPort { port, protocol: protocol.to_owned(), ip: ip.to_owned() }
}

/// Returns a `NoSchedule` taint.
pub(crate) fn no_schedule(key: &str, value: &str) -> Taint {
    Taint { key: key.into(), value: value.into(), effect: TaintEffect::NoSchedule }
}
