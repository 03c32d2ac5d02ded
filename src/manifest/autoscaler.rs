//! Autoscalers, as far as they say which workload is theirs.

use std::borrow::Cow;

use super::collect::Collected;
use super::decode::{Field, Map};
use super::meta::Meta;
use super::model::AutoscalerRef;

/// Reads the workload that an autoscaler claims: `spec.KEY {kind, name}`.
///
/// `default_kind` stands in where the reference names no kind.
pub(super) fn read(
    key: &'static str,
    default_kind: Option<&'static str>,
    meta: Meta,
    root: &Map<'_>,
    into: &mut Collected,
) {
    let spec = root.need("spec");
    let spec = spec.as_ref().and_then(Field::map);
    let target = spec.as_ref().and_then(|spec| spec.need(key));
    let Some(target) = target.as_ref().and_then(Field::map) else { return };
    let kind = match (target.get("kind"), default_kind) {
        (Some(kind), _) => kind.filled().map(Cow::into_owned),
        (None, Some(default)) => Some(default.to_owned()),
        (None, None) => {
            target.need("kind");
            None
        }
    };
    let name = target.need("name").and_then(|name| name.filled());
    let (Some(target_kind), Some(name)) = (kind, name) else { return };
    into.desired.autoscalers.push(AutoscalerRef {
        object: root.field.scope.object.clone(),
        origin: meta.origin,
        namespace: meta.namespace,
        target_kind,
        target_name: name.into_owned(),
    });
}
