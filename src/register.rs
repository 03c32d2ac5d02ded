//! Keeps the objects in the API server equal to what the loop tells.
//!
//! This module knows which objects there should be, and drives the port that keeps them. Invariants:
//! only who leads writes; what did not change is not written again; a failure costs a later try, and
//! never the loop; objects that nobody needs any more go, those of plans that other processes carried out
//! once there are newer ones, and none because it cannot be read.

mod earlier;

pub use earlier::{Earlier, recall};

use std::collections::{BTreeMap, BTreeSet};

use crate::face::object::{GROUP, Object, ObjectKind, PLANS_MAX, VERSION, objects, plan_name};
use crate::port::{Listed, PortError, Record, Register};
use crate::reconcile::Status;

/// What is known to be there.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// What was written, by kind and name.
    objects: BTreeMap<(ObjectKind, String), Object>,
    /// The names of a kind when all others were last removed.
    swept: BTreeMap<ObjectKind, BTreeSet<String>>,
    /// What the objects of others tell.
    pub earlier: Earlier,
    /// Whether that was read since this process leads.
    is_recalled: bool,
}

/// Writes what changed since `written`, and removes what is no longer told; returns how many objects
/// were written or removed. What plans of other processes came to is read first.
///
/// # Errors
/// With the first failure; what was written is remembered, and the rest is tried again.
pub async fn keep(
    register: &impl Register,
    status: &Status,
    written: &mut Written,
) -> Result<u32, PortError> {
    if !status.leader {
        // Whoever leads meanwhile writes others.
        *written = Written { earlier: std::mem::take(&mut written.earlier), ..Written::default() };
        return Ok(0);
    }
    let (mut writes, mut failure) = (0, None);
    if !written.is_recalled {
        match recall(register, &mut written.earlier).await {
            Ok(()) => written.is_recalled = true,
            // Of plans nothing is written over or removed that nobody has read; the rest is told all the same.
            Err(error) => failure = Some(error),
        }
    }
    let Some(plan) = &status.plan else { return failure.map_or(Ok(0), Err) };
    let mut own: BTreeSet<String> =
        status.history.iter().map(|past| plan_name(past.digest.as_str())).collect();
    own.insert(plan_name(plan.digest().as_str()));
    own.extend(status.parts.iter().map(|part| plan_name(part.plan.capacity.digest.as_str())));
    own.extend(status.superseded.iter().map(|former| plan_name(former.digest.as_str())));
    let mut whole = status.clone();
    written.earlier.complete(&mut whole);
    let wanted = objects(&whole);
    let knows = written.is_recalled;
    let is_told = |kind: ObjectKind| knows || kind != ObjectKind::CapacityPlan;
    for object in wanted.iter().filter(|object| is_told(object.kind)) {
        let of_others = object.kind == ObjectKind::CapacityPlan && !own.contains(&object.name);
        let key = (object.kind, object.name.clone());
        // What this process wrote of it meanwhile is that it was the current one.
        let is_mine = written.objects.contains_key(&key);
        let stands = of_others && !is_mine && !written.earlier.is_outdated(&object.name);
        if stands || written.objects.get(&key) == Some(object) {
            continue;
        }
        match register.put(&record(object)).await {
            Ok(()) => {
                written.objects.insert(key, object.clone());
                writes += 1;
            }
            // One that the API server refuses must not keep the others from being written.
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    for kind in ObjectKind::ALL.into_iter().filter(|kind| is_told(*kind)) {
        match sweep(register, kind, &wanted, written).await {
            Ok(removed) => writes += removed,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(writes), Err)
}

/// Removes the objects of a kind that are not wanted.
async fn sweep(
    register: &impl Register,
    kind: ObjectKind,
    wanted: &[Object],
    written: &mut Written,
) -> Result<u32, PortError> {
    let mine = wanted.iter().filter(|object| object.kind == kind);
    let names: BTreeSet<String> = mine.map(|object| object.name.clone()).collect();
    // The last of a kind goes as well.
    let like = blank(kind);
    // Looked at only when something came or went: asking costs a list.
    if written.swept.get(&kind) == Some(&names) {
        return Ok(0);
    }
    let mut removed = 0;
    for name in over(register.list(&like).await?, &names, kind, written) {
        register.remove(&like, &name).await?;
        removed += 1;
    }
    written.objects.retain(|(known, name), _| *known != kind || names.contains(name));
    written.swept.insert(kind, names);
    Ok(removed)
}

/// Returns those that go: all that are not wanted, but for the newest of those of which nobody here knows what they
/// tell.
fn over(
    mut listed: Vec<Listed>,
    names: &BTreeSet<String>,
    kind: ObjectKind,
    written: &Written,
) -> Vec<String> {
    listed.retain(|one| !names.contains(&one.name));
    listed.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.name.cmp(&b.name)));
    let mut left = PLANS_MAX;
    listed.retain(|one| {
        let is_own = written.objects.contains_key(&(kind, one.name.clone()));
        let is_unknown =
            kind == ObjectKind::CapacityPlan && !is_own && !written.earlier.has_read(&one.name);
        let stays = is_unknown && left > 0;
        left -= usize::from(stays);
        !stays
    });
    listed.into_iter().map(|one| one.name).collect()
}

fn record(object: &Object) -> Record {
    let Object { kind, name, spec, brief, status } = object.clone();
    Record { name, spec, brief, status, ..blank(kind) }
}

/// Returns a record of a kind that says nothing.
fn blank(kind: ObjectKind) -> Record {
    Record {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
        name: String::new(),
        spec: None,
        brief: None,
        status: serde_json::Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use serde_json::{Value as Json, json};

    use super::*;
    use crate::reconcile::{ApprovedBy, Part, Past, PlanNow, Superseded};

    /// Keeps records, and refuses while `broken`. Each is made a second after the one before.
    #[derive(Default)]
    struct Shelf {
        records: RefCell<BTreeMap<(String, String), (Listed, Record)>>,
        puts: RefCell<u32>,
        broken: RefCell<bool>,
        closed: RefCell<bool>,
    }

    fn refused() -> PortError {
        let (verb, reason) = ("write record".to_owned(), "no".to_owned());
        PortError { verb, reason, fate: crate::port::Fate::Unknown }
    }

    impl Shelf {
        fn names(&self) -> Vec<String> {
            let records = self.records.borrow();
            records.keys().map(|(kind, name)| format!("{kind}/{name}")).collect()
        }

        fn lay(&self, record: Record) {
            let mut records = self.records.borrow_mut();
            let n = i64::try_from(records.len()).expect("few");
            let writes = *self.puts.borrow();
            let head = Listed {
                name: record.name.clone(),
                version: writes.to_string(),
                created_at: jiff::Timestamp::from_second(n).expect("a time"),
            };
            let key = (record.kind.clone(), record.name.clone());
            let made = records.get(&key).map_or(head.created_at, |(head, _)| head.created_at);
            records.insert(key, (Listed { created_at: made, ..head }, record));
        }

        fn put_by_others(&self, name: &str, spec: Json, status: Json) {
            let name = name.to_owned();
            let spec = Some(spec);
            self.lay(Record { name, spec, status, ..blank(ObjectKind::CapacityPlan) });
        }
    }

    impl Register for Shelf {
        async fn put(&self, record: &Record) -> Result<(), PortError> {
            if *self.broken.borrow() {
                return Err(refused());
            }
            *self.puts.borrow_mut() += 1;
            let key = (record.kind.clone(), record.name.clone());
            let known = self.records.borrow().get(&key).and_then(|(_, record)| record.spec.clone());
            let spec = record.spec.clone().or(known).or_else(|| record.brief.clone());
            if spec.is_some() {
                self.lay(Record { spec, brief: None, ..record.clone() });
            }
            Ok(())
        }

        async fn list(&self, like: &Record) -> Result<Vec<Listed>, PortError> {
            if *self.closed.borrow() {
                return Err(refused());
            }
            let records = self.records.borrow();
            let of_kind = records.iter().filter(|((kind, _), _)| *kind == like.kind);
            Ok(of_kind.map(|(_, (head, _))| head.clone()).collect())
        }

        async fn get(&self, like: &Record, name: &str) -> Result<Option<Record>, PortError> {
            let key = (like.kind.clone(), name.to_owned());
            Ok(self.records.borrow().get(&key).map(|(_, record)| record.clone()))
        }

        async fn remove(&self, like: &Record, name: &str) -> Result<(), PortError> {
            self.records.borrow_mut().remove(&(like.kind.clone(), name.to_owned()));
            Ok(())
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn status(digest: &str) -> Status {
        let mut plan = crate::render::fixture::nothing();
        plan.capacity.digest = format!("sha256:{digest}").into();
        let since = plan.timestamp;
        let plan = PlanNow { plan: Arc::new(plan), since, held: BTreeMap::new() };
        Status { leader: true, plan: Some(plan), ..crate::face::fixture::begun() }
    }

    fn never() -> Json {
        json!({ "current": true, "conditions": [] })
    }

    #[test]
    fn what_did_not_change_is_not_written_again_and_what_is_over_goes() {
        let (shelf, mut written) = (Shelf::default(), Written::default());
        shelf.put_by_others("plan-0", json!({}), never());
        let name = "of-before".to_owned();
        shelf.lay(Record { name, ..blank(ObjectKind::CapacityPool) });
        let mut keep = |status: &Status| run(super::keep(&shelf, status, &mut written));
        assert_eq!(keep(&status("aa11")), Ok(3), "one comes, and those of before go");
        assert_eq!(keep(&status("aa11")), Ok(0));
        assert_eq!(keep(&status("bb22")), Ok(2));
        assert_eq!(shelf.names(), ["CapacityPlan/plan-bb22"], "the last pool went too");
    }

    #[test]
    fn who_does_not_lead_writes_nothing_and_a_failure_is_tried_again() {
        let (shelf, mut written) = (Shelf::default(), Written::default());
        let mut keep = |status: &Status| run(super::keep(&shelf, status, &mut written));
        assert_eq!(keep(&Status { leader: false, ..status("aa11") }), Ok(0));
        *shelf.broken.borrow_mut() = true;
        shelf.put_by_others("plan-0", json!({}), never());
        assert!(keep(&status("aa11")).is_err());
        assert!(shelf.names().is_empty(), "what can be done is done all the same");
        *shelf.broken.borrow_mut() = false;
        assert_eq!(keep(&status("aa11")), Ok(1));
        assert_eq!(*shelf.puts.borrow(), 1);
        assert_eq!(keep(&Status { leader: false, ..status("aa11") }), Ok(0));
        assert_eq!(keep(&status("aa11")), Ok(1), "another replica may have removed it meanwhile");
    }

    #[test]
    fn a_part_that_is_carried_out_is_told_row_by_row_and_keeps_them_once_it_is_done() {
        let (shelf, mut written) = (Shelf::default(), Written::default());
        let plan = crate::render::fixture::plan();
        let (since, digest) = (plan.timestamp, plan.capacity.digest.clone());
        let key = ("CapacityPlan".to_owned(), plan_name(digest.as_str()));
        let part = Part { plan: Arc::new(plan), since, approved: ApprovedBy::Policy };
        let begun = Status { parts: vec![part], ..status("aa11") };
        assert!(run(keep(&shelf, &begun, &mut written)).is_ok());
        let told = |shelf: &Shelf| shelf.records.borrow().get(&key).map(|(_, told)| told.clone());
        let first = told(&shelf).expect("it is told");
        let rows = first.spec.as_ref().and_then(|spec| spec["rows"].as_array()).map(Vec::len);
        assert!(rows.is_some_and(|rows| rows > 0), "{first:?}");
        assert_eq!(
            (&first.status["current"], &first.status["finishedAt"]),
            (&json!(false), &Json::Null)
        );
        let done = Past { digest, ..past("cc33", 1) };
        let done = Status { history: vec![Arc::new(done)], ..status("aa11") };
        assert!(run(keep(&shelf, &done, &mut written)).is_ok());
        let last = told(&shelf).expect("it stays");
        assert_eq!(last.spec, first.spec);
        assert!(last.status["finishedAt"].is_string(), "{last:?}");
    }

    #[test]
    fn while_nobody_can_list_what_earlier_lives_wrote_pools_are_told_and_no_plan_is_written_over() {
        let (shelf, mut written) = (Shelf::default(), Written::default());
        let mut status = status("aa11");
        if let Some(now) = &mut status.plan {
            let mut plan = crate::render::fixture::plan();
            plan.capacity.cost.breakdown.by_pool = vec![crate::plan::wire::CostRow {
                name: "web".to_owned(),
                nodes_before: 1,
                nodes_after: 2,
                hourly_before: crate::units::MicroUsd(1),
                hourly_after: crate::units::MicroUsd(2),
            }];
            now.plan = Arc::new(plan);
        }
        *shelf.closed.borrow_mut() = true;
        assert!(run(keep(&shelf, &status, &mut written)).is_err());
        let is_plan = |name: &String| name.starts_with("CapacityPlan/");
        let names = shelf.names();
        assert!(!names.is_empty() && !names.iter().any(is_plan), "{names:?}");
        *shelf.closed.borrow_mut() = false;
        assert_eq!(run(keep(&shelf, &status, &mut written)), Ok(1));
        assert!(shelf.names().iter().any(is_plan));
    }

    /// Returns a plan that was carried out, so many seconds after the first.
    fn past(digest: &str, at: i64) -> Past {
        let plan = crate::render::fixture::plan();
        let started_at = plan.timestamp + jiff::SignedDuration::from_secs(at);
        let ended_at = started_at + jiff::SignedDuration::from_secs(1);
        let digest: crate::ids::Digest = format!("sha256:{digest}").into();
        let outcomes = plan.resource_changes.iter().map(|row| crate::apply::ChangeOutcome {
            address: row.address.clone(),
            step: crate::plan::wire::WaveStep::Launch,
            instance_id: Some("i-1".into()),
            outcome: crate::apply::Outcome::GivenUp { why: "it was late".to_owned() },
        });
        let outcomes: Vec<_> = outcomes.collect();
        assert!(!outcomes.is_empty());
        Past {
            plan_id: "".into(),
            commit: "c".to_owned(),
            approved: ApprovedBy::Digest { who: "alice".to_owned() },
            outcomes: BTreeMap::from([(
                "given-up".to_owned(),
                u32::try_from(outcomes.len()).expect("few"),
            )]),
            receipt: Some(crate::apply::Receipt {
                plan_id: "".into(),
                digest: digest.clone(),
                outcomes,
                started_at,
                finished_at: ended_at,
                verdict: crate::apply::Verdict::Partly,
            }),
            refused: None,
            digest,
            started_at,
            ended_at,
            hourly_before: crate::units::MicroUsd(1_000_000),
            hourly_after: crate::units::MicroUsd(500_000),
            decided: Some(crate::reconcile::Decided::default()),
        }
    }

    fn with(digest: &str, history: &[Past]) -> Status {
        let history = history.iter().rev().cloned().map(Arc::new).collect();
        Status { history, ..status(digest) }
    }

    fn told(past: &Past) -> Past {
        Past { decided: None, ..past.clone() }
    }

    #[test]
    fn what_earlier_lives_carried_out_stays_and_is_told_by_the_next_and_by_who_does_not_lead() {
        let shelf = Shelf::default();
        let all: Vec<Past> = (10..13).map(|n| past(&format!("{n:04}"), n)).collect();
        let mut first = Written::default();
        assert_eq!(run(keep(&shelf, &with("aa11", &all), &mut first)), Ok(4));
        // The next one has a plan of its own, and knows of nothing.
        let mut second = Written::default();
        assert_eq!(run(keep(&shelf, &status("bb22"), &mut second)), Ok(2), "the former plan goes");
        let names = ["plan-0010", "plan-0011", "plan-0012", "plan-bb22"];
        assert_eq!(shelf.names(), names.map(|name| format!("CapacityPlan/{name}")));
        let mut follower = Earlier::default();
        run(recall(&shelf, &mut follower)).expect("it is read");
        for (earlier, leader) in [(&second.earlier, true), (&follower, false)] {
            let mut shown = Status { leader, ..with("bb22", &[past("0099", 99)]) };
            earlier.complete(&mut shown);
            let history: Vec<Past> = shown.history.iter().map(|past| told(past)).collect();
            let wanted: Vec<Past> =
                [past("0099", 99)].iter().chain(all.iter().rev()).map(told).collect();
            assert_eq!(history, wanted, "receipts and all, the newest first");
            assert_eq!(shown.unread, None);
        }
        let puts = *shelf.puts.borrow();
        assert_eq!(run(keep(&shelf, &status("bb22"), &mut second)), Ok(0));
        assert_eq!(*shelf.puts.borrow(), puts, "what others told is not written again");
    }

    #[test]
    fn what_was_superseded_stays_beside_the_receipts_and_is_told_by_the_next() {
        let shelf = Shelf::default();
        let all: Vec<Past> = (0..30).map(|n| past(&format!("{n:04}"), n)).collect();
        let mut written = Written::default();
        let superseded = |seconds: i64, digests: &[&str]| {
            let former = |(n, digest): (usize, &&str)| {
                let at = jiff::Timestamp::from_second(seconds - i64::try_from(n).expect("few"));
                Superseded { digest: format!("sha256:{digest}").into(), at: at.expect("a time") }
            };
            digests.iter().enumerate().map(former).collect::<Vec<_>>()
        };
        run(keep(&shelf, &with("aa11", &all), &mut written)).expect("kept");
        // One that never was written is none to be told of.
        let after = Status { superseded: superseded(100, &["aa11", "ff66"]), ..with("bb22", &all) };
        run(keep(&shelf, &after, &mut written)).expect("kept");
        let of = |name: &str| {
            let key = ("CapacityPlan".to_owned(), name.to_owned());
            shelf.records.borrow().get(&key).map(|(_, record)| record.status.clone())
        };
        let told = of("plan-aa11").expect("it stays");
        assert_eq!((&told["current"], &told["sync"]), (&json!(false), &json!("OutOfSync")));
        let conditions = told["conditions"].as_array().expect("conditions");
        assert_eq!(conditions.len(), 1, "nobody is to do anything about it");
        assert_eq!(conditions[0]["reason"], "Superseded");
        assert_eq!(of("plan-ff66"), None);
        assert_eq!(shelf.names().len(), PLANS_MAX + 1);
        // The next life keeps it, and writes it only where it has been the current one meanwhile.
        let (mut next, puts) = (Written::default(), *shelf.puts.borrow());
        run(keep(&shelf, &status("bb22"), &mut next)).expect("kept");
        assert_eq!((of("plan-aa11"), *shelf.puts.borrow()), (Some(told.clone()), puts + 1));
        run(keep(&shelf, &status("aa11"), &mut next)).expect("kept");
        assert_eq!(of("plan-aa11").expect("it is there")["current"], true);
        run(keep(&shelf, &status("cc33"), &mut next)).expect("kept");
        assert_eq!(of("plan-aa11").expect("it is there")["current"], false);
        // And the newest alone stay.
        let many = ["cc33", "01", "02", "03", "04"];
        let last = Status { superseded: superseded(200, &many), ..status("dd44") };
        run(keep(&shelf, &last, &mut next)).expect("kept");
        assert_eq!((of("plan-aa11"), of("plan-cc33").is_some()), (None, true));
    }

    #[test]
    fn no_more_plans_stay_than_may_and_the_oldest_go_first() {
        let shelf = Shelf::default();
        let many = i64::try_from(PLANS_MAX).expect("few") + 9;
        let all: Vec<Past> = (0..many).map(|n| past(&format!("{n:04}"), n)).collect();
        for half in [&all[..15], &all[15..]] {
            run(keep(&shelf, &with("aa11", half), &mut Written::default())).expect("kept");
        }
        let names = shelf.names();
        assert_eq!(names.len(), PLANS_MAX);
        assert!(names.contains(&format!("CapacityPlan/plan-{:04}", many - 1)), "{names:?}");
        assert!(!names.contains(&"CapacityPlan/plan-0009".to_owned()), "{names:?}");
        assert!(names.contains(&"CapacityPlan/plan-0010".to_owned()), "{names:?}");
    }

    #[test]
    fn what_cannot_be_read_is_said_and_stays() {
        let shelf = Shelf::default();
        run(keep(&shelf, &with("aa11", &[past("0010", 10)]), &mut Written::default()))
            .expect("kept");
        shelf.put_by_others("plan-odd", json!({}), json!({ "startedAt": "yesterday" }));
        // One by another's name would be taken for that one.
        let key = ("CapacityPlan".to_owned(), "plan-0010".to_owned());
        let copied = shelf.records.borrow()[&key].1.clone();
        shelf.put_by_others("plan-copied", copied.spec.expect("a spec"), copied.status);
        let mut written = Written::default();
        *shelf.closed.borrow_mut() = true;
        assert!(run(keep(&shelf, &status("bb22"), &mut written)).is_err());
        let mut shown = status("bb22");
        written.earlier.complete(&mut shown);
        assert_eq!(shown.unread.as_deref(), Some("write record failed: no"));
        assert_eq!(shelf.names().len(), 4, "nothing is taken for over");
        *shelf.closed.borrow_mut() = false;
        run(keep(&shelf, &status("bb22"), &mut written)).expect("kept");
        let mut shown = status("bb22");
        written.earlier.complete(&mut shown);
        let unread = shown.unread.expect("it is said");
        assert!(unread.contains("plan-odd") && unread.contains("plan-copied"), "{unread}");
        assert_eq!(shown.history.len(), 1);
        let names = ["plan-0010", "plan-bb22", "plan-copied", "plan-odd"];
        assert_eq!(shelf.names(), names.map(|name| format!("CapacityPlan/{name}")));
    }

    #[test]
    fn a_plan_of_which_nobody_told_the_end_is_open_while_another_leads_and_over_once_it_is_gone() {
        let shelf = Shelf::default();
        let status_of = status("aa11");
        let plan = Arc::clone(&status_of.plan.as_ref().expect("a plan").plan);
        let since = plan.timestamp;
        let applying = BTreeMap::from([(plan.capacity.plan_id.clone(), (Vec::new(), since))]);
        let carries = Status { applying, ..status_of };
        run(keep(&shelf, &carries, &mut Written::default())).expect("kept");
        let mut follower = Earlier::default();
        run(recall(&shelf, &mut follower)).expect("read");
        let mut shown = Status { leader: false, ..status("bb22") };
        follower.complete(&mut shown);
        assert!(shown.history.is_empty());
        let mut written = Written::default();
        assert_eq!(run(keep(&shelf, &status("bb22"), &mut written)), Ok(2));
        let mut shown = status("bb22");
        written.earlier.complete(&mut shown);
        let why = shown.history[0].refused.as_deref();
        assert!(why.is_some_and(|why| why.contains("was gone before it ended")), "{why:?}");
        let key = ("CapacityPlan".to_owned(), "plan-aa11".to_owned());
        assert_eq!(shelf.records.borrow()[&key].1.status["current"], false);
    }
}
