//! Writes status objects of our own kinds with server-side apply, so that fields we no longer set
//! are removed.

use ::kube::Error;
use ::kube::api::{Api, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams};
use ::kube::core::PartialObjectMeta;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::client::Kubernetes;
use super::node_writes::FIELD_MANAGER;
use super::port_error;
use crate::apply::ports::{CallEffect, ObjectStore, PortError, StoredObject, StoredObjectHead};

/// Objects per page, and maximum number of pages. The controller keeps few objects. If users create
/// more, it reports an error.
const PAGE_SIZE: u32 = 500;
const PAGES_MAX: u32 = 20;

impl ObjectStore for Kubernetes {
    async fn put(&self, record: &StoredObject) -> Result<(), PortError> {
        let api = self.objects_like(record);
        let with_type_meta = |part: Json| {
            let mut object = json!({
                "apiVersion": record.api_version, "kind": record.kind,
                "metadata": { "name": record.name }
            });
            if let (Json::Object(object), Json::Object(part)) = (&mut object, part) {
                object.extend(part);
            }
            object
        };
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let existing = if record.spec.is_some() {
            None
        } else {
            let found = api.get_metadata_opt(&record.name).await;
            found.map_err(|error| port_error("read record", &error))?
        };
        let generation = match (existing, record.spec.as_ref().or(record.brief.as_ref())) {
            (Some(existing), _) => existing.metadata.generation,
            (None, None) => return Ok(()),
            (None, Some(spec)) => {
                let spec = Patch::Apply(with_type_meta(json!({ "spec": spec })));
                let written = api.patch(&record.name, &params, &spec).await;
                let written = written.map_err(|error| port_error("write record", &error))?;
                written.metadata.generation
            }
        };
        let status = with_observed_generation(record.status.clone(), generation);
        let status = Patch::Apply(with_type_meta(json!({ "status": status })));
        let written = api.patch_status(&record.name, &params, &status).await;
        written.map(|_| ()).map_err(|error| port_error("write status of record", &error))
    }

    async fn list(&self, like: &StoredObject) -> Result<Vec<StoredObjectHead>, PortError> {
        const VERB: &str = "list records";
        let with_type_meta = |object: PartialObjectMeta<DynamicObject>| {
            let ObjectMeta { name, resource_version, creation_timestamp, .. } = object.metadata;
            let created_at = creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |at| at.0);
            Some(StoredObjectHead {
                name: name?,
                version: resource_version.unwrap_or_default(),
                created_at,
            })
        };
        let (records, mut found) = (self.objects_like(like), Vec::new());
        let mut page = ListParams::default().limit(PAGE_SIZE);
        for _ in 0..PAGES_MAX {
            let listed = records.list_metadata(&page).await;
            let listed = listed.map_err(|error| port_error(VERB, &error))?;
            found.extend(listed.items.into_iter().filter_map(with_type_meta));
            page.continue_token = listed.metadata.continue_.filter(|next| !next.is_empty());
            if page.continue_token.is_none() {
                return Ok(found);
            }
        }
        let (most, plural) = (PAGE_SIZE * PAGES_MAX, &like.plural);
        let reason = format!("there are more than {most} {plural}; delete unused ones");
        Err(PortError { verb: VERB.to_owned(), reason, effect: CallEffect::Refused })
    }

    async fn get(
        &self,
        like: &StoredObject,
        name: &str,
    ) -> Result<Option<StoredObject>, PortError> {
        let found = self.objects_like(like).get_opt(name).await;
        let found = found.map_err(|error| port_error("read record", &error))?;
        Ok(found.map(|mut object| StoredObject {
            name: name.to_owned(),
            spec: object.data.get_mut("spec").map(Json::take),
            brief: None,
            status: object.data.get_mut("status").map(Json::take).unwrap_or_default(),
            ..like.clone()
        }))
    }

    async fn remove(&self, like: &StoredObject, name: &str) -> Result<(), PortError> {
        match self.objects_like(like).delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(port_error("remove record", &error)),
        }
    }
}

impl Kubernetes {
    fn objects_like(&self, like: &StoredObject) -> Api<DynamicObject> {
        let (group, version) = like.api_version.split_once('/').unwrap_or(("", &like.api_version));
        let resource = ::kube::api::ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: like.api_version.clone(),
            kind: like.kind.clone(),
            plural: like.plural.clone(),
        };
        Api::all_with(self.writer.clone(), &resource)
    }
}

/// Sets the observed generation of a status and its conditions.
fn with_observed_generation(mut status: Json, generation: Option<i64>) -> Json {
    let generation = json!(generation);
    if let Some(conditions) = status.get_mut("conditions").and_then(Json::as_array_mut) {
        for condition in conditions {
            condition["observedGeneration"] = generation.clone();
        }
    }
    if status.is_object() {
        status["observedGeneration"] = generation;
    }
    status
}
