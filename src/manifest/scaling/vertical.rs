//! `VerticalPodAutoscaler`.

use std::collections::BTreeMap;

use super::super::amounts::amounts;
use super::super::collect::Collected;
use super::super::decode::{Field, Map};
use super::super::meta::Meta;
use super::super::model::Severity;
use super::{ContainerPolicy, UpdateMode, VerticalScaler, target};

const MODES: [(&str, UpdateMode); 6] = [
    ("Off", UpdateMode::Off),
    ("Initial", UpdateMode::Initial),
    ("Recreate", UpdateMode::Recreate),
    ("Auto", UpdateMode::Recreate),
    ("InPlaceOrRecreate", UpdateMode::InPlaceOrRecreate),
    ("InPlace", UpdateMode::InPlace),
];

/// Reads a `VerticalPodAutoscaler`.
pub(in super::super) fn vertical(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let Some(spec) = root.need("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let target = spec.need("targetRef").and_then(|field| target(&field, None));
    let mode = spec.get("updatePolicy").map_or(Some(UpdateMode::Recreate), |field| {
        let map = field.map()?;
        map.ignore(&["minReplicas", "evictionRequirements", "evictAfterOOMSeconds"]);
        let mode = map.get("updateMode");
        let mode = mode.map_or(Some(UpdateMode::Recreate), |field| field.choice(&MODES));
        map.finish_exact();
        mode
    });
    let policies = spec.get("resourcePolicy").map(|field| policies(&field)).unwrap_or_default();
    spec.ignore(&["recommenders", "startupBoost"]);
    spec.finish_exact();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let (Some(target), Some(mode)) = (target, mode) else { return };
    let object = root.field.scope.object.clone();
    let Meta { name, namespace, origin, .. } = meta;
    let vertical = VerticalScaler { object, origin, namespace, name, target, mode, policies };
    into.vertical(vertical, root);
}

fn policies(field: &Field<'_>) -> BTreeMap<String, ContainerPolicy> {
    let mut policies = BTreeMap::new();
    let Some(map) = field.map() else { return policies };
    let Some(listed) = map.get("containerPolicies") else { return policies };
    for item in listed.items() {
        let Some(map) = item.map() else { continue };
        let name = map.need("containerName").and_then(|field| Some(field.filled()?.into_owned()));
        let policy = policy(&map);
        map.finish_exact();
        if let Some(name) = name {
            policies.insert(name, policy);
        }
    }
    map.finish_exact();
    policies
}

fn policy(map: &Map<'_>) -> ContainerPolicy {
    let acts = map.get("mode").and_then(|f| f.choice(&[("Auto", true), ("Off", false)]));
    let acts = acts.unwrap_or(true);
    let read = |key| map.get(key).map(|field| amounts(&field)).unwrap_or_default();
    let controlled = map.get("controlledResources").map(|field| field.texts());
    let controls = |name: &str| {
        controlled.as_ref().is_none_or(|listed| listed.iter().any(|found| found == name))
    };
    let values = [("RequestsAndLimits", true), ("RequestsOnly", false)];
    let limits = map.get("controlledValues").and_then(|field| field.choice(&values));
    map.ignore(&["startupBoost", "oomBumpUpRatio", "oomMinBumpUp"]);
    ContainerPolicy {
        min: read("minAllowed"),
        max: read("maxAllowed"),
        controls_cpu: acts && controls("cpu"),
        controls_memory: acts && controls("memory"),
        controls_limits: limits.unwrap_or(true),
    }
}
