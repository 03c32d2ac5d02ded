//! Paged lists.

use ::kube::Error;
use ::kube::api::ListParams;
use ::kube::core::Request;
use serde::Deserialize;
use serde_json::Value as Json;

use super::client::Kubernetes;

/// Objects per page: large enough for few requests, small enough to be held as text.
const PAGE_SIZE: u32 = 500;

/// Maximum number of restarts after an expired continuation.
const RESTARTS_MAX: u32 = 3;

/// A resource type.
#[derive(Debug, Clone, Copy)]
pub(super) struct ApiResource {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    /// Path of the collection across all namespaces.
    pub(super) path: &'static str,
    /// Name of the only objects that are read; `None` for all.
    pub(super) name: Option<&'static str>,
}

impl ApiResource {
    /// Returns the field selector of the objects that are read.
    pub(super) fn fields(&self) -> Option<String> {
        self.name.map(|name| format!("metadata.name={name}"))
    }

    /// Sets `apiVersion` and `kind`, which list items omit.
    pub(super) fn set_type_meta(&self, object: &mut Json) {
        if let Json::Object(fields) = object {
            fields.insert("apiVersion".to_owned(), self.api_version.into());
            fields.insert("kind".to_owned(), self.kind.into());
        }
    }
}

/// A page of a list. Its items have neither `apiVersion` nor `kind`.
#[derive(Debug, Deserialize)]
struct ListPage {
    #[serde(default)]
    metadata: ListPageMeta,
    #[serde(default)]
    items: Vec<Json>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListPageMeta {
    #[serde(rename = "continue")]
    continue_token: String,
    resource_version: String,
}

impl Kubernetes {
    /// Passes the objects of a resource type to `receive`, page by page, optionally with a field
    /// selector. Returns the resource version from which a watch can start.
    ///
    /// The request has no resource version, so that the first page is a consistent read and the
    /// others belong to the same snapshot. If the continuation expires, the list restarts, and
    /// `receive` is called with `None`.
    ///
    /// # Errors
    /// Returns an error if any page cannot be read.
    pub(super) async fn list_pages(
        &self,
        resource: ApiResource,
        fields: Option<&str>,
        receive: &mut (dyn FnMut(Option<Vec<Json>>) + Send),
    ) -> Result<String, Error> {
        let request = Request::new(resource.path);
        let mut attempts = 1;
        let mut params = ListParams::default().limit(PAGE_SIZE);
        params.field_selector = fields.map(str::to_owned);
        loop {
            let http_request = request.list(&params).map_err(Error::BuildRequest)?;
            // Parsed here: the client library would log text that it cannot parse.
            let page = match self.client.request_text(http_request).await {
                Ok(text) => serde_json::from_str::<ListPage>(&text).map_err(Error::SerdeError)?,
                Err(Error::Api(status)) if status.code == 410 && attempts < RESTARTS_MAX => {
                    attempts += 1;
                    params.continue_token = None;
                    receive(None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut items = page.items;
            for item in &mut items {
                resource.set_type_meta(item);
            }
            receive(Some(items));
            if page.metadata.continue_token.is_empty() {
                return Ok(page.metadata.resource_version);
            }
            params.continue_token = Some(page.metadata.continue_token);
        }
    }
}
