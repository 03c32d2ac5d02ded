//! From what a machine has to what its pods may use, step by step.
//!
//! The steps are the arithmetic: [`allocation`] adds up what [`explain`] shows, so the two cannot
//! disagree. The rules are Karpenter's (karpenter-provider-aws 1.14,
//! `pkg/providers/instancetype/types.go`), in integers, since workloads move between the two.

use super::facts::resource;
use super::formula::{Formula, PodCount};
use super::model::{Allocation, InstanceType, NodeSettings};
use super::step::{AllocationStep, NodeResource, Part};
use crate::manifest::{AmiFamily, Reserved};
use crate::pod::Amounts;
use crate::units::{Bytes, Resources};

/// Thousandths of the memory that the hypervisor is taken to keep (Karpenter's default).
pub(super) const VM_OVERHEAD_PER_MILLE: i64 = 75;

/// MiB that Graviton machines set aside for contiguous allocation.
pub(super) const GRAVITON_RESERVED_MIB: i64 = 64;

/// Addresses of one prefix.
pub(super) const PREFIX_ADDRESSES: i64 = 16;

/// Most pods that EKS advises on a node whose addresses do not limit them: up to so many vCPUs, and
/// beyond. Source: `max-pods-calculator.sh` of amazon-eks-ami.
const PREFIX_PODS: [(i64, i64); 2] = [(30, 110), (i64::MAX, 250)];

/// Memory that Kubernetes keeps on every node, and for each pod it may hold, in MiB.
pub(super) const KUBE_MEMORY_BASE_MIB: i64 = 255;
pub(super) const KUBE_MEMORY_POD_MIB: i64 = 11;

/// CPU that Kubernetes keeps: the end of each band in cores, and its share in hundred-thousandths.
const KUBE_CPU_BANDS: [(i64, i64); 4] = [(1, 6_000), (2, 1_000), (4, 500), (i64::MAX, 250)];

/// Bytes of disk that Kubernetes keeps.
const KUBE_STORAGE: i64 = Bytes::GIB;

/// Memory below which the kubelet evicts, where nothing else is stated.
const EVICTION_MEMORY: i64 = 100 * Bytes::MIB;

/// Share of the disk below which the kubelet evicts, in thousandths of a percent.
const EVICTION_STORAGE: u32 = 10_000;

/// A share of everything, which the kubelet takes as "never evict".
const WHOLE: u32 = 100_000;

/// Pods on a node whose family does not count network addresses.
const PODS_WITHOUT_ENI_LIMIT: i64 = 110;

/// Returns what a node of `kind` offers under `settings`, and what of it pods may use.
///
/// No amount is negative, and none of the allocatable exceeds the capacity.
#[must_use]
pub fn allocation(kind: &InstanceType, settings: &NodeSettings) -> Allocation {
    total(&steps(kind, settings))
}

/// Returns every step from the facts about `kind` to its allocatable, in order.
///
/// ```
/// use fleetwright::catalog::{Catalog, NodeSettings, Part, allocation, explain};
/// let catalog = Catalog::load(&"us-east-1".into(), &[]).unwrap();
/// let kind = catalog.get(&"m5.large".into()).unwrap();
/// let steps = explain(kind, &NodeSettings::default());
/// let memory = steps.iter().find(|s| s.part == Part::Allocatable && s.resource.name() == "memory");
/// assert_eq!(memory.unwrap().amount, allocation(kind, &NodeSettings::default()).allocatable.memory.0);
/// ```
#[must_use]
pub fn explain(kind: &InstanceType, settings: &NodeSettings) -> Vec<AllocationStep> {
    let mut steps = steps(kind, settings);
    let allocation = total(&steps);
    let mut resources = vec![
        NodeResource::Cpu,
        NodeResource::Memory,
        NodeResource::EphemeralStorage,
        NodeResource::Pods,
    ];
    resources.extend(allocation.capacity.extended.keys().cloned().map(NodeResource::Extended));
    steps.extend(resources.into_iter().map(|resource| remainder(&allocation, resource)));
    steps
}

/// Returns the last step of a resource: what remains of it.
fn remainder(allocation: &Allocation, resource: NodeResource) -> AllocationStep {
    let Allocation { capacity, kube_reserved, system_reserved, eviction, huge_pages, allocatable } =
        allocation;
    let (capacity, amount) = (resource.amount_in(capacity), resource.amount_in(allocatable));
    let kept = [
        (Part::KubeReserved, resource.amount_in(kube_reserved)),
        (Part::SystemReserved, resource.amount_in(system_reserved)),
        (Part::Eviction, resource.amount_in(eviction)),
        (Part::HugePages, resource.amount_in(huge_pages)),
    ];
    let sum = kept.iter().fold(0_i64, |sum, (_, amount)| sum.saturating_add(*amount));
    let shown = |(part, amount): (Part, i64)| (part, resource.show(amount));
    let formula = Formula::Remainder {
        capacity: resource.show(capacity),
        kept: kept.into_iter().filter(|(_, amount)| *amount != 0).map(shown).collect(),
        overdrawn: sum > capacity,
    };
    AllocationStep { part: Part::Allocatable, resource, amount, formula }
}

/// Adds up the steps; what remains for pods is never below zero, as the kubelet has it.
fn total(steps: &[AllocationStep]) -> Allocation {
    let mut sum = Allocation::default();
    for step in steps {
        let part = match step.part {
            Part::Capacity => &mut sum.capacity,
            Part::KubeReserved => &mut sum.kube_reserved,
            Part::SystemReserved => &mut sum.system_reserved,
            Part::Eviction => &mut sum.eviction,
            Part::HugePages => &mut sum.huge_pages,
            Part::Allocatable => &mut sum.allocatable,
        };
        let held = step.resource.amount_mut(part);
        *held = held.saturating_add(step.amount);
    }
    let kept = sum.kube_reserved.plus(&sum.system_reserved).plus(&sum.eviction);
    let kept = kept.plus(&sum.huge_pages);
    // By its path: on a value, `.max` would be the one of `Ord`.
    sum.allocatable = Resources::at_least(&sum.capacity.minus(&kept), &Resources::default());
    sum
}

/// Returns the steps from facts to reservations; what remains follows from them.
fn steps(kind: &InstanceType, settings: &NodeSettings) -> Vec<AllocationStep> {
    let rules = FamilyRules::of(settings.family);
    let mut ledger = Ledger(Vec::with_capacity(16));
    ledger.add(Part::Capacity, NodeResource::Cpu, kind.vcpus * 1000, Formula::Vcpus(kind.vcpus));
    let memory = ledger.memory_capacity(kind);
    let storage = ledger.storage_capacity(kind, settings, &rules);
    let pods = ledger.pod_capacity(kind, settings, &rules);
    for (name, count) in &kind.extended {
        let resource = NodeResource::Extended(name.clone());
        ledger.add(Part::Capacity, resource, *count, Formula::Devices(*count));
    }
    if settings.family == AmiFamily::Windows {
        let resource = NodeResource::Extended(resource::PRIVATE_IPV4.into());
        let formula = Formula::PrivateIpv4 { ips_per_eni: kind.ips_per_eni };
        ledger.add(Part::Capacity, resource, (kind.ips_per_eni - 1).max(0), formula);
    }
    let sized_for = if rules.reserves_for_eni_pods {
        PodCount::Eni(eni_pods(kind))
    } else {
        PodCount::Actual(pods)
    };
    ledger.kube_reserved(kind, &settings.kubelet.kube_reserved, sized_for);
    ledger.system_reserved(&settings.kubelet.system_reserved);
    ledger.eviction(settings, memory, storage);
    for (_, bytes) in
        kind.extended.iter().filter(|(name, _)| name.as_str().starts_with("hugepages-"))
    {
        ledger.add(Part::HugePages, NodeResource::Memory, *bytes, Formula::HugePages);
    }
    ledger.0
}

/// What an AMI family decides about allocatable.
struct FamilyRules {
    /// Whether the number of pods follows from network addresses.
    eni_limited: bool,
    /// Whether memory is kept for as many pods as there are addresses, whatever `maxPods` says.
    reserves_for_eni_pods: bool,
    /// Whether `podsPerCore` has an effect.
    knows_pods_per_core: bool,
    /// Bytes of the volume that holds the kubelet's data, where none is declared.
    storage: i64,
}

impl FamilyRules {
    fn of(family: AmiFamily) -> Self {
        let linux = Self {
            eni_limited: true,
            reserves_for_eni_pods: true,
            knows_pods_per_core: true,
            storage: 20 * Bytes::GIB,
        };
        match family {
            AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Ubuntu | AmiFamily::Custom => linux,
            AmiFamily::Bottlerocket => {
                Self { reserves_for_eni_pods: false, knows_pods_per_core: false, ..linux }
            }
            AmiFamily::Windows => Self {
                eni_limited: false,
                reserves_for_eni_pods: false,
                storage: 50 * Bytes::GIB,
                ..linux
            },
        }
    }
}

/// Returns how many pods get an address of their own: one of each interface is the interface's, and
/// two pods use the host's network.
fn eni_pods(kind: &InstanceType) -> i64 {
    if kind.enis <= 0 { 0 } else { kind.enis * (kind.ips_per_eni - 1).max(0) + 2 }
}

/// Returns how many pods a node holds that hands out prefixes, and the formula; `None` for a type
/// that cannot: prefixes need the Nitro system.
fn prefix_pods(kind: &InstanceType) -> Option<(i64, Formula)> {
    let hypervisor = kind.labels.get("karpenter.k8s.aws/instance-hypervisor");
    if kind.enis <= 0 || hypervisor.is_some_and(|label| label.as_str() == "xen") {
        return None;
    }
    let (enis, ips_per_eni) = (kind.enis, kind.ips_per_eni);
    let addresses = enis * (ips_per_eni - 1).max(0) * PREFIX_ADDRESSES + 2;
    let most = PREFIX_PODS.iter().find(|(vcpus, _)| kind.vcpus <= *vcpus);
    let most = most.map_or(addresses, |(_, most)| *most);
    Some((addresses.min(most), Formula::PrefixPods { enis, ips_per_eni, most }))
}

/// The steps so far.
struct Ledger(Vec<AllocationStep>);

impl Ledger {
    fn add(&mut self, part: Part, resource: NodeResource, amount: i64, formula: Formula) {
        self.0.push(AllocationStep { part, resource, amount, formula });
    }

    /// Adds the memory that the operating system sees, and returns it in bytes.
    fn memory_capacity(&mut self, kind: &InstanceType) -> i64 {
        let mut add = |mib: i64, formula| {
            self.add(Part::Capacity, NodeResource::Memory, Bytes::mib(mib).0, formula);
        };
        add(kind.memory_mib, Formula::StatedMemory { mib: kind.memory_mib });
        let mut mib = kind.memory_mib;
        if kind.arch == "arm64" {
            mib -= GRAVITON_RESERVED_MIB;
            add(-GRAVITON_RESERVED_MIB, Formula::Graviton);
        }
        let overhead = ceil_div(mib.saturating_mul(VM_OVERHEAD_PER_MILLE), 1000);
        add(-overhead, Formula::VmOverhead { of_mib: mib });
        Bytes::mib(mib - overhead).0
    }

    /// Adds the disk that the kubelet's data is on, and returns its bytes.
    ///
    /// Only NVMe instance stores count as RAID 0, since the images assemble no others. Karpenter
    /// counts the disks of older types too, and then expects more than the node will have.
    fn storage_capacity(
        &mut self,
        kind: &InstanceType,
        settings: &NodeSettings,
        rules: &FamilyRules,
    ) -> i64 {
        let (bytes, formula) = if settings.instance_store_raid0 && kind.local_nvme_gb > 0 {
            let gb = kind.local_nvme_gb;
            (gb.saturating_mul(1_000_000_000), Formula::InstanceStore { gb })
        } else if let Some(declared) = settings.ephemeral_storage {
            (declared.max(0), Formula::DeclaredVolume)
        } else {
            (rules.storage, Formula::FamilyVolume(settings.family))
        };
        self.add(Part::Capacity, NodeResource::EphemeralStorage, bytes, formula);
        bytes
    }

    /// Adds the number of pods, and returns it.
    fn pod_capacity(
        &mut self,
        kind: &InstanceType,
        settings: &NodeSettings,
        rules: &FamilyRules,
    ) -> i64 {
        let (pods, formula) = if let Some(declared) = settings.kubelet.max_pods {
            (i64::from(declared), Formula::MaxPods(declared))
        } else if let Some(prefix_pods) =
            prefix_pods(kind).filter(|_| settings.prefix_delegation && rules.eni_limited)
        {
            prefix_pods
        } else if rules.eni_limited {
            let (enis, ips_per_eni) = (kind.enis, kind.ips_per_eni);
            (eni_pods(kind), Formula::EniPods { enis, ips_per_eni })
        } else {
            (PODS_WITHOUT_ENI_LIMIT, Formula::FamilyPods(settings.family))
        };
        self.add(Part::Capacity, NodeResource::Pods, pods, formula);
        let per_core =
            settings.kubelet.pods_per_core.filter(|n| *n > 0 && rules.knows_pods_per_core);
        let Some(per_core) = per_core else { return pods };
        let most = i64::from(per_core).saturating_mul(kind.vcpus);
        if most < pods {
            let formula = Formula::PodsPerCore { per_core, vcpus: kind.vcpus };
            self.add(Part::Capacity, NodeResource::Pods, most - pods, formula);
        }
        most.min(pods)
    }

    fn kube_reserved(&mut self, kind: &InstanceType, declared: &Amounts, sized_for: PodCount) {
        let bands = kube_cpu(kind.vcpus);
        let memory = KUBE_MEMORY_POD_MIB
            .saturating_mul(sized_for.pods())
            .saturating_add(KUBE_MEMORY_BASE_MIB);
        for (resource, amount, formula) in [
            (NodeResource::Cpu, bands.iter().sum(), Formula::KubeCpu(bands)),
            (NodeResource::Memory, Bytes::mib(memory).0, Formula::KubeMemory(sized_for)),
            (NodeResource::EphemeralStorage, KUBE_STORAGE, Formula::KubeStorage),
        ] {
            let (amount, formula) = match declared.get(resource.name()) {
                Some(stated) => ((*stated).max(0), Formula::KubeReserved),
                None => (amount, formula),
            };
            self.add(Part::KubeReserved, resource, amount, formula);
        }
    }

    fn system_reserved(&mut self, declared: &Amounts) {
        for resource in [NodeResource::Cpu, NodeResource::Memory, NodeResource::EphemeralStorage] {
            if let Some(stated) = declared.get(resource.name()) {
                let amount = (*stated).max(0);
                self.add(Part::SystemReserved, resource, amount, Formula::SystemReserved);
            }
        }
    }

    fn eviction(&mut self, settings: &NodeSettings, memory: i64, storage: i64) {
        let declared = &settings.kubelet.eviction_hard;
        let (amount, formula) = match declared.get("memory.available") {
            Some(stated) => threshold(*stated, memory),
            None => (EVICTION_MEMORY, Formula::EvictionMemory),
        };
        self.add(Part::Eviction, NodeResource::Memory, amount, formula);
        let (amount, formula) = match declared.get("nodefs.available") {
            Some(stated) => threshold(*stated, storage),
            None => (share(EVICTION_STORAGE, storage), Formula::EvictionStorage { of: storage }),
        };
        self.add(Part::Eviction, NodeResource::EphemeralStorage, amount, formula);
    }
}

/// Returns what each band of cores keeps, in thousandths of a core, each rounded down.
fn kube_cpu(vcpus: i64) -> [i64; 4] {
    let mut start = 0;
    KUBE_CPU_BANDS.map(|(end, share)| {
        let cores = vcpus.min(end) - start.min(vcpus);
        start = end;
        cores * 1000 * share / 100_000
    })
}

/// Returns the amount that a declared eviction threshold keeps of `capacity`.
fn threshold(stated: Reserved, capacity: i64) -> (i64, Formula) {
    match stated {
        Reserved::Bytes(bytes) => (bytes.max(0), Formula::EvictionAmount),
        Reserved::MilliPercent(WHOLE) => (0, Formula::EvictionDisabled),
        Reserved::MilliPercent(milli_percent) => {
            (share(milli_percent, capacity), Formula::EvictionShare { milli_percent, of: capacity })
        }
    }
}

/// Returns so many thousandths of a percent of `of`, rounded up.
fn share(milli_percent: u32, of: i64) -> i64 {
    let product = i128::from(of) * i128::from(milli_percent);
    let up = (product + i128::from(WHOLE) - 1) / i128::from(WHOLE);
    i64::try_from(up).unwrap_or(i64::MAX)
}

fn ceil_div(numerator: i64, denominator: i64) -> i64 {
    numerator.div_euclid(denominator) + i64::from(numerator.rem_euclid(denominator) != 0)
}

#[cfg(test)]
mod tests;
