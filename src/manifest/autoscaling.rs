//! Objects other than the workload itself that determine its number of pods or their requests.
//!
//! Reads HorizontalPodAutoscaler, KEDA's ScaledObject, ScaledJob and `HTTPScaledObject`, Datadog's
//! `WatermarkPodAutoscaler`, VerticalPodAutoscaler, cluster-proportional-autoscaler and
//! CapacityBuffer. `demand` evaluates them. Invariant: an unreadable field that affects the result
//! is an error, never a default.

mod capacity_buffer;
mod cluster_autoscaler;
mod cluster_proportional_autoscaler;
mod custom_scalers;
mod horizontal_pod_autoscaler;
mod keda;
mod vertical_pod_autoscaler;

pub(super) use capacity_buffer::{
    UnresolvedBuffer, capacity_buffer, pod_template_object, resolve_buffers,
};
pub(super) use cluster_autoscaler::{autoscaler_flags, expander_priorities};
pub(super) use cluster_proportional_autoscaler::{
    ProportionalParameters, ProportionalScaler, collect_proportional_autoscaler,
    proportional_parameters, resolve_proportional_autoscalers,
};
pub(super) use custom_scalers::{http_scaled_object, watermark_autoscaler};
pub(super) use horizontal_pod_autoscaler::horizontal;
pub(super) use keda::{scaled_job, scaled_object};
pub(super) use vertical_pod_autoscaler::vertical;

use super::decode::{Field, FieldMap};
use super::object_meta::ObjectMeta;
use super::yaml::{YamlNode, YamlValue};
use crate::model::desired::{ScaleTarget, Scaler, ScalerRule};

/// Reads a target reference `{kind, name}`; `default_kind` applies if it has no kind.
fn target(field: &Field<'_>, default_kind: Option<&str>) -> Option<ScaleTarget> {
    let map = field.map()?;
    let kind = match (map.get("kind"), default_kind) {
        (Some(kind), _) => kind.non_empty_text()?.into_owned(),
        (None, Some(default)) => default.to_owned(),
        (None, None) => {
            map.required("kind");
            return None;
        }
    };
    let name = map.required("name")?.non_empty_text()?.into_owned();
    Some(ScaleTarget { kind, name })
}

/// Returns the scaler of an object; an unreadable rule becomes [`ScalerRule::Unknown`].
fn scaler(
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    targets: Vec<ScaleTarget>,
    rule: Option<ScalerRule>,
) -> Scaler {
    let scope = root.field.scope;
    let unreadable =
        scope.first_failed_field().map(|field| format!("its `{field}` could not be read"));
    let rule = match (unreadable, rule) {
        (None, Some(rule)) => rule,
        (why, _) => ScalerRule::Unknown(why.unwrap_or_else(|| "it could not be read".to_owned())),
    };
    let ObjectMeta { name, namespace, origin, .. } = meta;
    Scaler { object: scope.object.clone(), origin, namespace, name, targets, rule }
}

/// Returns the flags of a container's command line, written as `--a=b`, `--a b` or `--a`.
fn command_line<'c>(container: &'c YamlNode<'_>) -> Vec<(&'c str, Option<&'c str>)> {
    let words = ["command", "args"].into_iter().filter_map(|key| container.get(key));
    let words = words.flat_map(|list| match &list.value {
        YamlValue::Seq(items) => items.iter().filter_map(YamlNode::text).collect(),
        YamlValue::Plain(_) | YamlValue::Quoted(_) | YamlValue::Map(_) | YamlValue::Tagged(..) => {
            Vec::new()
        }
    });
    let (mut flags, mut words) = (Vec::new(), words.peekable());
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or(word.strip_prefix('-')) else { continue };
        flags.push(match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, words.next_if(|next| !next.starts_with('-'))),
        });
    }
    flags
}
