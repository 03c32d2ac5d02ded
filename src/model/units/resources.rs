//! Resource vectors: requests of pods, and capacity of nodes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Quantity;
use crate::model::ids::define_id;

define_id! {
    /// Name of a resource, such as `nvidia.com/gpu` or `hugepages-2Mi`.
    ResourceName
}

/// CPU in thousandths of a core.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MilliCpu(pub i64);

/// Memory or storage in bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub i64);

impl MilliCpu {
    /// Converts an amount in cores, rounded up to a thousandth.
    pub fn from_quantity(quantity: Quantity) -> Self {
        Self(quantity.ceil_milli())
    }
}

impl fmt::Display for MilliCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 % 1000 == 0 { write!(f, "{}", self.0 / 1000) } else { write!(f, "{}m", self.0) }
    }
}

impl Bytes {
    /// Bytes per mebibyte.
    pub const MIB: i64 = 1 << 20;
    /// Bytes per gibibyte.
    pub const GIB: i64 = 1 << 30;

    /// Returns `mib` mebibytes.
    pub const fn mib(mib: i64) -> Self {
        Self(mib.saturating_mul(Self::MIB))
    }

    /// Returns `gib` gibibytes.
    pub const fn gib(gib: i64) -> Self {
        Self(gib.saturating_mul(Self::GIB))
    }

    /// Converts an amount in bytes, rounded up to a whole byte.
    pub fn from_quantity(quantity: Quantity) -> Self {
        Self(quantity.ceil_units())
    }
}

impl fmt::Display for Bytes {
    /// Writes the amount in the largest binary unit without a fraction, as Kubernetes does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SUFFIXES: [(u32, &str); 4] = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
        for (shift, suffix) in SUFFIXES {
            if self.0 != 0 && self.0 % (1 << shift) == 0 {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// Amounts of all resources: the requests of a pod, or the capacity of a node.
///
/// `pods` is the number of pods: 1 for a pod, and the maximum of the kubelet for a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    /// CPU, in thousandths of a core.
    pub cpu: MilliCpu,
    /// Memory, in bytes.
    pub memory: Bytes,
    /// Ephemeral storage, in bytes.
    #[serde(skip_serializing_if = "is_zero_bytes")]
    pub ephemeral_storage: Bytes,
    /// Number of pods.
    pub pods: i64,
    /// Extended resources and huge pages, in whole units (bytes for huge pages). Zero amounts are
    /// omitted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "drop_zeros")]
    pub extended: BTreeMap<ResourceName, i64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero_bytes(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

/// Drops zero amounts, because zero and absent are equivalent. Nodes report zero amounts, mostly
/// for huge pages.
fn drop_zeros<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<ResourceName, i64>, D::Error> {
    let mut amounts = BTreeMap::<ResourceName, i64>::deserialize(deserializer)?;
    amounts.retain(|_, amount| *amount != 0);
    Ok(amounts)
}

impl Resources {
    /// Returns the sum, saturating.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, i64::saturating_add)
    }

    /// Returns the difference, saturating. Any resource of the result may be negative.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, i64::saturating_sub)
    }

    /// Returns the maximum of each resource.
    #[must_use]
    pub fn at_least(&self, other: &Self) -> Self {
        self.zip(other, i64::max)
    }

    /// Returns the minimum of each resource.
    #[must_use]
    pub fn at_most(&self, other: &Self) -> Self {
        self.zip(other, i64::min)
    }

    /// Returns the amounts multiplied by `count`, saturating.
    #[must_use]
    pub fn times(&self, count: i64) -> Self {
        self.zip(self, |a, _| a.saturating_mul(count))
    }

    /// Returns the share of the amounts in percent, saturating.
    #[must_use]
    pub fn percent(&self, percent: i64) -> Self {
        self.zip(self, |a, _| a.saturating_mul(percent) / 100)
    }

    /// Returns true if `free` covers every requested resource of `self`.
    ///
    /// A resource without a request always fits, even if `free` is negative, as in the
    /// `NodeResourcesFit` plugin of kube-scheduler.
    pub fn fits(&self, free: &Self) -> bool {
        let part = |requested: i64, free: i64| requested <= 0 || requested <= free;
        part(self.cpu.0, free.cpu.0)
            && part(self.memory.0, free.memory.0)
            && part(self.ephemeral_storage.0, free.ephemeral_storage.0)
            && part(self.pods, free.pods)
            && self.extended.iter().all(|(name, requested)| part(*requested, free.extended(name)))
    }

    /// Returns the number of times that `self` fits into `free`, at most `limit`.
    pub fn copies_in(&self, free: &Self, limit: i64) -> i64 {
        let part = |requested: i64, free: i64| {
            if requested <= 0 { limit } else { free.max(0) / requested }
        };
        self.extended
            .iter()
            .map(|(name, requested)| part(*requested, free.extended(name)))
            .chain([
                part(self.cpu.0, free.cpu.0),
                part(self.memory.0, free.memory.0),
                part(self.ephemeral_storage.0, free.ephemeral_storage.0),
                part(self.pods, free.pods),
            ])
            .fold(limit.max(0), i64::min)
    }

    /// Returns the amount of an extended resource; zero if absent.
    pub fn extended(&self, name: &ResourceName) -> i64 {
        self.extended.get(name).copied().unwrap_or(0)
    }

    /// Returns the names of the resources for which `self` exceeds `free`, in a fixed order.
    pub fn exceeding(&self, free: &Self) -> Vec<String> {
        let over = |requested: i64, free: i64| requested > 0 && requested > free;
        let mut names = Vec::new();
        for (name, requested, free) in [
            ("cpu", self.cpu.0, free.cpu.0),
            ("memory", self.memory.0, free.memory.0),
            ("ephemeral-storage", self.ephemeral_storage.0, free.ephemeral_storage.0),
            ("pods", self.pods, free.pods),
        ] {
            if over(requested, free) {
                names.push(name.to_owned());
            }
        }
        let extended =
            self.extended.iter().filter(|(name, requested)| over(**requested, free.extended(name)));
        names.extend(extended.map(|(name, _)| name.to_string()));
        names
    }

    fn zip(&self, other: &Self, combine: impl Fn(i64, i64) -> i64) -> Self {
        let names = self.extended.keys().chain(other.extended.keys());
        let extended = names
            .map(|name| (name.clone(), combine(self.extended(name), other.extended(name))))
            .filter(|(_, amount)| *amount != 0)
            .collect();
        Self {
            cpu: MilliCpu(combine(self.cpu.0, other.cpu.0)),
            memory: Bytes(combine(self.memory.0, other.memory.0)),
            ephemeral_storage: Bytes(combine(self.ephemeral_storage.0, other.ephemeral_storage.0)),
            pods: combine(self.pods, other.pods),
            extended,
        }
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu {}, memory {}", self.cpu, self.memory)?;
        if self.ephemeral_storage.0 != 0 {
            write!(f, ", ephemeral-storage {}", self.ephemeral_storage)?;
        }
        for (name, amount) in &self.extended {
            write!(f, ", {name} {amount}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(cpu: i64, memory: i64) -> Resources {
        Resources { cpu: MilliCpu(cpu), memory: Bytes(memory), pods: 1, ..Resources::default() }
    }

    #[test]
    fn zero_amount_equals_absent_amount() {
        let read = |extended: &str| {
            let text = format!(r#"{{"cpu": 1, "memory": 2, "pods": 3, "extended": {extended}}}"#);
            serde_json::from_str::<Resources>(&text).expect("it reads")
        };
        assert_eq!(read(r#"{"hugepages-2Mi": 0}"#), read("{}"));
        assert_ne!(read(r#"{"nvidia.com/gpu": 1, "hugepages-2Mi": 0}"#), read("{}"));
    }

    #[test]
    fn copies_in_returns_largest_count_that_fits() {
        let pod = resources(300, 10);
        let free = Resources { pods: 100, ..resources(1000, 1000) };
        assert_eq!(pod.copies_in(&free, i64::MAX), 3);
        assert!(pod.times(3).fits(&free) && !pod.times(4).fits(&free));
        assert_eq!(pod.copies_in(&resources(-5, 10), 7), 0);
    }

    #[test]
    fn resource_without_request_always_fits() {
        let overdrawn = Resources { memory: Bytes(-1), ..resources(1000, 0) };
        assert!(Resources { memory: Bytes(0), ..resources(500, 0) }.fits(&overdrawn));
    }

    #[test]
    fn extended_resources_are_compared_and_counted() {
        let gpu = ResourceName::from("nvidia.com/gpu");
        let asks = Resources { extended: [(gpu.clone(), 1)].into(), ..resources(1, 1) };
        assert!(!asks.fits(&resources(10, 10)));
        assert_eq!(asks.exceeding(&resources(10, 10)), ["nvidia.com/gpu"]);
        let offers = Resources { extended: [(gpu, 2)].into(), ..resources(10, 10) };
        assert_eq!(asks.copies_in(&Resources { pods: 9, ..offers.clone() }, 9), 2);
        assert!(offers.minus(&offers).extended.is_empty(), "no zero entries remain");
    }

    #[test]
    fn bytes_print_the_largest_whole_binary_unit() {
        assert_eq!(Bytes::gib(2).to_string(), "2Gi");
        assert_eq!(Bytes::mib(1536).to_string(), "1536Mi");
        assert_eq!(Bytes(1000).to_string(), "1000");
    }
}
