//! Evictions, which disruption budgets judge, and bindings.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::api::{Answer, Api};
use super::object;
use super::refusal::Refusal;
use super::request::{Request, Target};
use super::select::Selection;
use super::store::{Author, Key};

/// What a budget says of one pod.
enum Verdict {
    /// It counts the pod, which is one less from now on.
    Counted(Key),
    /// No budget cares for the pod.
    Free,
}

impl Api {
    /// Evicts a pod, unless a budget forbids it now.
    pub(super) fn evict(
        &mut self,
        target: &Target<'_>,
        name: &str,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let eviction = request.json()?;
        let options = &eviction["deleteOptions"];
        let key = self.key(target, name)?;
        let pod = Arc::clone(self.store.get(&key).expect("its key was found just now"));
        object::meets(&pod, &options["preconditions"])?;
        let verdict = self.judge(&key, &pod)?;
        if request.is_dry() || options["dryRun"].is_array() {
            return Ok(Answer::json(201, &object::success()));
        }
        if let Verdict::Counted(budget) = verdict {
            self.count(&budget, name, request.at);
        }
        self.begin_to_delete(&key, options["gracePeriodSeconds"].as_i64(), request.at);
        Ok(Answer::json(201, &object::success()))
    }

    fn judge(&self, key: &Key, pod: &Json) -> Result<Verdict, Refusal> {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let serves = phase == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
        if !serves {
            return Ok(Verdict::Free);
        }
        let protects = |budget: &&(&Key, &Arc<Json>)| {
            let selection = Selection::of_object(&budget.1["spec"]["selector"]);
            selection.is_some_and(|selection| selection.covers(pod))
        };
        let all: Vec<(&Key, &Arc<Json>)> =
            self.store.list("PodDisruptionBudget", Some(&key.namespace)).collect();
        let mut budgets = all.iter().filter(protects);
        let Some((budget, object)) = budgets.next() else { return Ok(Verdict::Free) };
        if budgets.next().is_some() {
            return Err(Refusal::budgets());
        }
        let status = |key: &str| object["status"][key].as_i64().unwrap_or(0);
        let (needs, has) = (status("desiredHealthy"), status("currentHealthy"));
        let always = object["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        if !is_ready(pod) && (always || (needs > 0 && has >= needs)) {
            return Ok(Verdict::Free);
        }
        if status("disruptionsAllowed") > 0 {
            return Ok(Verdict::Counted((*budget).clone()));
        }
        Err(Refusal::budget(&budget.name, needs, has))
    }

    /// Notes that a budget allowed the eviction of a pod, which its controller has not seen yet.
    fn count(&mut self, budget: &Key, pod: &str, now: Timestamp) {
        let Some(held) = self.store.get(budget) else { return };
        let mut counted = (**held).clone();
        let allowed = counted["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        counted["status"]["disruptionsAllowed"] = (allowed - 1).into();
        let disrupted = &mut counted["status"]["disruptedPods"];
        if !disrupted.is_object() {
            *disrupted = json!({});
        }
        disrupted[pod] = object::time(now).into();
        // The count is the server's own: whose budget it is counts anew later.
        self.store.put(budget.clone(), counted, Author::World);
    }

    /// Binds a pod to a node, once.
    pub(super) fn bind(
        &mut self,
        target: &Target<'_>,
        name: &str,
        request: &Request,
    ) -> Result<Answer, Refusal> {
        let binding = request.json()?;
        let key = self.key(target, name)?;
        let held = self.store.get(&key).expect("its key was found just now");
        let Some(node) = binding["target"]["name"].as_str() else {
            return Err(Refusal::invalid("target.name: Required value".to_owned()));
        };
        if held["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty()) {
            let why = format!("pod {name} is already assigned to a node");
            return Err(Refusal::conflict("pods/binding", name, &why));
        }
        let mut bound = (**held).clone();
        bound["spec"]["nodeName"] = node.into();
        let conditions = &mut bound["status"]["conditions"];
        if !conditions.is_array() {
            *conditions = json!([]);
        }
        if let Some(conditions) = conditions.as_array_mut() {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(json!({
                "type": "PodScheduled", "status": "True", "lastTransitionTime": object::time(request.at)
            }));
        }
        if !request.is_dry() {
            self.store.put(key, bound, Author::Client);
        }
        Ok(Answer::json(201, &object::success()))
    }
}

/// Returns whether the pod says that it is ready.
fn is_ready(pod: &Json) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    ready.any(|condition| condition["status"] == "True")
}
