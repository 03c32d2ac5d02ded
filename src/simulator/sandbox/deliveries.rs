//! Deliveries of the repository, as `kubectl apply` makes them after each change of the files.
//!
//! Objects that the world simulates are delivered to it. Others are stored as they are written.
//! Objects of clients stay, and so do client changes of workloads whose files did not change.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Value as Json, json};

use super::kubernetes_objects::uid;
use super::object::format_time;
use super::resource::ServedResource;
use super::store::{ObjectKey, Writer};
use super::template_texts::{rolling_update, string_fields, with_revision};
use super::world_sync::{WorldSync, is_of_client, parse_object, workload_kind};
use crate::manifest::DeclaredObject;
use crate::model::desired::Desired;
use crate::model::ids::{Labels, WorkloadId, WorkloadKind};
use crate::model::observed::template_key;
use crate::model::pod::PodTemplate;
use crate::simulator::{DeliveredWorkload, Delivery, RollingUpdate, SimError};

/// Kinds that are stored as they are written. Secrets are not served: the API has no
/// authentication.
const STORED_KINDS: [&str; 14] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "EC2NodeClass",
    "Ingress",
    "NodePool",
    "PriorityClass",
    "Role",
    "RoleBinding",
    "ScaledJob",
    "ScaledObject",
    "Service",
    "ServiceAccount",
    "VerticalPodAutoscaler",
];

/// Removes the parts of an object that often hold secrets: user data, and environment variables.
fn withhold_secrets(kind: &str, object: &mut Json) {
    match kind {
        "EC2NodeClass" => {
            if let Some(spec) = object.get_mut("spec").and_then(Json::as_object_mut) {
                spec.remove("userData");
            }
        }
        "ScaledJob" => {
            let Some(pod) = object.pointer_mut("/spec/jobTargetRef/template/spec") else { return };
            for part in ["initContainers", "containers"] {
                let containers = pod.get_mut(part).and_then(Json::as_array_mut);
                for container in containers.into_iter().flatten() {
                    if let Some(fields) = container.as_object_mut() {
                        fields.remove("env");
                    }
                }
            }
        }
        _ => {}
    }
}

/// The fields of workloads that are served as they are written, besides those of their pods.
const WRITTEN_FIELDS: [&str; 2] = ["strategy", "updateStrategy"];

/// The objects of the last delivery, as they are written.
#[derive(Debug, Default)]
pub(super) struct DeliveredObjects(BTreeMap<ObjectKey, Json>);

impl DeliveredObjects {
    /// Returns the objects of served kinds and versions. The first of two with one name counts.
    pub(super) fn new(objects: Vec<DeclaredObject>) -> Self {
        let mut by_key = BTreeMap::new();
        for DeclaredObject { namespace, mut object } in objects {
            let Some(resource) = ServedResource::of_object(&object) else { continue };
            if !STORED_KINDS.contains(&resource.kind) && workload_kind(resource.kind).is_none() {
                continue;
            }
            let meta = &object["metadata"];
            let name = meta["name"].as_str().unwrap_or_default().to_owned();
            let mut own = json!({ "name": name });
            for part in ["labels", "annotations"] {
                let fields = string_fields(&meta[part]);
                if !fields.is_empty() {
                    own[part] = fields.into();
                }
            }
            let namespace = if resource.namespaced { namespace } else { String::new() };
            if resource.namespaced {
                own["namespace"] = namespace.as_str().into();
            }
            object["metadata"] = own;
            withhold_secrets(resource.kind, &mut object);
            by_key.entry(ObjectKey::new(resource.kind, &namespace, &name)).or_insert(object);
        }
        Self(by_key)
    }

    /// Returns the namespaces of the objects.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(|key| &*key.namespace).filter(|namespace| !namespace.is_empty())
    }

    /// Sets the written fields of served workloads.
    pub(super) fn complete(&self, served: &mut BTreeMap<ObjectKey, Json>) {
        for (key, written) in &self.0 {
            let Some(object) = served.get_mut(key) else { continue };
            for part in ["labels", "annotations"] {
                if written["metadata"][part].is_object() {
                    object["metadata"][part] = written["metadata"][part].clone();
                }
            }
            for field in WRITTEN_FIELDS {
                if written["spec"][field].is_object() {
                    object["spec"][field] = written["spec"][field].clone();
                }
            }
        }
    }

    fn template(&self, id: &WorkloadId) -> Option<&Json> {
        self.workload(id).map(|object| &object["spec"]["template"])
    }

    fn workload(&self, id: &WorkloadId) -> Option<&Json> {
        self.0.get(&workload_key(id)).filter(|object| object["spec"].is_object())
    }

    fn stored(&self) -> impl Iterator<Item = (&ObjectKey, &Json)> {
        self.0.iter().filter(|(key, _)| STORED_KINDS.contains(&key.kind))
    }
}

fn workload_key(id: &WorkloadId) -> ObjectKey {
    ObjectKey::new(id.kind.as_str(), id.namespace.as_str(), &id.name)
}

/// A rolling update that a delivery starts.
struct Rollout {
    id: WorkloadId,
    template: Arc<PodTemplate>,
    update: RollingUpdate,
}

impl WorldSync {
    /// Delivers a repository.
    ///
    /// # Errors
    /// Returns an error if the world cannot be saved.
    pub(super) fn deliver(
        &self,
        desired: Rc<Desired>,
        objects: Vec<DeclaredObject>,
        now: Timestamp,
    ) -> Result<(), SimError> {
        let objects = DeliveredObjects::new(objects);
        let mut delivery = Delivery::from_desired(&desired, &self.world.observed());
        self.keep_client_objects(&mut delivery);
        let before = self.delivered.replace(objects);
        let rollouts = self.keep_templates(&mut delivery, &before, &desired);
        self.world.deliver(&delivery)?;
        for Rollout { id, template, update } in rollouts {
            self.world.roll_out(&id, &template, update);
        }
        self.aws_api.set_desired(desired);
        self.store_delivered(&before, now);
        self.sync(now);
        Ok(())
    }

    /// Adds the objects that clients created.
    fn keep_client_objects(&self, delivery: &mut Delivery) {
        let (view, api) = (self.world.view(), self.api.borrow());
        for workload in view.workloads() {
            let stored = api.store.get(&workload_key(workload.id));
            let template = workload.template.and_then(|key| view.template(key));
            if let (true, Some(template)) = (stored.is_some_and(|o| is_of_client(o)), template) {
                let kept = DeliveredWorkload {
                    replicas: workload.replicas,
                    first_ordinal: workload.first_ordinal,
                    template: Arc::clone(template),
                };
                delivery.workloads.entry(workload.id.clone()).or_insert(kept);
            }
        }
        let of_clients = |kind: &'static str| {
            api.store.list(kind, None).map(|(_, object)| object).filter(|o| is_of_client(o))
        };
        for object in of_clients("PodDisruptionBudget") {
            for budget in parse_object(object).disruption_budgets {
                let same = |known: &crate::model::desired::DisruptionBudget| {
                    known.namespace == budget.namespace && known.name == budget.name
                };
                if !delivery.budgets.iter().any(same) {
                    delivery.budgets.push(budget);
                }
            }
        }
        for object in of_clients("Namespace") {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let labels = Labels::deserialize(&object["metadata"]["labels"]).unwrap_or_default();
            delivery.namespaces.entry(name.into()).or_insert(labels);
        }
    }

    /// Keeps the pods of workloads whose files did not change. Returns the rolling updates of
    /// Deployments whose files changed.
    fn keep_templates(
        &self,
        delivery: &mut Delivery,
        before: &DeliveredObjects,
        desired: &Desired,
    ) -> Vec<Rollout> {
        let (view, objects) = (self.world.view(), self.delivered.borrow());
        let (old, mut texts) = (self.aws_api.desired(), self.texts.borrow_mut());
        let mut rollouts = Vec::new();
        for (id, workload) in &mut delivery.workloads {
            let current = view.workload(id).and_then(|known| view.template(known.template?));
            let (Some(current), Some(declared)) = (current, desired.workloads.get(id)) else {
                continue;
            };
            let written = objects.template(id);
            let same_model =
                old.workloads.get(id).is_some_and(|old| old.template == declared.template);
            if same_model && written == before.template(id) {
                workload.template = Arc::clone(current);
                continue;
            }
            self.forget_changes(&workload_key(id));
            if let Some(written) = written {
                workload.template = with_revision(&workload.template, written);
                texts.record(template_key(&workload.template), written);
            }
            let update = match objects.workload(id) {
                Some(object) => rolling_update(object),
                None => Some(RollingUpdate::default()),
            };
            if let (WorkloadKind::Deployment, Some(update)) = (id.kind, update) {
                let template = std::mem::replace(&mut workload.template, Arc::clone(current));
                rollouts.push(Rollout { id: id.clone(), template, update });
            }
        }
        rollouts
    }

    /// Records the images and annotations of delivered workloads.
    pub(super) fn record_delivered_texts(&self) {
        let (view, objects) = (self.world.view(), self.delivered.borrow());
        let mut texts = self.texts.borrow_mut();
        for workload in view.workloads() {
            if let (Some(key), Some(written)) = (workload.template, objects.template(workload.id)) {
                texts.record(key.to_owned(), written);
            }
        }
    }

    /// Stores the delivered objects that changed since `before`, and removes those that no file
    /// declares any more.
    pub(super) fn store_delivered(&self, before: &DeliveredObjects, now: Timestamp) {
        let (mut api, objects) = (self.api.borrow_mut(), self.delivered.borrow());
        for (key, _) in before.stored().filter(|(key, _)| !objects.0.contains_key(key)) {
            api.store.remove(key, Writer::World);
        }
        for (key, written) in objects.stored() {
            let stored = api.store.get(key);
            if stored.is_some() && before.0.get(key) == Some(written) {
                continue;
            }
            let mut object = written.clone();
            let since = stored.map(|stored| stored["metadata"]["creationTimestamp"].clone());
            let meta = &mut object["metadata"];
            meta["uid"] = uid(key.kind, &key.namespace, &key.name).into();
            meta["generation"] = 1.into();
            meta["creationTimestamp"] = since.unwrap_or_else(|| format_time(now).into());
            api.store.upsert(key.clone(), object, Writer::World);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_data_and_environment_are_not_served() {
        let object = |text: &str| DeclaredObject {
            namespace: "default".to_owned(),
            object: serde_json::from_str(text).expect("JSON"),
        };
        let delivered = DeliveredObjects::new(vec![
            object(
                r#"{"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass",
                "metadata": {"name": "c"}, "spec": {"userData": "hunter2", "role": "r"}}"#,
            ),
            object(
                r#"{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledJob",
                "metadata": {"name": "j"}, "spec": {"jobTargetRef": {"template": {"spec":
                {"containers": [{"name": "main", "env": [{"name": "A", "value": "hunter2"}]}]}}}}}"#,
            ),
        ]);
        let text = format!("{:?}", delivered.0);
        assert_eq!(delivered.0.len(), 2, "{text}");
        assert!(!text.contains("hunter2") && text.contains("main") && text.contains("role"));
    }
}
