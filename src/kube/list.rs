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
}

impl Kubernetes {
    /// Hands every object of a sort to `take`, a page at a time.
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
        take: &mut dyn FnMut(Option<Vec<Json>>),
    ) -> Result<(), Error> {
        let request = Request::new(sort.path);
        let mut starts = 1;
        let mut params = ListParams::default().limit(PAGE);
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
                if let Json::Object(fields) = item {
                    fields.insert("apiVersion".to_owned(), sort.api_version.into());
                    fields.insert("kind".to_owned(), sort.kind.into());
                }
            }
            take(Some(items));
            if page.metadata.next.is_empty() {
                return Ok(());
            }
            params.continue_token = Some(page.metadata.next);
        }
    }

    /// Returns every object of a sort.
    ///
    /// # Errors
    /// When any page cannot be read.
    pub(super) async fn all(&self, sort: Sort) -> Result<Vec<Json>, Error> {
        let mut all = Vec::new();
        let mut take = |page: Option<Vec<Json>>| match page {
            Some(page) => all.extend(page),
            None => all.clear(),
        };
        self.each(sort, &mut take).await?;
        Ok(all)
    }

    /// Returns every object of a sort that a cluster may not serve; none where it does not.
    ///
    /// # Errors
    /// When the sort is served and any page cannot be read.
    pub(super) async fn all_if_served(&self, sort: Sort) -> Result<Vec<Json>, Error> {
        match self.all(sort).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            result => result,
        }
    }
}
