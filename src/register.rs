//! Keeps the objects in the API server equal to what the loop tells.
//!
//! This module knows which objects there should be, and drives the port that keeps them. Invariants:
//! only who leads writes; what did not change is not written again; a failure costs a later try, and
//! never the loop; objects that nobody needs any more go.

use std::collections::{BTreeMap, BTreeSet};

use crate::face::object::{GROUP, Object, ObjectKind, VERSION, objects};
use crate::port::{PortError, Record, Register};
use crate::reconcile::Status;

/// What is known to be there.
#[derive(Debug, Clone, Default)]
pub struct Written {
    /// What was written, by kind and name.
    objects: BTreeMap<(ObjectKind, String), Object>,
    /// The names of a kind when all others were last removed.
    swept: BTreeMap<ObjectKind, BTreeSet<String>>,
}

/// Writes what changed since `written`, and removes what is no longer told; returns how many objects
/// were written or removed.
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
        *written = Written::default();
        return Ok(0);
    }
    if status.plan.is_none() {
        return Ok(0);
    }
    let wanted = objects(status);
    let (mut writes, mut failure) = (0, None);
    for object in &wanted {
        let key = (object.kind, object.name.clone());
        if written.objects.get(&key) == Some(object) {
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
    for kind in ObjectKind::ALL {
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
    for name in register.names(&like).await? {
        if !names.contains(&name) {
            register.remove(&like, &name).await?;
            removed += 1;
        }
    }
    written.objects.retain(|(known, name), _| *known != kind || names.contains(name));
    written.swept.insert(kind, names);
    Ok(removed)
}

fn record(object: &Object) -> Record {
    let Object { kind, name, spec, status } = object.clone();
    Record { name, spec, status, ..blank(kind) }
}

/// Returns a record of a kind that says nothing.
fn blank(kind: ObjectKind) -> Record {
    Record {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: kind.as_str().to_owned(),
        plural: kind.plural().to_owned(),
        name: String::new(),
        spec: None,
        status: serde_json::Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::reconcile::PlanNow;

    /// Keeps names, and refuses while `broken`.
    #[derive(Default)]
    struct Shelf {
        names: RefCell<BTreeSet<(String, String)>>,
        puts: RefCell<u32>,
        broken: RefCell<bool>,
    }

    impl Register for Shelf {
        async fn put(&self, record: &Record) -> Result<(), PortError> {
            if *self.broken.borrow() {
                let (verb, reason) = ("write record".to_owned(), "no".to_owned());
                return Err(PortError { verb, reason, fate: crate::port::Fate::Unknown });
            }
            *self.puts.borrow_mut() += 1;
            self.names.borrow_mut().insert((record.kind.clone(), record.name.clone()));
            Ok(())
        }

        async fn names(&self, like: &Record) -> Result<Vec<String>, PortError> {
            let names = self.names.borrow();
            let of_kind = names.iter().filter(|(kind, _)| *kind == like.kind);
            Ok(of_kind.map(|(_, name)| name.clone()).collect())
        }

        async fn remove(&self, like: &Record, name: &str) -> Result<(), PortError> {
            self.names.borrow_mut().remove(&(like.kind.clone(), name.to_owned()));
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

    #[test]
    fn what_did_not_change_is_not_written_again_and_what_is_over_goes() {
        let (shelf, mut written) = (Shelf::default(), Written::default());
        for kind in ObjectKind::ALL {
            shelf.names.borrow_mut().insert((kind.as_str().to_owned(), "of-before".to_owned()));
        }
        let mut keep = |status: &Status| run(super::keep(&shelf, status, &mut written));
        assert_eq!(keep(&status("aa11")), Ok(3), "one comes, and those of before go");
        assert_eq!(keep(&status("aa11")), Ok(0));
        assert_eq!(keep(&status("bb22")), Ok(2));
        let names: Vec<_> = shelf.names.borrow().iter().cloned().collect();
        assert_eq!(json!(names), json!([["CapacityPlan", "plan-bb22"]]), "the last pool went too");
    }

    #[test]
    fn who_does_not_lead_writes_nothing_and_a_failure_is_tried_again() {
        let (shelf, mut written) = (Shelf::default(), Written::default());
        let mut keep = |status: &Status| run(super::keep(&shelf, status, &mut written));
        assert_eq!(keep(&Status { leader: false, ..status("aa11") }), Ok(0));
        *shelf.broken.borrow_mut() = true;
        shelf.names.borrow_mut().insert(("CapacityPlan".to_owned(), "of-before".to_owned()));
        assert!(keep(&status("aa11")).is_err());
        assert!(shelf.names.borrow().is_empty(), "what can be done is done all the same");
        *shelf.broken.borrow_mut() = false;
        assert_eq!(keep(&status("aa11")), Ok(1));
        assert_eq!(*shelf.puts.borrow(), 1);
        assert_eq!(keep(&Status { leader: false, ..status("aa11") }), Ok(0));
        assert_eq!(keep(&status("aa11")), Ok(1), "another replica may have removed it meanwhile");
    }
}
