//! Converts pod templates to Kubernetes JSON, the inverse of the `manifest` reader.
//!
//! Templates do not contain images and commands. Invariant: the output parses to the same template.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use crate::model::pod::{
    Container, ContainerResources, Expression, HostPort, NodeTerm, PodAffinity, PodAffinityTerm,
    PodSpec, PodTemplate, ResourceList, Selector, Toleration, TopologySpread, Volume, VolumeSource,
};
use crate::model::storage::EBS_IN_TREE;

/// Placeholder image of every container.
const IMAGE: &str = "embedded";

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// Fields of an object. Empty values are omitted.
#[derive(Default)]
struct ObjectFields(Map<String, Json>);

impl ObjectFields {
    fn set(mut self, key: &str, value: Json) -> Self {
        let says_nothing = value.is_null()
            || value == false
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty);
        if !says_nothing {
            self.0.insert(key.to_owned(), value);
        }
        self
    }

    fn into_json(self) -> Json {
        Json::Object(self.0)
    }
}

pub(super) fn quantities(amounts: &ResourceList) -> Json {
    let text = |name: &str, amount: i64| {
        if name == "cpu" { format!("{amount}m") } else { amount.to_string() }
    };
    let all = amounts
        .iter()
        .map(|(name, amount)| (name.as_str().to_owned(), Json::from(text(name.as_str(), *amount))));
    Json::Object(all.collect())
}

/// Returns a template with `metadata` and `spec`. For the template of a single pod, `pod` is its
/// name.
pub(super) fn template(template: &PodTemplate, pod: Option<&str>) -> Json {
    let PodTemplate { labels, annotations, spec: of, cluster_autoscaler: _ } = template;
    let metadata =
        ObjectFields::default().set("labels", json!(labels)).set("annotations", json!(annotations));
    json!({ "metadata": metadata.into_json(), "spec": spec(of, pod) })
}

fn spec(spec: &PodSpec, pod: Option<&str>) -> Json {
    let PodSpec {
        init_containers,
        containers,
        resources: of_pod,
        overhead,
        runtime_class_name,
        priority_class_name,
        priority,
        preemption_policy,
        node_name,
        node_selector,
        node_affinity,
        pod_affinity,
        pod_anti_affinity,
        topology_spread,
        tolerations,
        volumes,
        scheduler_name,
        scheduling_gates,
        host_network,
        termination_grace_seconds,
        resource_claims,
        resource_claim_templates,
    } = spec;
    let named =
        |names: &[String]| -> Json { names.iter().map(|name| json!({ "name": name })).collect() };
    let required = node_affinity.required.as_ref();
    let required = required.map(|terms| json!({ "nodeSelectorTerms": all(terms, node_term) }));
    let affinity = ObjectFields::default()
        .set(
            "nodeAffinity",
            ObjectFields::default()
                .set(REQUIRED, json!(required))
                .set(PREFERRED, weighted(&node_affinity.preferred, "preference", node_term))
                .into_json(),
        )
        .set("podAffinity", pods(pod_affinity))
        .set("podAntiAffinity", pods(pod_anti_affinity));
    ObjectFields::default()
        .set("initContainers", all(init_containers, container))
        .set("containers", all(containers, container))
        .set("resources", of_pod.as_ref().map_or(Json::Null, resources))
        .set("overhead", quantities(overhead))
        .set("runtimeClassName", json!(runtime_class_name))
        .set("priorityClassName", json!(priority_class_name))
        .set("priority", json!(priority))
        .set("preemptionPolicy", json!(preemption_policy))
        .set("nodeName", json!(node_name))
        .set("nodeSelector", json!(node_selector))
        .set("affinity", affinity.into_json())
        .set("topologySpreadConstraints", all(topology_spread, spread))
        .set("tolerations", all(tolerations, toleration))
        .set("volumes", volumes.iter().filter_map(|v| volume(v, pod)).collect())
        .set("schedulerName", json!(scheduler_name))
        .set("schedulingGates", named(scheduling_gates))
        .set("hostNetwork", json!(host_network))
        .set("terminationGracePeriodSeconds", json!(termination_grace_seconds))
        .set("resourceClaims", claims(resource_claims, resource_claim_templates))
        .into_json()
}

fn claims(names: &[String], templates: &BTreeMap<String, String>) -> Json {
    let claim = |name: &String| {
        ObjectFields::default()
            .set("name", json!(name))
            .set("resourceClaimTemplateName", json!(templates.get(name)))
            .into_json()
    };
    names.iter().map(claim).collect()
}

fn all<T>(items: &[T], convert: impl Fn(&T) -> Json) -> Json {
    items.iter().map(convert).collect()
}

fn weighted<T>(items: &[(i32, T)], key: &str, convert: impl Fn(&T) -> Json) -> Json {
    items.iter().map(|(weight, item)| json!({ "weight": weight, key: convert(item) })).collect()
}

fn container(container: &Container) -> Json {
    let Container { name, resources: amounts, sidecar, host_ports, privileged } = container;
    let port = |port: &HostPort| {
        json!({
            "containerPort": port.port, "hostPort": port.port, "protocol": port.protocol,
            "hostIP": port.ip
        })
    };
    ObjectFields::default()
        .set("name", json!(name))
        .set("image", json!(IMAGE))
        .set("resources", resources(amounts))
        .set("restartPolicy", json!(sidecar.then_some("Always")))
        .set("ports", all(host_ports, port))
        .set("securityContext", json!(privileged.then(|| json!({ "privileged": true }))))
        .into_json()
}

fn resources(resources: &ContainerResources) -> Json {
    let ContainerResources { requests, limits } = resources;
    let fields = ObjectFields::default().set("requests", quantities(requests));
    fields.set("limits", quantities(limits)).into_json()
}

fn expression(expression: &Expression) -> Json {
    let Expression { key, operator, values } = expression;
    let fields = ObjectFields::default().set("key", json!(key)).set("operator", json!(operator));
    fields.set("values", json!(values)).into_json()
}

pub(super) fn node_term(term: &NodeTerm) -> Json {
    let NodeTerm { expressions, fields } = term;
    let out = ObjectFields::default().set("matchExpressions", all(expressions, expression));
    out.set("matchFields", all(fields, expression)).into_json()
}

/// Returns a label selector. `None` becomes null, which selects nothing.
pub(super) fn selector(selector: Option<&Selector>) -> Json {
    let Some(Selector(expressions)) = selector else { return Json::Null };
    ObjectFields::default().set("matchExpressions", all(expressions, expression)).into_json()
}

fn pods(affinity: &PodAffinity) -> Json {
    let PodAffinity { required, preferred } = affinity;
    let fields = ObjectFields::default().set(REQUIRED, all(required, pod_term));
    fields.set(PREFERRED, weighted(preferred, "podAffinityTerm", pod_term)).into_json()
}

fn pod_term(term: &PodAffinityTerm) -> Json {
    let PodAffinityTerm {
        selector: pods,
        topology_key,
        namespaces,
        namespace_selector,
        match_label_keys,
        mismatch_label_keys,
    } = term;
    let mut out = ObjectFields::default()
        .set("topologyKey", json!(topology_key))
        .set("namespaces", json!(namespaces))
        .set("matchLabelKeys", json!(match_label_keys))
        .set("mismatchLabelKeys", json!(mismatch_label_keys));
    // An empty selector selects everything and must be written.
    for (key, found) in [("labelSelector", pods), ("namespaceSelector", namespace_selector)] {
        if found.is_some() {
            out.0.insert(key.to_owned(), selector(found.as_ref()));
        }
    }
    out.into_json()
}

fn spread(spread: &TopologySpread) -> Json {
    let TopologySpread {
        max_skew,
        topology_key,
        when_unsatisfiable,
        selector: pods,
        match_label_keys,
        min_domains,
        node_affinity_policy,
        node_taints_policy,
    } = spread;
    let mut out = ObjectFields::default()
        .set("maxSkew", json!(max_skew))
        .set("topologyKey", json!(topology_key))
        .set("whenUnsatisfiable", json!(when_unsatisfiable))
        .set("matchLabelKeys", json!(match_label_keys))
        .set("minDomains", json!(min_domains))
        .set("nodeAffinityPolicy", json!(node_affinity_policy))
        .set("nodeTaintsPolicy", json!(node_taints_policy));
    if pods.is_some() {
        out.0.insert("labelSelector".to_owned(), selector(pods.as_ref()));
    }
    out.into_json()
}

fn toleration(toleration: &Toleration) -> Json {
    let Toleration { key, operator, value, effect, seconds } = toleration;
    let mut out = ObjectFields::default()
        .set("operator", json!(operator))
        .set("effect", json!(effect))
        .set("tolerationSeconds", json!(seconds));
    for (name, text) in [("key", key), ("value", value)] {
        if !text.is_empty() {
            out.0.insert(name.to_owned(), text.as_str().into());
        }
    }
    out.into_json()
}

/// Returns a volume. A `StatefulSet` claim template is omitted from the template, and becomes the
/// named claim in a pod.
fn volume(volume: &Volume, pod: Option<&str>) -> Option<Json> {
    let Volume { name, source } = volume;
    let claim = |class: &Option<String>| {
        let spec = ObjectFields::default().set("storageClassName", json!(class)).into_json();
        json!({ "volumeClaimTemplate": { "spec": spec } })
    };
    let (kind, source) = match source {
        VolumeSource::Claim(claim) => ("persistentVolumeClaim", json!({ "claimName": claim })),
        VolumeSource::EphemeralClaim(class) => ("ephemeral", claim(class)),
        VolumeSource::ClaimTemplate(_) => {
            ("persistentVolumeClaim", json!({ "claimName": format!("{name}-{}", pod?) }))
        }
        VolumeSource::HostPath => ("hostPath", json!({ "path": "/" })),
        VolumeSource::EmptyDir => ("emptyDir", json!({})),
        VolumeSource::Ebs(id) => (EBS_IN_TREE, json!({ "volumeID": id })),
        VolumeSource::NetworkDisk(id) => ("iscsi", json!({ "iqn": id })),
        VolumeSource::InTree(kind) => (kind.as_str(), json!({})),
        VolumeSource::Other => ("configMap", json!({})),
    };
    Some(json!({ "name": name, kind: source }))
}

/// Returns the claim templates of a `StatefulSet`.
pub(super) fn claim_templates(spec: &PodSpec) -> Json {
    let claims = spec.volumes.iter().filter_map(|Volume { name, source }| {
        let VolumeSource::ClaimTemplate(class) = source else { return None };
        let spec = ObjectFields::default().set("storageClassName", json!(class)).into_json();
        Some(json!({ "metadata": { "name": name }, "spec": spec }))
    });
    claims.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::read_live_objects;

    /// A template with every scheduling-related field.
    fn everything() -> Json {
        json!({
            "metadata": {
                "labels": { "app": "api" }, "annotations": { "karpenter.sh/do-not-disrupt": "true" }
            },
            "spec": {
                "initContainers": [{ "name": "log", "restartPolicy": "Always", "resources": {
                    "requests": { "cpu": "50m" } } }],
                "containers": [{
                    "name": "api", "securityContext": { "privileged": true },
                    "ports": [{ "containerPort": 80, "hostPort": 80 }],
                    "resources": { "requests": { "cpu": "1500m", "memory": "1Gi",
                        "nvidia.com/gpu": "1" }, "limits": { "nvidia.com/gpu": "1" } }
                }],
                "overhead": { "cpu": "250m" }, "runtimeClassName": "kata",
                "priorityClassName": "high", "preemptionPolicy": "Never",
                "nodeSelector": { "tier": "web" }, "schedulerName": "own",
                "terminationGracePeriodSeconds": 60, "schedulingGates": [{ "name": "quota" }],
                "affinity": {
                    "nodeAffinity": {
                        REQUIRED: { "nodeSelectorTerms": [{ "matchExpressions": [
                            { "key": "a", "operator": "Gt", "values": ["3"] },
                            { "key": "b", "operator": "DoesNotExist" }] }] },
                        PREFERRED: [{ "weight": 5, "preference": { "matchExpressions": [
                            { "key": "c", "operator": "In", "values": ["x", "y"] }] } }]
                    },
                    "podAffinity": { PREFERRED: [{ "weight": 9, "podAffinityTerm": {
                        "topologyKey": "zone", "labelSelector": {}, "namespaces": ["shop"] } }] },
                    "podAntiAffinity": { REQUIRED: [{ "topologyKey": "kubernetes.io/hostname",
                        "labelSelector": { "matchLabels": { "app": "api" } },
                        "namespaceSelector": {}, "matchLabelKeys": ["v"] }] }
                },
                "topologySpreadConstraints": [{ "maxSkew": 1, "topologyKey": "zone",
                    "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2,
                    "labelSelector": { "matchLabels": { "app": "api" } } }],
                "tolerations": [{ "operator": "Exists" }, { "key": "k", "value": "v",
                    "effect": "NoExecute", "tolerationSeconds": 9 }],
                "volumes": [
                    { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
                    { "name": "b", "ephemeral": { "volumeClaimTemplate": {
                        "spec": { "storageClassName": "gp3" } } } },
                    { "name": "c", "hostPath": { "path": "/x" } }, { "name": "d", "emptyDir": {} },
                    { "name": "e", "awsElasticBlockStore": { "volumeID": "aws://us-east-1a/v" } },
                    { "name": "f", "gcePersistentDisk": { "pdName": "x" } },
                    { "name": "g", "configMap": { "name": "x" } }
                ]
            }
        })
    }

    fn read(kind: &str, spec: &Json) -> PodTemplate {
        let object = json!({
            "apiVersion": "apps/v1", "kind": kind,
            "metadata": { "name": "api", "namespace": "web" }, "spec": spec
        });
        let read = read_live_objects([&object]);
        assert_eq!(read.problems, []);
        let workload = read.workloads.into_values().next().expect("a workload");
        (*workload.template).clone()
    }

    #[test]
    fn template_round_trips() {
        let first = read("Deployment", &json!({ "replicas": 1, "template": everything() }));
        let again =
            read("Deployment", &json!({ "replicas": 1, "template": template(&first, None) }));
        assert_eq!(first, again);
    }

    #[test]
    fn claim_template_becomes_named_claim() {
        let claims =
            json!([{ "metadata": { "name": "data" }, "spec": { "storageClassName": "gp3" } }]);
        let mut pods = everything();
        pods["spec"]["volumes"] = json!([]);
        let spec = json!({ "replicas": 1, "template": pods, "volumeClaimTemplates": claims });
        let first = read("StatefulSet", &spec);
        let written = json!({
            "replicas": 1, "template": template(&first, None),
            "volumeClaimTemplates": claim_templates(&first.spec)
        });
        assert_eq!(first, read("StatefulSet", &written));
        let of_pod = template(&first, Some("db-0"));
        let claim = &of_pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"];
        assert_eq!(claim, "data-db-0");
    }
}
