//! The verbs of the API, over the store: a request in, an answer out, and nothing else happens.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::apply::{self, Applied};
use super::object;
use super::openapi;
use super::patch::patched;
use super::refusal::Refusal;
use super::request::{Request, Target};
use super::resource::{self, Resource};
use super::select::Selection;
use super::store::{Author, Key, Store};
use super::table;

/// Most lists that are kept for whoever has read only their first pages.
const SNAPSHOTS_MAX: usize = 16;

/// Version of Kubernetes whose API this is.
const VERSION: (&str, &str) = ("1", "33");

/// Namespaces that every cluster has.
pub(super) const NAMESPACES: [&str; 4] =
    ["default", "kube-node-lease", "kube-public", "kube-system"];

/// An answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// A status and a document.
    Whole(u16, Vec<u8>),
    /// Events, for as long as they are wanted.
    Watch(Box<Watch>),
}

impl Answer {
    pub(super) fn json(code: u16, document: &Json) -> Self {
        Self::Whole(code, serde_json::to_vec(document).expect("JSON has text keys only"))
    }
}

/// A watch that was asked for.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) resource: &'static Resource,
    pub(super) namespace: Option<String>,
    pub(super) selection: Selection,
    /// The number of the last write that the client has seen.
    pub(super) seen: u64,
    /// Objects to begin with.
    pub(super) initial: Vec<Arc<Json>>,
    /// Whether the end of the objects to begin with is to be told.
    pub(super) marks_initial: bool,
    pub(super) bookmarks: bool,
    pub(super) table: Option<table::Included>,
    /// How long it lasts, in seconds, where the client says so.
    pub(super) seconds: Option<u64>,
}

/// A list of which somebody has read the first pages.
#[derive(Debug)]
struct Snapshot {
    id: u64,
    version: u64,
    rest: Vec<Arc<Json>>,
}

/// An API server.
#[derive(Debug, Default)]
pub(super) struct Api {
    pub(super) store: Store,
    snapshots: VecDeque<Snapshot>,
    /// How many lists were cut into pages.
    lists: u64,
    /// What managers said of objects.
    pub(super) applied: Applied,
    /// How many objects were created by clients.
    pub(super) made: u64,
}

impl Api {
    /// Returns the answer to a request, and does what it asks for.
    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        self.serve(request).unwrap_or_else(|refusal| Answer::json(refusal.code, &refusal.status()))
    }

    fn serve(&mut self, request: &Request) -> Result<Answer, Refusal> {
        if let Some(answer) = discovery(&request.path) {
            return Ok(answer);
        }
        let target = Target::parse(&request.path)?;
        if target.resource.is_question() {
            return question(target.resource, request);
        }
        match (request.method.as_str(), target.name) {
            ("GET", None) => self.list(&target, request),
            ("GET", Some(name)) => self.read(&target, name, request),
            ("POST", None) => self.create(&target, request),
            ("POST", Some(name)) => match target.subresource {
                Some("eviction") => self.evict(&target, name, request),
                Some("binding") => self.bind(&target, name, request),
                _ => Err(Refusal::no_verb("POST")),
            },
            ("PATCH", Some(name)) if request.media == apply::MEDIA => {
                self.apply(&target, name, request)
            }
            ("PUT" | "PATCH", Some(name)) => self.update(&target, name, request),
            ("DELETE", Some(name)) => {
                let key = self.key(&target, name)?;
                self.delete(&key, request)
            }
            ("DELETE", None) => self.delete_all(&target, request),
            (method, _) => Err(Refusal::no_verb(method)),
        }
    }

    /// Returns the key of an object that is there.
    pub(super) fn key(&self, target: &Target<'_>, name: &str) -> Result<Key, Refusal> {
        let key = Key::new(target.resource.kind, target.namespace.unwrap_or_default(), name);
        match self.store.get(&key) {
            Some(_) => Ok(key),
            None => Err(Refusal::not_found(target.resource.plural, name)),
        }
    }

    fn read(&self, target: &Target<'_>, name: &str, request: &Request) -> Result<Answer, Refusal> {
        let key = self.key(target, name)?;
        let object = &self.store.get(&key).expect("its key was found just now");
        let answer = match target.subresource {
            Some("scale") => object::scale(object),
            Some("eviction" | "binding") => return Err(Refusal::no_verb("GET")),
            Some(_) | None => match request.table() {
                Some(included) => {
                    let one = [Arc::clone(object)];
                    table::table(target.resource, (&one, included), &json!({}), request.at)
                }
                None => return Ok(Answer::json(200, object)),
            },
        };
        Ok(Answer::json(200, &answer))
    }

    /// Returns the objects that are selected.
    fn selected(&self, target: &Target<'_>, selection: &Selection) -> Vec<Arc<Json>> {
        let all = self.store.list(target.resource.kind, target.namespace);
        all.map(|(_, object)| object).filter(|o| selection.covers(o)).cloned().collect()
    }

    fn list(&mut self, target: &Target<'_>, request: &Request) -> Result<Answer, Refusal> {
        let (labels, fields) =
            (request.parameter("labelSelector"), request.parameter("fieldSelector"));
        let selection = Selection::read(target.resource, labels, fields)?;
        if request.flag("watch") {
            return self.watch(target, selection, request);
        }
        let (version, mut items) = match request.parameter("continue") {
            "" => (self.store.version(), self.selected(target, &selection)),
            token => self.resume(token)?,
        };
        let limit = request.parameter("limit").parse().ok().filter(|limit| *limit > 0);
        let rest = limit.map(|limit: usize| items.split_off(limit.min(items.len())));
        let mut meta = json!({ "resourceVersion": version.to_string() });
        if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
            meta["remainingItemCount"] = rest.len().into();
            meta["continue"] = self.suspend(version, rest).into();
        }
        if let Some(included) = request.table() {
            let table = table::table(target.resource, (&items, included), &meta, request.at);
            return Ok(Answer::json(200, &table));
        }
        Ok(Answer::Whole(200, list_of(target.resource, &meta, &items)))
    }

    /// Keeps the rest of a list, and returns the token that stands for it.
    fn suspend(&mut self, version: u64, rest: Vec<Arc<Json>>) -> String {
        self.lists += 1;
        self.snapshots.push_back(Snapshot { id: self.lists, version, rest });
        if self.snapshots.len() > SNAPSHOTS_MAX {
            self.snapshots.pop_front();
        }
        self.lists.to_string()
    }

    /// Returns the rest of a list; a token may be used again, until others took its place.
    fn resume(&self, token: &str) -> Result<(u64, Vec<Arc<Json>>), Refusal> {
        let id: Option<u64> = token.parse().ok();
        let found = self.snapshots.iter().find(|snapshot| Some(snapshot.id) == id);
        let Snapshot { version, rest, .. } =
            found.ok_or_else(|| Refusal::expired("the continue token"))?;
        Ok((*version, rest.clone()))
    }

    fn watch(
        &self,
        target: &Target<'_>,
        selection: Selection,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let from = match request.parameter("resourceVersion") {
            "" | "0" => None,
            version => Some(
                version
                    .parse()
                    .map_err(|_| Refusal::bad(format!("`{version}` is no resource version")))?,
            ),
        };
        let marks_initial = request.flag("sendInitialEvents");
        let begins = from.is_none() || marks_initial;
        let initial = if begins { self.selected(target, &selection) } else { Vec::new() };
        let seen = if begins { self.store.version() } else { from.unwrap_or_default() };
        Ok(Answer::Watch(Box::new(Watch {
            resource: target.resource,
            namespace: target.namespace.map(ToOwned::to_owned),
            selection,
            seen,
            initial,
            marks_initial,
            bookmarks: request.flag("allowWatchBookmarks"),
            table: request.table(),
            seconds: request.parameter("timeoutSeconds").parse().ok(),
        })))
    }

    fn create(&mut self, target: &Target<'_>, request: &Request) -> Result<Answer, Refusal> {
        self.make(target, request.json()?, request)
    }

    /// Makes an object as a client describes it.
    pub(super) fn make(
        &mut self,
        target: &Target<'_>,
        body: Json,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let (resource, namespace) = (target.resource, target.namespace);
        if resource.namespaced && namespace.is_none() {
            return Err(Refusal::no_verb("POST"));
        }
        if let Some(namespace) = namespace
            && self.store.get(&Key::new("Namespace", "", namespace)).is_none()
        {
            return Err(Refusal::not_found("namespaces", namespace));
        }
        self.made += 1;
        let manager = request.parameter("fieldManager");
        let made = object::Made { number: self.made, now: request.at, manager };
        let object = object::new(resource, namespace, body, &made)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = Key::new(resource.kind, namespace.unwrap_or_default(), name);
        if self.store.get(&key).is_some() {
            return Err(Refusal::exists(resource.plural, name));
        }
        if request.is_dry() {
            return Ok(Answer::json(201, &object));
        }
        Ok(Answer::json(201, &self.store.put(key, object, Author::Client)))
    }

    fn update(
        &mut self,
        target: &Target<'_>,
        name: &str,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let key = self.key(target, name)?;
        let held = Arc::clone(self.store.get(&key).expect("its key was found just now"));
        let sub = target.subresource;
        let before = if sub == Some("scale") { object::scale(&held) } else { (*held).clone() };
        let body = request.json()?;
        let asked = match request.method.as_str() {
            "PATCH" => patched(&request.media, &before, body)?,
            _ => body,
        };
        self.write(target, (&key, &held), asked, request)
    }

    /// Writes an object as a client wants it to be from now on.
    pub(super) fn write(
        &mut self,
        target: &Target<'_>,
        (key, held): (&Key, &Arc<Json>),
        asked: Json,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let sub = target.subresource;
        object::same(target.resource, held, &asked)?;
        let after = match sub {
            None => object::updated(target.resource, held, asked)?,
            Some("status") => object::with_status(held, &asked)?,
            Some("scale") => object::with_scale(held, &asked)?,
            Some(_) => return Err(Refusal::no_verb(&request.method)),
        };
        let after = if request.is_dry() {
            Arc::new(after)
        } else if object::is_released(&after) {
            self.store.put(key.clone(), after, Author::Client);
            self.store.remove(key, Author::Client).expect("it was written just now")
        } else {
            self.store.put(key.clone(), after, Author::Client)
        };
        let answer = if sub == Some("scale") { object::scale(&after) } else { (*after).clone() };
        Ok(Answer::json(200, &answer))
    }

    fn delete_all(&mut self, target: &Target<'_>, request: &Request) -> Result<Answer, Refusal> {
        let (labels, fields) =
            (request.parameter("labelSelector"), request.parameter("fieldSelector"));
        let selection = Selection::read(target.resource, labels, fields)?;
        let all = self.store.list(target.resource.kind, target.namespace);
        let keys: Vec<Key> =
            all.filter(|(_, o)| selection.covers(o)).map(|(k, _)| k.clone()).collect();
        for key in keys {
            self.delete(&key, request)?;
        }
        Ok(Answer::json(200, &object::success()))
    }

    /// Deletes an object as the options in the body say.
    pub(super) fn delete(&mut self, key: &Key, request: &Request) -> Result<Answer, Refusal> {
        let options = if request.body.is_empty() { json!({}) } else { request.json()? };
        let held = Arc::clone(self.store.get(key).expect("its key was found just now"));
        object::meets(&held, &options["preconditions"])?;
        let grace = options["gracePeriodSeconds"].as_i64();
        let grace = grace.or_else(|| request.parameter("gracePeriodSeconds").parse().ok());
        let dry = request.is_dry() || options["dryRun"].is_array();
        if !dry {
            self.begin_to_delete(key, grace, request.at);
        }
        if key.kind == "Pod" {
            let held = self.store.get(key).cloned().unwrap_or(held);
            return Ok(Answer::json(200, &held));
        }
        Ok(Answer::json(200, &object::success()))
    }

    /// Removes an object, or marks it where something has to happen first: a pod on a node is stopped
    /// by the kubelet, and what holds finalizers waits for them.
    pub(super) fn begin_to_delete(&mut self, key: &Key, grace: Option<i64>, now: Timestamp) {
        let Some(held) = self.store.get(key).cloned() else { return };
        let bound = held["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty());
        let runs = key.kind == "Pod" && bound && grace != Some(0);
        let held_back = held["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
        if !runs && !held_back {
            self.store.remove(key, Author::Client);
            return;
        }
        if held["metadata"]["deletionTimestamp"].is_null() {
            let of_pod = held["spec"]["terminationGracePeriodSeconds"].as_i64();
            let seconds = grace.or(of_pod).unwrap_or(30);
            let mut marked = (*held).clone();
            marked["metadata"]["deletionTimestamp"] = object::time(now).into();
            marked["metadata"]["deletionGracePeriodSeconds"] = seconds.into();
            self.store.put(key.clone(), marked, Author::Client);
        }
    }
}

/// Returns a list, its items one after the other and never copied.
fn list_of(resource: &Resource, meta: &Json, items: &[Arc<Json>]) -> Vec<u8> {
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

/// Returns what a client asks to find out what is served; `None` for any other path.
fn discovery(path: &str) -> Option<Answer> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let document = match &parts[..] {
        ["api"] => resource::core_versions(),
        ["apis"] => resource::groups(),
        ["api", version] => resource::sorts("", version)?,
        ["apis", group] => {
            let mut groups = resource::groups()["groups"].take();
            let group = groups.as_array_mut()?.iter_mut().find(|found| found["name"] == *group)?;
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group.take()
        }
        ["apis", group, version] => resource::sorts(group, version)?,
        ["openapi", "v3"] => openapi::groups(),
        ["openapi", "v3", "api", version] => openapi::group("", version)?,
        ["openapi", "v3", "apis", group, version] => openapi::group(group, version)?,
        ["version"] => json!({
            "major": VERSION.0, "minor": VERSION.1,
            "gitVersion": format!("v{}.{}.0-fleetwright", VERSION.0, VERSION.1),
            "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
            "platform": "embedded"
        }),
        ["healthz" | "livez" | "readyz"] => return Some(Answer::Whole(200, b"ok".to_vec())),
        _ => return None,
    };
    Some(Answer::json(200, &document))
}

/// Answers a question about permissions: whoever reaches this server may do anything.
fn question(resource: &Resource, request: &Request) -> Result<Answer, Refusal> {
    if request.method != "POST" {
        return Err(Refusal::no_verb(&request.method));
    }
    // The answer is the same whatever is asked, so that it need not be understood.
    let mut review = if request.is_protobuf() { json!({}) } else { request.json()? };
    if !review.is_object() {
        return Err(Refusal::bad("the body is no object"));
    }
    review["kind"] = resource.kind.into();
    review["apiVersion"] = resource.api_version().into();
    review["status"] = json!({ "allowed": true });
    Ok(Answer::json(201, &review))
}
