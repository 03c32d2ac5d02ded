//! Device claims: a planned pod requests every device that its claim templates claim.
//!
//! `fit` then compares the requests with the devices of the node. This file reads the templates with
//! code of its own.

use std::collections::BTreeMap;

use super::Violations;
use super::context::CheckContext;
use super::end_state::EndState;
use crate::model::desired::{Desired, DeviceAmount, DeviceRequest};
use crate::model::ids::Namespace;
use crate::model::pod::PodSpec;

/// Each known driver, its extended resource, and the comparison that its whole devices satisfy.
const WHOLE_DEVICES: [(&str, &str, Option<&str>); 2] = [
    ("gpu.nvidia.com", "nvidia.com/gpu", Some("device.attributes['gpu.nvidia.com'].type=='gpu'")),
    ("neuron.aws.com", "aws.amazon.com/neuron", None),
];

pub(super) fn check(context: &CheckContext<'_>, state: &EndState<'_>, violations: &mut Violations) {
    for (index, end_node) in state.nodes.iter().enumerate() {
        for (pod_set, _) in state.pods_on(index).filter(|(_, pods)| pods.arriving > 0) {
            let group = context.groups.get(&pod_set.name);
            let workload =
                group.and_then(|group| context.facts.desired.workloads.get(&group.workload));
            let Some(workload) = workload else { continue };
            let spec = &workload.template.spec;
            let namespace = &workload.id.namespace;
            let Some(claimed) = claimed(context.facts.desired, namespace, spec) else {
                let fault = format!("{} claims devices that are not known", pod_set.name);
                violations.report_row("fit/devices", end_node.row.address, fault);
                continue;
            };
            for (resource, devices) in claimed {
                let stated = spec
                    .containers
                    .iter()
                    .filter_map(|container| container.resources.requests.get(resource).copied());
                let least = stated.fold(devices, i64::saturating_add);
                let requested = pod_set.shape.requests.extended.get(resource).copied();
                if requested.unwrap_or(0) < least {
                    let fault = format!(
                        "{} needs {least} of {resource} with its device claims, and requests {}",
                        pod_set.name,
                        requested.unwrap_or(0)
                    );
                    violations.report_row("fit/devices", end_node.row.address, fault);
                }
            }
        }
    }
}

/// Returns the claimed devices by extended resource; `None` if any of them is not known.
fn claimed(
    desired: &Desired,
    namespace: &Namespace,
    spec: &PodSpec,
) -> Option<BTreeMap<&'static str, i64>> {
    let mut devices = BTreeMap::new();
    for claim in &spec.resource_claims {
        let template = spec.resource_claim_templates.get(claim)?;
        let template = desired.claim_templates.get(&(namespace.clone(), template.clone()))?;
        if template.is_constrained {
            return None;
        }
        for request in &template.requests {
            let DeviceAmount::Exactly(count) = request.amount else { return None };
            let total = devices.entry(resource_of(desired, request)?).or_insert(0_i64);
            *total = total.saturating_add(count);
        }
    }
    Some(devices)
}

fn resource_of(desired: &Desired, request: &DeviceRequest) -> Option<&'static str> {
    let declared = desired.device_classes.get(&request.class);
    let stated = declared.into_iter().chain([&request.selectors]);
    let all: Vec<String> = stated.flat_map(|selectors| terms(selectors)).collect();
    WHOLE_DEVICES.into_iter().find_map(|(driver, resource, of_type)| {
        let of_driver = format!("device.driver=='{driver}'");
        let is_class = match declared {
            Some(selectors) => terms(selectors).contains(&of_driver),
            None => request.class == driver,
        };
        let is_whole = |term: &String| *term == of_driver || Some(term.as_str()) == of_type;
        (is_class && all.iter().all(is_whole)).then_some(resource)
    })
}

/// Returns the terms of conjunctions, without spaces and in single quotes.
fn terms(selectors: &[String]) -> Vec<String> {
    let plain = |term: &str| term.replace(char::is_whitespace, "").replace('"', "'");
    selectors.iter().flat_map(|text| text.split("&&")).map(plain).collect()
}
