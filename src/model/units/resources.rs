//! The vector of resources that pods ask for and nodes offer.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Quantity;
use crate::model::ids::define_id;

define_id! {
    /// The name of an extended resource, such as `nvidia.com/gpu` or `hugepages-2Mi`.
    ResourceName
}

/// Thousandths of a CPU core.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MilliCpu(pub i64);

/// Bytes of memory or storage.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub i64);

impl MilliCpu {
    /// Converts an amount of cores, rounded up to a thousandth.
    #[must_use]
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
    /// Bytes in one mebibyte.
    pub const MIB: i64 = 1 << 20;
    /// Bytes in one gibibyte.
    pub const GIB: i64 = 1 << 30;

    /// Returns `mib` mebibytes.
    #[must_use]
    pub const fn mib(mib: i64) -> Self {
        Self(mib.saturating_mul(Self::MIB))
    }

    /// Returns `gib` gibibytes.
    #[must_use]
    pub const fn gib(gib: i64) -> Self {
        Self(gib.saturating_mul(Self::GIB))
    }

    /// Converts an amount of bytes, rounded up to a whole one.
    #[must_use]
    pub fn from_quantity(quantity: Quantity) -> Self {
        Self(quantity.ceil_units())
    }
}

impl fmt::Display for Bytes {
    /// Writes the largest binary unit that needs no fraction, as Kubernetes prints quantities.
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

/// An amount of every resource: what a pod asks for, or what a node offers.
///
/// `pods` counts pods themselves: a pod asks for one, a node offers as many as its kubelet admits.
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
    /// Extended resources and huge pages, in whole units (bytes for huge pages); no zero entries.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "drop_zeros")]
    pub extended: BTreeMap<ResourceName, i64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero_bytes(bytes: &Bytes) -> bool {
    bytes.0 == 0
}

/// Drops zero amounts, which nodes report (huge pages, mostly): a zero amount equals an absent one.
fn drop_zeros<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<ResourceName, i64>, D::Error> {
    let mut amounts = BTreeMap::<ResourceName, i64>::deserialize(deserializer)?;
    amounts.retain(|_, amount| *amount != 0);
    Ok(amounts)
}

impl Resources {
    /// Returns the sum; saturates instead of wrapping.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, i64::saturating_add)
    }

    /// Returns the difference, which may be negative in any part.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        self.zip(other, i64::saturating_sub)
    }

    /// Returns the larger of both, resource by resource.
    #[must_use]
    pub fn at_least(&self, other: &Self) -> Self {
        self.zip(other, i64::max)
    }

    /// Returns the smaller of both, resource by resource.
    #[must_use]
    pub fn at_most(&self, other: &Self) -> Self {
        self.zip(other, i64::min)
    }

    /// Returns this amount `count` times.
    #[must_use]
    pub fn times(&self, count: i64) -> Self {
        self.zip(self, |a, _| a.saturating_mul(count))
    }

    /// Returns whether every part of `self` is at most that of `free`.
    ///
    /// A resource that is not requested always fits, even if `free` is overdrawn: kube-scheduler's
    /// `NodeResourcesFit` treats it so.
    #[must_use]
    pub fn fits(&self, free: &Self) -> bool {
        let part = |asked: i64, free: i64| asked <= 0 || asked <= free;
        part(self.cpu.0, free.cpu.0)
            && part(self.memory.0, free.memory.0)
            && part(self.ephemeral_storage.0, free.ephemeral_storage.0)
            && part(self.pods, free.pods)
            && self.extended.iter().all(|(name, asked)| part(*asked, free.extended(name)))
    }

    /// Returns how many times `self` fits into `free`, at most `limit`.
    #[must_use]
    pub fn copies_in(&self, free: &Self, limit: i64) -> i64 {
        let part = |asked: i64, free: i64| if asked <= 0 { limit } else { free.max(0) / asked };
        self.extended
            .iter()
            .map(|(name, asked)| part(*asked, free.extended(name)))
            .chain([
                part(self.cpu.0, free.cpu.0),
                part(self.memory.0, free.memory.0),
                part(self.ephemeral_storage.0, free.ephemeral_storage.0),
                part(self.pods, free.pods),
            ])
            .fold(limit.max(0), i64::min)
    }

    /// Returns the amount of one extended resource, zero when absent.
    #[must_use]
    pub fn extended(&self, name: &ResourceName) -> i64 {
        self.extended.get(name).copied().unwrap_or(0)
    }

    /// Returns the names of the parts in which `self` exceeds `free`, in a fixed order.
    #[must_use]
    pub fn exceeding(&self, free: &Self) -> Vec<String> {
        let over = |asked: i64, free: i64| asked > 0 && asked > free;
        let mut names = Vec::new();
        for (name, asked, free) in [
            ("cpu", self.cpu.0, free.cpu.0),
            ("memory", self.memory.0, free.memory.0),
            ("ephemeral-storage", self.ephemeral_storage.0, free.ephemeral_storage.0),
            ("pods", self.pods, free.pods),
        ] {
            if over(asked, free) {
                names.push(name.to_owned());
            }
        }
        let extended =
            self.extended.iter().filter(|(name, asked)| over(**asked, free.extended(name)));
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
