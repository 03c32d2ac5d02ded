//! Devices that pods claim by `ResourceClaimTemplate`s, as extended resources of the catalog.
//!
//! Only whole devices of known drivers are counted. A claim is counted in full or not at all: any
//! part that is not understood makes the pod unschedulable, with a reason.
//!
//! Source: <https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/>.

use std::collections::BTreeMap;

use super::requests::combine;
use crate::model::desired::{Desired, DeviceAmount, DeviceClaim, DeviceRequest};
use crate::model::ids::Namespace;
use crate::model::pod::{PodSpec, ResourceList};
use crate::model::text::shorten;
use crate::model::units::ResourceName;

/// A DRA driver whose devices the catalog counts by instance type.
#[derive(Debug, PartialEq, Eq)]
struct Driver {
    /// Name of the driver, and of the `DeviceClass` that its chart installs.
    name: &'static str,
    /// Extended resource that the device plugin of the same devices offers.
    resource: &'static str,
    /// Type that its whole devices have as an attribute.
    device_type: Option<&'static str>,
}

/// Sources: <https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu> and
/// <https://docs.aws.amazon.com/eks/latest/userguide/device-management-neuron.html>. AWS forbids the
/// Neuron device plugin beside the driver on a node; NVIDIA runs one of both in a cluster.
const DRIVERS: [Driver; 2] = [
    Driver { name: "gpu.nvidia.com", resource: "nvidia.com/gpu", device_type: Some("gpu") },
    Driver { name: "neuron.aws.com", resource: "aws.amazon.com/neuron", device_type: None },
];

/// Maximum length of a CEL expression in a reason.
const EXPRESSION_LENGTH_MAX: usize = 120;

/// Claim templates and device classes of the repository.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceClaims<'a> {
    templates: &'a BTreeMap<(Namespace, String), DeviceClaim>,
    classes: &'a BTreeMap<String, Vec<String>>,
}

/// Returns the extended resource of a published device; `None` if it is no whole device of a known
/// driver.
pub fn device_resource(driver: &str, device_type: Option<&str>) -> Option<ResourceName> {
    let known = DRIVERS.iter().find(|known| known.name == driver)?;
    let is_whole = known.device_type.is_none() || known.device_type == device_type;
    is_whole.then(|| known.resource.into())
}

/// Returns the reason why the device claims of a pod are not planned; `None` if all of them are.
pub fn claim_problem(desired: &Desired, namespace: &Namespace, spec: &PodSpec) -> Option<String> {
    DeviceClaims::new(desired).devices(namespace, spec).err()
}

impl<'a> DeviceClaims<'a> {
    pub(super) fn new(desired: &'a Desired) -> Self {
        Self { templates: &desired.claim_templates, classes: &desired.device_classes }
    }

    /// Returns the devices that the claims of one pod need, by extended resource.
    ///
    /// # Errors
    /// Returns the reason if a claim is not planned.
    pub(super) fn devices(
        &self,
        namespace: &Namespace,
        spec: &PodSpec,
    ) -> Result<ResourceList, String> {
        let mut devices = ResourceList::new();
        for claim in &spec.resource_claims {
            let Some(template) = spec.resource_claim_templates.get(claim) else {
                return Err(format!(
                    "claim {claim} names a ResourceClaim, whose devices several pods may share"
                ));
            };
            let key = (namespace.clone(), template.clone());
            let Some(declared) = self.templates.get(&key) else {
                return Err(format!(
                    "claim {claim} names ResourceClaimTemplate {template}, which the repository \
                     does not declare in namespace {namespace}"
                ));
            };
            let of_template = |reason| format!("ResourceClaimTemplate {template}: {reason}");
            let claimed = self.claimed(declared).map_err(of_template)?;
            combine(&mut devices, &claimed, i64::saturating_add);
        }
        Ok(devices)
    }

    fn claimed(&self, claim: &DeviceClaim) -> Result<ResourceList, String> {
        if claim.is_constrained {
            return Err("its constraints on the devices are not evaluated".to_owned());
        }
        let mut devices = ResourceList::new();
        for request in &claim.requests {
            let (driver, count) = self
                .requested(request)
                .map_err(|reason| format!("request {}: {reason}", request.name))?;
            let total = devices.entry(driver.resource.into()).or_insert(0);
            *total = i64::saturating_add(*total, count);
        }
        Ok(devices)
    }

    fn requested(&self, request: &DeviceRequest) -> Result<(&'static Driver, i64), String> {
        let count = match request.amount {
            DeviceAmount::Exactly(count) => count,
            DeviceAmount::Unplanned(field) => return Err(format!("{field} is not planned")),
        };
        let driver = self.driver_of(&request.class)?;
        match unknown_selector(&request.selectors, driver) {
            None => Ok((driver, count)),
            Some(expression) => Err(not_evaluated(expression)),
        }
    }

    /// Returns the driver of a class. A class that the repository does not declare is that of the
    /// driver's chart.
    fn driver_of(&self, class: &str) -> Result<&'static Driver, String> {
        let Some(selectors) = self.classes.get(class) else {
            return DRIVERS
                .iter()
                .find(|driver| driver.name == class)
                .ok_or_else(|| format!("the devices of DeviceClass {class} are not known"));
        };
        let selects = |driver: &&Driver| {
            selectors.iter().flat_map(|text| conjuncts(text)).any(|one| one.selects(driver))
        };
        let Some(driver) = DRIVERS.iter().find(selects) else {
            return Err(format!("the selectors of DeviceClass {class} name no known driver"));
        };
        match unknown_selector(selectors, driver) {
            None => Ok(driver),
            Some(expression) => Err(format!("DeviceClass {class}: {}", not_evaluated(expression))),
        }
    }
}

fn not_evaluated(expression: &str) -> String {
    format!("selector `{}` is not evaluated", shorten(expression, EXPRESSION_LENGTH_MAX))
}

/// Returns the first expression that not every whole device of a driver satisfies for sure.
fn unknown_selector<'s>(selectors: &'s [String], driver: &Driver) -> Option<&'s str> {
    let holds = |text: &str| conjuncts(text).all(|one| one.selects(driver) || one.types(driver));
    selectors.iter().map(String::as_str).find(|text| !holds(text))
}

/// A comparison of two terms in a CEL expression.
struct Comparison<'s> {
    left: &'s str,
    /// Text of the string literal.
    right: Option<&'s str>,
}

/// Splits a CEL expression into the comparisons that it joins by `&&`. A part that is no comparison
/// with a text has no right side, and holds for no driver.
fn conjuncts(expression: &str) -> impl Iterator<Item = Comparison<'_>> {
    expression.split("&&").map(|part| {
        let (left, right) = part.split_once("==").unwrap_or((part, ""));
        Comparison { left: left.trim(), right: text_literal(right.trim()) }
    })
}

/// Returns the text of a CEL literal without escapes.
fn text_literal(literal: &str) -> Option<&str> {
    let quoted = |quote| literal.strip_prefix(quote)?.strip_suffix(quote);
    let text = quoted('"').or_else(|| quoted('\''))?;
    (!text.contains(['"', '\'', '\\'])).then_some(text)
}

impl Comparison<'_> {
    /// Returns true if it compares the driver with this one.
    fn selects(&self, driver: &Driver) -> bool {
        self.left == "device.driver" && self.right == Some(driver.name)
    }

    /// Returns true if it compares the type of the device with that of the driver's whole devices.
    fn types(&self, driver: &Driver) -> bool {
        let attribute = self.left.strip_prefix("device.attributes[");
        let domain = attribute.and_then(|rest| rest.strip_suffix("].type"));
        domain.and_then(text_literal) == Some(driver.name)
            && driver.device_type.is_some()
            && self.right == driver.device_type
    }
}

#[cfg(test)]
mod tests;
