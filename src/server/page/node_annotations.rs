//! Facts about nodes that the plan does not have: drains, changes in progress and blocked changes.

use std::collections::BTreeMap;

use crate::controller::{BlockedReason, InterruptionStatus, PublishedPlan, Status, labels};
use crate::model::ids::{Address, InstanceId};
use crate::render::html_fragments::{NodeAnnotation, NodeAnnotations, NodeMark, span};

/// Returns the annotations of the nodes of the current plan. A drain comes before a change in
/// progress, and that before a blocked change.
pub(super) fn node_annotations(status: &Status, current: &PublishedPlan) -> NodeAnnotations {
    let mut annotations = NodeAnnotations::new();
    for (address, blocked) in &current.blocked {
        if blocked.reason != BlockedReason::InProgress {
            let note = blocked.message.clone();
            annotations.insert(address.clone(), NodeAnnotation { mark: NodeMark::Blocked, note });
        }
    }
    for (rows, since) in status.in_progress.values() {
        let note = format!("in progress for {}", span(status.now.duration_since(*since)));
        for address in rows.iter().filter(|row| !status.finished_changes.contains(*row)) {
            let note = note.clone();
            annotations.insert(address.clone(), NodeAnnotation { mark: NodeMark::Applying, note });
        }
    }
    let instances = instances(current);
    for instance in &status.interrupted {
        if let Some(address) = instances.get(&instance.instance) {
            let note = drain(status, instance);
            annotations
                .insert((*address).clone(), NodeAnnotation { mark: NodeMark::Draining, note });
        }
    }
    annotations
}

/// Returns the addresses of the instances that exist.
fn instances(current: &PublishedPlan) -> BTreeMap<&InstanceId, &Address> {
    let rows = current.plan.resource_changes.iter();
    rows.filter_map(|row| Some((row.change.before.as_ref()?.instance_id.as_ref()?, &row.address)))
        .collect()
}

fn drain(status: &Status, instance: &InterruptionStatus) -> String {
    let since = span(status.now.duration_since(instance.since));
    let deadline = instance.deadline.map_or_else(String::new, |at| {
        format!(", terminates in {}", span(at.duration_since(status.now)))
    });
    format!("{} for {since}: {}{deadline}", labels::phase(instance.phase), instance.reason)
}
