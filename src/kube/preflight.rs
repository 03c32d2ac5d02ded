//! Whether a cluster is ready: each right that a plan or an apply needs is asked about by itself, and
//! the clocks are compared.

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
use crate::port::{Fate, PortError, Requirement};

/// Largest difference of the clocks in seconds. Signatures of AWS hold for five minutes.
const SKEW_MAX: i64 = 60;

const ROLES: &str = "apply deploy/kubernetes/rbac.yaml, and bind whoever plans or applies to it";

/// A right: namespace (of one), group, resource with subresource, name (of one), and verbs.
type Right = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str]);

/// Every right that `deploy/kubernetes/rbac.yaml` grants.
const RIGHTS: [Right; 22] = [
    ("", "", "nodes", "", &["list", "get", "patch", "delete"]),
    ("", "", "pods", "", &["list"]),
    ("", "", "pods/eviction", "", &["create"]),
    ("", "", "persistentvolumeclaims", "", &["list"]),
    ("", "", "persistentvolumes", "", &["list"]),
    ("", "", "replicationcontrollers", "", &["list"]),
    ("", "", "namespaces", "kube-system", &["get"]),
    ("", "apps", "daemonsets", "", &["list"]),
    ("", "apps", "deployments", "", &["list"]),
    ("", "apps", "replicasets", "", &["list"]),
    ("", "apps", "statefulsets", "", &["list"]),
    ("", "batch", "cronjobs", "", &["list"]),
    ("", "batch", "jobs", "", &["list"]),
    ("", "autoscaling", "horizontalpodautoscalers", "", &["list"]),
    ("", "autoscaling.k8s.io", "verticalpodautoscalers", "", &["list"]),
    ("", "storage.k8s.io", "csinodes", "", &["list"]),
    ("", "storage.k8s.io", "storageclasses", "", &["list"]),
    ("", "storage.k8s.io", "volumeattachments", "", &["list"]),
    ("kube-system", "coordination.k8s.io", "leases", "", &["create"]),
    ("kube-system", "coordination.k8s.io", "leases", "fleetwright-apply", &["get", "update"]),
    ("kube-system", "", "configmaps", "aws-auth", &["get"]),
    ("default", "", "events", "", &["create"]),
];

impl Kubernetes {
    /// Looks at everything that plans and applies need of the cluster; `now` is this machine's clock.
    pub async fn preflight(&self, now: impl Fn() -> Timestamp) -> Vec<Requirement> {
        let reached = self.uid().await.map(|uid| format!("kube-system has the UID {uid}"));
        let reached = reached.map_err(|error| error.to_string());
        let remedy = "run `aws eks update-kubeconfig --name CLUSTER`";
        let mut requirements = vec![Requirement::of("Kubernetes API", reached, remedy)];
        let version = self.client.apiserver_version().await;
        let version = version.map(|info| format!("version {}.{}", info.major, info.minor));
        let version = version.map_err(|e| port_error("read version", &e).to_string());
        requirements.push(Requirement::of("Kubernetes version", version, remedy));
        let skew = self.skew(now).await.map_err(|error| error.to_string()).and_then(judge_skew);
        requirements.push(Requirement::of("clock", skew, "set the clock of this machine by NTP"));
        let refused = self.refused().await.map_err(|error| error.to_string());
        let refused = refused.and_then(|refused| match &refused[..] {
            [] => Ok("everything that is needed".to_owned()),
            some => Err(format!("not allowed: {}", some.join(", "))),
        });
        requirements.push(Requirement::of("Kubernetes permissions", refused, ROLES));
        requirements
    }

    /// Returns whether the map `aws-auth` of the cluster lets a role in.
    ///
    /// # Errors
    /// When it cannot be read.
    pub async fn maps_role(&self, arn: &str) -> Result<bool, PortError> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let found = maps.get_opt("aws-auth").await;
        let found = found.map_err(|error| port_error("read aws-auth", &error))?;
        let roles = found.and_then(|map| map.data?.remove("mapRoles")).unwrap_or_default();
        // As a word: the ARN of one role may begin like that of another.
        let is_end = |c: char| c.is_whitespace() || ['"', '\'', ','].contains(&c);
        Ok(roles.split(is_end).any(|word| word == arn))
    }

    /// Returns how many seconds the API server's clock is ahead of ours.
    async fn skew(&self, now: impl Fn() -> Timestamp) -> Result<i64, PortError> {
        const VERB: &str = "compare clocks";
        let failed =
            |reason: String| PortError { verb: VERB.to_owned(), reason, fate: Fate::Refused };
        let request = ::kube::core::Request::new("/version").list(&ListParams::default());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let answer = self.client.send(request.map(Body::from)).await;
        let ours = now();
        let answer = answer.map_err(|error| port_error(VERB, &error))?;
        let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
        let date = date.ok_or_else(|| failed("the API server tells no time".to_owned()))?;
        let theirs = rfc2822::DateTimeParser::new().parse_timestamp(date);
        let theirs = theirs.map_err(|_| failed(format!("`{date}` is no time")))?;
        Ok(theirs.duration_since(ours).as_secs())
    }

    /// Returns the rights that are missing.
    async fn refused(&self) -> Result<Vec<String>, PortError> {
        let mut refused = Vec::new();
        for (namespace, group, resource, name, verbs) in RIGHTS {
            for verb in verbs {
                if !self.may((namespace, group, resource, name), verb).await? {
                    let group = if group.is_empty() { "" } else { &format!(".{group}") };
                    refused.push(format!("{verb} {resource}{group}"));
                }
            }
        }
        Ok(refused)
    }

    async fn may(
        &self,
        (namespace, group, resource, name): (&str, &str, &str, &str),
        verb: &str,
    ) -> Result<bool, PortError> {
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
        let answer = answer.map_err(|error| port_error("ask for permissions", &error))?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

fn judge_skew(seconds: i64) -> Result<String, String> {
    let shown = format!("the API server's is {seconds} s ahead of this machine's");
    if seconds.abs() <= SKEW_MAX { Ok(shown) } else { Err(shown) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value as Json;

    use super::*;

    /// Returns the texts of a list, and one empty text where there is none.
    fn texts(list: &Json) -> Vec<&str> {
        let texts: Vec<&str> =
            list.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        if texts.is_empty() { vec![""] } else { texts }
    }

    #[test]
    fn what_is_asked_for_is_what_the_roles_of_plans_and_applies_grant() {
        let mut granted = BTreeSet::new();
        for document in include_str!("../../deploy/kubernetes/rbac.yaml").split("\n---\n") {
            let role: Json = serde_saphyr::from_str(document).expect("YAML");
            let meta = &role["metadata"];
            // What the loop alone needs is not asked for: whoever plans or applies goes without it.
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
        let asked = RIGHTS.iter().flat_map(|(namespace, group, resource, name, verbs)| {
            verbs
                .iter()
                .map(|verb| [*namespace, *group, *resource, *name, *verb].map(str::to_owned))
        });
        assert_eq!(asked.collect::<BTreeSet<_>>(), granted);
    }

    #[test]
    fn clocks_may_differ_by_less_than_signatures_bear() {
        for (seconds, holds) in [(0, true), (-60, true), (61, false), (-3600, false)] {
            assert_eq!(judge_skew(seconds).is_ok(), holds, "{seconds}");
        }
    }
}
