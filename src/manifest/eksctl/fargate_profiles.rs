//! Fargate profiles, as eksctl and the ACK controller write them.

use std::collections::BTreeMap;

use super::super::collector::{Collector, Definition};
use super::super::decode::{Field, FieldMap, shorten};
use super::super::object_meta::ObjectMeta;
use crate::model::fargate::{FargateProfile, ProfileSelector, SELECTOR_LABELS_MAX, SELECTORS_MAX};

/// Prefix of profile names that EKS reserves.
const RESERVED: &str = "eks-";

/// Reads an item of `fargateProfiles`.
pub(super) fn profile(field: &Field<'_>, into: &mut Collector) {
    let Some(map) = field.map() else { return };
    let name = map.required("name").and_then(|name| checked_name(&name));
    let selectors = map.required("selectors").map(|field| selectors(&field)).unwrap_or_default();
    map.ignore(&["podExecutionRoleARN", "status", "subnets", "tags"]);
    map.finish_with_typo_check();
    if let Some(name) = name {
        add(name, field, selectors, into);
    }
}

/// Reads a `FargateProfile` of the ACK controller.
pub(in super::super) fn ack_profile(meta: &ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let Some(spec) = root.required("spec") else { return };
    let Some(map) = spec.map() else { return };
    let cluster = map.get("clusterName").and_then(|field| field.non_empty_text());
    if let Some(other) = cluster.as_deref().filter(|name| !into.accepts_cluster(name)) {
        return into.skip(meta.origin.clone(), format!("cluster {}", shorten(other)));
    }
    let name = map.required("name").and_then(|name| checked_name(&name));
    let selectors = map.required("selectors").map(|field| selectors(&field)).unwrap_or_default();
    map.ignore(&[
        "clientRequestToken",
        "clusterRef",
        "podExecutionRoleARN",
        "podExecutionRoleRef",
        "subnetRefs",
        "subnets",
        "tags",
    ]);
    map.finish_with_typo_check();
    if let Some(name) = name {
        add(name, &root.field, selectors, into);
    }
}

fn checked_name(field: &Field<'_>) -> Option<String> {
    let name = field.non_empty_text()?;
    if name.starts_with(RESERVED) {
        field.error(
            format_args!(
                "is `{}`; names that begin with {RESERVED} are reserved by EKS",
                shorten(&name)
            ),
            "give the profile another name".to_owned(),
        );
        return None;
    }
    Some(name.into_owned())
}

fn add(name: String, field: &Field<'_>, selectors: Vec<ProfileSelector>, into: &mut Collector) {
    let profile = FargateProfile { name: name.clone(), origin: Some(field.origin()), selectors };
    let named = Definition {
        kind: "FargateProfile",
        name: name.clone(),
        scope: field.scope,
        origin: field.origin(),
    };
    let same = |a: &FargateProfile, b: &FargateProfile| a.selectors == b.selectors;
    into.insert(named, |all| &mut all.desired.fargate_profiles, name, profile, same);
}

fn selectors(field: &Field<'_>) -> Vec<ProfileSelector> {
    let selectors: Vec<ProfileSelector> =
        field.items().filter_map(|item| selector(&item)).collect();
    let listed = field.items().count();
    if listed == 0 {
        field.error("lists no selector", "name the namespace of the pods to take".to_owned());
    } else if listed > SELECTORS_MAX {
        field.error(
            format_args!("lists {listed} selectors; a profile has at most {SELECTORS_MAX}"),
            "create another profile".to_owned(),
        );
    }
    selectors
}

fn selector(field: &Field<'_>) -> Option<ProfileSelector> {
    let map = field.map()?;
    let namespace = map.required("namespace").and_then(|field| field.non_empty_text());
    let labels = map.get("labels").map(|field| labels(&field)).unwrap_or_default();
    map.finish_with_typo_check();
    Some(ProfileSelector { namespace: namespace?.into_owned(), labels })
}

/// Reads the labels of a selector. They are patterns, so the syntax rules for labels do not apply.
fn labels(field: &Field<'_>) -> BTreeMap<String, String> {
    let Some(map) = field.map() else { return BTreeMap::new() };
    let read = |(key, value): (&str, Field<'_>)| Some((key.to_owned(), value.text()?.into_owned()));
    let labels: BTreeMap<String, String> = map.entries().filter_map(read).collect();
    if labels.len() > SELECTOR_LABELS_MAX {
        field.error(
            format_args!(
                "lists {} labels; a selector has at most {SELECTOR_LABELS_MAX}",
                labels.len()
            ),
            None,
        );
    }
    labels
}
