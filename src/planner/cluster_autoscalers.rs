//! Warnings about Cluster Autoscaler: flags that cannot be read, and groups that they miss.

use crate::model::cluster_autoscaler::{AutoscalerFlags, ClusterAutoscaler, cluster_autoscalers};
use crate::model::desired::Desired;
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
    found.iter().flat_map(of_one).collect()
}

fn of_flags(
    flags: &AutoscalerFlags,
    desired: &Desired,
    observed: &Observed,
    warn: &impl Fn(String, &str) -> Diagnostic,
) -> Vec<Diagnostic> {
    let mut all = Vec::new();
    for flag in &flags.unread {
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
    let live = observed.groups.values().map(|group| &group.tags);
    let declared = desired.node_groups.values().map(|group| &group.tags);
    let mut tags = live.chain(declared);
    let selects = |tags: &_| flags.bounds(None, tags, (0, 0)).is_some();
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
    let unpredicted = flags.expanders().find(|name| !PREDICTED_EXPANDERS.contains(name));
    if let Some(expander) = unpredicted {
        all.push(warn(
            format!(
                "its expander {expander} is not predicted: the plan names one of the groups \
                     that it may choose"
            ),
            "read the other groups in the plan",
        ));
    }
    all
}
