//! `VerticalPodAutoscaler`.

use std::collections::BTreeMap;

use super::super::collector::Collector;
use super::super::decode::{Field, FieldMap};
use super::super::object_meta::ObjectMeta;
use super::super::resource_list::resource_list;
use super::target;
use crate::model::desired::{ContainerPolicy, Severity, UpdateMode, VerticalScaler};

const MODES: [(&str, UpdateMode); 6] = [
    ("Off", UpdateMode::Off),
    ("Initial", UpdateMode::Initial),
    ("Recreate", UpdateMode::Recreate),
    ("Auto", UpdateMode::Recreate),
    ("InPlaceOrRecreate", UpdateMode::InPlaceOrRecreate),
    ("InPlace", UpdateMode::InPlace),
];

/// Default of the updater for `minReplicas` (`--min-replicas`).
const MIN_REPLICAS: u32 = 2;

/// Reads a `VerticalPodAutoscaler`.
pub(in super::super) fn vertical(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(spec) = spec.map() else { return };
    let target = spec.required("targetRef").and_then(|field| target(&field, None));
    let defaults = Some((UpdateMode::Recreate, MIN_REPLICAS));
    let policy = spec.get("updatePolicy").map_or(defaults, |field| {
        let map = field.map()?;
        map.ignore(&["evictionRequirements", "evictAfterOOMSeconds"]);
        let mode = map.get("updateMode");
        let mode = mode.map_or(Some(UpdateMode::Recreate), |field| field.choice(&MODES));
        let least = map.get("minReplicas").map_or(Some(MIN_REPLICAS), |field| field.int(1));
        map.finish_with_typo_check();
        Some((mode?, least?))
    });
    let policies = spec.get("resourcePolicy").map(|field| policies(&field)).unwrap_or_default();
    spec.ignore(&["recommenders", "startupBoost"]);
    spec.finish_with_typo_check();
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    let (Some(target), Some((mode, min_replicas))) = (target, policy) else { return };
    let object = root.field.scope.object.clone();
    let ObjectMeta { name, namespace, origin, .. } = meta;
    let vertical =
        VerticalScaler { object, origin, namespace, name, target, mode, min_replicas, policies };
    into.add_vertical_scaler(vertical, root);
}

fn policies(field: &Field<'_>) -> BTreeMap<String, ContainerPolicy> {
    let mut policies = BTreeMap::new();
    let Some(map) = field.map() else { return policies };
    let Some(listed) = map.get("containerPolicies") else { return policies };
    for item in listed.items() {
        let Some(map) = item.map() else { continue };
        let name = map
            .required("containerName")
            .and_then(|field| Some(field.non_empty_text()?.into_owned()));
        let policy = policy(&map);
        map.finish_with_typo_check();
        if let Some(name) = name {
            policies.insert(name, policy);
        }
    }
    map.finish_with_typo_check();
    policies
}

fn policy(map: &FieldMap<'_>) -> ContainerPolicy {
    let acts = map.get("mode").and_then(|f| f.choice(&[("Auto", true), ("Off", false)]));
    let acts = acts.unwrap_or(true);
    let read = |key| map.get(key).map(|field| resource_list(&field)).unwrap_or_default();
    let controlled = map.get("controlledResources").map(|field| field.text_list());
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
