//! Claims for devices and their classes: `resource.k8s.io`.
//!
//! Source: <https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/>.

use super::cluster_objects::definition;
use super::collector::Collector;
use super::decode::{Field, FieldMap};
use super::object_meta::ObjectMeta;
use crate::model::desired::{DeviceAmount, DeviceClaim, DeviceRequest, Severity};

/// Versions in which a request has its fields beside its name. Later versions have `exactly`.
const FLAT_VERSIONS: [&str; 2] = ["resource.k8s.io/v1beta1", "resource.k8s.io/v1alpha3"];

/// Reads a `ResourceClaimTemplate`.
pub(super) fn claim_template(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let version = root.get("apiVersion").and_then(|field| field.node.text());
    let is_flat = version.is_some_and(|version| FLAT_VERSIONS.contains(&version));
    let Some(spec) = root.required("spec") else { return };
    let Some(outer) = spec.map() else { return };
    outer.ignore(&["metadata"]);
    let inner = outer.required("spec");
    outer.finish(Severity::Warning);
    let Some(claim) = inner.and_then(|field| claim(&field, is_flat)) else { return };
    let name = format!("{}/{}", meta.namespace, meta.name);
    let definition = definition("ResourceClaimTemplate", &name, &meta, root);
    let key = (meta.namespace, meta.name);
    into.insert(definition, |all| &mut all.desired.claim_templates, key, claim, PartialEq::eq);
}

/// Reads the selectors of a `DeviceClass`.
pub(super) fn device_class(meta: ObjectMeta, root: &FieldMap<'_>, into: &mut Collector) {
    let spec = root.get("spec");
    let spec = spec.as_ref().and_then(Field::map);
    let selectors = spec.map(|spec| selectors(&spec)).unwrap_or_default();
    let definition = definition("DeviceClass", &meta.name, &meta, root);
    into.insert(
        definition,
        |all| &mut all.desired.device_classes,
        meta.name,
        selectors,
        PartialEq::eq,
    );
}

fn claim(field: &Field<'_>, is_flat: bool) -> Option<DeviceClaim> {
    let map = field.map()?;
    let mut claim = DeviceClaim::default();
    if let Some(devices) = map.get("devices").as_ref().and_then(Field::map) {
        let requests = devices.get("requests");
        let requests = requests.iter().flat_map(Field::items);
        claim.requests = requests.filter_map(|item| request(&item.map()?, is_flat)).collect();
        let constraints = devices.get("constraints");
        claim.is_constrained = constraints.is_some_and(|field| field.items().next().is_some());
        devices.ignore(&["config"]);
        devices.finish(Severity::Warning);
    }
    map.finish(Severity::Warning);
    Some(claim)
}

fn request(map: &FieldMap<'_>, is_flat: bool) -> Option<DeviceRequest> {
    let name = map.required("name")?.non_empty_text()?.into_owned();
    let alternatives = map.get("firstAvailable");
    if alternatives.is_some_and(|list| list.items().next().is_some()) {
        let amount = DeviceAmount::Unplanned("firstAvailable");
        return Some(DeviceRequest { name, class: String::new(), selectors: Vec::new(), amount });
    }
    if is_flat {
        return exact_request(name, map);
    }
    let exactly = map.required("exactly");
    map.finish(Severity::Warning);
    exact_request(name, &exactly?.map()?)
}

fn exact_request(name: String, fields: &FieldMap<'_>) -> Option<DeviceRequest> {
    let class = fields.required("deviceClassName")?.non_empty_text()?.into_owned();
    let selectors = selectors(fields);
    let amount = amount(fields)?;
    // Tolerations of device taints do not change the number of devices.
    fields.ignore(&["tolerations"]);
    fields.finish(Severity::Warning);
    Some(DeviceRequest { name, class, selectors, amount })
}

/// Reads the number of devices, with the defaults of the API server.
fn amount(fields: &FieldMap<'_>) -> Option<DeviceAmount> {
    let has_capacity = fields.get("capacity").is_some();
    let is_admin = fields.get("adminAccess").and_then(|field| field.boolean()).unwrap_or(false);
    let modes = [("ExactCount", false), ("All", true)];
    let mode = fields.get("allocationMode");
    let takes_all = mode.is_some_and(|field| field.choice(&modes).unwrap_or(true));
    let count = fields.get("count").map_or(Some(1), |field| field.int(1))?;
    Some(match (has_capacity, is_admin, takes_all) {
        (true, _, _) => DeviceAmount::Unplanned("capacity"),
        (_, true, _) => DeviceAmount::Unplanned("adminAccess"),
        (_, _, true) => DeviceAmount::Unplanned("allocationMode: All"),
        (false, false, false) => DeviceAmount::Exactly(count),
    })
}

fn selectors(map: &FieldMap<'_>) -> Vec<String> {
    let selectors = map.get("selectors");
    let expression = |item: Field<'_>| {
        let map = item.map()?;
        let cel = map.get("cel");
        let cel = cel.as_ref().and_then(Field::map);
        let text = cel.as_ref().and_then(|cel| Some(cel.get("expression")?.text()?.into_owned()));
        // A selector of another kind is an unknown expression.
        Some(text.unwrap_or_default())
    };
    selectors.iter().flat_map(Field::items).filter_map(expression).collect()
}
