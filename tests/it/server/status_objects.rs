//! The objects that `kubectl` shows: their definitions, their size, and what their conditions say.

use std::sync::Arc;

use fleetwright::apply::{ApplyStatus, Outcome};
use fleetwright::controller::resources::{
    LISTED_ROWS_MAX, ObjectKind, PLAN_OBJECTS_MAX, StatusObject, definitions, parse_recorded_plan,
    status_objects,
};
use fleetwright::controller::{ApprovedBy, CompletedApply, Status, SupersededPlan};
use serde_json::{Value as Json, json};

use super::statuses::{HOSTILE, begun, busy, empty, failing};
use crate::golden;

const DEFINITIONS: &str = "deploy/kubernetes/crds.yaml";

fn of(status: &Status, kind: ObjectKind) -> Vec<StatusObject> {
    status_objects(status).into_iter().filter(|object| object.kind == kind).collect()
}

fn current(status: &Status) -> StatusObject {
    of(status, ObjectKind::CapacityPlan).into_iter().next().expect("a current plan")
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
    golden::hold(DEFINITIONS, &definitions()).expect("the same");
    golden::hold("deploy/helm/fleetwright/crds/crds.yaml", &definitions()).expect("the same");
}

/// Fails where a schema says what the API server does not take, or prunes what an object holds.
fn hold(schema: &Json, value: &Json, at: &str) {
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
                hold(inner, value, &format!("{at}.{key}"));
            }
        }
        (Some("array"), Json::Array(items)) => {
            for item in items {
                hold(&schema["items"], item, &format!("{at}[]"));
            }
        }
        (Some("string"), Json::String(_))
        | (Some("integer"), Json::Number(_))
        | (Some("boolean"), Json::Bool(_)) => {}
        (kind, value) => panic!("{at}: {value} is no {kind:?}"),
    }
}

#[test]
fn objects_match_their_crd_schema() {
    for status in [begun(), empty(), busy(), failing()] {
        for object in status_objects(&status) {
            let schema = schema(object.kind);
            let at = format!("{} {}", object.kind.as_str(), object.name);
            for (part, value) in [
                ("spec", object.spec.as_ref()),
                ("spec", object.fallback_spec.as_ref()),
                ("status", Some(&object.status)),
            ] {
                if let Some(value) = value {
                    hold(&schema["properties"][part], value, &format!("{at} {part}"));
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
    let mut held = busy();
    held.in_progress.clear();
    let mut suspended = held.clone();
    let why = failing().plan.expect("a plan").blocked.into_values().next().expect("one");
    let plan = suspended.plan.as_mut().expect("a plan");
    plan.blocked =
        plan.plan.resource_changes.iter().map(|r| (r.address.clone(), why.clone())).collect();
    for (status, ready, other, reason, health) in [
        (empty(), "True", None, "NothingToDo", "Healthy"),
        (busy(), "False", Some("Reconciling"), "Applying", "Progressing"),
        (held, "False", Some("Reconciling"), "Pending", "Progressing"),
        (suspended, "False", Some("Stalled"), "NotApplyable", "Suspended"),
        (failing(), "False", Some("Stalled"), "InputsHaveErrors", "Degraded"),
    ] {
        let object = current(&status);
        let said = condition(&object, "Ready").expect("it is always there");
        assert_eq!((&said["status"], &said["reason"]), (&json!(ready), &json!(reason)));
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
    let objects = of(&status, ObjectKind::CapacityPlan);
    assert_eq!(objects.len(), status.history.len());
    for (object, past) in objects.iter().zip(&status.history) {
        let told =
            parse_recorded_plan(object.fallback_spec.as_ref(), &object.status).expect("it is read");
        assert!(!told.is_current && !told.is_open);
        let told = told.completed.expect("it was carried out");
        let sorted = |past: &CompletedApply| {
            let mut past = CompletedApply { plan_id: "".into(), decided: None, ..past.clone() };
            if let Some(receipt) = &mut past.receipt {
                receipt.plan_id = "".into();
                receipt.outcomes.sort_by(|a, b| a.address.cmp(&b.address));
            }
            past
        };
        assert_eq!(sorted(&told), sorted(past));
        assert_eq!(again(object), object.status);
        if past.receipt.is_some() {
            let mut shortened = object.clone();
            shortened.status["outcomesOmitted"] = 7.into();
            assert_eq!(again(&shortened)["outcomesOmitted"], 7);
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
    let receipt = past.receipt.as_mut().expect("it was begun");
    for row in &mut receipt.outcomes {
        row.outcome = Outcome::Done;
    }
    for verdict in [ApplyStatus::Applied, ApplyStatus::Partly, ApplyStatus::Interrupted] {
        past.receipt.as_mut().expect("it was begun").verdict = verdict;
        status.history = vec![Arc::new(past.clone())];
        status.in_progress.clear();
        let object = current(&status);
        let ready = condition(&object, "Ready").expect("it is always there");
        assert_eq!(ready["reason"], "Pending");
        let past = parse_recorded_plan(object.spec.as_ref(), &object.status)
            .expect("it is read")
            .completed;
        let receipt = past.and_then(|past| past.receipt).expect("it was begun");
        assert_eq!(receipt.verdict, verdict);
        // Of a word that only a later version knows the rows tell.
        let mut status = object.status.clone();
        status["verdict"] = json!("a-later-word");
        let past =
            parse_recorded_plan(object.spec.as_ref(), &status).expect("it is read").completed;
        let receipt = past.and_then(|past| past.receipt).expect("it was begun");
        assert_ne!(receipt.verdict, ApplyStatus::Partly, "all rows were done");
    }
}

/// Returns what whoever only read what became of a plan writes of it.
fn again(object: &StatusObject) -> Json {
    let past = parse_recorded_plan(object.fallback_spec.as_ref(), &object.status)
        .expect("it is read")
        .completed;
    let history = vec![Arc::new(past.expect("it was carried out"))];
    let again = of(&Status { history, ..begun() }, ObjectKind::CapacityPlan);
    again[0].status.clone()
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
    let plans = of(&Status { superseded, ..status.clone() }, ObjectKind::CapacityPlan);
    let others = of(&status, ObjectKind::CapacityPlan);
    assert_eq!(plans[..others.len()], others);
    let [last] = &plans[others.len()..] else { panic!("{plans:?}") };
    assert_eq!(last.name, "plan-ff");
    // One that is not there is not made: nothing of what it decided is known.
    assert_eq!((&last.spec, &last.fallback_spec), (&None, &None));
    let ready = condition(last, "Ready").expect("it is always there");
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("Superseded")));
    assert_eq!((condition(last, "Stalled"), condition(last, "Reconciling")), (None, None));
    hold(&schema(last.kind)["properties"]["status"], &last.status, "status");
    let mut spec = others[1].fallback_spec.clone().expect("a spec");
    spec["digest"] = former.digest.to_string().into();
    let told = parse_recorded_plan(Some(&spec), &last.status).expect("it is read");
    assert_eq!((told.superseded, told.completed, told.is_current), (Some(former), None, false));
}

#[test]
fn applied_plans_keep_outcome_worst_first() {
    let plans = of(&busy(), ObjectKind::CapacityPlan);
    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(plans.len(), 13, "{names:?}");
    let (current, past): (Vec<_>, Vec<_>) = plans.iter().partition(|p| p.status["current"] == true);
    assert_eq!(current.len(), 1);
    assert!(past.iter().all(|plan| plan.spec.is_none()), "what was decided stands already");
    let reasons: Vec<&Json> =
        past.iter().map(|p| &condition(p, "Ready").expect("a condition")["reason"]).collect();
    assert_eq!(reasons[..3], ["Applied", "Refused", "PartlyApplied"]);
    let partly = &past[2].status["outcomes"][0];
    assert_eq!(partly["outcome"], "given-up");
    assert!(partly["why"].as_str().is_some_and(|why| why.contains("budget")));
    let mut many = busy();
    let again = |n: u32| {
        let mut past = (*many.history[0]).clone();
        past.digest = format!("sha256:{n:016x}{n:048x}").into();
        Arc::new(past)
    };
    many.history = (100..150).map(again).collect();
    assert_eq!(of(&many, ObjectKind::CapacityPlan).len(), PLAN_OBJECTS_MAX);
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
    let pools = of(&failing(), ObjectKind::CapacityPool);
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["general", "memory"]);
    let quarantined = condition(&pools[0], "Ready").expect("a condition");
    assert_eq!(quarantined["reason"], "Quarantined");
    assert!(pools[0].status["commit"].is_string());
    assert_eq!(condition(&pools[1], "Stalled").expect("a condition")["reason"], "NotApplyable");
    let mut odd = failing();
    let plan = Arc::make_mut(&mut odd.plan.as_mut().expect("a plan").plan);
    plan.capacity.cost.breakdown.by_pool[0].name = "Node_Group.1".to_owned();
    let pools = of(&odd, ObjectKind::CapacityPool);
    assert!(pools[0].name.starts_with("pool-") && pools[0].name.len() == 17, "{}", pools[0].name);
    assert_eq!(pools[0].spec.as_ref().expect("a spec")["pool"], "Node_Group.1");
}
