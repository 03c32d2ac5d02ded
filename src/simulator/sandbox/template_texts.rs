//! The parts of pod templates that the world does not simulate: images and annotations. They are
//! served as they were written, and a change of them replaces pods as in a cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};
use sha2::{Digest as _, Sha256};

use crate::model::desired::RolloutShare;
use crate::model::pod::PodTemplate;
use crate::simulator::RollingUpdate;

/// Annotation in the world that tells apart templates which differ only in such parts. It is not
/// served.
const REVISION: &str = "sandbox.fleetwright.dev/template";

/// The written parts of each template, by its key in the world.
#[derive(Debug, Default)]
pub(super) struct TemplateTexts(BTreeMap<String, TemplateText>);

#[derive(Debug, Default)]
struct TemplateText {
    annotations: Map<String, Json>,
    /// Images by container name.
    images: BTreeMap<String, String>,
}

/// Containers of a template, of both kinds.
const CONTAINERS: [&str; 2] = ["initContainers", "containers"];

impl TemplateTexts {
    /// Records the parts of a template as `written`.
    pub(super) fn record(&mut self, key: String, written: &Json) {
        let annotations = string_fields(&written["metadata"]["annotations"]);
        let containers = CONTAINERS.iter().filter_map(|part| written["spec"][*part].as_array());
        let image = |container: &Json| {
            let text = |field: &str| container[field].as_str().map(str::to_owned);
            Some((text("name")?, text("image")?))
        };
        let images = containers.flatten().filter_map(image).collect();
        self.0.insert(key, TemplateText { annotations, images });
    }

    /// Sets the recorded parts in the template of a served object.
    pub(super) fn apply(&self, key: &str, template: &mut Json) {
        if let Some(annotations) = template["metadata"]["annotations"].as_object_mut() {
            annotations.remove(REVISION);
            if annotations.is_empty()
                && let Some(meta) = template["metadata"].as_object_mut()
            {
                meta.remove("annotations");
            }
        }
        let Some(TemplateText { annotations, images }) = self.0.get(key) else { return };
        for (name, value) in annotations {
            template["metadata"]["annotations"][name] = value.clone();
        }
        for part in CONTAINERS {
            for container in template["spec"][part].as_array_mut().into_iter().flatten() {
                let image = container["name"].as_str().and_then(|name| images.get(name));
                if let Some(image) = image {
                    container["image"] = image.as_str().into();
                }
            }
        }
    }
}

/// Returns the fields of an object that are texts, as labels and annotations must be.
pub(super) fn string_fields(object: &Json) -> Map<String, Json> {
    let fields = object.as_object().into_iter().flatten();
    let texts = fields.filter(|(_, value)| value.is_string());
    texts.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns a template that differs from every template with other written parts.
pub(super) fn with_revision(template: &PodTemplate, written: &Json) -> Arc<PodTemplate> {
    let mut template = template.clone();
    let digest = hex::encode(Sha256::digest(written.to_string()));
    template.annotations.insert(REVISION.to_owned(), digest[..16].to_owned());
    Arc::new(template)
}

/// Returns the limits of the rolling update of a Deployment; `None` if all pods stop first.
pub(super) fn rolling_update(deployment: &Json) -> Option<RollingUpdate> {
    let strategy = &deployment["spec"]["strategy"];
    if strategy["type"] == "Recreate" {
        return None;
    }
    let default = RollingUpdate::default();
    let share = |field: &str, default: RolloutShare| {
        let value = &strategy["rollingUpdate"][field];
        let number = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok());
        let percent = value.as_str().and_then(|text| text.strip_suffix('%'));
        let percent = percent.and_then(|text| text.parse().ok()).map(RolloutShare::Percent);
        number(value.as_u64()).map(RolloutShare::Pods).or(percent).unwrap_or(default)
    };
    Some(RollingUpdate {
        surge: share("maxSurge", default.surge),
        unavailable: share("maxUnavailable", default.unavailable),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strategies_become_limits() {
        use RolloutShare::{Percent, Pods};
        let default = RollingUpdate::default();
        for (strategy, expected) in [
            (json!(null), Some(default)),
            (json!({ "type": "Recreate" }), None),
            (
                json!({ "rollingUpdate": { "maxSurge": 0, "maxUnavailable": "50%" } }),
                Some(RollingUpdate { surge: Pods(0), unavailable: Percent(50) }),
            ),
            (
                json!({ "rollingUpdate": { "maxSurge": -1, "maxUnavailable": "many" } }),
                Some(default),
            ),
            (json!("RollingUpdate"), Some(default)),
        ] {
            let deployment = json!({ "spec": { "strategy": strategy } });
            assert_eq!(rolling_update(&deployment), expected, "{strategy}");
        }
    }

    #[test]
    fn written_parts_are_served_and_revisions_are_not() {
        let written = json!({
            "metadata": { "annotations": { "a": "b", "n": 1 } },
            "spec": { "containers": [{ "name": "web", "image": "shop:2" }, "odd", {}] }
        });
        let template = with_revision(&PodTemplate::default(), &written);
        let mut served = json!({
            "metadata": { "annotations": template.annotations },
            "spec": { "containers": [{ "name": "web", "image": "embedded" }] }
        });
        let mut texts = TemplateTexts::default();
        texts.record("k".to_owned(), &written);
        let mut unknown = served.clone();
        texts.apply("other", &mut unknown);
        assert_eq!(unknown["metadata"], json!({}));
        texts.apply("k", &mut served);
        assert_eq!(served["metadata"], json!({ "annotations": { "a": "b" } }));
        assert_eq!(served["spec"]["containers"][0]["image"], "shop:2");
    }
}
