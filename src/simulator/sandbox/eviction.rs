//! Evictions under disruption budgets, and bindings.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value as Json, json};

use super::kube_api::{ApiResponse, KubeApi};
use super::object;
use super::request::{ApiRequest, RequestTarget};
use super::selectors::ObjectSelector;
use super::status_error::StatusError;
use super::store::{ObjectKey, Writer};

/// The verdict of budgets on an eviction.
enum EvictionVerdict {
    /// Allowed by this budget, which counts it.
    Counted(ObjectKey),
    /// No budget applies.
    Free,
}

impl KubeApi {
    /// Evicts a pod, unless a budget forbids it now.
    pub(super) fn evict(
        &mut self,
        target: &RequestTarget<'_>,
        name: &str,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let eviction = request.json()?;
        let options = &eviction["deleteOptions"];
        let key = self.key(target, name)?;
        let pod = Arc::clone(self.store.get(&key).expect("its key was found just now"));
        object::check_preconditions(&pod, &options["preconditions"])?;
        let verdict = self.evaluate(&key, &pod)?;
        if request.is_dry_run() || options["dryRun"].is_array() {
            return Ok(ApiResponse::json(201, &object::success()));
        }
        if let EvictionVerdict::Counted(budget) = verdict {
            self.record_disruption(&budget, name, request.at);
        }
        self.begin_deletion(&key, options["gracePeriodSeconds"].as_i64(), request.at);
        Ok(ApiResponse::json(201, &object::success()))
    }

    fn evaluate(&self, key: &ObjectKey, pod: &Json) -> Result<EvictionVerdict, StatusError> {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        let serves = phase == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
        if !serves {
            return Ok(EvictionVerdict::Free);
        }
        let protects = |budget: &&(&ObjectKey, &Arc<Json>)| {
            let selection = ObjectSelector::from_label_selector(&budget.1["spec"]["selector"]);
            selection.is_some_and(|selection| selection.matches(pod))
        };
        let all: Vec<(&ObjectKey, &Arc<Json>)> =
            self.store.list("PodDisruptionBudget", Some(&key.namespace)).collect();
        let mut budgets = all.iter().filter(protects);
        let Some((budget, object)) = budgets.next() else { return Ok(EvictionVerdict::Free) };
        if budgets.next().is_some() {
            return Err(StatusError::multiple_budgets());
        }
        let status = |key: &str| object["status"][key].as_i64().unwrap_or(0);
        let (needs, has) = (status("desiredHealthy"), status("currentHealthy"));
        let always = object["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
        if !is_ready(pod) && (always || (needs > 0 && has >= needs)) {
            return Ok(EvictionVerdict::Free);
        }
        if status("disruptionsAllowed") > 0 {
            return Ok(EvictionVerdict::Counted((*budget).clone()));
        }
        Err(StatusError::blocked_by_budget(&budget.name, needs, has))
    }

    /// Records an allowed eviction that the disruption controller has not seen yet.
    fn record_disruption(&mut self, budget: &ObjectKey, pod: &str, now: Timestamp) {
        let Some(stored) = self.store.get(budget) else { return };
        let mut counted = (**stored).clone();
        let allowed = counted["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
        counted["status"]["disruptionsAllowed"] = (allowed - 1).into();
        let disrupted = &mut counted["status"]["disruptedPods"];
        if !disrupted.is_object() {
            *disrupted = json!({});
        }
        disrupted[pod] = object::format_time(now).into();
        // Written as the server: the world recomputes the status later.
        self.store.upsert(budget.clone(), counted, Writer::World);
    }

    /// Binds a pod to a node, once.
    pub(super) fn bind(
        &mut self,
        target: &RequestTarget<'_>,
        name: &str,
        request: &ApiRequest,
    ) -> Result<ApiResponse, StatusError> {
        let binding = request.json()?;
        let key = self.key(target, name)?;
        let stored = self.store.get(&key).expect("its key was found just now");
        let Some(node) = binding["target"]["name"].as_str() else {
            return Err(StatusError::invalid("target.name: Required value".to_owned()));
        };
        if stored["spec"]["nodeName"].as_str().is_some_and(|name| !name.is_empty()) {
            let why = format!("pod {name} is already assigned to a node");
            return Err(StatusError::conflict("pods/binding", name, &why));
        }
        let mut bound = (**stored).clone();
        bound["spec"]["nodeName"] = node.into();
        let conditions = &mut bound["status"]["conditions"];
        if !conditions.is_array() {
            *conditions = json!([]);
        }
        if let Some(conditions) = conditions.as_array_mut() {
            conditions.retain(|condition| condition["type"] != "PodScheduled");
            conditions.push(json!({
                "type": "PodScheduled", "status": "True", "lastTransitionTime": object::format_time(request.at)
            }));
        }
        if !request.is_dry_run() {
            self.store.upsert(key, bound, Writer::Client);
        }
        Ok(ApiResponse::json(201, &object::success()))
    }
}

fn is_ready(pod: &Json) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition["type"] == "Ready");
    ready.any(|condition| condition["status"] == "True")
}
