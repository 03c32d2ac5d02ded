//! What a delivery tool leaves alone: objects that Git no longer has, and fields that it ignores.
//!
//! Sources: Argo CD, "Automated Sync Policy", "Sync Options" and "Diffing Customization"; Flux,
//! "Kustomization" (`prune`, and the annotations `prune`, `reconcile` and `ssa`); Helm, "Tell Helm
//! Not To Uninstall a Resource".

use super::super::yaml::{YamlNode, YamlValue};
use super::{GlobDialect, PathPattern, flag_at, items_at, node_at, text_at};
use crate::model::desired::LiveReplicas;

/// What the delivery object of a set leaves alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in super::super) struct SyncPolicy {
    /// An object stays in the cluster if Git no longer has it.
    pub(in super::super) retains: bool,
    /// Workloads whose replicas are not applied.
    ignored: Vec<IgnoredReplicas>,
}

/// Workloads whose replicas are not applied. An empty namespace or name matches all; group and kind
/// are patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IgnoredReplicas {
    group: PathPattern,
    kind: PathPattern,
    namespace: String,
    name: String,
    effect: LiveReplicas,
}

/// The policy of files that no object delivers.
pub(in super::super) static NO_POLICY: SyncPolicy =
    SyncPolicy { retains: false, ignored: Vec::new() };

impl SyncPolicy {
    /// Returns the policy of an `Application`.
    pub(super) fn of_application(spec: &YamlNode<'_>) -> Self {
        let automated = node_at(spec, &["syncPolicy", "automated"]);
        let prunes = automated.is_some_and(|automated| {
            flag_at(automated, &["prune"]) && text_at(automated, &["enabled"]) != Some("false")
        });
        let options = items_at(spec, &["syncPolicy", "syncOptions"]);
        let has_option = |option: &str| options.iter().any(|item| item.text() == Some(option));
        let is_respected = has_option("RespectIgnoreDifferences=true");
        let ignored = items_at(spec, &["ignoreDifferences"]).iter().filter_map(|item| {
            let text = |key| text_at(item, &[key]).unwrap_or_default();
            // Argo CD ignores a rule whose pattern it cannot read.
            let pattern = |key| PathPattern::new(text(key), GlobDialect::ArgoDirectory).ok();
            let fields = ignored_fields(item)?;
            let effect = match fields {
                IgnoredFields::Replicas if is_respected => LiveReplicas::Stay,
                // A sync applies the number of Git, but a difference of the number alone starts none.
                IgnoredFields::Replicas | IgnoredFields::Unknown => LiveReplicas::MayStay,
            };
            let [namespace, name] = ["namespace", "name"].map(|key| text(key).to_owned());
            let (group, kind) = (pattern("group")?, pattern("kind")?);
            Some(IgnoredReplicas { group, kind, namespace, name, effect })
        });
        Self { retains: !prunes || has_option("Prune=false"), ignored: ignored.collect() }
    }

    /// Returns the policy of a Flux `Kustomization`.
    pub(super) fn of_kustomization(spec: &YamlNode<'_>) -> Self {
        Self { retains: !flag_at(spec, &["prune"]), ignored: Vec::new() }
    }

    /// Returns how the live number of replicas of the workload at `root` counts; `None` if the number
    /// in Git is applied.
    pub(in super::super) fn live_replicas(
        &self,
        root: &YamlNode<'_>,
        namespace: &str,
        name: &str,
    ) -> Option<LiveReplicas> {
        let api_version = text_at(root, &["apiVersion"]).unwrap_or_default();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let kind = text_at(root, &["kind"]).unwrap_or_default();
        let is_or_any = |stated: &str, own: &str| stated.is_empty() || stated == own;
        let fits = |rule: &&IgnoredReplicas| {
            is_or_any(&rule.namespace, namespace)
                && is_or_any(&rule.name, name)
                && rule.group.matches(group)
                && rule.kind.matches(kind)
        };
        let ignored = self.ignored.iter().filter(fits).map(|rule| rule.effect);
        let once = has_mark(root, "kustomize.toolkit.fluxcd.io/ssa", "IfNotPresent");
        ignored.chain(once.then_some(LiveReplicas::Stay)).min()
    }

    /// Returns whether the object at `root` stays in the cluster if Git no longer has it.
    pub(in super::super) fn retains(&self, root: &YamlNode<'_>) -> bool {
        let options = |key| {
            let text = text_at(root, &["metadata", "annotations", key]).unwrap_or_default();
            text.split(',').any(|option| matches!(option.trim(), "Prune=false" | "Prune=confirm"))
        };
        self.retains
            || options("argocd.argoproj.io/sync-options")
            || has_mark(root, "helm.sh/resource-policy", "keep")
            || has_mark(root, "kustomize.toolkit.fluxcd.io/prune", "disabled")
    }
}

/// Returns whether Flux neither changes nor removes the object at `root`.
pub(in super::super) fn is_left_alone_by_flux(root: &YamlNode<'_>) -> bool {
    has_mark(root, "kustomize.toolkit.fluxcd.io/reconcile", "disabled")
        || has_mark(root, "kustomize.toolkit.fluxcd.io/ssa", "Ignore")
}

/// Returns whether a label or an annotation has this value, without regard to case.
fn has_mark(root: &YamlNode<'_>, key: &str, value: &str) -> bool {
    let has = |part| {
        let found = text_at(root, &["metadata", part, key]);
        found.is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    has("annotations") || has("labels")
}

/// The fields that an item of `ignoreDifferences` names.
enum IgnoredFields {
    Replicas,
    /// Those of other field managers, which may have the replicas.
    Unknown,
}

/// Returns whether an item of `ignoreDifferences` may name the replicas.
fn ignored_fields(item: &YamlNode<'_>) -> Option<IgnoredFields> {
    let names = |key, paths: &[&str]| {
        items_at(item, &[key])
            .iter()
            .any(|path| path.text().is_some_and(|path| paths.contains(&path.trim())))
    };
    let is_stated = |key| {
        node_at(item, &[key])
            .is_some_and(|node| !matches!(&node.value, YamlValue::Seq(all) if all.is_empty()))
    };
    if names("jsonPointers", &["/spec/replicas", "/spec"])
        || names("jqPathExpressions", &[".spec.replicas", ".spec"])
    {
        return Some(IgnoredFields::Replicas);
    }
    let is_other_expression = items_at(item, &["jqPathExpressions"])
        .iter()
        .any(|path| path.text().is_some_and(|path| path.contains("replicas")));
    (is_stated("managedFieldsManagers") || is_other_expression).then_some(IgnoredFields::Unknown)
}
