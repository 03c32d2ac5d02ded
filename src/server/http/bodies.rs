//! Large response bodies. All requests share one body for each version of its content.
//!
//! Invariant: memory is bounded, whatever the clients read. A client that reads slowly holds an older
//! body. While clients hold too many bytes, the last body is served instead of a newer one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use hyper::body::Bytes;

use crate::controller::Status;
use crate::plan::Plan;
use crate::plan::forecast::Forecast;

/// Bytes of all bodies in memory above which no newer one is rendered. The plan and the page of a
/// large fleet have about 10 MB each.
const HELD_BYTES_MAX: usize = 128 << 20;

/// What a body shows. It does not hold these values in memory.
#[derive(Default)]
pub(super) struct BodySource {
    pub(super) status: Weak<Status>,
    pub(super) plan: Weak<Plan>,
    pub(super) forecast: Weak<Forecast>,
}

impl BodySource {
    fn is_same(&self, other: &Self) -> bool {
        let Self { status, plan, forecast } = self;
        status.ptr_eq(&other.status) && plan.ptr_eq(&other.plan) && forecast.ptr_eq(&other.forecast)
    }
}

/// The last rendered body of each path.
pub(super) struct RenderedBodies {
    last: RefCell<BTreeMap<&'static str, RenderedBody>>,
    /// Bytes of all bodies in memory: the last ones, and those that clients still receive.
    held: Arc<AtomicUsize>,
    held_max: usize,
}

struct RenderedBody {
    source: BodySource,
    bytes: Bytes,
}

impl Default for RenderedBodies {
    fn default() -> Self {
        Self { last: RefCell::default(), held: Arc::default(), held_max: HELD_BYTES_MAX }
    }
}

impl RenderedBodies {
    /// Returns the body of `path`, rendered unless the last one shows `source`. Returns `None` if
    /// clients hold too many bytes and `path` has no body yet.
    pub(super) fn get(
        &self,
        path: &'static str,
        source: BodySource,
        render: impl FnOnce() -> String,
    ) -> Option<Bytes> {
        let mut last = self.last.borrow_mut();
        let is_full = self.held.load(Ordering::Relaxed) >= self.held_max;
        match last.get(path) {
            Some(known) if is_full || known.source.is_same(&source) => {
                return Some(known.bytes.clone());
            }
            None if is_full => return None,
            Some(_) | None => {}
        }
        let bytes = Bytes::from_owner(HeldText::new(render(), Arc::clone(&self.held)));
        last.insert(path, RenderedBody { source, bytes: bytes.clone() });
        Some(bytes)
    }
}

/// Text that counts its bytes until no client holds it.
struct HeldText {
    text: Box<str>,
    held: Arc<AtomicUsize>,
}

impl HeldText {
    fn new(text: String, held: Arc<AtomicUsize>) -> Self {
        let text = text.into_boxed_str();
        held.fetch_add(text.len(), Ordering::Relaxed);
        Self { text, held }
    }
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for HeldText {
    fn drop(&mut self) {
        self.held.fetch_sub(self.text.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_plan::plan;

    fn of_plan(plan: &Arc<Plan>) -> BodySource {
        BodySource { plan: Arc::downgrade(plan), ..BodySource::default() }
    }

    #[test]
    fn many_clients_share_one_body_for_each_plan() {
        let (bodies, first, second) = (RenderedBodies::default(), Arc::new(plan()), plan());
        let mut renders = 0;
        let mut get = |plan: &Arc<Plan>| {
            let render = || {
                renders += 1;
                plan.to_output_json()
            };
            bodies.get("/plan.json", of_plan(plan), render).expect("a body")
        };
        let all: Vec<Bytes> = (0..500).map(|_| get(&first)).collect();
        assert!(all.iter().all(|body| body.as_ptr() == all[0].as_ptr()), "one buffer");
        let length = all[0].len();
        let newer = get(&Arc::new(second));
        assert_ne!(newer.as_ptr(), all[0].as_ptr());
        assert_eq!(renders, 2);
        assert_eq!(bodies.held.load(Ordering::Relaxed), length + newer.len());
        drop(all);
        assert_eq!(bodies.held.load(Ordering::Relaxed), newer.len(), "no client holds the older");
    }

    #[test]
    fn slow_clients_hold_a_bounded_number_of_bytes() {
        let bodies = RenderedBodies { held_max: 1_000, ..RenderedBodies::default() };
        let plans: Vec<Arc<Plan>> = (0..50).map(|_| Arc::new(plan())).collect();
        let get = |plan: &Arc<Plan>| bodies.get("/", of_plan(plan), || "x".repeat(100));
        let held: Vec<Bytes> = plans.iter().filter_map(get).collect();
        assert_eq!(held.len(), plans.len(), "every client has an answer");
        assert_eq!(bodies.held.load(Ordering::Relaxed), 1_000);
        assert!(bodies.get("/other", BodySource::default(), String::new).is_none());
        drop(held);
        let last = bodies.get("/", of_plan(&plans[0]), || "newer".to_owned());
        assert_eq!(last.expect("a body"), "newer");
    }
}
