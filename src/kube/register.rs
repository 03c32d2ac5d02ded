//! Records as objects of our own kinds, written by server-side apply: what we no longer say goes.

use ::kube::Error;
use ::kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value as Json, json};

use super::client::Kubernetes;
use super::port_error;
use super::write::MANAGER;
use crate::port::{PortError, Record, Register};

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
        let generation = match &record.spec {
            Some(spec) => {
                let spec = Patch::Apply(head(json!({ "spec": spec })));
                let written = api.patch(&record.name, &params, &spec).await;
                let written = written.map_err(|error| port_error("write record", &error))?;
                written.metadata.generation
            }
            None => match api.get_opt(&record.name).await {
                Ok(Some(found)) => found.metadata.generation,
                Ok(None) => return Ok(()),
                Err(error) => return Err(port_error("read record", &error)),
            },
        };
        let status = observed(record.status.clone(), generation);
        let status = Patch::Apply(head(json!({ "status": status })));
        let written = api.patch_status(&record.name, &params, &status).await;
        written.map(|_| ()).map_err(|error| port_error("write status of record", &error))
    }

    async fn names(&self, like: &Record) -> Result<Vec<String>, PortError> {
        let found = self.records(like).list_metadata(&ListParams::default()).await;
        let found = found.map_err(|error| port_error("list records", &error))?;
        Ok(found.items.into_iter().filter_map(|object| object.metadata.name).collect())
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
