//! Running pods of sources that were not read, by the marks that their delivery tools leave.

use crate::model::ids::{LabelKey, LabelValue};
use crate::model::observed::{Observed, Pod};
use crate::model::pod::PodTemplate;

/// Labels with the name of the release or application that delivered a pod.
const NAME_LABELS: [&str; 4] = [
    "app.kubernetes.io/instance",
    "argocd.argoproj.io/instance",
    "helm.toolkit.fluxcd.io/name",
    "kustomize.toolkit.fluxcd.io/name",
];

/// Returns the number of active pods that carry the marks of `object`, such as `HelmRelease
/// web/shop`: a label of its delivery tool with its name, or an owner of that name.
pub(super) fn running_pods(object: &str, observed: &Observed) -> u32 {
    let Some((kind, name)) = object.split_once(' ') else { return 0 };
    let namespace = name.split_once('/').map(|(namespace, _)| namespace);
    // Charts and applications have one name; a path ends with the usual name of its release.
    let name = name.rsplit('/').next().unwrap_or(name);
    let is_marked = |pod: &Pod| {
        let owner = pod.workload();
        let is_owner = owner.kind.to_string() == kind
            && Some(owner.namespace.as_str()) == namespace
            && *owner.name == *name;
        let template = observed.templates.get(&*pod.template);
        is_owner || template.is_some_and(|template| has_label(template, name))
    };
    let pods = observed.pods.iter().filter(|pod| pod.is_active() && !pod.mirror);
    u32::try_from(pods.filter(|pod| is_marked(pod)).count()).unwrap_or(u32::MAX)
}

fn has_label(template: &PodTemplate, name: &str) -> bool {
    NAME_LABELS.iter().any(|label| {
        let value = template.labels.get(&LabelKey::from(*label)).map(LabelValue::as_str);
        value == Some(name)
    })
}
