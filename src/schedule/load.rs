//! What the pods on one node use.

use crate::demand::PodShape;
use crate::pod::HostPort;
use crate::units::{ResourceName, Resources};

/// The address that stands for all addresses of a node.
const EVERY_ADDRESS: &str = "0.0.0.0";
/// The protocol of a port that names none.
const TCP: &str = "TCP";

/// A pod on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bound {
    /// Its class.
    pub(super) class: usize,
    /// Its place in the order of all bindings: smaller runs longer.
    pub(super) since: u64,
}

/// CPU and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Pair {
    pub(super) cpu: i64,
    pub(super) memory: i64,
}

impl Pair {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_add(other.cpu),
            memory: self.memory.saturating_add(other.memory),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(other.cpu),
            memory: self.memory.saturating_sub(other.memory),
        }
    }
}

/// What one pod asks for, extended resources by column.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) main: Pair,
    /// CPU and memory as scores count them.
    pub(super) scored: Pair,
    pub(super) storage: i64,
    pub(super) extended: Vec<(usize, i64)>,
}

impl Request {
    pub(super) fn new(shape: &PodShape, extended: Vec<(usize, i64)>) -> Self {
        let pair = |of: &Resources| Pair { cpu: of.cpu.0, memory: of.memory.0 };
        let main = pair(&shape.requests);
        let scored = main.plus(pair(&shape.presumed));
        Self { main, scored, storage: shape.requests.ephemeral_storage.0, extended }
    }
}

/// A port of a node, written in one way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Port {
    number: u16,
    protocol: String,
    address: String,
}

impl Port {
    /// Returns the port; `None` for port 0, which binds nothing.
    pub(super) fn new(port: &HostPort) -> Option<Self> {
        let or =
            |text: &str, default: &str| if text.is_empty() { default } else { text }.to_owned();
        (port.port != 0).then(|| Self {
            number: port.port,
            protocol: or(&port.protocol, TCP),
            address: or(&port.ip, EVERY_ADDRESS),
        })
    }

    /// Source: `pkg/scheduler/framework/types.go`, `HostPortInfo`.
    fn conflicts(&self, other: &Self) -> bool {
        let every = |port: &Self| port.address == EVERY_ADDRESS;
        self.number == other.number
            && self.protocol == other.protocol
            && (every(self) || every(other) || self.address == other.address)
    }
}

/// What a node has, what its pods use of it, and who they are.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// CPU and memory that pods may use.
    pub(super) has: Pair,
    /// CPU and memory asked for.
    pub(super) used: Pair,
    /// CPU and memory as scores count them.
    pub(super) scored: Pair,
    storage: (i64, i64),
    pod_limit: i64,
    extended: Vec<(i64, i64)>,
    ports: Vec<Port>,
    pods: Vec<Bound>,
}

/// A resource that a node has too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Short {
    Pods,
    Cpu,
    Memory,
    Storage,
    Column(usize),
}

impl Load {
    pub(super) fn new(allocatable: &Resources, columns: &[ResourceName]) -> Self {
        Self {
            has: Pair { cpu: allocatable.cpu.0, memory: allocatable.memory.0 },
            used: Pair::default(),
            scored: Pair::default(),
            storage: (allocatable.ephemeral_storage.0, 0),
            pod_limit: allocatable.pods,
            extended: columns.iter().map(|name| (allocatable.extended(name), 0)).collect(),
            ports: Vec::new(),
            pods: Vec::new(),
        }
    }

    /// Adds a column for an extended resource that no pod used so far.
    pub(super) fn add_column(&mut self, has: i64) {
        self.extended.push((has, 0));
    }

    /// Returns the pods, the longest bound first.
    pub(super) fn pods(&self) -> &[Bound] {
        &self.pods
    }

    pub(super) fn last(&self) -> Option<Bound> {
        self.pods.last().copied()
    }

    pub(super) fn last_of(&self, class: usize) -> Option<Bound> {
        self.pods.iter().rev().find(|bound| bound.class == class).copied()
    }

    pub(super) fn place(&mut self, bound: Bound, request: &Request, ports: &[Port]) {
        let at = self.pods.partition_point(|held| held.since < bound.since);
        self.pods.insert(at, bound);
        self.used = self.used.plus(request.main);
        self.scored = self.scored.plus(request.scored);
        self.storage.1 = self.storage.1.saturating_add(request.storage);
        for (column, amount) in &request.extended {
            let used = &mut self.extended[*column].1;
            *used = used.saturating_add(*amount);
        }
        self.ports.extend_from_slice(ports);
    }

    pub(super) fn lift(&mut self, bound: Bound, request: &Request, ports: &[Port]) {
        self.pods.retain(|held| *held != bound);
        self.used = self.used.minus(request.main);
        self.scored = self.scored.minus(request.scored);
        self.storage.1 = self.storage.1.saturating_sub(request.storage);
        for (column, amount) in &request.extended {
            let used = &mut self.extended[*column].1;
            *used = used.saturating_sub(*amount);
        }
        for port in ports {
            if let Some(at) = self.ports.iter().position(|held| held == port) {
                self.ports.swap_remove(at);
            }
        }
    }

    /// Returns whether none of `ports` conflicts with one in use.
    pub(super) fn has_ports(&self, ports: &[Port]) -> bool {
        ports.iter().all(|port| !self.ports.iter().any(|held| held.conflicts(port)))
    }

    /// Returns whether the node has room for one more pod that asks for `request`.
    ///
    /// Source: `pkg/scheduler/framework/plugins/noderesources/fit.go`.
    pub(super) fn has_room(&self, request: &Request) -> bool {
        let (storage, used) = self.storage;
        self.has_slot()
            && within(request.main.cpu, self.has.cpu, self.used.cpu)
            && within(request.main.memory, self.has.memory, self.used.memory)
            && within(request.storage, storage, used)
            && request.extended.iter().all(|(column, asked)| {
                let (has, used) = self.extended[*column];
                within(*asked, has, used)
            })
    }

    /// Returns what is short, and whether an empty node would have enough of it.
    pub(super) fn shortages(&self, request: &Request) -> Vec<(Short, bool)> {
        let (storage, storage_used) = self.storage;
        let columns = request.extended.iter().map(|(column, asked)| {
            let (has, used) = self.extended[*column];
            (Short::Column(*column), *asked, has, used)
        });
        let amounts = [
            (Short::Cpu, request.main.cpu, self.has.cpu, self.used.cpu),
            (Short::Memory, request.main.memory, self.has.memory, self.used.memory),
            (Short::Storage, request.storage, storage, storage_used),
        ];
        let short = amounts.into_iter().chain(columns);
        let short = short.filter(|(_, asked, has, used)| !within(*asked, *has, *used));
        let pods = (!self.has_slot()).then_some((Short::Pods, true));
        pods.into_iter().chain(short.map(|(what, asked, has, _)| (what, asked <= has))).collect()
    }

    fn has_slot(&self) -> bool {
        i64::try_from(self.pods.len()).is_ok_and(|pods| pods < self.pod_limit)
    }
}

/// Returns whether `asked` is free; who asks for nothing is never refused.
fn within(asked: i64, has: i64, used: i64) -> bool {
    asked <= 0 || asked <= has.saturating_sub(used)
}
