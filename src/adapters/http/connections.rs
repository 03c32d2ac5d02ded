//! Open connections of a server, and which of them gives way to a new one.
//!
//! Invariant: a new client is served unless every connection answers a request that arrived
//! completely a moment ago. So clients that send nothing, that send a body slowly, or that read
//! slowly, cannot occupy a server.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Bounds of the open connections of a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionLimits {
    /// Maximum number of open connections.
    pub(crate) total: usize,
    /// Maximum number of open connections of one address.
    pub(crate) per_peer: usize,
    /// Timeout for receiving the head of a request. An idle connection ends after it as well.
    pub(crate) head_timeout: Duration,
    /// Time in which a client may not read its response, beyond the minimum rate.
    pub(crate) blocked_max: Duration,
}

impl ConnectionLimits {
    /// Bounds of a server that other computers can reach. A browser opens up to seven connections,
    /// and all of 64 event streams may come through one proxy.
    pub(crate) const SHARED: Self = Self {
        total: 512,
        per_peer: 128,
        head_timeout: Duration::from_secs(5),
        blocked_max: Duration::from_secs(20),
    };
    /// Bounds of a server for one person: all clients have the same address. Idle connections stay as
    /// long as at kube-apiserver: a client that calls every few seconds would meet their end. A client
    /// that is stopped for a moment continues.
    pub(crate) const LOCAL: Self = Self {
        total: 512,
        per_peer: 512,
        head_timeout: Duration::from_secs(90),
        blocked_max: Duration::from_mins(15),
    };
}

/// A connection that answers gives way only after this time.
const BUSY_MIN: Duration = Duration::from_secs(10);

/// The open connections of a server.
pub(crate) struct Connections {
    limits: ConnectionLimits,
    open: RefCell<BTreeMap<u64, Connection>>,
    /// Number of the next connection. Numbers are not reused.
    next: Cell<u64>,
}

struct Connection {
    peer: IpAddr,
    /// True while a request is answered.
    is_busy: bool,
    /// When the connection became busy or idle.
    since: Instant,
    /// Ends the connection. The task that serves it sets this handle.
    end: Option<AbortHandle>,
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Rc<Self> {
        Rc::new(Self { limits, open: RefCell::default(), next: Cell::new(0) })
    }

    /// Registers a connection. If there are too many, another one is ended; returns `None` if none
    /// may be.
    pub(crate) fn admit(self: &Rc<Self>, peer: IpAddr, now: Instant) -> Option<ConnectionGuard> {
        let mut open = self.open.borrow_mut();
        let of_peer = open.values().filter(|connection| connection.peer == peer).count();
        if of_peer >= self.limits.per_peer {
            evict(&mut open, |connection| connection.peer == peer, now)?;
        } else if open.len() >= self.limits.total {
            evict(&mut open, |_| true, now)?;
        }
        let id = self.next.get();
        self.next.set(id.wrapping_add(1));
        open.insert(id, Connection { peer, is_busy: false, since: now, end: None });
        Some(ConnectionGuard { id, all: Rc::clone(self) })
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.open.borrow_mut().get_mut(&id) {
            change(connection);
        }
    }
}

/// Ends an idle connection, otherwise one that has been busy for long: the oldest of the address with
/// the most connections. So a client of another address, such as a probe, does not give way.
fn evict(
    open: &mut BTreeMap<u64, Connection>,
    of: impl Fn(&Connection) -> bool,
    now: Instant,
) -> Option<()> {
    let may_end = |connection: &Connection| {
        !connection.is_busy || now.saturating_duration_since(connection.since) >= BUSY_MIN
    };
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in open.values() {
        *counts.entry(connection.peer).or_default() += 1;
    }
    let count = |one: &Connection| counts.get(&one.peer).copied().unwrap_or(0);
    let candidates = open.iter().filter(|(_, one)| of(one) && may_end(one));
    let (id, _) =
        candidates.min_by_key(|(id, one)| (one.is_busy, Reverse(count(one)), one.since, **id))?;
    let id = *id;
    if let Some(Connection { end: Some(end), .. }) = open.remove(&id) {
        end.abort();
    }
    Some(())
}

/// Counts one connection until it is dropped.
pub(crate) struct ConnectionGuard {
    id: u64,
    all: Rc<Connections>,
}

impl ConnectionGuard {
    /// Sets the task to abort when the connection has to give way.
    pub(crate) fn set_task(&self) -> impl FnOnce(AbortHandle) + use<> {
        let (id, all) = (self.id, Rc::clone(&self.all));
        move |task| all.change(id, |connection| connection.end = Some(task))
    }

    /// Records that the head of a request has arrived, and its body has not. The connection gives way
    /// like an idle one.
    pub(crate) fn receiving(&self) {
        self.all.change(self.id, |connection| {
            connection.is_busy = false;
            connection.since = Instant::now();
        });
    }

    /// Marks the connection as busy until the returned value is dropped.
    pub(crate) fn busy(&self) -> BusyGuard {
        self.all.change(self.id, |connection| {
            connection.is_busy = true;
            connection.since = Instant::now();
        });
        BusyGuard { id: self.id, all: Rc::clone(&self.all) }
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.all.open.borrow_mut().remove(&self.id);
    }
}

/// Marks a connection as busy until it is dropped.
pub(crate) struct BusyGuard {
    id: u64,
    all: Rc<Connections>,
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.all.change(self.id, |connection| {
            connection.is_busy = false;
            connection.since = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: ConnectionLimits =
        ConnectionLimits { total: 4, per_peer: 2, ..ConnectionLimits::SHARED };

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn open_ids(all: &Connections) -> Vec<u64> {
        all.open.borrow().keys().copied().collect()
    }

    #[test]
    fn idle_connections_give_way_oldest_first() {
        let (all, now) = (Connections::new(SMALL), Instant::now());
        let admit = |n| all.admit(peer(n), now).expect("a place");
        let held = [admit(1), admit(1), admit(2), admit(2)];
        // A third connection of one peer ends its own first one.
        let third = admit(1);
        assert_eq!(open_ids(&all), [1, 2, 3, 4]);
        // Another peer ends the oldest one of all.
        let other = admit(3);
        assert_eq!(open_ids(&all), [2, 3, 4, 5]);
        drop((held, third, other));
        assert!(open_ids(&all).is_empty());
    }

    #[test]
    fn connections_that_receive_a_body_give_way_like_idle_ones() {
        let (all, now) = (Connections::new(SMALL), Instant::now());
        let held = [1, 1, 2, 2].map(|n| all.admit(peer(n), now).expect("a place"));
        let _busy: Vec<_> = held[..2].iter().map(ConnectionGuard::busy).collect();
        held[2..].iter().for_each(ConnectionGuard::receiving);
        let _other = all.admit(peer(3), Instant::now()).expect("one receives a body");
        assert_eq!(open_ids(&all), [0, 1, 3, 4]);
    }

    #[test]
    fn busy_connections_give_way_after_a_while_only() {
        let (all, now) = (Connections::new(SMALL), Instant::now());
        let held: Vec<_> =
            [1, 1, 2, 2].map(|n| all.admit(peer(n), now).expect("a place")).into_iter().collect();
        let mut busy: Vec<_> = held.iter().map(ConnectionGuard::busy).collect();
        assert!(all.admit(peer(3), Instant::now()).is_none(), "all of them are busy");
        drop(busy.remove(2));
        let _other = all.admit(peer(3), Instant::now()).expect("one is idle");
        assert_eq!(open_ids(&all), [0, 1, 3, 4]);
        let later = Instant::now() + BUSY_MIN;
        let _another = all.admit(peer(4), later).expect("an idle one gives way first");
        assert_eq!(open_ids(&all), [0, 1, 3, 5]);
        let _late = all.admit(peer(1), later).expect("its oldest busy one gives way");
        assert_eq!(open_ids(&all), [1, 3, 5, 6]);
    }
}
