//! Computes a node's allocatable resources from its instance type, step by step.
//!
//! [`allocation`] adds up the steps that [`explain`] returns, so the two always agree. The rules
//! are Karpenter's (karpenter-provider-aws 1.14, `pkg/providers/instancetype/types.go`), in integer
//! arithmetic, because workloads move between the two.

use super::allocatable_step::{
    AllocationStep, Formula, GRAVITON_RESERVED_MIB, KUBE_MEMORY_BASE_MIB, KUBE_MEMORY_POD_MIB,
    PREFIX_ADDRESSES, PodCount, VM_OVERHEAD_PER_MILLE,
};
use super::instance_type::{InstanceType, resource};
use super::node_resource::{Allocation, AllocationPart, NodeResource};
use super::node_settings::NodeSettings;
use crate::model::desired::{AmiFamily, EfaInterfaces, ReservedAmount};
use crate::model::pod::ResourceList;
use crate::model::units::{Bytes, ResourceName, Resources};

/// Maximum pods of EKS, as (vCPUs up to, pods): a recommendation where addresses are not the limit,
/// and a cap in managed node groups whose image is that of EKS.
/// Sources: `max-pods-calculator.sh` of amazon-eks-ami; EKS user guide, "Choose an optimal EC2 node
/// instance type".
const EKS_PODS: [(i64, i64); 2] = [(30, 110), (i64::MAX, 250)];

/// CPU that Kubernetes reserves: the end of each band in cores, and its share in
/// hundred-thousandths.
const KUBE_CPU_BANDS: [(i64, i64); 4] = [(1, 6_000), (2, 1_000), (4, 500), (i64::MAX, 250)];

/// Bytes of disk that Kubernetes reserves.
const KUBE_STORAGE: i64 = Bytes::GIB;

/// Default `memory.available` threshold of hard eviction.
const EVICTION_MEMORY: i64 = 100 * Bytes::MIB;

/// Default `nodefs.available` threshold of hard eviction, in thousandths of a percent.
const EVICTION_STORAGE: u32 = 10_000;

/// A share of 100 %, which the kubelet reads as "never evict".
const WHOLE: u32 = 100_000;

/// Pods on a node whose AMI family does not count network addresses.
const PODS_WITHOUT_ENI_LIMIT: i64 = 110;

/// Returns the capacity, reservations and allocatable of a node of `kind` under `settings`.
///
/// No amount is negative, and allocatable never exceeds capacity.
pub fn allocation(kind: &InstanceType, settings: &NodeSettings) -> Allocation {
    total(&steps(kind, settings))
}

/// Returns every step from the facts about `kind` to its allocatable, in order.
///
/// ```
/// use fleetwright::catalog::{Catalog, NodeSettings, AllocationPart, allocation, explain};
/// let catalog = Catalog::load(&"us-east-1".into(), &[]).unwrap();
/// let kind = catalog.get(&"m5.large".into()).unwrap();
/// let steps = explain(kind, &NodeSettings::default());
/// let memory = steps.iter().find(|s| s.part == AllocationPart::Allocatable && s.resource.name() == "memory");
/// assert_eq!(memory.unwrap().amount, allocation(kind, &NodeSettings::default()).allocatable.memory.0);
/// ```
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

/// Returns the last step of a resource: its allocatable amount.
fn remainder(allocation: &Allocation, resource: NodeResource) -> AllocationStep {
    let Allocation { capacity, kube_reserved, system_reserved, eviction, huge_pages, allocatable } =
        allocation;
    let (capacity, amount) = (resource.amount_in(capacity), resource.amount_in(allocatable));
    let reserved = [
        (AllocationPart::KubeReserved, resource.amount_in(kube_reserved)),
        (AllocationPart::SystemReserved, resource.amount_in(system_reserved)),
        (AllocationPart::Eviction, resource.amount_in(eviction)),
        (AllocationPart::HugePages, resource.amount_in(huge_pages)),
    ];
    let sum = reserved.iter().fold(0_i64, |sum, (_, amount)| sum.saturating_add(*amount));
    let formatted = |(part, amount): (AllocationPart, i64)| (part, resource.format_amount(amount));
    let formula = Formula::Remainder {
        capacity: resource.format_amount(capacity),
        reserved: reserved.into_iter().filter(|(_, amount)| *amount != 0).map(formatted).collect(),
        overdrawn: sum > capacity,
    };
    AllocationStep { part: AllocationPart::Allocatable, resource, amount, formula }
}

/// Adds up the steps. Allocatable is never below zero, as in the kubelet.
fn total(steps: &[AllocationStep]) -> Allocation {
    let mut sum = Allocation::default();
    for step in steps {
        let part = match step.part {
            AllocationPart::Capacity => &mut sum.capacity,
            AllocationPart::KubeReserved => &mut sum.kube_reserved,
            AllocationPart::SystemReserved => &mut sum.system_reserved,
            AllocationPart::Eviction => &mut sum.eviction,
            AllocationPart::HugePages => &mut sum.huge_pages,
            AllocationPart::Allocatable => &mut sum.allocatable,
        };
        let sum_of_part = step.resource.amount_mut(part);
        *sum_of_part = sum_of_part.saturating_add(step.amount);
    }
    let reserved = sum.kube_reserved.plus(&sum.system_reserved).plus(&sum.eviction);
    let reserved = reserved.plus(&sum.huge_pages);
    // Called by path: as a method, `.max` would resolve to `Ord::max`.
    sum.allocatable = Resources::at_least(&sum.capacity.minus(&reserved), &Resources::default());
    sum
}

/// Returns the steps from instance type facts to reservations. Allocatable follows from them.
fn steps(kind: &InstanceType, settings: &NodeSettings) -> Vec<AllocationStep> {
    let rules = FamilyRules::from_family(settings.family);
    let mut ledger = Ledger(Vec::with_capacity(16));
    ledger.add(
        AllocationPart::Capacity,
        NodeResource::Cpu,
        kind.vcpus * 1000,
        Formula::Vcpus(kind.vcpus),
    );
    let memory = ledger.memory_capacity(kind);
    let storage = ledger.storage_capacity(kind, settings, &rules);
    let pods = ledger.pod_capacity(kind, settings, &rules);
    ledger.cut_for_adapters(kind, settings, &rules, pods);
    for (name, count) in &kind.extended {
        let resource = NodeResource::Extended(name.clone());
        let (count, formula) = match settings.efa {
            EfaInterfaces::Declared(adapters) if is_efa(name) => {
                (adapters.all.min(*count), Formula::DeclaredAdapters(adapters.all))
            }
            EfaInterfaces::Reported | EfaInterfaces::Absent if is_efa(name) => continue,
            EfaInterfaces::All
            | EfaInterfaces::Declared(_)
            | EfaInterfaces::Reported
            | EfaInterfaces::Absent => (*count, Formula::Devices(*count)),
        };
        if count > 0 {
            ledger.add(AllocationPart::Capacity, resource, count, formula);
        }
    }
    if settings.family == AmiFamily::Windows {
        let resource = NodeResource::Extended(resource::PRIVATE_IPV4.into());
        let formula = Formula::PrivateIpv4 { ips_per_eni: kind.ips_per_eni };
        ledger.add(AllocationPart::Capacity, resource, (kind.ips_per_eni - 1).max(0), formula);
    }
    let sized_for = if rules.reserves_for_eni_pods {
        PodCount::Eni(eni_pods(kind.enis, kind.ips_per_eni))
    } else {
        PodCount::Actual(pods)
    };
    ledger.kube_reserved(kind, &settings.kubelet.kube_reserved, sized_for);
    ledger.system_reserved(&settings.kubelet.system_reserved);
    ledger.eviction(settings, memory, storage);
    for (_, bytes) in
        kind.extended.iter().filter(|(name, _)| name.as_str().starts_with("hugepages-"))
    {
        ledger.add(AllocationPart::HugePages, NodeResource::Memory, *bytes, Formula::HugePages);
    }
    ledger.0
}

/// Rules of an AMI family that affect allocatable.
struct FamilyRules {
    /// The pod limit follows from network addresses.
    eni_limited: bool,
    /// Memory is reserved for as many pods as there are addresses, regardless of `maxPods`.
    reserves_for_eni_pods: bool,
    /// `podsPerCore` has an effect.
    supports_pods_per_core: bool,
    /// Default size in bytes of the volume that holds the kubelet's data.
    storage: i64,
}

impl FamilyRules {
    fn from_family(family: AmiFamily) -> Self {
        let linux = Self {
            eni_limited: true,
            reserves_for_eni_pods: true,
            supports_pods_per_core: true,
            storage: 20 * Bytes::GIB,
        };
        match family {
            AmiFamily::Al2 | AmiFamily::Al2023 | AmiFamily::Ubuntu | AmiFamily::Custom => linux,
            AmiFamily::Bottlerocket => {
                Self { reserves_for_eni_pods: false, supports_pods_per_core: false, ..linux }
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

/// Returns the number of pods that network addresses allow. Each interface uses one address itself,
/// and two pods use the host network.
fn eni_pods(enis: i64, ips_per_eni: i64) -> i64 {
    if enis <= 0 { 0 } else { enis * (ips_per_eni - 1).max(0) + 2 }
}

/// Returns the pod limit of a node of `kind` with addresses on `enis` interfaces, and its formula.
fn address_pods(kind: &InstanceType, enis: i64, settings: &NodeSettings) -> (i64, Formula) {
    let prefixes = if settings.prefix_delegation { prefix_pods(kind, enis) } else { None };
    prefixes.unwrap_or_else(|| {
        let ips_per_eni = kind.ips_per_eni;
        (eni_pods(enis, ips_per_eni), Formula::EniPods { enis, ips_per_eni })
    })
}

/// Returns the pod limit of a node with prefix delegation, and its formula. Returns `None` for
/// types that do not run on Nitro, which prefixes need.
fn prefix_pods(kind: &InstanceType, enis: i64) -> Option<(i64, Formula)> {
    let hypervisor = kind.labels.get("karpenter.k8s.aws/instance-hypervisor");
    if enis <= 0 || hypervisor.is_some_and(|label| label.as_str() == "xen") {
        return None;
    }
    let ips_per_eni = kind.ips_per_eni;
    let addresses = enis * (ips_per_eni - 1).max(0) * PREFIX_ADDRESSES + 2;
    let most = eks_pods(kind).unwrap_or(addresses);
    Some((addresses.min(most), Formula::PrefixPods { enis, ips_per_eni, most }))
}

/// Returns true for the resource of elastic fabric adapters.
pub(super) fn is_efa(name: &ResourceName) -> bool {
    name.as_str() == resource::EFA
}

/// Returns the maximum pods of EKS for a type.
fn eks_pods(kind: &InstanceType) -> Option<i64> {
    EKS_PODS.iter().find(|(vcpus, _)| kind.vcpus <= *vcpus).map(|(_, most)| *most)
}

struct Ledger(Vec<AllocationStep>);

impl Ledger {
    fn add(&mut self, part: AllocationPart, resource: NodeResource, amount: i64, formula: Formula) {
        self.0.push(AllocationStep { part, resource, amount, formula });
    }

    /// Adds the memory that the operating system sees. Returns it in bytes.
    fn memory_capacity(&mut self, kind: &InstanceType) -> i64 {
        let mut add = |mib: i64, formula| {
            self.add(AllocationPart::Capacity, NodeResource::Memory, Bytes::mib(mib).0, formula);
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

    /// Adds the disk that holds the kubelet's data. Returns its size in bytes.
    ///
    /// Only NVMe instance stores count as RAID 0, because the images assemble no others. Karpenter
    /// also counts the disks of older types, and then expects more than the node has.
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
        self.add(AllocationPart::Capacity, NodeResource::EphemeralStorage, bytes, formula);
        bytes
    }

    /// Adds the pod limit, and returns it.
    fn pod_capacity(
        &mut self,
        kind: &InstanceType,
        settings: &NodeSettings,
        rules: &FamilyRules,
    ) -> i64 {
        let (pods, formula) = if let Some(declared) = settings.kubelet.max_pods {
            (i64::from(declared), Formula::MaxPods(declared))
        } else if rules.eni_limited {
            address_pods(kind, kind.enis, settings)
        } else {
            (PODS_WITHOUT_ENI_LIMIT, Formula::FamilyPods(settings.family))
        };
        self.add(AllocationPart::Capacity, NodeResource::Pods, pods, formula);
        let pods = self.cap_pods(kind, settings, pods);
        let per_core =
            settings.kubelet.pods_per_core.filter(|n| *n > 0 && rules.supports_pods_per_core);
        let Some(per_core) = per_core else { return pods };
        let most = i64::from(per_core).saturating_mul(kind.vcpus);
        if most < pods {
            let formula = Formula::PodsPerCore { per_core, vcpus: kind.vcpus };
            self.add(AllocationPart::Capacity, NodeResource::Pods, most - pods, formula);
        }
        most.min(pods)
    }

    /// Reduces the pod limit to the cap of EKS, and returns it.
    fn cap_pods(&mut self, kind: &InstanceType, settings: &NodeSettings, pods: i64) -> i64 {
        let cap = eks_pods(kind).filter(|most| settings.eks_caps_pods && *most < pods);
        let Some(most) = cap else { return pods };
        let formula = Formula::EksPods { most, vcpus: kind.vcpus };
        self.add(AllocationPart::Capacity, NodeResource::Pods, most - pods, formula);
        most
    }

    /// Reduces the pod limit by the addresses of interfaces that are adapters. The image of the node
    /// does not know them, so that its reservations stay.
    fn cut_for_adapters(
        &mut self,
        kind: &InstanceType,
        settings: &NodeSettings,
        rules: &FamilyRules,
        pods: i64,
    ) {
        let EfaInterfaces::Declared(adapters) = settings.efa else { return };
        let enis = (kind.enis - adapters.on_default_card).max(0);
        let (most, _) = address_pods(kind, enis, settings);
        if rules.eni_limited && settings.kubelet.max_pods.is_none() && most < pods {
            let formula = Formula::AdapterPods { most, adapters: adapters.on_default_card };
            self.add(AllocationPart::Capacity, NodeResource::Pods, most - pods, formula);
        }
    }

    fn kube_reserved(&mut self, kind: &InstanceType, declared: &ResourceList, sized_for: PodCount) {
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
            self.add(AllocationPart::KubeReserved, resource, amount, formula);
        }
    }

    fn system_reserved(&mut self, declared: &ResourceList) {
        for resource in [NodeResource::Cpu, NodeResource::Memory, NodeResource::EphemeralStorage] {
            if let Some(stated) = declared.get(resource.name()) {
                let amount = (*stated).max(0);
                self.add(AllocationPart::SystemReserved, resource, amount, Formula::SystemReserved);
            }
        }
    }

    fn eviction(&mut self, settings: &NodeSettings, memory: i64, storage: i64) {
        let declared = &settings.kubelet.eviction_hard;
        let (amount, formula) = match declared.get("memory.available") {
            Some(stated) => threshold(*stated, memory),
            None => (EVICTION_MEMORY, Formula::EvictionMemory),
        };
        self.add(AllocationPart::Eviction, NodeResource::Memory, amount, formula);
        let (amount, formula) = match declared.get("nodefs.available") {
            Some(stated) => threshold(*stated, storage),
            None => (share(EVICTION_STORAGE, storage), Formula::EvictionStorage { of: storage }),
        };
        self.add(AllocationPart::Eviction, NodeResource::EphemeralStorage, amount, formula);
    }
}

/// Returns the CPU reserved in each band of cores, in thousandths of a core, each rounded down.
fn kube_cpu(vcpus: i64) -> [i64; 4] {
    let mut start = 0;
    KUBE_CPU_BANDS.map(|(end, share)| {
        let cores = vcpus.min(end) - start.min(vcpus);
        start = end;
        cores * 1000 * share / 100_000
    })
}

/// Returns the amount that a declared eviction threshold reserves of `capacity`.
fn threshold(stated: ReservedAmount, capacity: i64) -> (i64, Formula) {
    match stated {
        ReservedAmount::Bytes(bytes) => (bytes.max(0), Formula::EvictionAmount),
        ReservedAmount::MilliPercent(WHOLE) => (0, Formula::EvictionDisabled),
        ReservedAmount::MilliPercent(milli_percent) => {
            (share(milli_percent, capacity), Formula::EvictionShare { milli_percent, of: capacity })
        }
    }
}

/// Returns `milli_percent` thousandths of a percent of `of`, rounded up.
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
