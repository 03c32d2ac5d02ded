//! Warnings about Cluster Autoscaler: flags that cannot be read, and groups that they miss.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::model::cluster_autoscaler::{AutoscalerFlags, ClusterAutoscaler, cluster_autoscalers};
use crate::model::competing_autoscaler::unproven_resizers;
use crate::model::desired::{Desired, NodeGroup};
use crate::model::expander_priorities::{GroupPriorities, PRIORITY_EXPANDER};
use crate::model::observed::Observed;
use crate::plan::wire::Diagnostic;

/// Expanders whose choice follows from sizes alone, and the one that draws lots.
const PREDICTED_EXPANDERS: [&str; 4] = ["least-waste", "most-pods", "least-nodes", "random"];

/// Returns the warnings about each Cluster Autoscaler, if there are node groups that it may resize.
pub(super) fn warnings(desired: &Desired, observed: &Observed) -> Vec<Diagnostic> {
    if desired.node_groups.is_empty() && observed.groups.is_empty() {
        return Vec::new();
    }
    let found = cluster_autoscalers(desired, observed);
    let of_one = |one: &ClusterAutoscaler<'_>| {
        let origin = desired.workloads.get(one.workload).map(|workload| workload.origin.clone());
        let object = format!("{} {}", one.workload.kind, one.workload);
        let warn = move |message: String, hint: &str| {
            Diagnostic::warning(object.clone(), message).origin(origin.clone()).hint(hint)
        };
        match one.flags {
            None => vec![warn(
                "is Cluster Autoscaler by its name, and no container of it is known: no pod counts \
                 as served by it"
                    .to_owned(),
                "use the image or the executable cluster-autoscaler",
            )],
            Some(flags) => of_flags(flags, desired, observed, &warn),
        }
    };
    found.iter().flat_map(of_one).chain(unproven(desired, observed)).collect()
}

/// Returns the warning about Deployments that are like Cluster Autoscaler, but do not count.
fn unproven(desired: &Desired, observed: &Observed) -> Option<Diagnostic> {
    if !desired.node_groups.values().any(|group| group.manage) {
        return None;
    }
    let found = unproven_resizers(observed, desired);
    let first = found.first()?;
    let more = match found.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let message = format!(
        "has the name, label or image of Cluster Autoscaler{more}, but none of its pods is on a \
         node: managed node groups are resized"
    );
    let hint = "if it resizes node groups, list its namespace in `spec.autoscalers.namespaces`";
    Some(Diagnostic::warning(format!("Deployment {first}"), message).hint(hint))
}

fn of_flags(
    flags: &AutoscalerFlags,
    desired: &Desired,
    observed: &Observed,
    warn: &impl Fn(String, &str) -> Diagnostic,
) -> Vec<Diagnostic> {
    let mut all = Vec::new();
    let expanders: Vec<&str> = flags.expanders().collect();
    let has_priorities = expanders.contains(&PRIORITY_EXPANDER);
    // The namespace is that of the priorities alone.
    for flag in flags.unread.iter().filter(|flag| *flag != "namespace" || has_priorities) {
        all.push(warn(
            format!("its flag --{flag} cannot be read, and nothing is assumed in its place"),
            "write its value into the manifest, without variables of the container",
        ));
    }
    for flag in &flags.cluster_limits {
        all.push(warn(
            format!(
                "its flag --{flag} limits the whole cluster, which is not planned with: no pod counts \
                 as served by it"
            ),
            "limit its groups by their maximum sizes instead",
        ));
    }
    if flags.groups.is_empty() && flags.discovery.is_empty() && flags.unread.is_empty() {
        all.push(warn(
            "names no node groups: no pod counts as served by it".to_owned(),
            "set --nodes or --node-group-auto-discovery",
        ));
    }
    let live = observed.groups.values().map(|group| Cow::Borrowed(&group.tags));
    let declared = desired.node_groups.values().map(NodeGroup::tags_at_creation);
    let mut tags = live.chain(declared);
    let selects =
        |tags: Cow<'_, BTreeMap<String, String>>| flags.bounds(None, &tags, (0, 0)).is_some();
    if flags.cluster_limits.is_empty() && !flags.discovery.is_empty() && !tags.any(selects) {
        all.push(warn(
            "its flag --node-group-auto-discovery selects no group: none has all of its tags"
                .to_owned(),
            "write the tags of the Auto Scaling groups, with the name of the cluster",
        ));
    }
    let is_missing = |name: &&_| !observed.groups.contains_key(*name);
    let missing = flags.groups.keys().filter(is_missing).filter(|_| !observed.groups.is_empty());
    for name in missing {
        all.push(warn(
            format!("its flag --nodes names {name}, which is no Auto Scaling group of the cluster"),
            "write the name of the Auto Scaling group, or remove the flag",
        ));
    }
    let is_predicted =
        |name: &str| PREDICTED_EXPANDERS.contains(&name) || name == PRIORITY_EXPANDER;
    let other = expanders.iter().find(|name| !is_predicted(name));
    let unpredicted = other.map(|name| (*name, String::new()));
    let unread = unread_priorities(flags, desired, observed).filter(|_| has_priorities);
    let unread = unread.map(|why| (PRIORITY_EXPANDER, format!(", because {why}")));
    for (expander, why) in unread.into_iter().chain(unpredicted) {
        all.push(warn(
            format!(
                "its expander {expander} is not predicted{why}: the plan names one of the groups \
                 that it may choose"
            ),
            "read the other groups in the plan",
        ));
    }
    all
}

/// Returns the reason why the priorities of the expander are not known.
fn unread_priorities(
    flags: &AutoscalerFlags,
    desired: &Desired,
    observed: &Observed,
) -> Option<String> {
    match GroupPriorities::find(flags, desired, observed) {
        GroupPriorities::Unknown(why) => Some(why),
        GroupPriorities::Levels(_) if observed.groups.is_empty() => {
            Some("its regular expressions match names of groups that do not exist yet".to_owned())
        }
        GroupPriorities::Levels(_) | GroupPriorities::Absent => None,
    }
}
