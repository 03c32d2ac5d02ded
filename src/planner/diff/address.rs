//! Row addresses: stable names of nodes, including future nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::{Address, InstanceId, NodeName, PoolName};
use crate::model::observed::{Instance, InstanceState, Observed, tag};

/// Row name of unmanaged instances.
const FOREIGN: &str = "foreign";

/// Address of a row, and its parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowIdentity {
    pub address: Address,
    pub name: String,
    pub index: Option<String>,
}

impl RowIdentity {
    /// Returns the address of the managed instance in `pool` with `key`.
    pub(super) fn instance(pool: &str, key: &str) -> Self {
        Self {
            address: format!("ec2_instance.{pool}[\"{key}\"]").into(),
            name: pool.to_owned(),
            index: Some(key.to_owned()),
        }
    }

    /// Returns the address of an unmanaged instance.
    pub(super) fn foreign(id: &InstanceId) -> Self {
        Self::instance(FOREIGN, id.as_str())
    }

    /// Returns the address of a node without an instance.
    pub(super) fn node(name: &NodeName) -> Self {
        Self {
            address: format!("kubernetes_node.{name}").into(),
            name: name.to_string(),
            index: None,
        }
    }
}

/// Keys in use, by pool. An existing instance keeps its key, and a launch gets the lowest unused
/// key.
#[derive(Debug, Default)]
pub(super) struct PoolKeys {
    used: BTreeMap<PoolName, BTreeSet<String>>,
    by_instance: BTreeMap<InstanceId, (PoolName, String)>,
    /// Keys that several managed instances carry.
    shared: BTreeSet<(PoolName, String)>,
    /// By pool: a number below which every key is in use.
    below: BTreeMap<PoolName, usize>,
}

impl PoolKeys {
    /// Reads the keys of managed instances, including stopping and stopped ones.
    ///
    /// A partially applied replacement can leave two instances with the same key. The newer
    /// instance keeps the key, and the instance ID replaces the key of the other one.
    pub(super) fn from_observed(observed: &Observed) -> Self {
        let mut keys = Self::default();
        let is_managed = |i: &&Instance| !i.has_ended() && i.is_managed_by(&observed.cluster.name);
        let mut instances: Vec<&Instance> =
            observed.instances.values().filter(is_managed).collect();
        instances.sort_by(|a, b| (b.launched_at, &a.id).cmp(&(a.launched_at, &b.id)));
        for instance in instances {
            let Some(pool) = instance.tags.get(tag::POOL) else { continue };
            let pool = PoolName::from(pool.as_str());
            let used = keys.used.entry(pool.clone()).or_default();
            let carried = instance.tags.get(tag::KEY);
            let tagged = carried.filter(|key| !used.contains(*key));
            if let (Some(key), None) = (carried, tagged) {
                keys.shared.insert((pool.clone(), key.clone()));
            }
            let key = tagged.cloned().unwrap_or_else(|| instance.id.to_string());
            used.insert(key.clone());
            keys.by_instance.insert(instance.id.clone(), (pool, key));
        }
        // A stopping instance provides no capacity, but its key stays in use until it is
        // terminated.
        let is_stopping = |i: &&Instance| {
            let state = matches!(i.state, InstanceState::Stopping | InstanceState::Stopped);
            state && i.is_managed_by(&observed.cluster.name)
        };
        for instance in observed.instances.values().filter(is_stopping) {
            let (pool, key) = (instance.tags.get(tag::POOL), instance.tags.get(tag::KEY));
            if let (Some(pool), Some(key)) = (pool, key) {
                let pool = PoolName::from(pool.as_str());
                if !keys.used.entry(pool.clone()).or_default().insert(key.clone()) {
                    keys.shared.insert((pool, key.clone()));
                }
            }
        }
        // The label of the node still names the key of an instance that lost its tags.
        for untagged in observed.untagged_nodes().into_values() {
            let Some(pool) = untagged.pool else { continue };
            if !keys.used.entry(pool.clone()).or_default().insert(untagged.key.clone()) {
                keys.shared.insert((pool, untagged.key));
            }
        }
        keys
    }

    /// Returns the address of a managed instance.
    pub(super) fn identity_of(&self, id: &InstanceId) -> Option<RowIdentity> {
        self.by_instance.get(id).map(|(pool, key)| RowIdentity::instance(pool.as_str(), key))
    }

    /// Returns true if a replacement can take over the key of the instance. A shared key stays in
    /// use after the termination.
    pub(super) fn has_reusable_key(&self, id: &InstanceId) -> bool {
        let own = self.by_instance.get(id).filter(|own| !self.shared.contains(*own));
        own.is_some_and(|(_, key)| key.parse::<u32>().is_ok())
    }

    /// Allocates the lowest unused key of `pool`.
    pub(super) fn next(&mut self, pool: &PoolName) -> RowIdentity {
        let used = self.used.entry(pool.clone()).or_default();
        let below = self.below.entry(pool.clone()).or_default();
        // There is one more candidate than keys in use, so at least one candidate is unused.
        let mut candidates = (*below..=used.len()).map(|number| (number, number.to_string()));
        let free = candidates.find(|(_, key)| !used.contains(key));
        let (number, key) = free.expect("more candidates than used keys");
        used.insert(key.clone());
        *below = number + 1;
        RowIdentity::instance(pool.as_str(), &key)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::testing::world::managed_instance;

    #[test]
    fn key_of_two_instances_is_not_reused() {
        let mut observed = Observed::of_cluster("c", Timestamp::UNIX_EPOCH);
        for (id, key, state) in [
            ("i-1", "0", InstanceState::Running),
            ("i-2", "1", InstanceState::Running),
            ("i-3", "1", InstanceState::Running),
            ("i-4", "2", InstanceState::Running),
            ("i-5", "2", InstanceState::Stopped),
        ] {
            let instance = managed_instance(id, "c").with_tags(&[(tag::KEY, key)]);
            observed = observed.with_instance(Instance { state, ..instance });
        }
        let mut keys = PoolKeys::from_observed(&observed);
        let own = ["i-1", "i-2", "i-3", "i-4"].map(|id| keys.has_reusable_key(&id.into()));
        assert_eq!(own, [true, false, false, false]);
        assert_eq!(keys.next(&"web".into()).address.to_string(), r#"ec2_instance.web["3"]"#);
    }

    #[test]
    fn new_keys_fill_gaps_in_order() {
        let mut keys = PoolKeys::default();
        let pool = PoolName::from("web");
        keys.used.insert(pool.clone(), ["0".into(), "2".into(), "i-0abc".into()].into());
        let next: Vec<String> = (0..3).map(|_| keys.next(&pool).address.to_string()).collect();
        assert_eq!(
            next,
            [r#"ec2_instance.web["1"]"#, r#"ec2_instance.web["3"]"#, r#"ec2_instance.web["4"]"#]
        );
    }
}
