//! Annotations that the conversion webhook of Karpenter 1.0 writes to v1 pools.
//!
//! Karpenter 1.0 prefers the kubelet settings of the annotation to those of the node class. Later
//! versions do not start while a pool has them. The reference annotation only serves the conversion
//! back to v1beta1. Source: karpenter-provider-aws 1.0, `pkg/utils/utils.go`; karpenter core 1.1,
//! `pkg/operator/operator.go`.

use std::cell::RefCell;

use super::super::decode::{Field, FieldMap, ObjectContext};
use super::super::yaml::{self, YamlNode};
use super::kubelet::kubelet;
use crate::model::desired::{KubeletSettings, Severity};

const KUBELET: &str = "compatibility.karpenter.sh/v1beta1-kubelet-conversion";
const NODE_CLASS_REFERENCE: &str = "compatibility.karpenter.sh/v1beta1-nodeclass-reference";

/// Reads the kubelet settings in the annotations of a v1 pool, and reports the annotations.
pub(super) fn converted_kubelet(root: &FieldMap<'_>) -> Option<KubeletSettings> {
    let scope = root.field.scope;
    let annotations = root.field.node.get("metadata")?.get("annotations")?;
    let warn = |node: &YamlNode<'_>, message: String, hint: &str| {
        scope.report_problem(Severity::Warning, node.line, message, Some(hint.to_owned()));
    };
    // A cluster has the reference in every pool that was converted.
    if let Some(node) = annotations.get(NODE_CLASS_REFERENCE).filter(|_| !scope.verbatim) {
        let message = format!("annotation `{NODE_CLASS_REFERENCE}` has no effect");
        warn(node, message, "remove it: `nodeClassRef` names the node class");
    }
    let node = annotations.get(KUBELET)?;
    let message = format!("Karpenter 1.1 and later do not start with annotation `{KUBELET}`");
    warn(node, message, "move its settings to `kubelet` of the EC2NodeClass");
    let origin = scope.origin(node.line);
    let converted = ObjectContext {
        object: scope.object.clone(),
        rendered_origin: Some(&origin),
        failed_fields: RefCell::default(),
        ..*scope
    };
    let text = format!("{{\"{KUBELET}\": {}}}", node.text().unwrap_or_default());
    let loaded = yaml::load(&text);
    let settings = loaded.documents.first().and_then(|document| {
        let map = Field::root(&converted, &document.root).map()?;
        let (_, field) = map.entries().next()?;
        field.node.is_null().then(KubeletSettings::default).or_else(|| Some(kubelet(&field)))
    });
    let failed = converted.failed_fields.into_inner();
    if settings.is_none() || loaded.fault.is_some() {
        let message = format!("annotation `{KUBELET}` is not a JSON object");
        scope.report_problem(Severity::Error, node.line, message, None);
        scope.failed_fields.borrow_mut().push(KUBELET.to_owned());
    }
    scope.failed_fields.borrow_mut().extend(failed);
    settings
}
