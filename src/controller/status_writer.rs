//! Writes the controller status to Kubernetes objects.
//!
//! This module decides which objects should exist, and writes them through a port.
//!
//! Invariants:
//! - Only the leader writes.
//! - Unchanged objects are not written again.
//! - A failure is retried and never stops the controller.
//! - Unneeded objects are deleted, those of other processes once newer ones exist, and none because
//!   it is unreadable.

mod recovered_history;

pub use recovered_history::{RecoveredHistory, recover_history};

use std::collections::{BTreeMap, BTreeSet};

use crate::apply::ports::{ObjectStore, PortError, StoredObject, StoredObjectHead};
use crate::controller::Status;
use crate::controller::resources::{
    GROUP, ObjectKind, PLAN_OBJECTS_MAX, StatusObject, VERSION, plan_name, status_objects,
};

/// Known state of the objects.
#[derive(Debug, Clone, Default)]
pub struct WriterState {
    /// Written objects, by kind and name.
    objects: BTreeMap<(ObjectKind, String), StatusObject>,
    /// Wanted names of each kind at the last deletion of all others.
    swept_names: BTreeMap<ObjectKind, BTreeSet<String>>,
    /// History recovered from objects of other processes.
    pub recovered_history: RecoveredHistory,
    /// True if the history was recovered since this process leads.
    is_history_recovered: bool,
}

/// Writes changed objects and deletes unwanted ones; returns the number of writes and deletions.
/// Recovers the history of other processes first.
///
/// # Errors
/// The first failure. Successful writes are remembered, and the rest is retried.
pub async fn write_objects(
    register: &impl ObjectStore,
    status: &Status,
    state: &mut WriterState,
) -> Result<u32, PortError> {
    if !status.is_leader {
        // Another leader writes other objects meanwhile.
        *state = WriterState {
            recovered_history: std::mem::take(&mut state.recovered_history),
            ..WriterState::default()
        };
        return Ok(0);
    }
    let (mut writes, mut failure) = (0, None);
    if !state.is_history_recovered {
        match recover_history(register, &mut state.recovered_history).await {
            Ok(()) => state.is_history_recovered = true,
            // Without a recovered history, plan objects must not be overwritten or deleted. Pool
            // objects can.
            Err(error) => failure = Some(error),
        }
    }
    let Some(plan) = &status.plan else { return failure.map_or(Ok(0), Err) };
    let mut own: BTreeSet<String> =
        status.history.iter().map(|apply| plan_name(apply.digest.as_str())).collect();
    own.insert(plan_name(plan.digest().as_str()));
    own.extend(
        status.partial_applies.iter().map(|part| plan_name(part.plan.capacity.digest.as_str())),
    );
    own.extend(status.superseded.iter().map(|superseded| plan_name(superseded.digest.as_str())));
    let mut whole = status.clone();
    state.recovered_history.complete(&mut whole);
    let wanted = status_objects(&whole);
    let knows = state.is_history_recovered;
    let is_told = |kind: ObjectKind| knows || kind != ObjectKind::CapacityPlan;
    for object in wanted.iter().filter(|object| is_told(object.kind)) {
        let of_others = object.kind == ObjectKind::CapacityPlan && !own.contains(&object.name);
        let key = (object.kind, object.name.clone());
        // This process wrote it as the current plan before.
        let is_mine = state.objects.contains_key(&key);
        let stands = of_others && !is_mine && !state.recovered_history.claims_current(&object.name);
        if stands || state.objects.get(&key) == Some(object) {
            continue;
        }
        match register.put(&to_record(object)).await {
            Ok(()) => {
                state.objects.insert(key, object.clone());
                writes += 1;
            }
            // A rejected object must not prevent writes of the others.
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    for kind in ObjectKind::ALL.into_iter().filter(|kind| is_told(*kind)) {
        match delete_unwanted(register, kind, &wanted, state).await {
            Ok(removed) => writes += removed,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(writes), Err)
}

async fn delete_unwanted(
    register: &impl ObjectStore,
    kind: ObjectKind,
    wanted: &[StatusObject],
    state: &mut WriterState,
) -> Result<u32, PortError> {
    let mine = wanted.iter().filter(|object| object.kind == kind);
    let names: BTreeSet<String> = mine.map(|object| object.name.clone()).collect();
    // The last object of a kind is deleted as well.
    let like = empty_record(kind);
    // Listing is costly, so it runs only after a change of names.
    if state.swept_names.get(&kind) == Some(&names) {
        return Ok(0);
    }
    let mut removed = 0;
    for name in names_to_delete(register.list(&like).await?, &names, kind, state) {
        register.remove(&like, &name).await?;
        removed += 1;
    }
    state.objects.retain(|(known, name), _| *known != kind || names.contains(name));
    state.swept_names.insert(kind, names);
    Ok(removed)
}

/// Returns the objects to delete: all unwanted ones, except for the newest unreadable plans.
fn names_to_delete(
    mut listed: Vec<StoredObjectHead>,
    names: &BTreeSet<String>,
    kind: ObjectKind,
    state: &WriterState,
) -> Vec<String> {
    listed.retain(|one| !names.contains(&one.name));
    listed.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.name.cmp(&b.name)));
    let mut left = PLAN_OBJECTS_MAX;
    listed.retain(|one| {
        let is_own = state.objects.contains_key(&(kind, one.name.clone()));
        let is_unknown = kind == ObjectKind::CapacityPlan
            && !is_own
            && !state.recovered_history.has_read(&one.name);
        let stays = is_unknown && left > 0;
        left -= usize::from(stays);
        !stays
    });
    listed.into_iter().map(|one| one.name).collect()
}

fn to_record(object: &StatusObject) -> StoredObject {
    let StatusObject { kind, name, spec, fallback_spec: brief, status } = object.clone();
    StoredObject { name, spec, brief, status, ..empty_record(kind) }
}

fn empty_record(kind: ObjectKind) -> StoredObject {
    StoredObject {
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
    use crate::controller::{
        ApprovedBy, CompletedApply, PartialApply, PublishedPlan, SupersededPlan,
    };

    /// Stores records in memory, and fails on demand. Each record is created a second after the
    /// previous one.
    #[derive(Default)]
    struct InMemoryRecords {
        records: RefCell<BTreeMap<(String, String), (StoredObjectHead, StoredObject)>>,
        puts: RefCell<u32>,
        is_put_broken: RefCell<bool>,
        is_list_broken: RefCell<bool>,
    }

    fn refused() -> PortError {
        let (verb, reason) = ("write record".to_owned(), "no".to_owned());
        PortError { verb, reason, effect: crate::apply::ports::CallEffect::Unknown }
    }

    impl InMemoryRecords {
        fn names(&self) -> Vec<String> {
            let records = self.records.borrow();
            records.keys().map(|(kind, name)| format!("{kind}/{name}")).collect()
        }

        fn lay(&self, record: StoredObject) {
            let mut records = self.records.borrow_mut();
            let n = i64::try_from(records.len()).expect("few");
            let writes = *self.puts.borrow();
            let listing = StoredObjectHead {
                name: record.name.clone(),
                version: writes.to_string(),
                created_at: jiff::Timestamp::from_second(n).expect("a time"),
            };
            let key = (record.kind.clone(), record.name.clone());
            let made =
                records.get(&key).map_or(listing.created_at, |(listing, _)| listing.created_at);
            records.insert(key, (StoredObjectHead { created_at: made, ..listing }, record));
        }

        fn put_by_others(&self, name: &str, spec: Json, status: Json) {
            let name = name.to_owned();
            let spec = Some(spec);
            self.lay(StoredObject { name, spec, status, ..empty_record(ObjectKind::CapacityPlan) });
        }
    }

    impl ObjectStore for InMemoryRecords {
        async fn put(&self, record: &StoredObject) -> Result<(), PortError> {
            if *self.is_put_broken.borrow() {
                return Err(refused());
            }
            *self.puts.borrow_mut() += 1;
            let key = (record.kind.clone(), record.name.clone());
            let known = self.records.borrow().get(&key).and_then(|(_, record)| record.spec.clone());
            let spec = record.spec.clone().or(known).or_else(|| record.brief.clone());
            if spec.is_some() {
                self.lay(StoredObject { spec, brief: None, ..record.clone() });
            }
            Ok(())
        }

        async fn list(&self, like: &StoredObject) -> Result<Vec<StoredObjectHead>, PortError> {
            if *self.is_list_broken.borrow() {
                return Err(refused());
            }
            let records = self.records.borrow();
            let of_kind = records.iter().filter(|((kind, _), _)| *kind == like.kind);
            Ok(of_kind.map(|(_, (listing, _))| listing.clone()).collect())
        }

        async fn get(
            &self,
            like: &StoredObject,
            name: &str,
        ) -> Result<Option<StoredObject>, PortError> {
            let key = (like.kind.clone(), name.to_owned());
            Ok(self.records.borrow().get(&key).map(|(_, record)| record.clone()))
        }

        async fn remove(&self, like: &StoredObject, name: &str) -> Result<(), PortError> {
            self.records.borrow_mut().remove(&(like.kind.clone(), name.to_owned()));
            Ok(())
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn status(digest: &str) -> Status {
        let mut plan = crate::testing::sample_plan::nothing();
        plan.capacity.digest = format!("sha256:{digest}").into();
        let since = plan.timestamp;
        let plan = PublishedPlan { plan: Arc::new(plan), since, blocked: BTreeMap::new() };
        Status { is_leader: true, plan: Some(plan), ..crate::testing::controller::initial_status() }
    }

    fn never_current() -> Json {
        json!({ "current": true, "conditions": [] })
    }

    #[test]
    fn unchanged_objects_are_skipped_and_unwanted_deleted() {
        let (records, mut state) = (InMemoryRecords::default(), WriterState::default());
        records.put_by_others("plan-0", json!({}), never_current());
        let name = "of-before".to_owned();
        records.lay(StoredObject { name, ..empty_record(ObjectKind::CapacityPool) });
        let mut keep = |status: &Status| run(super::write_objects(&records, status, &mut state));
        assert_eq!(keep(&status("aa11")), Ok(3), "one comes, and those of before go");
        assert_eq!(keep(&status("aa11")), Ok(0));
        assert_eq!(keep(&status("bb22")), Ok(2));
        assert_eq!(records.names(), ["CapacityPlan/plan-bb22"], "the last pool went too");
    }

    #[test]
    fn standby_writes_nothing_and_failures_are_retried() {
        let (records, mut state) = (InMemoryRecords::default(), WriterState::default());
        let mut keep = |status: &Status| run(super::write_objects(&records, status, &mut state));
        assert_eq!(keep(&Status { is_leader: false, ..status("aa11") }), Ok(0));
        *records.is_put_broken.borrow_mut() = true;
        records.put_by_others("plan-0", json!({}), never_current());
        assert!(keep(&status("aa11")).is_err());
        assert!(records.names().is_empty(), "what can be done is done all the same");
        *records.is_put_broken.borrow_mut() = false;
        assert_eq!(keep(&status("aa11")), Ok(1));
        assert_eq!(*records.puts.borrow(), 1);
        assert_eq!(keep(&Status { is_leader: false, ..status("aa11") }), Ok(0));
        assert_eq!(keep(&status("aa11")), Ok(1), "another replica may have removed it meanwhile");
    }

    #[test]
    fn partial_apply_lists_rows_and_keeps_them_when_done() {
        let (records, mut state) = (InMemoryRecords::default(), WriterState::default());
        let plan = crate::testing::sample_plan::plan();
        let (since, digest) = (plan.timestamp, plan.capacity.digest.clone());
        let key = ("CapacityPlan".to_owned(), plan_name(digest.as_str()));
        let part = PartialApply { plan: Arc::new(plan), since, approved: ApprovedBy::Policy };
        let begun = Status { partial_applies: vec![part], ..status("aa11") };
        assert!(run(write_objects(&records, &begun, &mut state)).is_ok());
        let record = |records: &InMemoryRecords| {
            records.records.borrow().get(&key).map(|(_, record)| record.clone())
        };
        let first = record(&records).expect("written");
        let rows = first.spec.as_ref().and_then(|spec| spec["rows"].as_array()).map(Vec::len);
        assert!(rows.is_some_and(|rows| rows > 0), "{first:?}");
        assert_eq!(
            (&first.status["current"], &first.status["finishedAt"]),
            (&json!(false), &Json::Null)
        );
        let done = CompletedApply { digest, ..completed_apply("cc33", 1) };
        let done = Status { history: vec![Arc::new(done)], ..status("aa11") };
        assert!(run(write_objects(&records, &done, &mut state)).is_ok());
        let last = record(&records).expect("it stays");
        assert_eq!(last.spec, first.spec);
        assert!(last.status["finishedAt"].is_string(), "{last:?}");
    }

    #[test]
    fn failed_list_prevents_plan_writes_but_not_pools() {
        let (records, mut state) = (InMemoryRecords::default(), WriterState::default());
        let mut status = status("aa11");
        if let Some(now) = &mut status.plan {
            let mut plan = crate::testing::sample_plan::plan();
            plan.capacity.cost.breakdown.by_pool = vec![crate::plan::wire::CostRow {
                name: "web".to_owned(),
                nodes_before: 1,
                nodes_after: 2,
                hourly_before: crate::model::units::MicroUsd(1),
                hourly_after: crate::model::units::MicroUsd(2),
            }];
            now.plan = Arc::new(plan);
        }
        *records.is_list_broken.borrow_mut() = true;
        assert!(run(write_objects(&records, &status, &mut state)).is_err());
        let is_plan = |name: &String| name.starts_with("CapacityPlan/");
        let names = records.names();
        assert!(!names.is_empty() && !names.iter().any(is_plan), "{names:?}");
        *records.is_list_broken.borrow_mut() = false;
        assert_eq!(run(write_objects(&records, &status, &mut state)), Ok(1));
        assert!(records.names().iter().any(is_plan));
    }

    /// Returns a completed apply, so many seconds after the first.
    fn completed_apply(digest: &str, at: i64) -> CompletedApply {
        let plan = crate::testing::sample_plan::plan();
        let started_at = plan.timestamp + jiff::SignedDuration::from_secs(at);
        let ended_at = started_at + jiff::SignedDuration::from_secs(1);
        let digest: crate::model::ids::Digest = format!("sha256:{digest}").into();
        let outcomes = plan.resource_changes.iter().map(|row| crate::apply::ChangeOutcome {
            address: row.address.clone(),
            step: crate::plan::wire::WaveStep::Launch,
            instance_id: Some("i-1".into()),
            launched: None,
            outcome: crate::apply::Outcome::Abandoned { why: "it was late".to_owned() },
        });
        let outcomes: Vec<_> = outcomes.collect();
        assert!(!outcomes.is_empty());
        CompletedApply {
            plan_id: "".into(),
            commit: "c".to_owned(),
            approved: ApprovedBy::Digest { who: "alice".to_owned() },
            outcomes: BTreeMap::from([(
                "abandoned".to_owned(),
                u32::try_from(outcomes.len()).expect("few"),
            )]),
            receipt: Some(crate::apply::Receipt {
                plan_id: "".into(),
                digest: digest.clone(),
                outcomes,
                started_at,
                finished_at: ended_at,
                verdict: crate::apply::ApplyStatus::Partly,
            }),
            refused: None,
            digest,
            started_at,
            ended_at,
            hourly_before: crate::model::units::MicroUsd(1_000_000),
            hourly_after: crate::model::units::MicroUsd(500_000),
            decided: Some(crate::controller::PlanTotals::default()),
        }
    }

    fn with_history(digest: &str, history: &[CompletedApply]) -> Status {
        let history = history.iter().rev().cloned().map(Arc::new).collect();
        Status { history, ..status(digest) }
    }

    fn without_totals(apply: &CompletedApply) -> CompletedApply {
        CompletedApply { decided: None, ..apply.clone() }
    }

    #[test]
    fn history_of_other_processes_is_kept_and_recovered() {
        let records = InMemoryRecords::default();
        let all: Vec<CompletedApply> =
            (10..13).map(|n| completed_apply(&format!("{n:04}"), n)).collect();
        let mut first = WriterState::default();
        assert_eq!(run(write_objects(&records, &with_history("aa11", &all), &mut first)), Ok(4));
        // The next process has a plan of its own and an empty history.
        let mut second = WriterState::default();
        assert_eq!(
            run(write_objects(&records, &status("bb22"), &mut second)),
            Ok(2),
            "the previous plan is deleted"
        );
        let names = ["plan-0010", "plan-0011", "plan-0012", "plan-bb22"];
        assert_eq!(records.names(), names.map(|name| format!("CapacityPlan/{name}")));
        let mut follower = RecoveredHistory::default();
        run(recover_history(&records, &mut follower)).expect("it is read");
        for (earlier, leader) in [(&second.recovered_history, true), (&follower, false)] {
            let mut full = Status {
                is_leader: leader,
                ..with_history("bb22", &[completed_apply("0099", 99)])
            };
            earlier.complete(&mut full);
            let history: Vec<CompletedApply> =
                full.history.iter().map(|apply| without_totals(apply)).collect();
            let wanted: Vec<CompletedApply> = [completed_apply("0099", 99)]
                .iter()
                .chain(all.iter().rev())
                .map(without_totals)
                .collect();
            assert_eq!(history, wanted, "receipts and all, the newest first");
            assert_eq!(full.history_error, None);
        }
        let puts = *records.puts.borrow();
        assert_eq!(run(write_objects(&records, &status("bb22"), &mut second)), Ok(0));
        assert_eq!(*records.puts.borrow(), puts, "objects of other processes are not rewritten");
    }

    #[test]
    fn superseded_plans_are_kept_beside_receipts() {
        let records = InMemoryRecords::default();
        let all: Vec<CompletedApply> =
            (0..30).map(|n| completed_apply(&format!("{n:04}"), n)).collect();
        let mut state = WriterState::default();
        let superseded = |seconds: i64, digests: &[&str]| {
            let superseded = |(n, digest): (usize, &&str)| {
                let at = jiff::Timestamp::from_second(seconds - i64::try_from(n).expect("few"));
                SupersededPlan {
                    digest: format!("sha256:{digest}").into(),
                    at: at.expect("a time"),
                }
            };
            digests.iter().enumerate().map(superseded).collect::<Vec<_>>()
        };
        run(write_objects(&records, &with_history("aa11", &all), &mut state)).expect("written");
        // A plan that was never written is not recorded as superseded.
        let after =
            Status { superseded: superseded(100, &["aa11", "ff66"]), ..with_history("bb22", &all) };
        run(write_objects(&records, &after, &mut state)).expect("written");
        let of = |name: &str| {
            let key = ("CapacityPlan".to_owned(), name.to_owned());
            records.records.borrow().get(&key).map(|(_, record)| record.status.clone())
        };
        let record = of("plan-aa11").expect("it stays");
        assert_eq!((&record["current"], &record["sync"]), (&json!(false), &json!("OutOfSync")));
        let conditions = record["conditions"].as_array().expect("conditions");
        assert_eq!(conditions.len(), 1, "a superseded plan needs no operator");
        assert_eq!(conditions[0]["reason"], "Superseded");
        assert_eq!(of("plan-ff66"), None);
        assert_eq!(records.names().len(), PLAN_OBJECTS_MAX + 1);
        // The next process keeps it, and rewrites it only after it was current in between.
        let (mut next, puts) = (WriterState::default(), *records.puts.borrow());
        run(write_objects(&records, &status("bb22"), &mut next)).expect("written");
        assert_eq!((of("plan-aa11"), *records.puts.borrow()), (Some(record.clone()), puts + 1));
        run(write_objects(&records, &status("aa11"), &mut next)).expect("written");
        assert_eq!(of("plan-aa11").expect("it is there")["current"], true);
        run(write_objects(&records, &status("cc33"), &mut next)).expect("written");
        assert_eq!(of("plan-aa11").expect("it is there")["current"], false);
        // Only the newest stay.
        let many = ["cc33", "01", "02", "03", "04"];
        let last = Status { superseded: superseded(200, &many), ..status("dd44") };
        run(write_objects(&records, &last, &mut next)).expect("written");
        assert_eq!((of("plan-aa11"), of("plan-cc33").is_some()), (None, true));
    }

    #[test]
    fn oldest_plan_objects_are_deleted_beyond_the_limit() {
        let records = InMemoryRecords::default();
        let many = i64::try_from(PLAN_OBJECTS_MAX).expect("few") + 9;
        let all: Vec<CompletedApply> =
            (0..many).map(|n| completed_apply(&format!("{n:04}"), n)).collect();
        for half in [&all[..15], &all[15..]] {
            run(write_objects(&records, &with_history("aa11", half), &mut WriterState::default()))
                .expect("written");
        }
        let names = records.names();
        assert_eq!(names.len(), PLAN_OBJECTS_MAX);
        assert!(names.contains(&format!("CapacityPlan/plan-{:04}", many - 1)), "{names:?}");
        assert!(!names.contains(&"CapacityPlan/plan-0009".to_owned()), "{names:?}");
        assert!(names.contains(&"CapacityPlan/plan-0010".to_owned()), "{names:?}");
    }

    #[test]
    fn unreadable_objects_are_reported_and_kept() {
        let records = InMemoryRecords::default();
        run(write_objects(
            &records,
            &with_history("aa11", &[completed_apply("0010", 10)]),
            &mut WriterState::default(),
        ))
        .expect("written");
        records.put_by_others("plan-odd", json!({}), json!({ "startedAt": "yesterday" }));
        // Its digest does not match its name.
        let key = ("CapacityPlan".to_owned(), "plan-0010".to_owned());
        let copied = records.records.borrow()[&key].1.clone();
        records.put_by_others("plan-copied", copied.spec.expect("a spec"), copied.status);
        let mut state = WriterState::default();
        *records.is_list_broken.borrow_mut() = true;
        assert!(run(write_objects(&records, &status("bb22"), &mut state)).is_err());
        let mut full = status("bb22");
        state.recovered_history.complete(&mut full);
        assert_eq!(full.history_error.as_deref(), Some("write record failed: no"));
        assert_eq!(records.names().len(), 4, "nothing is taken for over");
        *records.is_list_broken.borrow_mut() = false;
        run(write_objects(&records, &status("bb22"), &mut state)).expect("written");
        let mut full = status("bb22");
        state.recovered_history.complete(&mut full);
        let unread = full.history_error.expect("it is said");
        assert!(unread.contains("plan-odd") && unread.contains("plan-copied"), "{unread}");
        assert_eq!(full.history.len(), 1);
        let names = ["plan-0010", "plan-bb22", "plan-copied", "plan-odd"];
        assert_eq!(records.names(), names.map(|name| format!("CapacityPlan/{name}")));
    }

    #[test]
    fn open_apply_ends_when_its_process_is_gone() {
        let records = InMemoryRecords::default();
        let status_of = status("aa11");
        let plan = Arc::clone(&status_of.plan.as_ref().expect("a plan").plan);
        let since = plan.timestamp;
        let applying = BTreeMap::from([(plan.capacity.plan_id.clone(), (Vec::new(), since))]);
        let carries = Status { in_progress: applying, ..status_of };
        run(write_objects(&records, &carries, &mut WriterState::default())).expect("written");
        let mut follower = RecoveredHistory::default();
        run(recover_history(&records, &mut follower)).expect("read");
        let mut full = Status { is_leader: false, ..status("bb22") };
        follower.complete(&mut full);
        assert!(full.history.is_empty());
        let mut state = WriterState::default();
        assert_eq!(run(write_objects(&records, &status("bb22"), &mut state)), Ok(2));
        let mut full = status("bb22");
        state.recovered_history.complete(&mut full);
        let receipt = full.history[0].receipt.as_ref().expect("it was started");
        assert_eq!(receipt.verdict, crate::apply::ApplyStatus::Interrupted);
        let key = ("CapacityPlan".to_owned(), "plan-aa11".to_owned());
        assert_eq!(records.records.borrow()[&key].1.status["current"], false);
    }
}
