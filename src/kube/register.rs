//! Records as objects of our own kinds, written by server-side apply: what we no longer say goes.

use ::kube::Error;
use ::kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams,
};
use ::kube::core::PartialObjectMeta;
use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::client::Kubernetes;
use super::port_error;
use super::write::MANAGER;
use crate::port::{Fate, Listed, PortError, Record, Register};

/// Most records of a page, and most pages: those that are kept are few, and whoever makes more by hand is told.
const PAGE: u32 = 500;
const PAGES_MAX: u32 = 20;

impl Register for Kubernetes {
    async fn put(&self, record: &Record) -> Result<(), PortError> {
        let api = self.records(record);
        let head = |part: Json| {
            let mut object = json!({
                "apiVersion": record.api_version, "kind": record.kind,
                "metadata": { "name": record.name }
            });
            if let (Json::Object(object), Json::Object(part)) = (&mut object, part) {
                object.extend(part);
            }
            object
        };
        let params = PatchParams::apply(MANAGER).force();
        let there = if record.spec.is_some() {
            None
        } else {
            let found = api.get_metadata_opt(&record.name).await;
            found.map_err(|error| port_error("read record", &error))?
        };
        let generation = match (there, record.spec.as_ref().or(record.brief.as_ref())) {
            (Some(there), _) => there.metadata.generation,
            (None, None) => return Ok(()),
            (None, Some(spec)) => {
                let spec = Patch::Apply(head(json!({ "spec": spec })));
                let written = api.patch(&record.name, &params, &spec).await;
                let written = written.map_err(|error| port_error("write record", &error))?;
                written.metadata.generation
            }
        };
        let status = observed(record.status.clone(), generation);
        let status = Patch::Apply(head(json!({ "status": status })));
        let written = api.patch_status(&record.name, &params, &status).await;
        written.map(|_| ()).map_err(|error| port_error("write status of record", &error))
    }

    async fn list(&self, like: &Record) -> Result<Vec<Listed>, PortError> {
        const VERB: &str = "list records";
        let head = |object: PartialObjectMeta<DynamicObject>| {
            let ObjectMeta { name, resource_version, creation_timestamp, .. } = object.metadata;
            let created_at = creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |at| at.0);
            Some(Listed { name: name?, version: resource_version.unwrap_or_default(), created_at })
        };
        let (records, mut found) = (self.records(like), Vec::new());
        let mut page = ListParams::default().limit(PAGE);
        for _ in 0..PAGES_MAX {
            let listed = records.list_metadata(&page).await;
            let listed = listed.map_err(|error| port_error(VERB, &error))?;
            found.extend(listed.items.into_iter().filter_map(head));
            page.continue_token = listed.metadata.continue_.filter(|next| !next.is_empty());
            if page.continue_token.is_none() {
                return Ok(found);
            }
        }
        let (most, plural) = (PAGE * PAGES_MAX, &like.plural);
        let reason = format!("there are more than {most} {plural}; delete those that nobody needs");
        Err(PortError { verb: VERB.to_owned(), reason, fate: Fate::Refused })
    }

    async fn get(&self, like: &Record, name: &str) -> Result<Option<Record>, PortError> {
        let found = self.records(like).get_opt(name).await;
        let found = found.map_err(|error| port_error("read record", &error))?;
        Ok(found.map(|mut object| Record {
            name: name.to_owned(),
            spec: object.data.get_mut("spec").map(Json::take),
            brief: None,
            status: object.data.get_mut("status").map(Json::take).unwrap_or_default(),
            ..like.clone()
        }))
    }

    async fn remove(&self, like: &Record, name: &str) -> Result<(), PortError> {
        match self.records(like).delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(port_error("remove record", &error)),
        }
    }
}

impl Kubernetes {
    fn records(&self, like: &Record) -> Api<DynamicObject> {
        let (group, version) = like.api_version.split_once('/').unwrap_or(("", &like.api_version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: like.api_version.clone(),
            kind: like.kind.clone(),
            plural: like.plural.clone(),
        };
        Api::all_with(self.writer.clone(), &resource)
    }
}

/// Fills in the generation that a status and its conditions are about.
fn observed(mut status: Json, generation: Option<i64>) -> Json {
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
