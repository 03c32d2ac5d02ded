//! Preflight checks of a cluster: each required permission, and the clock skew.

use ::kube::Error;
use ::kube::api::{Api, ListParams, PostParams};
use ::kube::client::Body;
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ConfigMap;

use super::client::Kubernetes;
use super::port_error;
use crate::apply::ports::{CallEffect, PortError, Prerequisite, PrerequisiteState};
use crate::model::desired::PoolSource;
use crate::model::expander_priorities::CONFIG_MAP;

/// Maximum clock skew in seconds. AWS signatures are valid for five minutes.
const SKEW_SECONDS_MAX: i64 = 60;

/// Permission to nominate pods to nodes. Only the controller needs it.
const NOMINATE: Permission = Permission::new("", "", "pods/status", "", &["patch"]);

const STEERING_REMEDY: &str = "grant the role fleetwright-steer to the controller, or set \
     spec.controller.steer to false";

const RBAC_REMEDY: &str =
    "apply deploy/kubernetes/rbac.yaml, and bind the user that plans or applies";

/// Verbs on a resource type.
struct Permission {
    /// Empty for all namespaces.
    namespace: &'static str,
    group: &'static str,
    /// With the subresource.
    resource: &'static str,
    /// Empty for all objects.
    name: &'static str,
    verbs: &'static [&'static str],
}

impl Permission {
    const fn new(
        namespace: &'static str,
        group: &'static str,
        resource: &'static str,
        name: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self { namespace, group, resource, name, verbs }
    }
}

/// Permissions to read pools. Plans need them if the settings read pools from the cluster.
const POOL_PERMISSIONS: [Permission; 5] = [
    Permission::new("", "karpenter.k8s.aws", "awsnodetemplates", "", &["list"]),
    Permission::new("", "karpenter.k8s.aws", "ec2nodeclasses", "", &["list"]),
    Permission::new("", "karpenter.sh", "nodeoverlays", "", &["list"]),
    Permission::new("", "karpenter.sh", "nodepools", "", &["list"]),
    Permission::new("", "karpenter.sh", "provisioners", "", &["list"]),
];

/// Settings that decide what is checked.
#[derive(Debug, Clone, Copy)]
pub struct PreflightSettings {
    /// Whether the settings ask for nominations; `None` if the version of kube-scheduler decides.
    pub nominates: Option<bool>,
    /// Where pools are declared.
    pub pools: PoolSource,
}

/// Every permission that `deploy/kubernetes/rbac.yaml` grants, but those to read pools.
const REQUIRED_PERMISSIONS: [Permission; 27] = [
    Permission::new("", "", "nodes", "", &["list", "get", "patch", "delete"]),
    Permission::new("", "", "pods", "", &["list", "delete"]),
    Permission::new("", "", "pods/eviction", "", &["create"]),
    Permission::new("", "", "persistentvolumeclaims", "", &["list"]),
    Permission::new("", "", "persistentvolumes", "", &["list"]),
    Permission::new("", "", "replicationcontrollers", "", &["list"]),
    Permission::new("", "", "namespaces", "kube-system", &["get"]),
    Permission::new("", "apps", "daemonsets", "", &["list"]),
    Permission::new("", "apps", "deployments", "", &["list"]),
    Permission::new("", "apps", "replicasets", "", &["list"]),
    Permission::new("", "apps", "statefulsets", "", &["list"]),
    Permission::new("", "batch", "cronjobs", "", &["list"]),
    Permission::new("", "batch", "jobs", "", &["list"]),
    Permission::new("", "autoscaling", "horizontalpodautoscalers", "", &["list"]),
    Permission::new("", "autoscaling.k8s.io", "verticalpodautoscalers", "", &["list"]),
    Permission::new("", "storage.k8s.io", "csinodes", "", &["list"]),
    Permission::new("", "storage.k8s.io", "storageclasses", "", &["list"]),
    Permission::new("", "storage.k8s.io", "volumeattachments", "", &["list"]),
    Permission::new("", "resource.k8s.io", "resourceslices", "", &["list"]),
    Permission::new("", "kueue.x-k8s.io", "admissionchecks", "", &["list"]),
    Permission::new("", "kueue.x-k8s.io", "resourceflavors", "", &["list"]),
    Permission::new("", "kueue.x-k8s.io", "workloads", "", &["list"]),
    Permission::new("kube-system", "coordination.k8s.io", "leases", "", &["create"]),
    Permission::new(
        "kube-system",
        "coordination.k8s.io",
        "leases",
        "fleetwright-apply",
        &["get", "update"],
    ),
    Permission::new("", "", "configmaps", CONFIG_MAP, &["list"]),
    Permission::new("kube-system", "", "configmaps", "aws-auth", &["get"]),
    Permission::new("default", "", "events", "", &["create"]),
];

/// Reason why pods should not be nominated to nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SteeringObstacle {
    /// The reason.
    pub reason: String,
    /// True if nominations cannot be written at all.
    pub is_forbidden: bool,
}

/// Returns how pods are nominated, or the reason why a setting cannot be followed.
fn nomination_support(
    obstacle: Result<Option<SteeringObstacle>, PortError>,
    nominates: Option<bool>,
) -> Result<String, String> {
    match (nominates, obstacle) {
        (Some(false), _) => Ok("not used, by the settings of the controller".to_owned()),
        (_, Ok(None)) => Ok("pods can be nominated to their planned nodes".to_owned()),
        (None, Ok(Some(SteeringObstacle { reason, is_forbidden: false }))) => {
            Ok(format!("not used: {reason}"))
        }
        (_, Ok(Some(obstacle))) => Err(obstacle.reason),
        (_, Err(error)) => Err(error.to_string()),
    }
}

/// First minor version of Kubernetes 1 in which kube-scheduler keeps the nomination of a pod that it
/// cannot place yet (KEP-5278, `NominatedNodeNameForExpectation`).
const KEEPS_NOMINATIONS_FROM: u32 = 35;

impl Kubernetes {
    /// Returns the reason why pods should not be nominated to their planned nodes; `None` if
    /// kube-scheduler honors nominations and the user may write them.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn steering_obstacle(&self) -> Result<Option<SteeringObstacle>, PortError> {
        if !self.is_allowed(&NOMINATE, "patch").await? {
            let reason = "not allowed: patch pods/status".to_owned();
            return Ok(Some(SteeringObstacle { reason, is_forbidden: true }));
        }
        let version = self.client.apiserver_version().await;
        let version = version.map_err(|error| port_error("read version", &error))?;
        let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
        let is_old = digits.parse().is_ok_and(|minor: u32| minor < KEEPS_NOMINATIONS_FROM);
        let reason = format!(
            "steering needs Kubernetes 1.{}, and this is {}.{}",
            KEEPS_NOMINATIONS_FROM, version.major, version.minor
        );
        Ok(is_old.then_some(SteeringObstacle { reason, is_forbidden: false }))
    }

    /// Checks everything that plans and applies need in the cluster. `now` is the local clock.
    /// `remedy` says how to reach the cluster.
    pub async fn preflight(
        &self,
        now: impl Fn() -> Timestamp,
        settings: PreflightSettings,
        remedy: &str,
    ) -> Vec<Prerequisite> {
        let api = self.cluster_uid().await.map(|uid| format!("kube-system has the UID {uid}"));
        let api = api.map_err(|error| error.to_string());
        let is_read = api.is_ok();
        let mut prerequisites = vec![Prerequisite::from_result("Kubernetes API", api, remedy)];
        let version = self.client.apiserver_version().await;
        let version = version.map(|info| format!("version {}.{}", info.major, info.minor));
        let version = version.map_err(|e| port_error("read version", &e).to_string());
        if !is_read && version.is_err() {
            // All further checks would fail for the same reason, with misleading remedies.
            let why = "the API server cannot be used".to_owned();
            let (name, state) = ("the rest of Kubernetes", PrerequisiteState::Unknown { why });
            prerequisites.push(Prerequisite { name: name.to_owned(), state });
            return prerequisites;
        }
        prerequisites.push(Prerequisite::from_result("Kubernetes version", version, remedy));
        let skew = self
            .clock_skew_seconds(now)
            .await
            .map_err(|error| error.to_string())
            .and_then(check_skew);
        prerequisites.push(Prerequisite::from_result(
            "clock",
            skew,
            "synchronize the local clock with NTP",
        ));
        let PreflightSettings { nominates, pools } = settings;
        let missing = self.missing_permissions(pools).await.map_err(|error| error.to_string());
        let missing = missing.and_then(|missing| match &missing[..] {
            [] => Ok("all required permissions".to_owned()),
            some => Err(format!("not allowed: {}", some.join(", "))),
        });
        prerequisites.push(Prerequisite::from_result(
            "Kubernetes permissions",
            missing,
            RBAC_REMEDY,
        ));
        let steering = nomination_support(self.steering_obstacle().await, nominates);
        prerequisites.push(Prerequisite::from_result("steering", steering, STEERING_REMEDY));
        prerequisites
    }

    /// Returns whether the `aws-auth` map of the cluster admits a role.
    ///
    /// # Errors
    /// Returns an error if it cannot be read.
    pub async fn is_role_mapped(&self, arn: &str) -> Result<bool, PortError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let found = maps.get_opt("aws-auth").await;
        let found = found.map_err(|error| port_error("read aws-auth", &error))?;
        let roles = found.and_then(|map| map.data?.remove("mapRoles")).unwrap_or_default();
        // Compared as a word: an ARN may be the prefix of another.
        let is_end = |c: char| c.is_whitespace() || ['"', '\'', ','].contains(&c);
        Ok(roles.split(is_end).any(|word| word == arn))
    }

    /// Returns the lead of the API server's clock over the local clock in seconds.
    async fn clock_skew_seconds(&self, now: impl Fn() -> Timestamp) -> Result<i64, PortError> {
        const VERB: &str = "compare clocks";
        let failed = |reason: String| PortError {
            verb: VERB.to_owned(),
            reason,
            effect: CallEffect::Refused,
        };
        let request = ::kube::core::Request::new("/version").list(&ListParams::default());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let answer = self.client.send(request.map(Body::from)).await;
        let ours = now();
        let answer = answer.map_err(|error| port_error(VERB, &error))?;
        let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.ok_or_else(|| failed("the API server sent no date".to_owned()))?;
        let theirs = rfc2822::DateTimeParser::new().parse_timestamp(date);
        let theirs = theirs.map_err(|_| failed(format!("`{date}` is not a date")))?;
        Ok(theirs.duration_since(ours).as_secs())
    }

    async fn missing_permissions(&self, pools: PoolSource) -> Result<Vec<String>, PortError> {
        let mut missing = Vec::new();
        let pools = POOL_PERMISSIONS.iter().filter(|_| pools == PoolSource::Cluster);
        for permission in REQUIRED_PERMISSIONS.iter().chain(pools) {
            for verb in permission.verbs {
                if !self.is_allowed(permission, verb).await? {
                    let Permission { group, resource, .. } = permission;
                    let group = if group.is_empty() { "" } else { &format!(".{group}") };
                    missing.push(format!("{verb} {resource}{group}"));
                }
            }
        }
        Ok(missing)
    }

    async fn is_allowed(&self, permission: &Permission, verb: &str) -> Result<bool, PortError> {
        let Permission { namespace, group, resource, name, verbs: _ } = *permission;
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (resource, subresource) = match resource.split_once('/') {
            Some((resource, sub)) => (resource, some(sub)),
            None => (resource, None),
        };
        let attributes = ResourceAttributes {
            group: some(group),
            name: some(name),
            namespace: some(namespace),
            resource: some(resource),
            subresource,
            verb: some(verb),
            ..ResourceAttributes::default()
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                non_resource_attributes: None,
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer: Result<_, Error> = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| port_error("review permissions", &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

fn check_skew(seconds: i64) -> Result<String, String> {
    let shown = format!("the clock of the API server is {seconds} s ahead of the local clock");
    if seconds.abs() <= SKEW_SECONDS_MAX { Ok(shown) } else { Err(shown) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value as Json;

    use super::*;

    /// Returns the texts of a list, or one empty text if there is no list.
    fn texts(list: &Json) -> Vec<&str> {
        let texts: Vec<&str> =
            list.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        if texts.is_empty() { vec![""] } else { texts }
    }

    #[test]
    fn checked_permissions_equal_granted_ones() {
        let mut granted = BTreeSet::new();
        for document in include_str!("../../../deploy/kubernetes/rbac.yaml").split("\n---\n") {
            let role: Json = serde_saphyr::from_str(document).expect("YAML");
            let meta = &role["metadata"];
            // Permissions of the controller alone are not checked, because plans and applies do not
            // need them.
            if meta["name"] == "fleetwright-record" || meta["name"] == "fleetwright-steer" {
                continue;
            }
            let namespace = meta["namespace"].as_str().unwrap_or_default();
            for rule in role["rules"].as_array().into_iter().flatten() {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for name in texts(&rule["resourceNames"]) {
                            for verb in texts(&rule["verbs"]) {
                                let all = [namespace, group, resource, name, verb];
                                granted.insert(all.map(str::to_owned));
                            }
                        }
                    }
                }
            }
        }
        let checked = REQUIRED_PERMISSIONS.iter().chain(&POOL_PERMISSIONS);
        let requested = checked.flat_map(|permission| {
            let Permission { namespace, group, resource, name, verbs } = *permission;
            verbs
                .iter()
                .map(move |verb| [namespace, group, resource, name, *verb].map(str::to_owned))
        });
        assert_eq!(requested.collect::<BTreeSet<_>>(), granted);
    }

    #[test]
    fn clock_skew_is_limited() {
        for (seconds, holds) in [(0, true), (-60, true), (61, false), (-3600, false)] {
            assert_eq!(check_skew(seconds).is_ok(), holds, "{seconds}");
        }
    }

    #[test]
    fn unused_nominations_need_no_support() {
        let obstacle = |is_forbidden| {
            Ok(Some(SteeringObstacle { reason: "the reason".to_owned(), is_forbidden }))
        };
        let unread = || PortError {
            verb: "read version".to_owned(),
            reason: "timeout".to_owned(),
            effect: CallEffect::NotApplied,
        };
        for nominates in [None, Some(true)] {
            assert!(nomination_support(Ok(None), nominates).is_ok());
            assert!(nomination_support(obstacle(true), nominates).is_err());
            assert!(nomination_support(Err(unread()), nominates).is_err());
        }
        assert!(nomination_support(obstacle(true), Some(false)).is_ok());
        assert_eq!(
            nomination_support(obstacle(false), None),
            Ok("not used: the reason".to_owned())
        );
        assert!(nomination_support(obstacle(false), Some(true)).is_err());
    }
}
