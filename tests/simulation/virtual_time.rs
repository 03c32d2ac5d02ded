//! Virtual time: it advances when no task can run.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use fleetwright::apply::ports::Clock;
use fleetwright::simulator::World;
use jiff::{SignedDuration, Timestamp};

/// The time of a world, common to all replicas.
pub(crate) struct VirtualTime {
    world: Rc<World>,
    sleepers: RefCell<BTreeSet<Timestamp>>,
}

impl VirtualTime {
    #[must_use]
    pub(crate) fn new(world: &Rc<World>) -> Rc<Self> {
        Rc::new(Self { world: Rc::clone(world), sleepers: RefCell::default() })
    }

    #[must_use]
    pub(crate) fn now(&self) -> Timestamp {
        self.world.current_time()
    }

    /// Waits for `duration`.
    pub(crate) fn sleep(self: &Rc<Self>, duration: SignedDuration) -> Sleep {
        let until = self.now().checked_add(duration).unwrap_or(Timestamp::MAX);
        Sleep { time: Rc::clone(self), until }
    }

    /// Advances to the next wake-up, at most to `limit`.
    pub(crate) fn advance(&self, limit: Timestamp) {
        let first = self.sleepers.borrow_mut().pop_first();
        let until = first.unwrap_or(limit).min(limit).max(self.now());
        self.world.advance_to(until);
        // The other sleepers register again when they are polled.
        self.sleepers.borrow_mut().clear();
    }
}

/// A wait until a time.
pub(crate) struct Sleep {
    time: Rc<VirtualTime>,
    until: Timestamp,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.time.now() >= self.until {
            return Poll::Ready(());
        }
        self.time.sleepers.borrow_mut().insert(self.until);
        Poll::Pending
    }
}

/// The clock of one replica, which may be off.
pub(crate) struct ReplicaClock {
    pub(crate) time: Rc<VirtualTime>,
    /// Offset of the clock from the time of the world.
    pub(crate) offset: Cell<SignedDuration>,
}

impl Clock for ReplicaClock {
    fn now(&self) -> Timestamp {
        self.time.now().checked_add(self.offset.get()).unwrap_or(Timestamp::MAX)
    }

    async fn sleep(&self, duration: SignedDuration) {
        self.time.sleep(duration).await;
    }
}
