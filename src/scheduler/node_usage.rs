//! Resources and ports used by the pods of one node.

use super::resource_score::evenness;
use crate::demand::PodShape;
use crate::model::pod::HostPort;
use crate::model::units::{ResourceName, Resources};

/// The address that means all addresses of a node.
const EVERY_ADDRESS: &str = "0.0.0.0";
/// Default protocol of a port.
const TCP: &str = "TCP";

/// A pod bound to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BoundPod {
    /// Class of the pod.
    pub(super) class: usize,
    /// Position in the order of all bindings; smaller values run longer.
    pub(super) sequence: u64,
}

/// CPU and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct CpuMemory {
    pub(super) cpu: i64,
    pub(super) memory: i64,
}

impl CpuMemory {
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

/// Requests of one pod, with extended resources by column.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodRequest {
    pub(super) cpu_memory: CpuMemory,
    /// CPU and memory as scores count them.
    pub(super) scored: CpuMemory,
    pub(super) storage: i64,
    pub(super) extended: Vec<(usize, i64)>,
}

impl PodRequest {
    pub(super) fn new(shape: &PodShape, extended: Vec<(usize, i64)>) -> Self {
        let pair = |of: &Resources| CpuMemory { cpu: of.cpu.0, memory: of.memory.0 };
        let main = pair(&shape.requests);
        let scored = main.plus(pair(&shape.presumed));
        Self { cpu_memory: main, scored, storage: shape.requests.ephemeral_storage.0, extended }
    }
}

/// A host port in normalized form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HostPortKey {
    number: u16,
    protocol: String,
    address: String,
}

impl HostPortKey {
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

/// Resources of a node, their use, and the bound pods.
#[derive(Debug, Clone)]
pub(super) struct NodeUsage {
    /// Allocatable CPU and memory.
    pub(super) allocatable: CpuMemory,
    /// Requested CPU and memory.
    pub(super) used: CpuMemory,
    /// CPU and memory as scores count them.
    pub(super) scored: CpuMemory,
    /// Evenness of `used`. Each pod that is scored on the node is compared with it.
    pub(super) evenness: i64,
    storage: (i64, i64),
    pod_limit: i64,
    extended: Vec<(i64, i64)>,
    ports: Vec<HostPortKey>,
    pods: Vec<BoundPod>,
}

/// A resource that is short on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShortResource {
    Pods,
    Cpu,
    Memory,
    Storage,
    Column(usize),
}

/// A resource of which a node has too little free.
pub(super) struct Shortage {
    pub(super) resource: ShortResource,
    /// True if the node would have enough without pods.
    pub(super) fits_empty_node: bool,
}

impl NodeUsage {
    pub(super) fn new(allocatable: &Resources, columns: &[ResourceName]) -> Self {
        let has = CpuMemory { cpu: allocatable.cpu.0, memory: allocatable.memory.0 };
        Self {
            allocatable: has,
            used: CpuMemory::default(),
            scored: CpuMemory::default(),
            evenness: evenness(CpuMemory::default(), has),
            storage: (allocatable.ephemeral_storage.0, 0),
            pod_limit: allocatable.pods,
            extended: columns.iter().map(|name| (allocatable.extended(name), 0)).collect(),
            ports: Vec::new(),
            pods: Vec::new(),
        }
    }

    /// Adds a column for a new extended resource.
    pub(super) fn add_column(&mut self, has: i64) {
        self.extended.push((has, 0));
    }

    /// Returns the pods in the order in which they were bound.
    pub(super) fn pods(&self) -> &[BoundPod] {
        &self.pods
    }

    pub(super) fn last(&self) -> Option<BoundPod> {
        self.pods.last().copied()
    }

    pub(super) fn last_of(&self, class: usize) -> Option<BoundPod> {
        self.pods.iter().rev().find(|bound| bound.class == class).copied()
    }

    pub(super) fn add(&mut self, bound: BoundPod, request: &PodRequest, ports: &[HostPortKey]) {
        let at = self.pods.partition_point(|other| other.sequence < bound.sequence);
        self.pods.insert(at, bound);
        self.used = self.used.plus(request.cpu_memory);
        self.scored = self.scored.plus(request.scored);
        self.evenness = evenness(self.used, self.allocatable);
        self.storage.1 = self.storage.1.saturating_add(request.storage);
        for (column, amount) in &request.extended {
            let used = &mut self.extended[*column].1;
            *used = used.saturating_add(*amount);
        }
        self.ports.extend_from_slice(ports);
    }

    pub(super) fn remove(&mut self, bound: BoundPod, request: &PodRequest, ports: &[HostPortKey]) {
        self.pods.retain(|other| *other != bound);
        self.used = self.used.minus(request.cpu_memory);
        self.scored = self.scored.minus(request.scored);
        self.evenness = evenness(self.used, self.allocatable);
        self.storage.1 = self.storage.1.saturating_sub(request.storage);
        for (column, amount) in &request.extended {
            let used = &mut self.extended[*column].1;
            *used = used.saturating_sub(*amount);
        }
        for port in ports {
            if let Some(at) = self.ports.iter().position(|other| other == port) {
                self.ports.swap_remove(at);
            }
        }
    }

    /// Returns true if none of `ports` conflicts with a used port.
    #[inline]
    pub(super) fn has_free_ports(&self, ports: &[HostPortKey]) -> bool {
        ports.iter().all(|port| !self.ports.iter().any(|other| other.conflicts(port)))
    }

    /// Returns true if the node has room for one more pod with this request.
    ///
    /// Source: `pkg/scheduler/framework/plugins/noderesources/fit.go`.
    #[inline]
    pub(super) fn has_room(&self, request: &PodRequest) -> bool {
        let (storage, used) = self.storage;
        self.has_slot()
            && is_within(request.cpu_memory.cpu, self.allocatable.cpu, self.used.cpu)
            && is_within(request.cpu_memory.memory, self.allocatable.memory, self.used.memory)
            && is_within(request.storage, storage, used)
            && request.extended.iter().all(|(column, asked)| {
                let (has, used) = self.extended[*column];
                is_within(*asked, has, used)
            })
    }

    /// Returns the resources of which the node has too little free.
    pub(super) fn shortages(&self, request: &PodRequest) -> Vec<Shortage> {
        let (storage, storage_used) = self.storage;
        let columns = request.extended.iter().map(|(column, asked)| {
            let (has, used) = self.extended[*column];
            (ShortResource::Column(*column), *asked, has, used)
        });
        let amounts = [
            (ShortResource::Cpu, request.cpu_memory.cpu, self.allocatable.cpu, self.used.cpu),
            (
                ShortResource::Memory,
                request.cpu_memory.memory,
                self.allocatable.memory,
                self.used.memory,
            ),
            (ShortResource::Storage, request.storage, storage, storage_used),
        ];
        let short = amounts.into_iter().chain(columns);
        let short = short.filter(|(_, asked, has, used)| !is_within(*asked, *has, *used));
        let pods = (!self.has_slot())
            .then_some(Shortage { resource: ShortResource::Pods, fits_empty_node: true });
        let short = short
            .map(|(resource, asked, has, _)| Shortage { resource, fits_empty_node: asked <= has });
        pods.into_iter().chain(short).collect()
    }

    fn has_slot(&self) -> bool {
        i64::try_from(self.pods.len()).is_ok_and(|pods| pods < self.pod_limit)
    }
}

/// Returns true if `asked` is free. A request of 0 always fits.
fn is_within(asked: i64, has: i64, used: i64) -> bool {
    asked <= 0 || asked <= has.saturating_sub(used)
}
