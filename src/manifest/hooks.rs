//! Hooks of Argo CD and Helm: objects that are applied before or after a sync. Jobs and pods end
//! then; other objects stay until the next sync.
//!
//! Sources: Argo CD, "Resource Hooks" and "Helm" (the annotation of Argo CD takes precedence, and
//! Helm's hooks map to phases of a sync); Helm, "Chart Hooks".

use std::collections::BTreeMap;

use super::manifest_text::ManifestText;
use super::rendered_origins::{RenderedOrigins, annotation};
use super::yaml::YamlNode;
use crate::model::desired::{Hook, HookPhase};

const ARGO_HOOK: &str = "argocd.argoproj.io/hook";
const ARGO_WAVE: &str = "argocd.argoproj.io/sync-wave";
const HELM_HOOK: &str = "helm.sh/hook";
const HELM_WEIGHT: &str = "helm.sh/hook-weight";
const ARGO_DELETION: &str = "argocd.argoproj.io/hook-delete-policy";
const HELM_DELETION: &str = "helm.sh/hook-delete-policy";

/// Returns whether an object that is neither a Job nor a pod is absent after a sync: no sync applies
/// it, or the sync deletes it.
///
/// Argo CD reads the annotations of Helm as well. Flux does not read those of Argo CD, and only Helm
/// reads its own there.
pub(super) fn does_not_stay(manifest: ManifestText<'_>, root: &YamlNode<'_>) -> bool {
    if matches!(root.get("kind").and_then(YamlNode::text), Some("Job" | "Pod")) {
        return false;
    }
    let by = manifest.delivered_by.map_or("", |by| by.object.as_str());
    let is_of_chart = manifest.origins.is_some_and(RenderedOrigins::is_of_chart);
    let is_policy = |key: &str, name: &str| {
        annotation(root, key).is_some_and(|all| all.split(',').any(|one| one.trim() == name))
    };
    if let Some(types) = annotation(root, ARGO_HOOK).filter(|_| is_read_by_argo(by)) {
        let phase = first_phase(types, argo_phase);
        return phase == Some(HookPhase::Never) || is_policy(ARGO_DELETION, "HookSucceeded");
    }
    let types = annotation(root, HELM_HOOK).filter(|_| is_read_by_helm(by, is_of_chart));
    let Some(types) = types else { return false };
    let phase = first_phase(types, |name| Some(helm_phase(name)));
    phase == Some(HookPhase::Never) || is_policy(HELM_DELETION, "hook-succeeded")
}

/// Returns whether the object `by` delivers in a way that reads hook annotations of Argo CD.
fn is_read_by_argo(by: &str) -> bool {
    !by.starts_with("Kustomization ") && !by.starts_with("HelmRelease ")
}

/// Returns whether the object `by` delivers in a way that reads hook annotations of Helm.
fn is_read_by_helm(by: &str, is_of_chart: bool) -> bool {
    is_of_chart || by.starts_with("Application")
}

/// Returns the hook that annotations declare. A hook of the phase `Sync` runs with all other
/// objects, so it is none.
pub(super) fn hook(
    annotations: &BTreeMap<String, String>,
    name: &str,
    delivered_by: &str,
    is_of_chart: bool,
) -> Option<Hook> {
    let number = |key: &str| annotations.get(key).and_then(|text| text.trim().parse().ok());
    let helm = annotations.get(HELM_HOOK).filter(|_| is_read_by_helm(delivered_by, is_of_chart));
    let argo = annotations.get(ARGO_HOOK).filter(|_| is_read_by_argo(delivered_by));
    let delivered_by = delivered_by.to_owned();
    if let Some(types) = argo {
        let phase = first_phase(types, argo_phase)?;
        let order = number(ARGO_WAVE).unwrap_or(0);
        // Hooks of one wave run at the same time.
        return Some(Hook { delivered_by, phase, order, name: String::new() });
    }
    let phase = first_phase(helm?, |name| Some(helm_phase(name)))?;
    // Helm waits for each hook, also among those of one weight.
    Some(Hook {
        delivered_by,
        phase,
        order: number(HELM_WEIGHT).unwrap_or(0),
        name: name.to_owned(),
    })
}

/// Returns the first phase of a comma-separated list; `None` if one of them is that of a sync.
fn first_phase(types: &str, phase: fn(&str) -> Option<HookPhase>) -> Option<HookPhase> {
    let phases: Option<Vec<HookPhase>> = types.split(',').map(|name| phase(name.trim())).collect();
    phases?.into_iter().min()
}

fn argo_phase(name: &str) -> Option<HookPhase> {
    Some(match name {
        "PreSync" => HookPhase::Before,
        "PostSync" => HookPhase::After,
        "Sync" => return None,
        _ => HookPhase::Never,
    })
}

fn helm_phase(name: &str) -> HookPhase {
    match name {
        "pre-install" | "pre-upgrade" => HookPhase::Before,
        "post-install" | "post-upgrade" => HookPhase::After,
        _ => HookPhase::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_name_the_phase_of_a_hook() {
        let phase = |key: &str, types: &str| {
            let annotations = [(key.to_owned(), types.to_owned())].into();
            hook(&annotations, "migrate", "Application argocd/shop", false).map(|hook| hook.phase)
        };
        for (key, types, expected) in [
            (ARGO_HOOK, "PreSync", Some(HookPhase::Before)),
            (ARGO_HOOK, "PostSync", Some(HookPhase::After)),
            (ARGO_HOOK, "SyncFail", Some(HookPhase::Never)),
            (ARGO_HOOK, "Skip", Some(HookPhase::Never)),
            (ARGO_HOOK, "SyncFail, PostSync", Some(HookPhase::After)),
            (ARGO_HOOK, "Sync", None),
            (HELM_HOOK, "pre-install,pre-upgrade", Some(HookPhase::Before)),
            (HELM_HOOK, "post-upgrade", Some(HookPhase::After)),
            (HELM_HOOK, "test", Some(HookPhase::Never)),
            (HELM_HOOK, "pre-delete", Some(HookPhase::Never)),
            ("app", "PreSync", None),
        ] {
            assert_eq!(phase(key, types), expected, "{key}: {types}");
        }
        let both = [(ARGO_HOOK, "SyncFail"), (HELM_HOOK, "pre-install")];
        let both = both.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (by, is_of_chart, expected) in [
            ("web", false, Some(HookPhase::Never)),
            ("Application argocd/shop", false, Some(HookPhase::Never)),
            ("HelmRelease web/shop", true, Some(HookPhase::Before)),
            ("Kustomization flux-system/apps", false, None),
        ] {
            let phase = hook(&both, "x", by, is_of_chart).map(|hook| hook.phase);
            assert_eq!(phase, expected, "{by}");
        }
    }
}
