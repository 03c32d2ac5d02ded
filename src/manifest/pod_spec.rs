//! Reads the fields of a pod template that affect scheduling into [`PodTemplate`].

mod affinity;
mod scheduling_rules;
mod volumes;

pub(super) use affinity::{legacy_zone_term, node_terms};
pub(super) use scheduling_rules::{spread_constraint, taints, tolerations};
pub(super) use volumes::claim_class;

use std::collections::BTreeMap;

use super::autoscaling::autoscaler_flags;
use super::decode::{Field, FieldMap};
use super::labels::{LabelOwner, labels};
use super::resource_list::{container_resources, resource_list};
use crate::model::desired::Severity;
use crate::model::job::INDEX_FAILURES;
use crate::model::pod::{Container, HostPort, PodSpec, PodTemplate};

/// Grace period of a pod whose declared one is negative, as in the API server.
const NEGATIVE_GRACE_SECONDS: i64 = 1;

/// Domains of annotations that affect capacity.
const ANNOTATION_DOMAINS: [&str; 3] =
    ["karpenter.sh", "cluster-autoscaler.kubernetes.io", "eks.amazonaws.com"];

/// Fields of a pod's specification that do not affect scheduling.
const POD_IRRELEVANT: &[&str] = &[
    "activeDeadlineSeconds",
    "automountServiceAccountToken",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "os",
    "readinessGates",
    "restartPolicy",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
];

/// Fields of a container that do not affect scheduling.
const CONTAINER_IRRELEVANT: &[&str] = &[
    "args",
    "command",
    "env",
    "envFrom",
    "image",
    "imagePullPolicy",
    "lifecycle",
    "livenessProbe",
    "readinessProbe",
    "resizePolicy",
    "restartPolicyRules",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
    "volumeDevices",
    "volumeMounts",
    "workingDir",
];

/// Reads a pod template: `metadata` and `spec` of `map`.
pub(super) fn pod_template(map: &FieldMap<'_>) -> PodTemplate {
    let mut template = PodTemplate::default();
    if let Some(metadata) = map.get("metadata").and_then(|field| field.map()) {
        template.labels =
            metadata.get("labels").map(|f| labels(&f, LabelOwner::Object)).unwrap_or_default();
        template.annotations =
            metadata.get("annotations").map(|f| annotations(&f)).unwrap_or_default();
    }
    if let Some(spec) = map.required("spec").and_then(|field| field.map()) {
        template.spec = pod_spec(&spec);
        let containers = spec.field.node.get("containers");
        let vars = spec.field.scope.vars;
        template.cluster_autoscaler = containers.and_then(|list| autoscaler_flags(list, vars));
    }
    template
}

/// Reads the annotations that affect capacity.
fn annotations(field: &Field<'_>) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    let Some(map) = field.map() else { return annotations };
    for (key, value) in map.entries() {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let counts = |known: &str| {
            domain.strip_suffix(known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if (key == INDEX_FAILURES || ANNOTATION_DOMAINS.into_iter().any(counts))
            && let Some(text) = value.text()
        {
            annotations.insert(key.to_owned(), text.into_owned());
        }
    }
    annotations
}

fn pod_spec(map: &FieldMap<'_>) -> PodSpec {
    let text = |key| Some(map.get(key)?.text()?.into_owned()).filter(|text| !text.is_empty());
    let host_network = map.get("hostNetwork").and_then(|f| f.boolean()).unwrap_or(false);
    let affinity = map.get("affinity").map(|f| affinity::affinity(&f)).unwrap_or_default();
    let spec = PodSpec {
        init_containers: containers(map.get("initContainers").as_ref(), host_network),
        containers: containers(map.required("containers").as_ref(), host_network),
        resources: map.get("resources").map(|f| container_resources(&f)),
        overhead: map.get("overhead").map(|f| resource_list(&f)).unwrap_or_default(),
        runtime_class_name: text("runtimeClassName"),
        priority_class_name: text("priorityClassName"),
        priority: map.get("priority").and_then(|f| f.int(i64::from(i32::MIN))),
        preemption_policy: text("preemptionPolicy"),
        node_name: text("nodeName"),
        node_selector: map
            .get("nodeSelector")
            .map(|f| labels(&f, LabelOwner::Node))
            .unwrap_or_default(),
        node_affinity: affinity.node,
        pod_affinity: affinity.pod,
        pod_anti_affinity: affinity.anti,
        topology_spread: scheduling_rules::topology_spread(map.get("topologySpreadConstraints")),
        tolerations: scheduling_rules::tolerations(map.get("tolerations")),
        volumes: volumes::volumes(map.get("volumes")),
        scheduler_name: text("schedulerName"),
        scheduling_gates: names(map.get("schedulingGates")),
        host_network,
        termination_grace_seconds: map
            .get("terminationGracePeriodSeconds")
            .and_then(|field| field.int::<i64>(i64::MIN))
            .map(|seconds| if seconds < 0 { NEGATIVE_GRACE_SECONDS } else { seconds }),
        resource_claims: names(map.get("resourceClaims")),
        resource_claim_templates: claim_templates(map.get("resourceClaims")),
    };
    if spec.containers.is_empty()
        && let Some(field) = map.get("containers")
    {
        field.error("lists no container", None);
    }
    map.ignore(POD_IRRELEVANT);
    map.finish_with_typo_check();
    spec
}

/// Reads the names of a list of objects.
fn names(field: Option<Field<'_>>) -> Vec<String> {
    let Some(field) = field else { return Vec::new() };
    let name = |item: Field<'_>| Some(item.map()?.required("name")?.text()?.into_owned());
    field.items().filter_map(name).collect()
}

/// Reads the templates of claims by name of the claim.
fn claim_templates(field: Option<Field<'_>>) -> BTreeMap<String, String> {
    let Some(field) = field else { return BTreeMap::new() };
    let template = |item: Field<'_>| {
        let map = item.map()?;
        let name = map.get("name")?.text()?.into_owned();
        Some((name, map.get("resourceClaimTemplateName")?.text()?.into_owned()))
    };
    field.items().filter_map(template).collect()
}

fn containers(field: Option<&Field<'_>>, host_network: bool) -> Vec<Container> {
    let Some(field) = field else { return Vec::new() };
    field.items().filter_map(|item| Some(container(&item.map()?, host_network))).collect()
}

fn container(map: &FieldMap<'_>, host_network: bool) -> Container {
    let name =
        map.required("name").and_then(|f| f.non_empty_text()).unwrap_or_default().into_owned();
    let resources = map.get("resources").map(|f| container_resources(&f)).unwrap_or_default();
    let restart = map.get("restartPolicy").and_then(|f| f.text());
    let host_ports = host_ports(map.get("ports").as_ref(), host_network);
    let privileged = map.get("securityContext").is_some_and(|f| is_privileged(&f));
    map.ignore(CONTAINER_IRRELEVANT);
    map.finish_with_typo_check();
    let sidecar = restart.as_deref() == Some("Always");
    Container { name, resources, sidecar, host_ports, privileged }
}

/// Returns whether a security context is privileged. Its other fields are not read.
fn is_privileged(field: &Field<'_>) -> bool {
    let Some(map) = field.map() else { return false };
    map.get("privileged").and_then(|f| f.boolean()).unwrap_or(false)
}

fn host_ports(field: Option<&Field<'_>>, host_network: bool) -> Vec<HostPort> {
    let Some(field) = field else { return Vec::new() };
    field.items().filter_map(|item| host_port(&item.map()?, host_network)).collect()
}

fn host_port(map: &FieldMap<'_>, host_network: bool) -> Option<HostPort> {
    let container_port = map.required("containerPort").and_then(|f| f.int::<u16>(1));
    let stated = map.get("hostPort").and_then(|f| f.int::<u16>(0)).filter(|port| *port != 0);
    let protocols = [("TCP", "TCP"), ("UDP", "UDP"), ("SCTP", "SCTP")];
    let protocol = map.get("protocol").map_or(Some("TCP"), |f| f.choice(&protocols));
    let ip = map.get("hostIP").and_then(|f| f.text()).unwrap_or_default().into_owned();
    map.ignore(&["name"]);
    map.finish(Severity::Warning);
    // The API server does not compare the ports of init containers.
    let is_checked = host_network && !map.field.scope.verbatim;
    if is_checked && stated.is_some() && stated != container_port {
        map.field.error(
            "has a `hostPort` other than its `containerPort`, although the pod uses hostNetwork",
            "write the same port twice, or leave `hostPort` out".to_owned(),
        );
    }
    let port = stated.or(container_port.filter(|_| host_network))?;
    Some(HostPort { port, protocol: protocol?.to_owned(), ip })
}
