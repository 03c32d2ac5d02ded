//! The sorts of objects that are served, and how a client discovers them.

use serde_json::{Value as Json, json};

/// A sort of objects.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resource {
    /// Group; empty for the core.
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    short: &'static [&'static str],
    pub(super) namespaced: bool,
    subresources: &'static [&'static str],
}

/// Kinds that `kubectl get all` means.
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

/// Every sort, the groups together.
pub(super) const RESOURCES: &[Resource] = &[
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
    named("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", &[]),
    Resource {
        version: "v2",
        namespaced: true,
        subresources: &["status"],
        ..named("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", &["hpa"])
    },
    Resource {
        namespaced: true,
        subresources: &["status"],
        ..named("batch", "CronJob", "cronjobs", &["cj"])
    },
    Resource { namespaced: true, subresources: &["status"], ..named("batch", "Job", "jobs", &[]) },
    Resource { namespaced: true, ..named("coordination.k8s.io", "Lease", "leases", &[]) },
    // What the loop keeps: `deploy/kubernetes/crds.yaml` defines them elsewhere.
    ours("CapacityPlan", "capacityplans", &["cplan"]),
    ours("CapacityPool", "capacitypools", &["cpool"]),
    Resource {
        namespaced: true,
        subresources: &["status"],
        ..named("networking.k8s.io", "Ingress", "ingresses", &["ing"])
    },
    Resource {
        namespaced: true,
        subresources: &["status"],
        ..named("policy", "PodDisruptionBudget", "poddisruptionbudgets", &["pdb"])
    },
    named("rbac.authorization.k8s.io", "ClusterRoleBinding", "clusterrolebindings", &[]),
    named("rbac.authorization.k8s.io", "ClusterRole", "clusterroles", &[]),
    Resource {
        namespaced: true,
        ..named("rbac.authorization.k8s.io", "RoleBinding", "rolebindings", &[])
    },
    Resource { namespaced: true, ..named("rbac.authorization.k8s.io", "Role", "roles", &[]) },
    named("scheduling.k8s.io", "PriorityClass", "priorityclasses", &["pc"]),
    named("storage.k8s.io", "CSINode", "csinodes", &[]),
    named("storage.k8s.io", "StorageClass", "storageclasses", &["sc"]),
    named("storage.k8s.io", "VolumeAttachment", "volumeattachments", &[]),
];

const fn core(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
    subresources: &'static [&'static str],
) -> Resource {
    Resource { namespaced, subresources, ..named("", kind, plural, short) }
}

const fn ours(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> Resource {
    let of = named("fleetwright.dev", kind, plural, short);
    Resource { version: "v1alpha1", subresources: &["status"], ..of }
}

const fn apps(
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    subresources: &'static [&'static str],
) -> Resource {
    Resource { namespaced: true, subresources, ..named("apps", kind, plural, short) }
}

const fn named(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
) -> Resource {
    Resource { group, version: "v1", kind, plural, short, namespaced: false, subresources: &[] }
}

impl Resource {
    /// Returns the sort of that group, version and plural.
    pub(super) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|r| r.group == group && r.version == version && r.plural == plural)
    }

    /// Returns the sort of a kind.
    pub(super) fn of_kind(kind: &str) -> &'static Self {
        RESOURCES.iter().find(|resource| resource.kind == kind).expect("the kind is in the table")
    }

    /// Returns `apiVersion` as objects of the sort write it.
    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Returns whether the sort has such a subresource.
    pub(super) fn has(&self, subresource: &str) -> bool {
        self.subresources.contains(&subresource)
    }

    /// Returns whether objects of the sort are only asked with, and never kept.
    pub(super) fn is_question(&self) -> bool {
        self.group == "authorization.k8s.io"
    }

    fn rows(&self) -> Vec<Json> {
        let verbs = if self.is_question() {
            json!(["create"])
        } else {
            let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update"];
            json!([&all[..], &["watch"]].concat())
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

/// Returns the versions of the core.
pub(super) fn core_versions() -> Json {
    json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] })
}

/// Returns the groups beside the core.
pub(super) fn groups() -> Json {
    let mut groups: Vec<Json> = Vec::new();
    let mut last = "";
    for Resource { group, version, .. } in RESOURCES.iter().filter(|r| !r.group.is_empty()) {
        if *group != last {
            let version =
                json!({ "groupVersion": format!("{group}/{version}"), "version": version });
            groups.push(json!({
                "name": group, "versions": [version], "preferredVersion": version
            }));
            last = group;
        }
    }
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
}

/// Returns the sorts of a group; `None` where there is none.
pub(super) fn sorts(group: &str, version: &str) -> Option<Json> {
    let of = |r: &&Resource| r.group == group && r.version == version;
    let rows: Vec<Json> = RESOURCES.iter().filter(of).flat_map(Resource::rows).collect();
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
    fn every_sort_is_found_by_its_path_and_listed_with_its_group() {
        for resource in RESOURCES {
            let Resource { group, version, plural, .. } = resource;
            assert_eq!(Resource::find(group, version, plural), Some(resource));
            let listed = sorts(group, version).expect("a group").to_string();
            assert!(listed.contains(&format!("\"{plural}\"")), "{plural}");
        }
        assert_eq!(sorts("apps", "v2"), None);
        let all = |kind: &str| RESOURCES.iter().any(|resource| resource.kind == kind);
        assert!(ALL.into_iter().all(all), "what `all` means is served");
        let groups = groups().to_string();
        assert_eq!(groups.matches("\"name\":\"apps\"").count(), 1, "each group once");
    }
}
