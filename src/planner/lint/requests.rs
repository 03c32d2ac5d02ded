//! Lint for containers without resource requests.

use super::warning;
use crate::model::desired::{Desired, LimitRangeItem, LimitScope, Problem, Workload};
use crate::model::pod::Container;
use crate::model::units::ResourceName;

/// Returns warnings for workloads with containers that declare no requests, or only limits.
///
/// Only `validate` reports these warnings; plans omit them as noise.
#[must_use]
pub fn requests(desired: &Desired) -> Vec<Problem> {
    desired.workloads.values().flat_map(|workload| check_workload(workload, desired)).collect()
}

fn check_workload(workload: &Workload, desired: &Desired) -> Vec<Problem> {
    let spec = &workload.template.spec;
    if spec.resources.is_some() {
        return Vec::new();
    }
    let ranges = desired.limit_ranges.get(&workload.id.namespace);
    let defaulted = |name: &str| {
        let gives = |item: &LimitRangeItem| {
            item.scope == LimitScope::Container
                && item.default_request.contains_key(&ResourceName::from(name))
        };
        ranges.is_some_and(|items| items.iter().any(gives))
    };
    let object = format!("{} {}", workload.id.kind, workload.id);
    let mut found = Vec::new();
    let (mut nothing, mut limited) = (Vec::new(), Vec::new());
    for name in ["cpu", "memory"] {
        let key = ResourceName::from(name);
        let open = |container: &&Container| !container.resources.requests.contains_key(&key);
        for container in spec.containers.iter().filter(open) {
            if container.resources.limits.contains_key(&key) {
                limited.push(format!("{name} of {}", container.name));
            } else if !defaulted(name) {
                nothing.push(format!("{name} for {}", container.name));
            }
        }
    }
    if !nothing.is_empty() {
        let message = format!("requests no {}", nothing.join(", no "));
        let hint = "state its requests: the scheduler counts a missing request as zero";
        found.push(warning(&workload.origin, &object, message, hint));
    }
    if !limited.is_empty() {
        let message = format!("limits {} without a request: the limit counts", limited.join(", "));
        let hint = "state the request as well, if it needs less than its limit";
        found.push(warning(&workload.origin, &object, message, hint));
    }
    found
}
