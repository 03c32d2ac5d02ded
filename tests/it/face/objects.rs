//! The objects that `kubectl` shows: their definitions, their size, and what their conditions say.

use std::sync::Arc;

use fleetwright::apply::{Outcome, Verdict};
use fleetwright::face::object::{
    Object, ObjectKind, PLANS_MAX, ROWS_MAX, definitions, objects, told,
};
use fleetwright::reconcile::{ApprovedBy, Past, Status, Superseded};
use serde_json::{Value as Json, json};

use super::statuses::{HOSTILE, begun, busy, empty, failing};
use crate::golden;

const DEFINITIONS: &str = "deploy/kubernetes/crds.yaml";

fn of(status: &Status, kind: ObjectKind) -> Vec<Object> {
    objects(status).into_iter().filter(|object| object.kind == kind).collect()
}

fn current(status: &Status) -> Object {
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
fn the_definitions_in_the_repository_are_those_of_the_types() {
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
fn objects_are_what_their_definitions_say() {
    for status in [begun(), empty(), busy(), failing()] {
        for object in objects(&status) {
            let schema = schema(object.kind);
            let at = format!("{} {}", object.kind.as_str(), object.name);
            for (part, value) in [
                ("spec", object.spec.as_ref()),
                ("spec", object.brief.as_ref()),
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

fn condition<'a>(object: &'a Object, kind: &str) -> Option<&'a Json> {
    object.status["conditions"].as_array()?.iter().find(|one| one["type"] == kind)
}

#[test]
fn conditions_say_how_far_a_plan_has_come() {
    let mut held = busy();
    held.applying.clear();
    let mut suspended = held.clone();
    let why = failing().plan.expect("a plan").held.into_values().next().expect("one");
    let plan = suspended.plan.as_mut().expect("a plan");
    plan.held =
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
fn whoever_reads_the_objects_knows_what_was_carried_out_as_if_it_had_done_so() {
    let mut status = busy();
    status.plan = None;
    let first = Arc::make_mut(&mut status.history[0]);
    let (who, reason) = ("system:serviceaccount:a:b".to_owned(), "a: b".to_owned());
    first.approved = ApprovedBy::BreakGlass { who, reason };
    Arc::make_mut(&mut status.history[3]).approved = ApprovedBy::Policy;
    let objects = of(&status, ObjectKind::CapacityPlan);
    assert_eq!(objects.len(), status.history.len());
    for (object, past) in objects.iter().zip(&status.history) {
        let told = told(object.brief.as_ref(), &object.status).expect("it is read");
        assert!(!told.is_current && !told.is_open);
        let told = told.past.expect("it was carried out");
        let sorted = |past: &Past| {
            let mut past = Past { plan_id: "".into(), decided: None, ..past.clone() };
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
    let spec = objects[0].brief.as_ref();
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
        let error = told(spec, &status).expect_err(why);
        assert!(error.contains(why), "{why}: {error}");
    }
}

#[test]
fn how_a_plan_ended_is_known_once_its_conditions_tell_of_what_is_pursued_now() {
    let mut status = busy();
    let now = status.plan.as_ref().expect("a plan").digest().clone();
    let mut past = Past::clone(&status.history[0]);
    past.digest = now;
    let receipt = past.receipt.as_mut().expect("it was begun");
    for row in &mut receipt.outcomes {
        row.outcome = Outcome::Done;
    }
    for verdict in [Verdict::Applied, Verdict::Partly, Verdict::Interrupted] {
        past.receipt.as_mut().expect("it was begun").verdict = verdict;
        status.history = vec![Arc::new(past.clone())];
        status.applying.clear();
        let object = current(&status);
        let ready = condition(&object, "Ready").expect("it is always there");
        assert_eq!(ready["reason"], "Pending");
        let past = told(object.spec.as_ref(), &object.status).expect("it is read").past;
        let receipt = past.and_then(|past| past.receipt).expect("it was begun");
        assert_eq!(receipt.verdict, verdict);
        // Of a word that only a later version knows the rows tell.
        let mut status = object.status.clone();
        status["verdict"] = json!("a-later-word");
        let past = told(object.spec.as_ref(), &status).expect("it is read").past;
        let receipt = past.and_then(|past| past.receipt).expect("it was begun");
        assert_ne!(receipt.verdict, Verdict::Partly, "all rows were done");
    }
}

/// Returns what whoever only read what became of a plan writes of it.
fn again(object: &Object) -> Json {
    let past = told(object.brief.as_ref(), &object.status).expect("it is read").past;
    let history = vec![Arc::new(past.expect("it was carried out"))];
    let again = of(&Status { history, ..begun() }, ObjectKind::CapacityPlan);
    again[0].status.clone()
}

#[test]
fn a_plan_that_another_took_the_place_of_says_so_and_hides_none_that_is_pursued_or_was_carried_out()
{
    let status = busy();
    let digest =
        |digest: &fleetwright::ids::Digest| Superseded { digest: digest.clone(), at: status.now };
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
    assert_eq!((&last.spec, &last.brief), (&None, &None));
    let ready = condition(last, "Ready").expect("it is always there");
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("Superseded")));
    assert_eq!((condition(last, "Stalled"), condition(last, "Reconciling")), (None, None));
    hold(&schema(last.kind)["properties"]["status"], &last.status, "status");
    let mut spec = others[1].brief.clone().expect("a spec");
    spec["digest"] = former.digest.to_string().into();
    let told = told(Some(&spec), &last.status).expect("it is read");
    assert_eq!((told.superseded, told.past, told.is_current), (Some(former), None, false));
}

#[test]
fn plans_that_were_carried_out_keep_their_outcome_and_the_worst_comes_first() {
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
    assert_eq!(of(&many, ObjectKind::CapacityPlan).len(), PLANS_MAX);
}

#[test]
fn an_object_is_small_whatever_the_plan() {
    let mut status = busy();
    let mut plan = crate::large::sized(5_000, 4_000).expect("a plan");
    let pods = crate::face::statuses::saved("quickstart.json").capacity.unschedulable;
    plan.capacity.unschedulable = pods.iter().cycle().take(3_000).cloned().collect();
    for row in &mut plan.resource_changes {
        let long = HOSTILE.repeat(200);
        row.address = format!("{}{long}", row.address).into();
    }
    let now = status.plan.as_mut().expect("a plan");
    now.held = plan
        .resource_changes
        .iter()
        .filter_map(|row| Some((row.address.clone(), failing().plan?.held.into_values().next()?)))
        .take(50)
        .collect();
    now.plan = Arc::new(plan);
    for object in objects(&status) {
        let size = object.spec.iter().chain([&object.status]).map(|part| part.to_string().len());
        let size: usize = size.sum();
        assert!(size < 1_000_000, "{}: {size}", object.name);
    }
    let spec = current(&status).spec.expect("a spec");
    assert_eq!(spec["rows"].as_array().map(Vec::len), Some(ROWS_MAX));
    assert_eq!(spec["rowsOmitted"], 3_500);
    assert_eq!(spec["unschedulableOmitted"], 2_950);
}

#[test]
fn pools_say_which_commit_they_serve_and_what_is_the_matter_with_them() {
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
