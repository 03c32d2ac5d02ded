//! Status objects for `kubectl`: their definitions, size and conditions.

use std::sync::Arc;

use fleetwright::apply::{ApplyStatus, Outcome};
use fleetwright::controller::resources::{
    LISTED_ROWS_MAX, ObjectKind, PLAN_OBJECTS_MAX, StatusObject, definitions, parse_recorded_plan,
    status_objects,
};
use fleetwright::controller::{ApprovedBy, CompletedApply, Status, SupersededPlan};
use serde_json::{Value as Json, json};

use super::statuses::{HOSTILE, busy, empty, failing, starting};
use crate::golden;

const DEFINITIONS: &str = "deploy/kubernetes/crds.yaml";

fn objects_of_kind(status: &Status, kind: ObjectKind) -> Vec<StatusObject> {
    status_objects(status).into_iter().filter(|object| object.kind == kind).collect()
}

fn current(status: &Status) -> StatusObject {
    objects_of_kind(status, ObjectKind::CapacityPlan).into_iter().next().expect("a current plan")
}

fn schema(kind: ObjectKind) -> Json {
    let text = definitions();
    let documents = text.split("\n---\n").map(serde_saphyr::from_str::<Json>);
    let found = documents.map(|document| document.expect("YAML"));
    let mut found = found.filter(|document| document["spec"]["names"]["kind"] == kind.as_str());
    found.next().expect("a definition")["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn crd_files_equal_generated_definitions() {
    golden::hold(DEFINITIONS, &definitions()).expect("equal files");
    golden::hold("deploy/helm/fleetwright/crds/crds.yaml", &definitions()).expect("equal files");
}

/// Checks that a schema is structural, and that the API server would not prune fields of the value.
fn assert_structural(schema: &Json, value: &Json, at: &str) {
    if value.is_null() {
        assert_eq!(schema["nullable"], true, "{at} may not be null");
        return;
    }
    for key in ["$ref", "anyOf", "oneOf", "const", "$schema", "title"] {
        assert!(schema.get(key).is_none(), "{at}: {key} is not structural");
    }
    match (schema["type"].as_str(), value) {
        (Some("object"), Json::Object(map)) => {
            for key in schema["required"].as_array().into_iter().flatten() {
                assert!(map.contains_key(key.as_str().expect("a key")), "{at}.{key} is missing");
            }
            for (key, value) in map {
                let inner = &schema["properties"][key];
                assert!(inner.is_object(), "{at}.{key} would be pruned");
                assert_structural(inner, value, &format!("{at}.{key}"));
            }
        }
        (Some("array"), Json::Array(items)) => {
            for item in items {
                assert_structural(&schema["items"], item, &format!("{at}[]"));
            }
        }
        (Some("string"), Json::String(_))
        | (Some("integer"), Json::Number(_))
        | (Some("boolean"), Json::Bool(_)) => {}
        (kind, value) => panic!("{at}: {value} is not of type {kind:?}"),
    }
}

#[test]
fn objects_match_their_crd_schema() {
    for status in [starting(), empty(), busy(), failing()] {
        for object in status_objects(&status) {
            let schema = schema(object.kind);
            let at = format!("{} {}", object.kind.as_str(), object.name);
            for (part, value) in [
                ("spec", object.spec.as_ref()),
                ("spec", object.fallback_spec.as_ref()),
                ("status", Some(&object.status)),
            ] {
                if let Some(value) = value {
                    assert_structural(&schema["properties"][part], value, &format!("{at} {part}"));
                }
            }
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(object.name.len() <= 63 && object.name.chars().all(is_name), "{at}");
        }
    }
}

fn condition<'a>(object: &'a StatusObject, kind: &str) -> Option<&'a Json> {
    object.status["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

#[test]
fn conditions_report_plan_progress() {
    let mut pending = busy();
    pending.in_progress.clear();
    let mut suspended = pending.clone();
    let why = failing().plan.expect("a plan").blocked.into_values().next().expect("one");
    let plan = suspended.plan.as_mut().expect("a plan");
    plan.blocked =
        plan.plan.resource_changes.iter().map(|r| (r.address.clone(), why.clone())).collect();
    for (status, ready, other, reason, health) in [
        (empty(), "True", None, "NothingToDo", "Healthy"),
        (busy(), "False", Some("Reconciling"), "Applying", "Progressing"),
        (pending, "False", Some("Reconciling"), "Pending", "Progressing"),
        (suspended, "False", Some("Stalled"), "NotApplyable", "Suspended"),
        (failing(), "False", Some("Stalled"), "InputsHaveErrors", "Degraded"),
    ] {
        let object = current(&status);
        let ready_condition = condition(&object, "Ready").expect("the condition always exists");
        assert_eq!(
            (&ready_condition["status"], &ready_condition["reason"]),
            (&json!(ready), &json!(reason))
        );
        assert_eq!(object.status["health"], health, "{reason}");
        let others = ["Reconciling", "Stalled"].into_iter();
        let others: Vec<&str> = others.filter(|kind| condition(&object, kind).is_some()).collect();
        assert_eq!(others, other.into_iter().collect::<Vec<_>>(), "{reason}");
    }
}

#[test]
fn objects_restore_applied_changes() {
    let mut status = busy();
    status.plan = None;
    let first = Arc::make_mut(&mut status.history[0]);
    let (who, reason) = ("system:serviceaccount:a:b".to_owned(), "a: b".to_owned());
    first.approved = ApprovedBy::BreakGlass { who, reason };
    Arc::make_mut(&mut status.history[3]).approved = ApprovedBy::Policy;
    let objects = objects_of_kind(&status, ObjectKind::CapacityPlan);
    assert_eq!(objects.len(), status.history.len());
    for (object, past) in objects.iter().zip(&status.history) {
        let restored = parse_recorded_plan(object.fallback_spec.as_ref(), &object.status)
            .expect("a readable object");
        assert!(!restored.is_current && !restored.is_open);
        let restored = restored.completed.expect("a completed apply");
        let sorted = |past: &CompletedApply| {
            let mut past = CompletedApply { plan_id: "".into(), decided: None, ..past.clone() };
            if let Some(receipt) = &mut past.receipt {
                receipt.plan_id = "".into();
                receipt.outcomes.sort_by(|a, b| a.address.cmp(&b.address));
            }
            past
        };
        assert_eq!(sorted(&restored), sorted(past));
        assert_eq!(rewritten(object), object.status);
        if past.receipt.is_some() {
            let mut shortened = object.clone();
            shortened.status["outcomesOmitted"] = 7.into();
            assert_eq!(rewritten(&shortened)["outcomesOmitted"], 7);
        }
    }
    let spec = objects[0].fallback_spec.as_ref();
    for (spec, broken, why) in [
        (None, json!({ "startedAt": "2026-11-21T12:00:00Z" }), "no spec"),
        (spec, json!({ "startedAt": 1 }), "invalid type"),
        (
            spec,
            json!({ "outcomes": [{ "address": "a", "step": "launch", "outcome": "x\u{1b}" }] }),
            "x\\u{1b}",
        ),
        (Some(&json!({})), json!({}), "digest"),
        (spec, Json::Null, "it has no status"),
    ] {
        let mut status = objects[0].status.clone();
        match (&mut status, broken) {
            (Json::Object(status), Json::Object(broken)) => status.extend(broken),
            (status, broken) => *status = broken,
        }
        let error = parse_recorded_plan(spec, &status).expect_err(why);
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn plan_outcome_is_read_from_current_conditions() {
    let mut status = busy();
    let now = status.plan.as_ref().expect("a plan").digest().clone();
    let mut past = CompletedApply::clone(&status.history[0]);
    past.digest = now;
    let receipt = past.receipt.as_mut().expect("a started apply");
    for row in &mut receipt.outcomes {
        row.outcome = Outcome::Done;
    }
    for verdict in [ApplyStatus::Applied, ApplyStatus::Partly, ApplyStatus::Interrupted] {
        past.receipt.as_mut().expect("a started apply").verdict = verdict;
        status.history = vec![Arc::new(past.clone())];
        status.in_progress.clear();
        let object = current(&status);
        let ready = condition(&object, "Ready").expect("the condition always exists");
        assert_eq!(ready["reason"], "Pending");
        let past = parse_recorded_plan(object.spec.as_ref(), &object.status)
            .expect("a readable object")
            .completed;
        let receipt = past.and_then(|past| past.receipt).expect("a started apply");
        assert_eq!(receipt.verdict, verdict);
        // For an unknown verdict of a later version, the rows determine the verdict.
        let mut status = object.status.clone();
        status["verdict"] = json!("a-later-word");
        let past = parse_recorded_plan(object.spec.as_ref(), &status)
            .expect("a readable object")
            .completed;
        let receipt = past.and_then(|past| past.receipt).expect("a started apply");
        assert_ne!(receipt.verdict, ApplyStatus::Partly, "all rows are done");
    }
}

/// Restores a recorded plan, and returns the status that is written for it.
fn rewritten(object: &StatusObject) -> Json {
    let past = parse_recorded_plan(object.fallback_spec.as_ref(), &object.status)
        .expect("a readable object")
        .completed;
    let history = vec![Arc::new(past.expect("a completed apply"))];
    let rewritten = objects_of_kind(&Status { history, ..starting() }, ObjectKind::CapacityPlan);
    rewritten[0].status.clone()
}

#[test]
fn superseded_plan_is_marked_and_hides_no_active_plan() {
    let status = busy();
    let digest = |digest: &fleetwright::model::ids::Digest| SupersededPlan {
        digest: digest.clone(),
        at: status.now,
    };
    let current = digest(status.plan.as_ref().expect("a plan").digest());
    let done = digest(&status.history[0].digest);
    let former = digest(&"sha256:ff".into());
    let superseded = vec![former.clone(), current, done];
    let plans = objects_of_kind(&Status { superseded, ..status.clone() }, ObjectKind::CapacityPlan);
    let others = objects_of_kind(&status, ObjectKind::CapacityPlan);
    assert_eq!(plans[..others.len()], others);
    let [last] = &plans[others.len()..] else { panic!("{plans:?}") };
    assert_eq!(last.name, "plan-ff");
    // A missing object is not created, since its decisions are unknown.
    assert_eq!((&last.spec, &last.fallback_spec), (&None, &None));
    let ready = condition(last, "Ready").expect("the condition always exists");
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("Superseded")));
    assert_eq!((condition(last, "Stalled"), condition(last, "Reconciling")), (None, None));
    assert_structural(&schema(last.kind)["properties"]["status"], &last.status, "status");
    let mut spec = others[1].fallback_spec.clone().expect("a spec");
    spec["digest"] = former.digest.to_string().into();
    let restored = parse_recorded_plan(Some(&spec), &last.status).expect("a readable object");
    assert_eq!(
        (restored.superseded, restored.completed, restored.is_current),
        (Some(former), None, false)
    );
}

#[test]
fn applied_plans_keep_outcome_worst_first() {
    let plans = objects_of_kind(&busy(), ObjectKind::CapacityPlan);
    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(plans.len(), 13, "{names:?}");
    let (current, past): (Vec<_>, Vec<_>) = plans.iter().partition(|p| p.status["current"] == true);
    assert_eq!(current.len(), 1);
    assert!(past.iter().all(|plan| plan.spec.is_none()), "the spec is already written");
    let reasons: Vec<&Json> =
        past.iter().map(|p| &condition(p, "Ready").expect("a condition")["reason"]).collect();
    assert_eq!(reasons[..3], ["Applied", "Refused", "PartlyApplied"]);
    let partly = &past[2].status["outcomes"][0];
    assert_eq!(partly["outcome"], "abandoned");
    assert!(partly["why"].as_str().is_some_and(|why| why.contains("PodDisruptionBudget")));
    let mut many = busy();
    let rewritten = |n: u32| {
        let mut past = (*many.history[0]).clone();
        past.digest = format!("sha256:{n:016x}{n:048x}").into();
        Arc::new(past)
    };
    many.history = (100..150).map(rewritten).collect();
    assert_eq!(objects_of_kind(&many, ObjectKind::CapacityPlan).len(), PLAN_OBJECTS_MAX);
}

#[test]
fn object_size_is_bounded_for_any_plan() {
    let mut status = busy();
    let mut plan = crate::large::sized(5_000, 4_000).expect("a plan");
    let pods = crate::server::statuses::saved("quickstart.json").capacity.unschedulable;
    plan.capacity.unschedulable = pods.iter().cycle().take(3_000).cloned().collect();
    for row in &mut plan.resource_changes {
        let long = HOSTILE.repeat(200);
        row.address = format!("{}{long}", row.address).into();
    }
    let now = status.plan.as_mut().expect("a plan");
    now.blocked = plan
        .resource_changes
        .iter()
        .filter_map(|row| {
            Some((row.address.clone(), failing().plan?.blocked.into_values().next()?))
        })
        .take(50)
        .collect();
    now.plan = Arc::new(plan);
    for object in status_objects(&status) {
        let size = object.spec.iter().chain([&object.status]).map(|part| part.to_string().len());
        let size: usize = size.sum();
        assert!(size < 1_000_000, "{}: {size}", object.name);
    }
    let spec = current(&status).spec.expect("a spec");
    assert_eq!(spec["rows"].as_array().map(Vec::len), Some(LISTED_ROWS_MAX));
    assert_eq!(spec["rowsOmitted"], 3_500);
    assert_eq!(spec["unschedulableOmitted"], 2_950);
}

#[test]
fn pools_report_served_commit_and_problems() {
    let pools = objects_of_kind(&failing(), ObjectKind::CapacityPool);
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["general", "memory"]);
    let quarantined = condition(&pools[0], "Ready").expect("a condition");
    assert_eq!(quarantined["reason"], "Quarantined");
    // It ends by itself.
    assert!(condition(&pools[0], "Reconciling").is_some(), "{:?}", pools[0].status);
    assert_eq!(
        (condition(&pools[0], "Stalled"), &pools[0].status["health"]),
        (None, &json!("Degraded"))
    );
    assert!(pools[0].status["commit"].is_string());
    assert_eq!(condition(&pools[1], "Stalled").expect("a condition")["reason"], "NotApplyable");
    let mut odd = failing();
    let plan = Arc::make_mut(&mut odd.plan.as_mut().expect("a plan").plan);
    plan.capacity.cost.breakdown.by_pool[0].name = "Node_Group.1".to_owned();
    let pools = objects_of_kind(&odd, ObjectKind::CapacityPool);
    assert!(pools[0].name.starts_with("pool-") && pools[0].name.len() == 17, "{}", pools[0].name);
    assert_eq!(pools[0].spec.as_ref().expect("a spec")["pool"], "Node_Group.1");
}
