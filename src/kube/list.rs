//! Lists, read to their last page.

use ::kube::Error;
use ::kube::api::ListParams;
use ::kube::core::Request;
use serde::Deserialize;
use serde_json::Value as Json;

use super::client::Kubernetes;

/// Most objects of one page: large enough to ask seldom, small enough to be held as text.
const PAGE: u32 = 500;

/// How often a list is begun anew because its continuation had expired.
const STARTS_MAX: u32 = 3;

/// A sort of objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sort {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    /// Path of the collection over all namespaces.
    pub(super) path: &'static str,
}

impl Sort {
    /// Says of an object what it is: items of a list do not say it themselves.
    pub(super) fn name(&self, object: &mut Json) {
        if let Json::Object(fields) = object {
            fields.insert("apiVersion".to_owned(), self.api_version.into());
            fields.insert("kind".to_owned(), self.kind.into());
        }
    }
}

/// A page of a list; items carry neither `apiVersion` nor `kind`.
#[derive(Debug, Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Vec<Json>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    #[serde(rename = "continue")]
    next: String,
    resource_version: String,
}

impl Kubernetes {
    /// Hands every object of a sort to `take`, a page at a time, or those that a selector of `fields`
    /// lets through; returns the version of the collection, from which on it can be watched.
    ///
    /// No resource version is asked for, so that the first page is a consistent read of the store and
    /// the others are of the same moment. A list whose continuation expires is begun anew, from
    /// nothing: `take` is told by being handed `None`.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub(super) async fn each(
        &self,
        sort: Sort,
        fields: Option<&str>,
        take: &mut (dyn FnMut(Option<Vec<Json>>) + Send),
    ) -> Result<String, Error> {
        let request = Request::new(sort.path);
        let mut starts = 1;
        let mut params = ListParams::default().limit(PAGE);
        params.field_selector = fields.map(str::to_owned);
        loop {
            let asked = request.list(&params).map_err(Error::BuildRequest)?;
            // The text is taken and read here: the client would log one that it cannot read.
            let page = match self.client.request_text(asked).await {
                Ok(text) => serde_json::from_str::<Page>(&text).map_err(Error::SerdeError)?,
                Err(Error::Api(status)) if status.code == 410 && starts < STARTS_MAX => {
                    starts += 1;
                    params.continue_token = None;
                    take(None);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut items = page.items;
            for item in &mut items {
                sort.name(item);
            }
            take(Some(items));
            if page.metadata.next.is_empty() {
                return Ok(page.metadata.resource_version);
            }
            params.continue_token = Some(page.metadata.next);
        }
    }
}
