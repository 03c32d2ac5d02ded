//! Server-side apply: what a manager says of an object takes the place of what it said before.
//!
//! Who owns which field is told by what each manager applied last, and kept beside the objects: they
//! show no `managedFields`. A field that somebody else says as well, or has changed since, is no longer
//! the manager's, and stays. There are no conflicts: whoever applies last is right.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::api::{Answer, Api};
use super::patch::{SETS, merge_key, strategic};
use super::refusal::Refusal;
use super::request::{Request, Target};
use super::store::Key;

/// Media type of what is applied.
pub(super) const MEDIA: &str = "application/apply-patch+yaml";

/// What managers applied last.
#[derive(Debug, Default)]
pub(super) struct Applied(BTreeMap<Saying, (Json, Json)>);

/// Who said something of what: object, part of it (empty for the whole), manager. With it is kept the UID
/// of the object: another one of the same name has nothing to do with it.
type Saying = (Key, String, String);

impl Applied {
    /// Returns what each manager said of an object or a part of it.
    fn of<'a>(
        &'a self,
        (key, part, uid): (&'a Key, &'a str, &'a Json),
    ) -> impl Iterator<Item = (&'a str, &'a Json)> {
        let first = (key.clone(), part.to_owned(), String::new());
        let here = move |(of, of_part, _): &Saying| of == key && of_part == part;
        let said = self.0.range(first..).take_while(move |(saying, _)| here(saying));
        said.filter(move |(_, (of, _))| of == uid).map(|((.., who), (_, said))| (&**who, said))
    }
}

impl Api {
    /// Makes an object of what a manager says, or has it say something else of one that is there.
    pub(super) fn apply(
        &mut self,
        target: &Target<'_>,
        name: &str,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let manager = request.parameter("fieldManager");
        if manager.is_empty() {
            return Err(Refusal::bad("fieldManager is required for an apply"));
        }
        let said = named(request.json()?, name)?;
        let namespace = target.namespace.unwrap_or_default();
        let part = target.subresource.unwrap_or_default();
        let key = Key::new(target.resource.kind, namespace, name);
        let held = self.store.get(&key).map(Arc::clone);
        let answer = match &held {
            None if target.subresource.is_some() => {
                return Err(Refusal::not_found(target.resource.plural, name));
            }
            None => self.make(target, said.clone(), request)?,
            Some(held) => {
                let mut asked = (**held).clone();
                let all = self.applied.of((&key, part, &held["metadata"]["uid"]));
                let (own, others): (Vec<_>, Vec<_>) = all.partition(|(who, _)| *who == manager);
                let others: Vec<&Json> = others.into_iter().map(|(_, said)| said).collect();
                if let Some((_, before)) = own.first() {
                    unsay(&mut asked, (before, Some(&said)), &others);
                }
                strategic(&mut asked, said.clone())?;
                self.write(target, (&key, held), asked, request)?
            }
        };
        if !request.is_dry() {
            self.remember((key, part.to_owned(), manager.to_owned()), said);
        }
        Ok(answer)
    }

    /// Keeps what was said of an object, and nothing of those that are gone.
    fn remember(&mut self, saying: Saying, said: Json) {
        let uid = self.store.get(&saying.0).map(|now| now["metadata"]["uid"].clone());
        if let Some(uid) = uid {
            self.applied.0.insert(saying, (uid, said));
        }
        let store = &self.store;
        self.applied.0.retain(|(key, ..), (uid, _)| {
            store.get(key).is_some_and(|now| now["metadata"]["uid"] == *uid)
        });
    }
}

/// Returns what is said of the object that the path names.
fn named(mut said: Json, name: &str) -> Result<Json, Refusal> {
    let Some(fields) = said.as_object_mut() else {
        return Err(Refusal::bad("the body is no object"));
    };
    let Some(meta) = fields.get_mut("metadata").and_then(Json::as_object_mut) else {
        return Err(Refusal::bad("the object has no metadata"));
    };
    if meta.get("name").is_some_and(|own| own != name) {
        return Err(Refusal::bad("the name of the object is not that of the path"));
    }
    meta.insert("name".to_owned(), name.into());
    meta.remove("managedFields");
    Ok(said)
}

/// Takes from `object` what was said `before` and is not said `now`, unless `others` say it, or somebody
/// has changed it since.
fn unsay(object: &mut Json, (before, now): (&Json, Option<&Json>), others: &[&Json]) {
    let (Some(held), Some(before)) = (object.as_object_mut(), before.as_object()) else { return };
    for (name, said) in before {
        let says = now.and_then(|now| now.get(name));
        let others: Vec<&Json> = others.iter().filter_map(|other| other.get(name)).collect();
        let is_mine = says.is_none() && others.is_empty();
        let Some(part) = held.get_mut(name) else { continue };
        match said {
            Json::Object(_) => {
                unsay(part, (said, says), &others);
                if is_mine && part.as_object().is_some_and(Map::is_empty) {
                    held.remove(name);
                }
            }
            Json::Array(items) if SETS.contains(&&**name) => {
                let speakers: Vec<&Json> = says.into_iter().chain(others).collect();
                let said = |item: &Json| {
                    speakers.iter().any(|s| s.as_array().is_some_and(|all| all.contains(item)))
                };
                if let Some(part) = part.as_array_mut() {
                    part.retain(|item| !items.contains(item) || said(item));
                }
            }
            Json::Array(items) => match merge_key(name, items) {
                Some(by) => {
                    unsay_items(part, (items, says), (&others, by));
                    if is_mine && part.as_array().is_some_and(Vec::is_empty) {
                        held.remove(name);
                    }
                }
                None if is_mine && part == said => drop(held.remove(name)),
                None => {}
            },
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {
                if is_mine && part == said {
                    held.remove(name);
                }
            }
        }
    }
}

/// The same for the elements of a list, which are told apart by a key.
fn unsay_items(
    list: &mut Json,
    (before, now): (&[Json], Option<&Json>),
    (others, by): (&[&Json], &str),
) {
    let Some(held) = list.as_array_mut() else { return };
    held.retain_mut(|item| {
        let key = item[by].clone();
        let Some(said) = before.iter().find(|item| item[by] == key) else { return true };
        let says = now.and_then(|now| element(now, by, &key));
        let others: Vec<&Json> = others.iter().filter_map(|o| element(o, by, &key)).collect();
        if says.is_none() && others.is_empty() {
            return false;
        }
        unsay(item, (said, says), &others);
        true
    });
}

fn element<'l>(list: &'l Json, by: &str, key: &Json) -> Option<&'l Json> {
    list.as_array()?.iter().find(|item| item[by] == *key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(manager: &str, body: &Json) -> Request {
        let query = [("fieldManager", manager), ("force", "true")];
        Request {
            method: "PATCH".to_owned(),
            path: "/apis/apps/v1/namespaces/default/deployments/web".to_owned(),
            query: query.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            media: MEDIA.to_owned(),
            body: body.to_string().into_bytes(),
            ..Request::default()
        }
    }

    fn said(replicas: Option<u32>, containers: &[&str]) -> Json {
        let containers: Vec<Json> =
            containers.iter().map(|name| json!({ "name": name, "image": name })).collect();
        let mut said = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "labels": { "app": "web" } },
            "spec": { "template": { "spec": { "containers": containers } } }
        });
        if let Some(replicas) = replicas {
            said["spec"]["replicas"] = replicas.into();
        }
        said
    }

    fn applied(api: &mut Api, manager: &str, body: &Json) -> Json {
        let Answer::Whole(code, bytes) = api.answer(&request(manager, body)) else { panic!() };
        let answer = serde_json::from_slice(&bytes).expect("JSON");
        assert!((200..300).contains(&code), "{answer}");
        answer
    }

    fn api() -> Api {
        let mut api = Api::default();
        let object = json!({ "metadata": { "name": "default" } });
        api.store.put(
            Key::new("Namespace", "", "default"),
            object,
            super::super::store::Author::World,
        );
        api
    }

    fn code(api: &mut Api, request: &Request) -> u16 {
        let Answer::Whole(code, _) = api.answer(request) else { panic!() };
        code
    }

    #[test]
    fn what_somebody_else_says_too_or_has_changed_since_stays() {
        let mut api = api();
        applied(&mut api, "kubectl", &said(Some(3), &["main", "proxy"]));
        applied(&mut api, "mesh", &said(Some(3), &["proxy"]));
        let less = applied(&mut api, "kubectl", &said(None, &["main"]));
        assert_eq!(less["spec"]["replicas"], 3, "`mesh` says so too");
        let proxy = &less["spec"]["template"]["spec"]["containers"][1];
        assert_eq!((&proxy["name"], &proxy["image"]), (&json!("proxy"), &json!("proxy")));
        // An autoscaler writes without applying.
        applied(&mut api, "kubectl", &said(Some(4), &["main"]));
        applied(&mut api, "mesh", &said(None, &["proxy"]));
        let scale = Request {
            path: "/apis/apps/v1/namespaces/default/deployments/web/scale".to_owned(),
            media: "application/merge-patch+json".to_owned(),
            ..request("hpa", &json!({ "spec": { "replicas": 9 } }))
        };
        assert_eq!(code(&mut api, &scale), 200);
        let scaled = applied(&mut api, "kubectl", &said(None, &["main"]));
        assert_eq!(scaled["spec"]["replicas"], 9);
    }

    #[test]
    fn what_is_said_of_a_part_is_kept_apart_and_what_is_gone_is_forgotten() {
        let mut api = api();
        applied(&mut api, "kubectl", &said(Some(3), &["main"]));
        let path = "/apis/apps/v1/namespaces/default/deployments/web";
        let status = json!({ "metadata": {}, "status": { "replicas": 3 } });
        let of_status = Request { path: format!("{path}/status"), ..request("kubectl", &status) };
        assert_eq!(code(&mut api, &of_status), 200);
        assert_eq!(api.applied.0.len(), 2);
        let kept = applied(&mut api, "kubectl", &said(Some(3), &["main"]));
        assert_eq!(
            (&kept["spec"]["replicas"], &kept["status"]["replicas"]),
            (&json!(3), &json!(3))
        );
        let delete =
            Request { method: "DELETE".to_owned(), body: Vec::new(), ..request("", &json!({})) };
        assert_eq!(code(&mut api, &delete), 200);
        applied(&mut api, "mesh", &said(None, &["main"]));
        assert_eq!(api.applied.0.len(), 1, "of the first one nothing is kept");
    }

    #[test]
    fn a_finalizer_that_is_no_longer_said_goes() {
        let mut api = api();
        let with = |finalizers: &[&str]| {
            let mut all = said(None, &["main"]);
            all["metadata"]["finalizers"] = json!(finalizers);
            all
        };
        applied(&mut api, "kubectl", &with(&["a/a", "b/b"]));
        applied(&mut api, "other", &with(&["b/b"]));
        let left = applied(&mut api, "kubectl", &with(&["c/c"]));
        assert_eq!(left["metadata"]["finalizers"], json!(["b/b", "c/c"]));
    }

    #[test]
    fn a_body_that_is_no_object_is_refused() {
        let mut api = api();
        for body in [json!([]), json!("x"), json!(1), json!(null), json!({ "metadata": [] })] {
            assert_eq!(code(&mut api, &request("kubectl", &body)), 400, "{body}");
        }
    }

    #[test]
    fn what_a_manager_no_longer_says_goes_and_what_others_say_stays() {
        let mut api = api();
        let names = |object: &Json| {
            let all = object["spec"]["template"]["spec"]["containers"].as_array().expect("a list");
            all.iter()
                .map(|item| item["name"].as_str().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        let made = applied(&mut api, "kubectl", &said(Some(3), &["main", "log"]));
        assert_eq!((made["spec"]["replicas"].as_u64(), names(&made).len()), (Some(3), 2));
        assert!(made["metadata"]["managedFields"].is_null());
        // Another manager adds a container and a label.
        let mut other = said(None, &["proxy"]);
        other["metadata"]["labels"] = json!({ "mesh": "on" });
        applied(&mut api, "mesh", &other);
        let less = applied(&mut api, "kubectl", &said(None, &["main"]));
        assert_eq!(names(&less), ["main", "proxy"], "`log` is said by nobody any more");
        assert_eq!(less["spec"]["replicas"], Json::Null);
        assert_eq!(less["metadata"]["labels"], json!({ "app": "web", "mesh": "on" }));
        assert_eq!(less["metadata"]["uid"], made["metadata"]["uid"]);
        let Answer::Whole(code, _) = api.answer(&request("", &said(None, &[]))) else { panic!() };
        assert_eq!(code, 400, "who applies must be said");
    }
}
