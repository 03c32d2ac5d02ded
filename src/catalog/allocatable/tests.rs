//! Vectors worked by hand or taken from controller logs, and invariants over every type of the
//! snapshot.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::catalog::instance_type::{Interner, instance_type};
use crate::catalog::snapshot;
use crate::model::desired::{EfaCount, KubeletSettings};
use crate::model::units::ResourceName;

const MIB: i64 = Bytes::MIB;
const GIB: i64 = Bytes::GIB;

const FAMILIES: [AmiFamily; 6] = [
    AmiFamily::Al2,
    AmiFamily::Al2023,
    AmiFamily::Bottlerocket,
    AmiFamily::Windows,
    AmiFamily::Ubuntu,
    AmiFamily::Custom,
];

/// Every type with complete facts, whether or not a region offers it.
static TYPES: LazyLock<BTreeMap<String, InstanceType>> = LazyLock::new(|| {
    let text = snapshot::types_text().expect("inflates");
    let rows = snapshot::parse_types(&text).expect("parses");
    let mut interner = Interner::default();
    rows.iter()
        .filter(|row| !row.partial)
        .map(|row| (row.name.to_owned(), instance_type(row, &mut interner)))
        .collect()
});

fn settings_for(family: AmiFamily) -> NodeSettings {
    NodeSettings { family, ..NodeSettings::default() }
}

fn with(kubelet: KubeletSettings) -> NodeSettings {
    NodeSettings { kubelet, ..NodeSettings::default() }
}

fn offers(name: &str, settings: &NodeSettings) -> Allocation {
    allocation(&TYPES[name], settings)
}

/// CPU in thousandths, memory in MiB, storage in bytes, pods.
fn amounts_of(resources: &Resources) -> (i64, i64, i64, i64) {
    assert_eq!(resources.memory.0 % MIB, 0);
    (resources.cpu.0, resources.memory.0 / MIB, resources.ephemeral_storage.0, resources.pods)
}

#[test]
fn defaults_equal_what_karpenter_reports() {
    for (name, cpu, memory, pods) in [
        ("m6i.large", 1930, 6903, 29),
        ("m5.large", 1930, 6903, 29),
        ("c5.large", 1930, 3114, 29),
        ("r5.large", 1930, 14_481, 29),
        ("m5.xlarge", 3920, 14162, 58),
        ("c6g.medium", 940, 1392, 8),
        ("r5a.4xlarge", 15_890, 118_312, 234),
        ("c1.medium", 1930, 1122, 12),
        ("a1.metal", 15_890, 27_322, 234),
        ("g6f.large", 1930, 7002, 20),
        ("trn2.48xlarge", 191_450, 1_938_410, 100),
        ("t2.nano", 940, 74, 4),
    ] {
        let found = amounts_of(&offers(name, &NodeSettings::default()).allocatable);
        assert_eq!(found, (cpu, memory, 17 * GIB, pods), "{name}");
    }
}

#[test]
fn max_pods_changes_pods_but_not_reservations() {
    let kubelet = KubeletSettings { max_pods: Some(110), ..KubeletSettings::default() };
    let settings = NodeSettings { ephemeral_storage: Some(200 * GIB), ..with(kubelet) };
    let found = offers("c6a.4xlarge", &settings);
    assert_eq!(amounts_of(&found.allocatable), (15_890, 27_381, 179 * GIB, 110));
    assert_eq!(found.kube_reserved.memory.0, 2829 * MIB, "sized for 234 pods");
    let bottlerocket = NodeSettings { family: AmiFamily::Bottlerocket, ..settings };
    assert_eq!(offers("c6a.4xlarge", &bottlerocket).kube_reserved.memory.0, (255 + 1210) * MIB);
}

#[test]
fn each_family_has_its_row_of_rules() {
    // Pods; MiB reserved for them; disk in GiB; pods under podsPerCore 4 on 2 vCPU.
    for (family, pods, reserved, disk, few) in [
        (AmiFamily::Al2, 29, 255 + 11 * 29, 20, 8),
        (AmiFamily::Al2023, 29, 255 + 11 * 29, 20, 8),
        (AmiFamily::Ubuntu, 29, 255 + 11 * 29, 20, 8),
        (AmiFamily::Custom, 29, 255 + 11 * 29, 20, 8),
        (AmiFamily::Bottlerocket, 29, 255 + 11 * 29, 20, 29),
        (AmiFamily::Windows, 110, 255 + 11 * 110, 50, 8),
    ] {
        let found = offers("m5.large", &settings_for(family));
        assert_eq!(found.capacity.pods, pods, "{family:?}");
        assert_eq!(found.kube_reserved.memory.0, reserved * MIB, "{family:?}");
        assert_eq!(found.capacity.ephemeral_storage.0, disk * GIB, "{family:?}");
        let kubelet = KubeletSettings { pods_per_core: Some(4), ..KubeletSettings::default() };
        let found = offers("m5.large", &NodeSettings { family, ..with(kubelet) });
        assert_eq!(found.capacity.pods, few, "{family:?} with podsPerCore");
        let sized_for = if family == AmiFamily::Windows { 8 } else { 29 };
        assert_eq!(found.kube_reserved.memory.0, (255 + 11 * sized_for) * MIB, "{family:?}");
    }
}

#[test]
fn pods_per_core_only_lowers() {
    for (max_pods, per_core, expected) in
        [(None, 4, 8), (None, 20, 29), (Some(110), 20, 40), (Some(5), 20, 5), (None, 0, 29)]
    {
        let kubelet = KubeletSettings {
            max_pods,
            pods_per_core: Some(per_core),
            ..KubeletSettings::default()
        };
        let found = offers("m5.large", &with(kubelet));
        assert_eq!(found.allocatable.pods, expected, "{max_pods:?} {per_core}");
    }
}

#[test]
fn declared_reservations_replace_the_formula_key_by_key() {
    let amounts = |pairs: &[(&str, i64)]| pairs.iter().map(|(k, v)| ((*k).into(), *v)).collect();
    let kubelet = KubeletSettings {
        kube_reserved: amounts(&[("cpu", 200), ("pid", 1000)]),
        system_reserved: amounts(&[("memory", 512 * MIB), ("ephemeral-storage", GIB)]),
        ..KubeletSettings::default()
    };
    let found = offers("m5.large", &with(kubelet));
    assert_eq!(found.kube_reserved.cpu.0, 200);
    assert_eq!(found.kube_reserved.memory.0, 574 * MIB);
    assert_eq!(amounts_of(&found.allocatable), (1800, 6903 - 512, 16 * GIB, 29));
}

#[test]
fn a_reservation_above_the_capacity_leaves_nothing() {
    let kube_reserved = [("memory".into(), 999 * GIB)].into();
    let kubelet = KubeletSettings { kube_reserved, ..KubeletSettings::default() };
    let settings = with(kubelet);
    assert_eq!(offers("m5.large", &settings).allocatable.memory.0, 0);
    let steps = explain(&TYPES["m5.large"], &settings);
    let words: Vec<String> = steps.iter().map(|step| step.formula.to_string()).collect();
    let expected =
        "capacity 7577Mi − kube-reserved 999Gi − eviction threshold 100Mi, which leaves nothing";
    assert!(words.iter().any(|words| words == expected), "{words:?}");
}

#[test]
fn eviction_thresholds_are_amounts_or_shares_100_percent_never() {
    let capacity = 7577 * MIB;
    for (stated, reserved) in [
        (None, 100 * MIB),
        (Some(ReservedAmount::Bytes(500 * MIB)), 500 * MIB),
        (Some(ReservedAmount::MilliPercent(5_000)), 397_253_018), // ceil of 397,253,017.6
        (Some(ReservedAmount::MilliPercent(100_000)), 0),
        (Some(ReservedAmount::MilliPercent(0)), 0),
    ] {
        let eviction_hard =
            stated.map(|s| ("memory.available".to_owned(), s)).into_iter().collect();
        let kubelet = KubeletSettings { eviction_hard, ..KubeletSettings::default() };
        let found = offers("m5.large", &with(kubelet));
        assert_eq!(found.capacity.memory.0, capacity);
        assert_eq!(found.eviction.memory.0, reserved, "{stated:?}");
        assert_eq!(found.eviction.ephemeral_storage.0, 2 * GIB, "{stated:?}");
    }
    let eviction_hard =
        [("nodefs.available".to_owned(), ReservedAmount::MilliPercent(100_000))].into();
    let kubelet = KubeletSettings { eviction_hard, ..KubeletSettings::default() };
    let found = offers("m5.large", &with(kubelet)).allocatable;
    assert_eq!(found.ephemeral_storage.0, 19 * GIB);
}

#[test]
fn prefix_delegation_raises_pods_to_the_eks_maximum() {
    let prefix_settings = |family, max_pods| NodeSettings {
        family,
        prefix_delegation: true,
        kubelet: KubeletSettings { max_pods, ..KubeletSettings::default() },
        ..NodeSettings::default()
    };
    let al2023 = AmiFamily::Al2023;
    for (rule, name, settings, pods) in [
        ("3 × 9 × 16 + 2 = 434, at most 110", "m5.large", prefix_settings(al2023, None), 110),
        ("2 × 3 × 16 + 2, which is less", "t3.micro", prefix_settings(al2023, None), 2 * 16 + 2),
        ("30 vCPUs and fewer: 110", "m5.4xlarge", prefix_settings(al2023, None), 110),
        ("more: 250", "m5.8xlarge", prefix_settings(al2023, None), 250),
        ("bare metal is Nitro too", "a1.metal", prefix_settings(al2023, None), 110),
        ("Xen has no prefixes", "m4.large", prefix_settings(al2023, None), 20),
        ("maxPods is said last", "m5.large", prefix_settings(al2023, Some(60)), 60),
        (
            "Windows does not count addresses",
            "m5.large",
            prefix_settings(AmiFamily::Windows, None),
            110,
        ),
    ] {
        assert_eq!(offers(name, &settings).allocatable.pods, pods, "{rule}");
    }
    // The reservation stays sized for the pods that have an address, as in Karpenter.
    let reserved = offers("m5.large", &prefix_settings(al2023, None)).kube_reserved.memory.0;
    assert_eq!(reserved, (255 + 11 * 29) * MIB);
    let bottlerocket = offers("m5.large", &prefix_settings(AmiFamily::Bottlerocket, None));
    assert_eq!(bottlerocket.kube_reserved.memory.0, (255 + 11 * 110) * MIB);
}

#[test]
fn eks_caps_the_pods_of_managed_node_groups() {
    let managed = |max_pods, prefix_delegation| NodeSettings {
        eks_caps_pods: true,
        prefix_delegation,
        kubelet: KubeletSettings { max_pods, ..KubeletSettings::default() },
        ..NodeSettings::default()
    };
    for (rule, name, settings, pods) in [
        ("addresses allow fewer", "m5.large", managed(None, false), 29),
        ("16 vCPU: 110, not 234", "m5.4xlarge", managed(None, false), 110),
        ("32 vCPU: 234 are below 250", "m5.8xlarge", managed(None, false), 234),
        ("72 vCPU: 250, not 737", "c5n.18xlarge", managed(None, false), 250),
        ("maxPods above the cap", "m5.large", managed(Some(200), false), 110),
        ("maxPods below the cap", "m5.large", managed(Some(60), false), 60),
        ("prefixes", "m5.8xlarge", managed(None, true), 250),
    ] {
        assert_eq!(offers(name, &settings).allocatable.pods, pods, "{rule}");
    }
    let steps = explain(&TYPES["m5.4xlarge"], &managed(None, false));
    let words: Vec<String> = steps.iter().map(|step| step.formula.to_string()).collect();
    let cap = "cut to the 110 pods of managed node groups for 16 vCPU";
    assert!(words.iter().any(|text| text == cap), "{words:?}");
}

#[test]
fn huge_pages_are_taken_from_memory() {
    let mut kind = TYPES["m5.large"].clone();
    kind.extended.insert("hugepages-2Mi".into(), 1024 * MIB);
    let found = allocation(&kind, &NodeSettings::default());
    assert_eq!(amounts_of(&found.allocatable), (1930, 6903 - 1024, 17 * GIB, 29));
    assert_eq!(found.allocatable.extended(&"hugepages-2Mi".into()), 1024 * MIB);
    let steps = explain(&kind, &NodeSettings::default());
    let words: Vec<String> = steps.iter().map(|step| step.formula.to_string()).collect();
    assert!(words.iter().any(|w| w.ends_with("− huge pages 1Gi")), "{words:?}");
}

#[test]
fn raid0_counts_nvme_disks_and_nothing_else() {
    let raid0 = |ephemeral_storage| NodeSettings {
        instance_store_raid0: true,
        ephemeral_storage,
        ..NodeSettings::default()
    };
    for (name, declared, capacity) in [
        ("m5d.large", None, 75_000_000_000),
        ("m5d.large", Some(30 * GIB), 75_000_000_000),
        ("m5.large", None, 20 * GIB),
        ("m5.large", Some(30 * GIB), 30 * GIB),
        ("d2.xlarge", None, 20 * GIB),
    ] {
        let found = offers(name, &raid0(declared)).capacity;
        assert_eq!(found.ephemeral_storage.0, capacity, "{name} {declared:?}");
    }
}

#[test]
fn fabric_adapters_count_only_if_instances_get_them() {
    let efa = |efa| {
        let settings = NodeSettings { efa, ..NodeSettings::default() };
        offers("p5.48xlarge", &settings).allocatable.extended(&"vpc.amazonaws.com/efa".into())
    };
    assert_eq!(efa(EfaInterfaces::All), 32);
    assert_eq!((efa(EfaInterfaces::Reported), efa(EfaInterfaces::Absent)), (0, 0));
}

#[test]
fn declared_adapters_count_and_take_addresses_of_pods() {
    let declared = |all: i64, on_default_card: i64, max_pods: Option<u32>| NodeSettings {
        efa: EfaInterfaces::Declared(EfaCount { all, on_default_card }),
        ..with(KubeletSettings { max_pods, ..KubeletSettings::default() })
    };
    for (rule, name, settings, adapters, pods) in [
        ("15 interfaces", "c5n.18xlarge", declared(0, 0, None), 0, 737),
        ("14 of 15 interfaces", "c5n.18xlarge", declared(1, 1, None), 1, 688),
        ("maxPods", "c5n.18xlarge", declared(1, 1, Some(700)), 1, 700),
        ("two on other cards", "p5.48xlarge", declared(2, 0, None), 2, 100),
        ("one of two interfaces", "p5.48xlarge", declared(32, 1, None), 32, 51),
        ("a type without adapters", "m5.large", declared(1, 0, None), 0, 29),
    ] {
        let found = offers(name, &settings);
        let efa = found.allocatable.extended(&"vpc.amazonaws.com/efa".into());
        assert_eq!((efa, found.allocatable.pods), (adapters, pods), "{name}: {rule}");
        let usual = offers(name, &with(settings.kubelet));
        assert_eq!(found.kube_reserved, usual.kube_reserved, "{name}: {rule}");
    }
    let steps = explain(&TYPES["c5n.18xlarge"], &declared(1, 1, None));
    let words: Vec<String> = steps.iter().map(|step| step.formula.to_string()).collect();
    for expected in
        ["cut to 688, without the addresses of EFA interfaces: 1", "networkInterfaces has 1"]
    {
        assert!(words.iter().any(|text| text == expected), "{words:?}");
    }
}

#[test]
fn extended_resources_are_not_reserved_from() {
    for (name, expected) in [
        (
            "p5.48xlarge",
            &[
                ("nvidia.com/gpu", 8),
                ("vpc.amazonaws.com/efa", 32),
                ("vpc.amazonaws.com/pod-eni", 120),
            ][..],
        ),
        (
            "inf2.24xlarge",
            &[
                ("aws.amazon.com/neuron", 6),
                ("aws.amazon.com/neuroncore", 12),
                ("vpc.amazonaws.com/pod-eni", 107),
            ],
        ),
        ("g6f.large", &[("vpc.amazonaws.com/pod-eni", 10)]),
        ("t3.large", &[]),
    ] {
        let expected: BTreeMap<ResourceName, i64> =
            expected.iter().map(|(name, count)| ((*name).into(), *count)).collect();
        let found = offers(name, &NodeSettings::default());
        assert_eq!(found.capacity.extended, expected, "{name}");
        assert_eq!(found.allocatable.extended, expected, "{name}");
    }
    let windows = offers("m5.large", &settings_for(AmiFamily::Windows)).allocatable;
    assert_eq!(windows.extended(&resource::PRIVATE_IPV4.into()), 9);
}

#[test]
fn allocatable_is_positive_and_within_capacity() {
    assert_eq!(TYPES.len(), 1395);
    for (name, kind) in TYPES.iter() {
        for family in FAMILIES {
            let Allocation { capacity, allocatable, .. } = allocation(kind, &settings_for(family));
            let case = format!("{name} {family:?}");
            assert!(allocatable.fits(&capacity), "{case}");
            assert!(allocatable.cpu.0 > 0 && allocatable.pods > 0, "{case}");
            assert!(allocatable.ephemeral_storage.0 > 0, "{case}");
            // Reserving for 110 pods leaves the smallest Windows instances with nothing.
            let tiny = family == AmiFamily::Windows && kind.memory_mib < 2048;
            assert!(tiny || allocatable.memory.0 > 0, "{case}: {}", allocatable.memory);
        }
    }
}

#[test]
fn explained_steps_add_up_to_the_allocation() {
    let kubelet = KubeletSettings {
        max_pods: Some(60),
        pods_per_core: Some(7),
        kube_reserved: [("cpu".into(), 123)].into(),
        system_reserved: [("memory".into(), 300 * MIB)].into(),
        eviction_hard: [("memory.available".to_owned(), ReservedAmount::MilliPercent(3_000))]
            .into(),
        ..KubeletSettings::default()
    };
    for (name, kind) in TYPES.iter() {
        for family in FAMILIES {
            for kubelet in [KubeletSettings::default(), kubelet.clone()] {
                let settings = NodeSettings { family, kubelet, ..NodeSettings::default() };
                let allocation = allocation(kind, &settings);
                let mut sums: BTreeMap<AllocationPart, Resources> = BTreeMap::new();
                for step in explain(kind, &settings) {
                    *step.resource.amount_mut(sums.entry(step.part).or_default()) += step.amount;
                    assert!(
                        !step.formula.to_string().is_empty() && !step.formula.source().is_empty()
                    );
                }
                let sum = |part| sums.get(&part).cloned().unwrap_or_default();
                assert_eq!(sum(AllocationPart::Capacity), allocation.capacity, "{name} {family:?}");
                assert_eq!(
                    sum(AllocationPart::KubeReserved),
                    allocation.kube_reserved,
                    "{name} {family:?}"
                );
                assert_eq!(
                    sum(AllocationPart::SystemReserved),
                    allocation.system_reserved,
                    "{name} {family:?}"
                );
                assert_eq!(sum(AllocationPart::Eviction), allocation.eviction, "{name} {family:?}");
                assert_eq!(
                    sum(AllocationPart::Allocatable),
                    allocation.allocatable,
                    "{name} {family:?}"
                );
            }
        }
    }
}

#[test]
fn an_explanation_reads_as_arithmetic() {
    let kubelet = KubeletSettings { pods_per_core: Some(4), ..KubeletSettings::default() };
    let steps: Vec<String> = explain(&TYPES["c6g.large"], &with(kubelet))
        .iter()
        .map(|AllocationStep { part, resource, amount, formula }| {
            let (part, source) = (part.as_str(), formula.source());
            format!(
                "{part} {} {}: {formula} [{source}]",
                resource.name(),
                resource.format_amount(*amount)
            )
        })
        .collect();
    insta::assert_snapshot!(steps.join("\n"), @r"
    capacity cpu 2: 2 vCPU [EC2 instance type]
    capacity memory 4Gi: 4096 MiB [EC2 instance type]
    capacity memory -64Mi: 64 MiB reserved by Graviton [Karpenter's estimate]
    capacity memory -303Mi: hypervisor: 7.5 % of 4032 MiB, rounded up [Karpenter's estimate]
    capacity ephemeral-storage 20Gi: default volume of Amazon Linux 2023 [AMI family]
    capacity pods 29: 3 network interfaces × (10 addresses − 1) + 2 [EC2 instance type]
    capacity pods -21: cut to podsPerCore: 4 × 2 vCPU [kubelet settings]
    capacity vpc.amazonaws.com/pod-eni 9: the type has 9 [EC2 instance type]
    kube-reserved cpu 70m: 6 % of core 1 (60m) + 1 % of core 2 (10m) [EKS node bootstrap]
    kube-reserved memory 574Mi: 255 MiB + 11 MiB × 29 pods that have an address [EKS node bootstrap]
    kube-reserved ephemeral-storage 1Gi: a fixed amount [EKS node bootstrap]
    eviction threshold memory 100Mi: memory.available below a fixed amount [kubelet default]
    eviction threshold ephemeral-storage 2Gi: nodefs.available below 10 % of 20Gi, rounded up [kubelet default]
    allocatable cpu 1930m: capacity 2 − kube-reserved 70m [the above]
    allocatable memory 3055Mi: capacity 3729Mi − kube-reserved 574Mi − eviction threshold 100Mi [the above]
    allocatable ephemeral-storage 17Gi: capacity 20Gi − kube-reserved 1Gi − eviction threshold 2Gi [the above]
    allocatable pods 8: capacity 8 [the above]
    allocatable vpc.amazonaws.com/pod-eni 9: capacity 9 [the above]
    ");
}

proptest! {
    #[test]
    fn more_cores_keep_more_cpu_and_never_all_of_it(vcpus in 1_i64..10_000, more in 0_i64..1000) {
        let reserved = |vcpus| kube_cpu(vcpus).iter().sum::<i64>();
        prop_assert!(reserved(vcpus) <= reserved(vcpus + more));
        prop_assert!(reserved(vcpus) < vcpus * 1000);
        prop_assert!(vcpus - reserved(vcpus) / 1000 <= vcpus + more - reserved(vcpus + more) / 1000);
    }

    #[test]
    fn a_share_is_rounded_up_and_never_overflows(percent in 0_u32..=100_000, of in 0_i64..=i64::MAX) {
        let reserved = i128::from(share(percent, of)) * 100_000;
        let exact = i128::from(of) * i128::from(percent);
        prop_assert!(reserved >= exact && reserved - exact < 100_000);
    }
}
