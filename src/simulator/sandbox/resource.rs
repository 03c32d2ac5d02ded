//! The served resource types and API discovery.

use serde_json::{Value as Json, json};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServedResource {
    /// API group. Empty for the core group.
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    short: &'static [&'static str],
    pub(super) namespaced: bool,
    subresources: &'static [&'static str],
    access: Access,
}

/// The verbs of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Every verb.
    Full,
    /// Reads and watches: the repository declares these objects.
    Read,
    /// Reads of computed values.
    Metrics,
    /// Creations that are answered and never stored.
    Review,
}

/// API group of metrics.
pub(super) const METRICS_GROUP: &str = "metrics.k8s.io";

/// Kinds of the category `all` of `kubectl get all`.
const ALL: [&str; 10] = [
    "CronJob",
    "DaemonSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "Job",
    "Pod",
    "ReplicaSet",
    "ReplicationController",
    "Service",
    "StatefulSet",
];

/// All resource types, ordered by group.
pub(super) const RESOURCES: &[ServedResource] = &[
    core("ConfigMap", "configmaps", &["cm"], true, &[]),
    core("Event", "events", &["ev"], true, &[]),
    core("Namespace", "namespaces", &["ns"], false, &["status"]),
    core("Node", "nodes", &["no"], false, &["status"]),
    core("PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"], true, &["status"]),
    core("PersistentVolume", "persistentvolumes", &["pv"], false, &["status"]),
    core("Pod", "pods", &["po"], true, &["binding", "eviction", "status"]),
    core("ReplicationController", "replicationcontrollers", &["rc"], true, &["scale", "status"]),
    core("Secret", "secrets", &[], true, &[]),
    core("Service", "services", &["svc"], true, &["status"]),
    core("ServiceAccount", "serviceaccounts", &["sa"], true, &[]),
    apps("DaemonSet", "daemonsets", &["ds"], &["status"]),
    apps("Deployment", "deployments", &["deploy"], &["scale", "status"]),
    apps("ReplicaSet", "replicasets", &["rs"], &["scale", "status"]),
    apps("StatefulSet", "statefulsets", &["sts"], &["scale", "status"]),
    ServedResource {
        access: Access::Review,
        ..resource(
            "authorization.k8s.io",
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
            &[],
        )
    },
    ServedResource {
        version: "v2",
        namespaced: true,
        subresources: &["status"],
        ..resource("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", &["hpa"])
    },
    ServedResource {
        namespaced: true,
        subresources: &["status"],
        ..resource("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", &["hpa"])
    },
    ServedResource {
        namespaced: true,
        ..resource(
            "autoscaling.k8s.io",
            "VerticalPodAutoscaler",
            "verticalpodautoscalers",
            &["vpa"],
        )
    },
    ServedResource {
        namespaced: true,
        subresources: &["status"],
        ..resource("batch", "CronJob", "cronjobs", &["cj"])
    },
    ServedResource {
        namespaced: true,
        subresources: &["status"],
        ..resource("batch", "Job", "jobs", &[])
    },
    ServedResource { namespaced: true, ..resource("coordination.k8s.io", "Lease", "leases", &[]) },
    // Objects of the controller. `deploy/kubernetes/crds.yaml` defines them in real clusters.
    ours("CapacityPlan", "capacityplans", &["cplan"]),
    ours("CapacityPool", "capacitypools", &["cpool"]),
    karpenter("karpenter.k8s.aws", "EC2NodeClass", "ec2nodeclasses", &["ec2nc", "ec2ncs"]),
    karpenter("karpenter.sh", "NodeClaim", "nodeclaims", &[]),
    karpenter("karpenter.sh", "NodePool", "nodepools", &[]),
    keda("ScaledJob", "scaledjobs", &["sj"]),
    keda("ScaledObject", "scaledobjects", &["so"]),
    metrics("NodeMetrics", "nodes", false),
    metrics("PodMetrics", "pods", true),
    ServedResource {
        namespaced: true,
        subresources: &["status"],
        ..resource("networking.k8s.io", "Ingress", "ingresses", &["ing"])
    },
    ServedResource {
        namespaced: true,
        subresources: &["status"],
        ..resource("policy", "PodDisruptionBudget", "poddisruptionbudgets", &["pdb"])
    },
    resource("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", &[]),
    resource("rbac.authorization.k8s.io", "ClusterRole", "clusterroles", &[]),
    ServedResource {
        namespaced: true,
        ..resource("rbac.authorization.k8s.io", "RoleBinding", "rolebindings", &[])
    },
    ServedResource {
        namespaced: true,
        ..resource("rbac.authorization.k8s.io", "Role", "roles", &[])
    },
    resource("scheduling.k8s.io", "PriorityClass", "priorityclasses", &["pc"]),
    resource("storage.k8s.io", "CSINode", "csinodes", &[]),
    resource("storage.k8s.io", "StorageClass", "storageclasses", &["sc"]),
    resource("storage.k8s.io", "VolumeAttachment", "volumeattachments", &[]),
];

const fn core(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    subresources: &'static [&'static str],
) -> ServedResource {
    ServedResource { namespaced, subresources, ..resource("", kind, plural, short) }
}

const fn ours(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> ServedResource {
    let resource = resource("fleetwright.dev", kind, plural, short);
    ServedResource { version: "v1alpha1", subresources: &["status"], ..resource }
}

const fn karpenter(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> ServedResource {
    ServedResource { access: Access::Read, ..resource(group, kind, plural, short) }
}

const fn keda(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> ServedResource {
    let resource = resource("keda.sh", kind, plural, short);
    ServedResource { version: "v1alpha1", namespaced: true, ..resource }
}

const fn metrics(kind: &'static str, plural: &'static str, namespaced: bool) -> ServedResource {
    let resource = resource(METRICS_GROUP, kind, plural, &[]);
    ServedResource { version: "v1beta1", namespaced, access: Access::Metrics, ..resource }
}

const fn apps(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    subresources: &'static [&'static str],
) -> ServedResource {
    ServedResource { namespaced: true, subresources, ..resource("apps", kind, plural, short) }
}

const fn resource(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> ServedResource {
    ServedResource {
        group,
        version: "v1",
        kind,
        plural,
        short,
        namespaced: false,
        subresources: &[],
        access: Access::Full,
    }
}

impl ServedResource {
    /// Returns the resource type of a group, version and plural.
    pub(super) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|r| r.group == group && r.version == version && r.plural == plural)
    }

    /// Returns the resource type of a kind.
    pub(super) fn of_kind(kind: &str) -> &'static Self {
        RESOURCES.iter().find(|resource| resource.kind == kind).expect("the kind is in the table")
    }

    /// Returns the resource type of an object, if its version is stored.
    pub(super) fn of_object(object: &Json) -> Option<&'static Self> {
        let (kind, version) = (&object["kind"], object["apiVersion"].as_str()?);
        let mut found = RESOURCES.iter().filter(|r| *kind == *r.kind && r.api_version() == version);
        found.find(|resource| !resource.is_older_version())
    }

    /// Returns whether objects are stored in another version.
    pub(super) fn is_older_version(&self) -> bool {
        (self.group, self.version) == ("autoscaling", "v1")
    }

    /// Returns the `apiVersion` of objects.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    pub(super) fn has_subresource(&self, subresource: &str) -> bool {
        self.subresources.contains(&subresource)
    }

    /// Returns whether objects are only reviewed and never stored.
    pub(super) fn is_access_review(&self) -> bool {
        self.access == Access::Review
    }

    /// Returns whether clients may write objects.
    pub(super) fn is_writable(&self) -> bool {
        matches!(self.access, Access::Full | Access::Review)
    }

    /// Returns whether objects are stored.
    pub(super) fn is_stored(&self) -> bool {
        matches!(self.access, Access::Full | Access::Read)
    }

    fn discovery_entries(&self) -> Vec<Json> {
        let verbs = match self.access {
            Access::Review => json!(["create"]),
            Access::Read => json!(["get", "list", "watch"]),
            Access::Metrics => json!(["get", "list"]),
            Access::Full => json!([
                "create",
                "delete",
                "deletecollection",
                "get",
                "list",
                "patch",
                "update",
                "watch"
            ]),
        };
        let categories = if ALL.contains(&self.kind) { &["all"][..] } else { &[] };
        let mut rows = vec![json!({
            "name": self.plural, "singularName": self.kind.to_ascii_lowercase(),
            "namespaced": self.namespaced, "kind": self.kind, "verbs": verbs,
            "shortNames": self.short, "categories": categories
        })];
        for name in self.subresources {
            let (group, version, kind, verbs) = match *name {
                "binding" => ("", "v1", "Binding", json!(["create"])),
                "eviction" => ("policy", "v1", "Eviction", json!(["create"])),
                "scale" => ("autoscaling", "v1", "Scale", json!(["get", "patch", "update"])),
                _ => ("", "", self.kind, json!(["get", "patch", "update"])),
            };
            let mut row = json!({
                "name": format!("{}/{name}", self.plural), "singularName": "",
                "namespaced": self.namespaced, "kind": kind, "verbs": verbs
            });
            if !version.is_empty() {
                row["group"] = group.into();
                row["version"] = version.into();
            }
            rows.push(row);
        }
        rows
    }
}

pub(super) fn core_versions() -> Json {
    json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
}

/// Returns the API groups without the core group.
pub(super) fn groups() -> Json {
    let mut groups: Vec<Json> = Vec::new();
    for ServedResource { group, version, .. } in RESOURCES.iter().filter(|r| !r.group.is_empty()) {
        let version = json!({ "groupVersion": format!("{group}/{version}"), "version": version });
        match groups.last_mut().filter(|last| last["name"] == *group) {
            Some(last) => {
                let versions = last["versions"].as_array_mut();
                if let Some(versions) = versions.filter(|versions| !versions.contains(&version)) {
                    versions.push(version);
                }
            }
            // The first version of a group is preferred.
            None => groups.push(json!({
                "name": group, "versions": [version], "preferredVersion": version
            })),
        }
    }
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// Returns the resource list of a group and version, if it exists.
pub(super) fn api_resource_list(group: &str, version: &str) -> Option<Json> {
    let of = |r: &&ServedResource| r.group == group && r.version == version;
    let rows: Vec<Json> =
        RESOURCES.iter().filter(of).flat_map(ServedResource::discovery_entries).collect();
    let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!rows.is_empty()).then(|| {
        json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_and_listed() {
        for resource in RESOURCES {
            let ServedResource { group, version, plural, .. } = resource;
            assert_eq!(ServedResource::find(group, version, plural), Some(resource));
            let listed = api_resource_list(group, version).expect("a group").to_string();
            assert!(listed.contains(&format!("\"{plural}\"")), "{plural}");
        }
        assert_eq!(api_resource_list("apps", "v2"), None);
        let all = |kind: &str| RESOURCES.iter().any(|resource| resource.kind == kind);
        assert!(ALL.into_iter().all(all), "what `all` means is served");
        let groups = groups().to_string();
        assert_eq!(groups.matches("\"name\":\"apps\"").count(), 1, "each group once");
        let versions = ["v2", "v1"].map(|version| groups.find(&format!("autoscaling/{version}\"")));
        assert!(versions[0].is_some() && versions[0] < versions[1], "{groups}");
    }
}
