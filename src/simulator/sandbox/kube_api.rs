//! The API verbs on the store, without side effects.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::applied_fields::AppliedFields;
use super::patch::apply_patch;
use super::request::{APPLY_PATCH_MEDIA, ApiRequest, RequestTarget};
use super::resource::{self, ServedResource};
use super::selectors::ObjectSelector;
use super::status_error::StatusError;
use super::store::{ObjectKey, ObjectStore, Writer};
use super::{object, openapi, table};

/// Maximum number of stored lists for clients that page.
const SNAPSHOTS_MAX: usize = 16;

/// Kubernetes version of the API.
const VERSION: (&str, &str) = ("1", "33");

/// Namespaces of every cluster.
pub(super) const NAMESPACES: [&str; 4] =
    ["default", "kube-node-lease", "kube-public", "kube-system"];

#[derive(Debug)]
pub(super) enum ApiResponse {
    /// Status and body.
    Whole(u16, Vec<u8>),
    /// A stream of events.
    Watch(Box<WatchRequest>),
}

impl ApiResponse {
    pub(super) fn json(code: u16, document: &Json) -> Self {
        Self::Whole(code, serde_json::to_vec(document).expect("JSON has text keys only"))
    }
}

/// A requested watch.
#[derive(Debug)]
pub(super) struct WatchRequest {
    pub(super) resource: &'static ServedResource,
    pub(super) namespace: Option<String>,
    pub(super) selection: ObjectSelector,
    /// Version of the last write that the client has seen.
    pub(super) seen: u64,
    /// Initial objects.
    pub(super) initial: Vec<Arc<Json>>,
    /// True if a bookmark marks the end of the initial objects.
    pub(super) marks_initial: bool,
    pub(super) bookmarks: bool,
    pub(super) table: Option<table::IncludedObject>,
    /// Requested duration in seconds.
    pub(super) seconds: Option<u64>,
}

/// The remaining items of a paged list.
#[derive(Debug)]
struct ListSnapshot {
    id: u64,
    version: u64,
    rest: Vec<Arc<Json>>,
}

#[derive(Debug, Default)]
pub(super) struct KubeApi {
    pub(super) store: ObjectStore,
    snapshots: VecDeque<ListSnapshot>,
    /// Number of paged lists.
    lists_paged: u64,
    /// Applied fields by manager.
    pub(super) applied: AppliedFields,
    /// Number of objects that clients created.
    pub(super) objects_created: u64,
}

impl KubeApi {
    /// Handles a request.
    pub(super) fn answer(&mut self, request: &ApiRequest) -> ApiResponse {
        self.handle(request)
            .unwrap_or_else(|error| ApiResponse::json(error.code, &error.to_status()))
    }

    pub(super) fn handle(&mut self, request: &ApiRequest) -> Result<ApiResponse, StatusError> {
        if let Some(answer) = discovery(&request.path) {
            return Ok(answer);
        }
        let target = RequestTarget::parse(&request.path)?;
        if target.resource.is_older_version() {
            return self.handle_autoscaler_v1(&target, request);
        }
        if target.resource.is_access_review() {
            return review_access(target.resource, request);
        }
        if request.method != "GET" && !target.resource.is_writable() {
            return Err(StatusError::read_only(target.resource.plural));
        }
        match (request.method.as_str(), target.name) {
            ("GET", None) => self.list(&target, request),
            ("GET", Some(name)) => self.read(&target, name, request),
            ("POST", None) => self.create(&target, request),
            ("POST", Some(name)) => match target.subresource {
                Some("eviction") => self.evict(&target, name, request),
                Some("binding") => self.bind(&target, name, request),
                _ => Err(StatusError::method_not_allowed("POST")),
            },
            ("PATCH", Some(name)) if request.media == APPLY_PATCH_MEDIA => {
                self.apply(&target, name, request)
            }
            ("PUT" | "PATCH", Some(name)) => self.update(&target, name, request),
            ("DELETE", Some(name)) => {
                let key = self.key(&target, name)?;
                self.delete(&key, request)
            }
            ("DELETE", None) => self.delete_all(&target, request),
            (method, _) => Err(StatusError::method_not_allowed(method)),
        }
    }

    /// Returns the key of an existing object.
    pub(super) fn key(
        &self,
        target: &RequestTarget<'_>,
        name: &str,
    ) -> Result<ObjectKey, StatusError> {
        let key = ObjectKey::new(target.resource.kind, target.namespace.unwrap_or_default(), name);
        match self.store.get(&key) {
            Some(_) => Ok(key),
            None => Err(StatusError::not_found(target.resource.plural, name)),
        }
    }

    fn read(
        &self,
        target: &RequestTarget<'_>,
        name: &str,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let key = self.key(target, name)?;
        let object = &self.store.get(&key).expect("its key was found just now");
        let answer = match target.subresource {
            Some("scale") => object::to_scale(object),
            Some("eviction" | "binding") => return Err(StatusError::method_not_allowed("GET")),
            Some(_) | None => match request.table_format() {
                Some(included) => {
                    let one = [Arc::clone(object)];
                    table::table(target.resource, &one, included, &json!({}), request.at)
                }
                None => return Ok(ApiResponse::json(200, object)),
            },
        };
        Ok(ApiResponse::json(200, &answer))
    }

    fn selected_objects(
        &self,
        target: &RequestTarget<'_>,
        selection: &ObjectSelector,
    ) -> Vec<Arc<Json>> {
        let all = self.store.list(target.resource.kind, target.namespace);
        all.map(|(_, object)| object).filter(|o| selection.matches(o)).cloned().collect()
    }

    fn list(
        &mut self,
        target: &RequestTarget<'_>,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let (labels, fields) =
            (request.parameter("labelSelector"), request.parameter("fieldSelector"));
        let selection = ObjectSelector::parse(target.resource, labels, fields)?;
        if request.flag("watch") {
            return self.watch(target, selection, request);
        }
        let (version, mut items) = match request.parameter("continue") {
            "" => (self.store.version(), self.selected_objects(target, &selection)),
            token => self.resume_list(token)?,
        };
        let limit = request.parameter("limit").parse().ok().filter(|limit| *limit > 0);
        let rest = limit.map(|limit: usize| items.split_off(limit.min(items.len())));
        let mut meta = json!({ "resourceVersion": version.to_string() });
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            meta["remainingItemCount"] = rest.len().into();
            meta["continue"] = self.store_snapshot(version, rest).into();
        }
        if let Some(included) = request.table_format() {
            let table = table::table(target.resource, &items, included, &meta, request.at);
            return Ok(ApiResponse::json(200, &table));
        }
        Ok(ApiResponse::Whole(200, encode_list(target.resource, &meta, &items)))
    }

    /// Stores the rest of a list and returns its continue token.
    fn store_snapshot(&mut self, version: u64, rest: Vec<Arc<Json>>) -> String {
        self.lists_paged += 1;
        self.snapshots.push_back(ListSnapshot { id: self.lists_paged, version, rest });
        if self.snapshots.len() > SNAPSHOTS_MAX {
            self.snapshots.pop_front();
        }
        self.lists_paged.to_string()
    }

    /// Returns the rest of a list. A token may be reused until its list is evicted.
    fn resume_list(&self, token: &str) -> Result<(u64, Vec<Arc<Json>>), StatusError> {
        let id: Option<u64> = token.parse().ok();
        let found = self.snapshots.iter().find(|snapshot| Some(snapshot.id) == id);
        let ListSnapshot { version, rest, .. } =
            found.ok_or_else(|| StatusError::expired("the continue token"))?;
        Ok((*version, rest.clone()))
    }

    fn watch(
        &self,
        target: &RequestTarget<'_>,
        selection: ObjectSelector,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let from = match request.parameter("resourceVersion") {
            "" | "0" => None,
            version => Some(version.parse().map_err(|_| {
                StatusError::bad_request(format!("`{version}` is not a resource version"))
            })?),
        };
        let marks_initial = request.flag("sendInitialEvents");
        let begins = from.is_none() || marks_initial;
        let initial = if begins { self.selected_objects(target, &selection) } else { Vec::new() };
        let seen = if begins { self.store.version() } else { from.unwrap_or_default() };
        Ok(ApiResponse::Watch(Box::new(WatchRequest {
            resource: target.resource,
            namespace: target.namespace.map(ToOwned::to_owned),
            selection,
            seen,
            initial,
            marks_initial,
            bookmarks: request.flag("allowWatchBookmarks"),
            table: request.table_format(),
            seconds: request.parameter("timeoutSeconds").parse().ok(),
        })))
    }

    fn create(
        &mut self,
        target: &RequestTarget<'_>,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        self.create_object(target, request.json()?, request)
    }

    /// Creates an object from a client request.
    pub(super) fn create_object(
        &mut self,
        target: &RequestTarget<'_>,
        body: Json,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let (resource, namespace) = (target.resource, target.namespace);
        if resource.namespaced && namespace.is_none() {
            return Err(StatusError::method_not_allowed("POST"));
        }
        if let Some(namespace) = namespace
            && self.store.get(&ObjectKey::new("Namespace", "", namespace)).is_none()
        {
            return Err(StatusError::not_found("namespaces", namespace));
        }
        self.objects_created += 1;
        let manager = request.parameter("fieldManager");
        let context =
            object::CreationContext { number: self.objects_created, now: request.at, manager };
        let object = object::create(resource, namespace, body, &context)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = ObjectKey::new(resource.kind, namespace.unwrap_or_default(), name);
        if self.store.get(&key).is_some() {
            return Err(StatusError::already_exists(resource.plural, name));
        }
        if request.is_dry_run() {
            return Ok(ApiResponse::json(201, &object));
        }
        Ok(ApiResponse::json(201, &self.store.upsert(key, object, Writer::Client)))
    }

    fn update(
        &mut self,
        target: &RequestTarget<'_>,
        name: &str,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let key = self.key(target, name)?;
        let stored = Arc::clone(self.store.get(&key).expect("its key was found just now"));
        let sub = target.subresource;
        let before =
            if sub == Some("scale") { object::to_scale(&stored) } else { (*stored).clone() };
        let body = request.json()?;
        let desired = match request.method.as_str() {
            "PATCH" => apply_patch(&request.media, &before, body)?,
            _ => body,
        };
        self.write(target, &key, &stored, desired, request)
    }

    /// Writes the desired version of an object.
    pub(super) fn write(
        &mut self,
        target: &RequestTarget<'_>,
        key: &ObjectKey,
        stored: &Arc<Json>,
        desired: Json,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let sub = target.subresource;
        object::check_unchanged(target.resource, stored, &desired)?;
        let after = match sub {
            None => object::apply_update(target.resource, stored, desired)?,
            Some("status") => object::with_status(stored, &desired)?,
            Some("scale") => object::with_scale(stored, &desired)?,
            Some(_) => return Err(StatusError::method_not_allowed(&request.method)),
        };
        let after = if request.is_dry_run() {
            Arc::new(after)
        } else if object::is_ready_to_remove(&after) {
            self.store.upsert(key.clone(), after, Writer::Client);
            self.store.remove(key, Writer::Client).expect("it was written just now")
        } else {
            self.store.upsert(key.clone(), after, Writer::Client)
        };
        let answer = if sub == Some("scale") { object::to_scale(&after) } else { (*after).clone() };
        Ok(ApiResponse::json(200, &answer))
    }

    fn delete_all(
        &mut self,
        target: &RequestTarget<'_>,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let (labels, fields) =
            (request.parameter("labelSelector"), request.parameter("fieldSelector"));
        let selection = ObjectSelector::parse(target.resource, labels, fields)?;
        let all = self.store.list(target.resource.kind, target.namespace);
        let keys: Vec<ObjectKey> =
            all.filter(|(_, o)| selection.matches(o)).map(|(k, _)| k.clone()).collect();
        for key in keys {
            self.delete(&key, request)?;
        }
        Ok(ApiResponse::json(200, &object::success()))
    }

    /// Deletes an object with the options in the body.
    pub(super) fn delete(
        &mut self,
        key: &ObjectKey,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let options = if request.body.is_empty() { json!({}) } else { request.json()? };
        let stored = Arc::clone(self.store.get(key).expect("its key was found just now"));
        object::check_preconditions(&stored, &options["preconditions"])?;
        let grace = options["gracePeriodSeconds"].as_i64();
        let grace = grace.or_else(|| request.parameter("gracePeriodSeconds").parse().ok());
        let dry = request.is_dry_run() || options["dryRun"].is_array();
        if !dry {
            self.begin_deletion(key, grace, request.at);
        }
        if key.kind == "Pod" {
            let stored = self.store.get(key).cloned().unwrap_or(stored);
            return Ok(ApiResponse::json(200, &stored));
        }
        Ok(ApiResponse::json(200, &object::success()))
    }

    /// Deletes an object, or marks it for deletion: kubelets stop bound pods, and finalizers are
    /// awaited.
    pub(super) fn begin_deletion(&mut self, key: &ObjectKey, grace: Option<i64>, now: Timestamp) {
        let Some(stored) = self.store.get(key).cloned() else { return };
        let bound = stored["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty());
        let runs = key.kind == "Pod" && bound && grace != Some(0);
        let has_finalizers =
            stored["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if !runs && !has_finalizers {
            self.store.remove(key, Writer::Client);
            return;
        }
        if stored["metadata"]["deletionTimestamp"].is_null() {
            let of_pod = stored["spec"]["terminationGracePeriodSeconds"].as_i64();
            let seconds = grace.or(of_pod).unwrap_or(30);
            let mut marked = (*stored).clone();
            marked["metadata"]["deletionTimestamp"] = object::format_time(now).into();
            marked["metadata"]["deletionGracePeriodSeconds"] = seconds.into();
            self.store.upsert(key.clone(), marked, Writer::Client);
        }
    }
}

/// Encodes a list without copying its items.
fn encode_list(resource: &ServedResource, meta: &Json, items: &[Arc<Json>]) -> Vec<u8> {
    let (kind, version) = (resource.kind, resource.api_version());
    let mut out = format!(
        "{{\"kind\":\"{kind}List\",\"apiVersion\":\"{version}\",\"metadata\":{meta},\"items\":["
    )
    .into_bytes();
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut out, item).expect("writing to memory cannot fail");
    }
    out.extend(b"]}");
    out
}

/// Answers API discovery requests. Returns `None` for other paths.
fn discovery(path: &str) -> Option<ApiResponse> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let document = match &parts[..] {
        ["api"] => resource::core_versions(),
        ["apis"] => resource::groups(),
        ["api", version] => resource::api_resource_list("", version)?,
        ["apis", group] => {
            let mut groups = resource::groups()["groups"].take();
            let group = groups.as_array_mut()?.iter_mut().find(|found| found["name"] == *group)?;
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group.take()
        }
        ["apis", group, version] => resource::api_resource_list(group, version)?,
        ["openapi", "v3"] => openapi::groups(),
        ["openapi", "v3", "api", version] => openapi::group("", version)?,
        ["openapi", "v3", "apis", group, version] => openapi::group(group, version)?,
        ["version"] => json!({
            "major": VERSION.0, "minor": VERSION.1,
            "gitVersion": format!("v{}.{}.0-fleetwright", VERSION.0, VERSION.1),
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
            "platform": "embedded"
        }),
        ["healthz" | "livez" | "readyz"] => return Some(ApiResponse::Whole(200, b"ok".to_vec())),
        _ => return None,
    };
    Some(ApiResponse::json(200, &document))
}

/// Answers an access review: every client may do anything.
fn review_access(
    resource: &ServedResource,
    request: &ApiRequest,
) -> Result<ApiResponse, StatusError> {
    if request.method != "POST" {
        return Err(StatusError::method_not_allowed(&request.method));
    }
    // The answer is constant, so that the request need not be parsed.
    let mut review = if request.is_protobuf() { json!({}) } else { request.json()? };
    if !review.is_object() {
        return Err(StatusError::bad_request("the body is not an object"));
    }
    review["kind"] = resource.kind.into();
    review["apiVersion"] = resource.api_version().into();
    review["status"] = json!({ "allowed": true });
    Ok(ApiResponse::json(201, &review))
}
