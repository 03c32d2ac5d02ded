//! Server-side apply: what a manager says of an object takes the place of what it said before.
//!
//! Who owns which field is told by what each manager applied last, and kept beside the objects: they
//! show no `managedFields`. There are no conflicts: whoever applies last is right.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::api::{Answer, Api};
use super::patch::{merge_key, strategic};
use super::refusal::Refusal;
use super::request::{Request, Target};
use super::store::Key;

/// Media type of what is applied.
pub(super) const MEDIA: &str = "application/apply-patch+yaml";

/// What managers applied last, by object and name of the manager, with the UID of the object.
pub(super) type Applied = BTreeMap<(Key, String), (Json, Json)>;

impl Api {
    /// Makes an object of what a manager says, or has it say something else of one that is there.
    pub(super) fn apply(
        &mut self,
        target: &Target<'_>,
        name: &str,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let manager = request.parameter("fieldManager").to_owned();
        if manager.is_empty() {
            return Err(Refusal::bad("fieldManager is required for an apply"));
        }
        let mut said = request.json()?;
        let Some(meta) = said["metadata"].as_object_mut() else {
            return Err(Refusal::bad("the object has no metadata"));
        };
        if meta.get("name").is_some_and(|own| own != name) {
            return Err(Refusal::bad("the name of the object is not that of the path"));
        }
        meta.insert("name".to_owned(), name.into());
        meta.remove("managedFields");
        let namespace = target.namespace.unwrap_or_default();
        let key = Key::new(target.resource.kind, namespace, name);
        let held = self.store.get(&key).map(Arc::clone);
        let answer = match &held {
            None if target.subresource.is_some() => {
                return Err(Refusal::not_found(target.resource.plural, name));
            }
            None => self.make(target, said.clone(), request)?,
            Some(held) => {
                let mut asked = (**held).clone();
                let before = self.applied.get(&(key.clone(), manager.clone()));
                // An object of the same name that was made since is another one.
                let before = before.filter(|(uid, _)| *uid == held["metadata"]["uid"]);
                if let Some((_, before)) = before {
                    unsay(&mut asked, before, &said);
                }
                strategic(&mut asked, said.clone())?;
                self.write(target, (&key, held), asked, request)?
            }
        };
        if let Some(now) = self.store.get(&key).filter(|_| !request.is_dry()) {
            let uid = now["metadata"]["uid"].clone();
            self.applied.insert((key, manager), (uid, said));
        }
        Ok(answer)
    }
}

/// Takes from `object` what was said `before` and is not said `now`.
fn unsay(object: &mut Json, before: &Json, now: &Json) {
    let (Some(held), Some(before)) = (object.as_object_mut(), before.as_object()) else { return };
    for (name, said) in before {
        let says = now.get(name);
        match (said, held.get_mut(name)) {
            (Json::Object(_), Some(part)) => {
                unsay(part, said, says.unwrap_or(&Json::Null));
                if says.is_none() && part.as_object().is_some_and(Map::is_empty) {
                    held.remove(name);
                }
            }
            (Json::Array(items), Some(part)) => match merge_key(name, items) {
                Some(by) => {
                    unsay_items(part, (items, says), by);
                    if says.is_none() && part.as_array().is_some_and(Vec::is_empty) {
                        held.remove(name);
                    }
                }
                None if says.is_none() => drop(held.remove(name)),
                None => {}
            },
            (_, Some(_)) if says.is_none() => drop(held.remove(name)),
            (_, None | Some(_)) => {}
        }
    }
}

/// The same for the elements of a list, which are told apart by a key.
fn unsay_items(list: &mut Json, (before, now): (&[Json], Option<&Json>), by: &str) {
    let Some(held) = list.as_array_mut() else { return };
    let now = now.and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
    let of = |items: &[Json], key: &Json| items.iter().find(|item| item[by] == *key).cloned();
    held.retain_mut(|item| {
        let Some(said) = of(before, &item[by]) else { return true };
        let Some(says) = of(now, &item[by]) else { return false };
        unsay(item, &said, &says);
        true
    });
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

    #[test]
    fn what_a_manager_no_longer_says_goes_and_what_others_say_stays() {
        let mut api = Api::default();
        let object = json!({ "metadata": { "name": "default" } });
        api.store.put(
            Key::new("Namespace", "", "default"),
            object,
            super::super::store::Author::World,
        );
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
