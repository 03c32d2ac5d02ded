//! Lint for containers without resource requests.

use std::collections::BTreeMap;

use super::warning;
use crate::model::code::Code;
use crate::model::desired::{Desired, LimitRangeItem, LimitScope, Problem, Workload};
use crate::model::pod::Container;
use crate::model::units::ResourceName;

/// Returns warnings for workloads with containers that declare no requests, or only limits.
///
/// Only `validate` reports these warnings; plans omit them as noise.
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
    let mut nothing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut limited = Vec::new();
    for name in ["cpu", "memory"] {
        let key = ResourceName::from(name);
        let open = |container: &&Container| !container.resources.requests.contains_key(&key);
        for container in spec.containers.iter().filter(open) {
            if container.resources.limits.contains_key(&key) {
                limited.push(format!("{name} of {}", container.name));
            } else if !defaulted(name) {
                nothing.entry(container.name.as_str()).or_default().push(name);
            }
        }
    }
    if !nothing.is_empty() {
        let of_container =
            |(name, missing): (&&str, &Vec<&str>)| format!("{name} ({})", missing.join(", "));
        let containers: Vec<String> = nothing.iter().map(of_container).collect();
        let noun = if containers.len() == 1 { "container" } else { "containers" };
        let message = format!("{noun} without requests: {}", containers.join(", "));
        let hint = "set requests: the pod is scheduled as if it needed none";
        found.push(warning(&workload.origin, &object, message, hint).code(Code::RequestMissing));
    }
    if !limited.is_empty() {
        let message =
            format!("the limit is also the request, as none is set: {}", limited.join(", "));
        let hint = "set the request, if the container needs less than its limit";
        found.push(warning(&workload.origin, &object, message, hint));
    }
    found
}
