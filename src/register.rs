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
/// With the first failure; what was written before it is remembered, and the rest is tried again.
pub async fn keep(
    register: &impl Register,
    status: &Status,
    written: &mut Written,
) -> Result<u32, PortError> {
    if !status.leader || status.plan.is_none() {
        return Ok(0);
    }
    let wanted = objects(status);
    let mut writes = 0;
    for object in &wanted {
        let key = (object.kind, object.name.clone());
        if written.objects.get(&key) == Some(object) {
            continue;
        }
        register.put(&record(object)).await?;
        written.objects.insert(key, object.clone());
        writes += 1;
    }
    for kind in ObjectKind::ALL {
        writes += sweep(register, kind, &wanted, written).await?;
    }
    Ok(writes)
}

/// Removes the objects of a kind that are not wanted.
async fn sweep(
    register: &impl Register,
    kind: ObjectKind,
    wanted: &[Object],
    written: &mut Written,
) -> Result<u32, PortError> {
    let mine: Vec<&Object> = wanted.iter().filter(|object| object.kind == kind).collect();
    let Some(like) = mine.first().map(|object| record(object)) else { return Ok(0) };
    let names: BTreeSet<String> = mine.iter().map(|object| object.name.clone()).collect();
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
    Record {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: object.kind.as_str().to_owned(),
        plural: object.kind.plural().to_owned(),
        name: object.name.clone(),
        spec: object.spec.clone(),
        status: object.status.clone(),
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
        names: RefCell<BTreeSet<String>>,
        puts: RefCell<u32>,
        broken: RefCell<bool>,
    }

    impl Register for Shelf {
        async fn put(&self, record: &Record) -> Result<(), PortError> {
            if *self.broken.borrow() {
                let (verb, reason) = ("write record".to_owned(), "no".to_owned());
                return Err(PortError { verb, reason, transient: true });
            }
            *self.puts.borrow_mut() += 1;
            self.names.borrow_mut().insert(record.name.clone());
            Ok(())
        }

        async fn names(&self, _: &Record) -> Result<Vec<String>, PortError> {
            Ok(self.names.borrow().iter().cloned().collect())
        }

        async fn remove(&self, _: &Record, name: &str) -> Result<(), PortError> {
            self.names.borrow_mut().remove(name);
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
        shelf.names.borrow_mut().insert("plan-of-before".to_owned());
        let mut keep = |status: &Status| run(super::keep(&shelf, status, &mut written));
        assert_eq!(keep(&status("aa11")), Ok(2), "one comes, and that of before goes");
        assert_eq!(keep(&status("aa11")), Ok(0));
        assert_eq!(keep(&status("bb22")), Ok(2));
        let names: Vec<String> = shelf.names.borrow().iter().cloned().collect();
        assert_eq!(json!(names), json!(["plan-bb22"]));
    }

    #[test]
    fn who_does_not_lead_writes_nothing_and_a_failure_is_tried_again() {
        let (shelf, mut written) = (Shelf::default(), Written::default());
        let mut keep = |status: &Status| run(super::keep(&shelf, status, &mut written));
        assert_eq!(keep(&Status { leader: false, ..status("aa11") }), Ok(0));
        *shelf.broken.borrow_mut() = true;
        assert!(keep(&status("aa11")).is_err());
        *shelf.broken.borrow_mut() = false;
        assert_eq!(keep(&status("aa11")), Ok(1));
        assert_eq!(*shelf.puts.borrow(), 1);
    }
}
