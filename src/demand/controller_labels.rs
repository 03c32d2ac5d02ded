//! Labels that controllers add to the pods of a workload, so that rules between pods may name them.
//!
//! Most of their values are made when the pods are created. The name of the workload stands for
//! them. That is exact for rules that ask for the presence of a label, and for the name of a Job. It
//! is exact for label keys that a rule compares, unless each pod has a value of its own.

use std::collections::BTreeSet;

use super::PodShape;
use crate::model::desired::Desired;
use crate::model::ids::{LabelKey, LabelValue, WorkloadId, WorkloadKind};
use crate::model::observed::Observed;
use crate::model::pod::{PodAffinity, PodAffinityTerm, PodSpec, Selector, TopologySpread};

/// Label keys that a rule between pods or a disruption budget names.
pub(super) struct NamedKeys<'a>(BTreeSet<&'a LabelKey>);

impl<'a> NamedKeys<'a> {
    pub(super) fn new(desired: &'a Desired, observed: &'a Observed) -> Self {
        let declared = desired.workloads.values().chain(&desired.assumed);
        let declared = declared.map(|workload| &workload.template.spec);
        let running = observed.templates.values().map(|template| &template.spec);
        let mut named = Self(BTreeSet::new());
        for spec in declared.chain(running) {
            named.add_rules(spec);
        }
        for budget in &desired.disruption_budgets {
            named.add_selector(budget.selector.as_ref());
        }
        named
    }

    fn add_rules(&mut self, spec: &'a PodSpec) {
        for affinity in [&spec.pod_affinity, &spec.pod_anti_affinity] {
            let PodAffinity { required, preferred } = affinity;
            for term in required.iter().chain(preferred.iter().map(|(_, term)| term)) {
                let PodAffinityTerm { selector, match_label_keys, mismatch_label_keys, .. } = term;
                self.add_selector(selector.as_ref());
                self.0.extend(match_label_keys.iter().chain(mismatch_label_keys));
            }
        }
        for TopologySpread { selector, match_label_keys, .. } in &spec.topology_spread {
            self.add_selector(selector.as_ref());
            self.0.extend(match_label_keys);
        }
    }

    fn add_selector(&mut self, selector: Option<&'a Selector>) {
        let expressions = selector.into_iter().flat_map(|Selector(expressions)| expressions);
        self.0.extend(expressions.map(|expression| &expression.key));
    }

    /// Returns the shape with the labels that the controller of `workload` adds. A label that no rule
    /// names is left out, because it would only tell equal pods apart.
    pub(super) fn with_controller_labels(
        &self,
        shape: PodShape,
        workload: &WorkloadId,
    ) -> PodShape {
        let mut shape = shape;
        // Each run has a name of its own, which no rule can state.
        let is_run = matches!(workload.kind, WorkloadKind::CronJob | WorkloadKind::ScaledJob);
        let value = format!("{}{}", workload.name, if is_run { "-run" } else { "" });
        for key in controller_labels(workload.kind) {
            let key = LabelKey::from(*key);
            if self.0.contains(&key) && !shape.labels.contains_key(&key) {
                shape.labels.extend([(key, LabelValue::from(value.as_str()))]);
            }
        }
        shape
    }
}

/// Returns the labels that the controller of a kind adds to each of its pods.
/// Sources: `pkg/controller/deployment`, `pkg/controller/statefulset/stateful_set_utils.go`,
/// `pkg/controller/daemon/util` and `pkg/registry/batch/job/strategy.go` of Kubernetes.
fn controller_labels(kind: WorkloadKind) -> &'static [&'static str] {
    match kind {
        WorkloadKind::Deployment => &["pod-template-hash"],
        WorkloadKind::Rollout => &["rollouts-pod-template-hash"],
        WorkloadKind::StatefulSet => &[
            "controller-revision-hash",
            "statefulset.kubernetes.io/pod-name",
            "apps.kubernetes.io/pod-index",
        ],
        WorkloadKind::DaemonSet => &["controller-revision-hash", "pod-template-generation"],
        WorkloadKind::Job | WorkloadKind::CronJob | WorkloadKind::ScaledJob => &[
            "job-name",
            "batch.kubernetes.io/job-name",
            "controller-uid",
            "batch.kubernetes.io/controller-uid",
        ],
        WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::Pod
        | WorkloadKind::CapacityBuffer => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Demand, DemandMode};
    use super::*;
    use crate::manifest::read;
    use crate::model::desired::{Fleet, Tree, TreeFile};
    use crate::model::observed::ClusterIdentity;

    /// Returns the labels of the planned pods of a workload with an anti-affinity `term`.
    fn labels(kind: &str, spec: &str, term: &str) -> Vec<String> {
        let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        let text = format!(
            "{{apiVersion: {version}, kind: {kind}, metadata: {{name: db}}, spec: {{{spec}\
             template: {{metadata: {{labels: {{app: db}}}}, spec: {{containers: [{{name: c}}], \
             affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
             [{{topologyKey: kubernetes.io/hostname, {term}}}]}}}}}}}}}}}}"
        );
        let file = TreeFile { path: "a.yaml".into(), content: Ok(text.as_bytes().into()) };
        let desired = read(&Tree { files: vec![file] }, &Fleet::default());
        assert_eq!(desired.problems, [], "{text}");
        let at = "2026-11-21T12:00:00Z".parse().expect("a time");
        let empty = Observed::empty(ClusterIdentity::default(), at);
        let demand = Demand::build(&desired, &empty, DemandMode::Live);
        let labels = &demand.groups[0].shape.labels;
        labels.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn named_labels_of_controllers_are_on_the_pods() {
        let exists = |key: &str| {
            format!("labelSelector: {{matchExpressions: [{{key: {key}, operator: Exists}}]}}")
        };
        let selector = "selector: {matchLabels: {app: db}}, ";
        let own = "labelSelector: {matchLabels: {app: db}}";
        let index = exists("apps.kubernetes.io/pod-index");
        for (kind, spec, term, added) in [
            ("Job", "", "labelSelector: {matchLabels: {job-name: db}}", Some("job-name=db")),
            (
                "Job",
                "",
                &*exists("batch.kubernetes.io/job-name"),
                Some("batch.kubernetes.io/job-name=db"),
            ),
            ("StatefulSet", selector, &*index, Some("apps.kubernetes.io/pod-index=db")),
            (
                "Deployment",
                selector,
                &*format!("{own}, mismatchLabelKeys: [pod-template-hash]"),
                Some("pod-template-hash=db"),
            ),
            ("Deployment", selector, &*index, None),
            ("StatefulSet", selector, own, None),
        ] {
            let mut expected = vec!["app=db".to_owned()];
            expected.extend(added.map(str::to_owned));
            expected.sort();
            assert_eq!(labels(kind, spec, term), expected, "{kind} {term}");
        }
    }
}
