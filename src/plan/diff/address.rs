//! Addresses: stable names for nodes that may not exist yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::fleet::{Instance, InstanceState, Observed, tag};
use crate::ids::{Address, InstanceId, NodeName, PoolName};

/// The name under which instances stand that are not ours.
const FOREIGN: &str = "foreign";

/// An address in its parts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub address: Address,
    pub name: String,
    pub index: Option<String>,
}

impl Named {
    /// Returns the address of an instance of ours in `pool` with `key`.
    pub(super) fn instance(pool: &str, key: &str) -> Self {
        Self {
            address: format!("ec2_instance.{pool}[\"{key}\"]").into(),
            name: pool.to_owned(),
            index: Some(key.to_owned()),
        }
    }

    /// Returns the address of an instance that is not ours.
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

/// The keys in use, by pool: what is there keeps its key, what comes gets the lowest unused.
#[derive(Debug, Default)]
pub(super) struct Keys {
    used: BTreeMap<PoolName, BTreeSet<String>>,
    by_instance: BTreeMap<InstanceId, (PoolName, String)>,
    /// Keys that more than one of our instances carries.
    shared: BTreeSet<(PoolName, String)>,
    /// For each pool, a number below which every key is used.
    below: BTreeMap<PoolName, usize>,
}

impl Keys {
    /// Reads the keys of our instances; one that is stopped, or about to be, has its own still. Where two carry the same one, which a half-applied
    /// replacement leaves behind, the younger keeps it and the other goes by its instance id.
    pub(super) fn of(observed: &Observed) -> Self {
        let mut keys = Self::default();
        let gone = [InstanceState::ShuttingDown, InstanceState::Terminated];
        let ours = |i: &&Instance| !gone.contains(&i.state) && i.is_ours(&observed.cluster.name);
        let mut instances: Vec<&Instance> = observed.instances.values().filter(ours).collect();
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
        // One that stops is no capacity, and has its key for as long as it has not ended.
        let stops = |i: &&Instance| {
            let state = matches!(i.state, InstanceState::Stopping | InstanceState::Stopped);
            state && i.is_ours(&observed.cluster.name)
        };
        for instance in observed.instances.values().filter(stops) {
            let (pool, key) = (instance.tags.get(tag::POOL), instance.tags.get(tag::KEY));
            if let (Some(pool), Some(key)) = (pool, key) {
                let pool = PoolName::from(pool.as_str());
                if !keys.used.entry(pool.clone()).or_default().insert(key.clone()) {
                    keys.shared.insert((pool, key.clone()));
                }
            }
        }
        keys
    }

    /// Returns the address of an instance of ours.
    pub(super) fn existing(&self, id: &InstanceId) -> Option<Named> {
        self.by_instance.get(id).map(|(pool, key)| Named::instance(pool.as_str(), key))
    }

    /// Returns whether the instance has a key of its own, which a replacement can take over: one that another carries as
    /// well is still used once it has gone.
    pub(super) fn has_number(&self, id: &InstanceId) -> bool {
        let own = self.by_instance.get(id).filter(|own| !self.shared.contains(*own));
        own.is_some_and(|(_, key)| key.parse::<u32>().is_ok())
    }

    /// Takes the lowest unused key of `pool`.
    pub(super) fn next(&mut self, pool: &PoolName) -> Named {
        let used = self.used.entry(pool.clone()).or_default();
        let below = self.below.entry(pool.clone()).or_default();
        // One more candidate than keys are used: one of them is free.
        let mut candidates = (*below..=used.len()).map(|number| (number, number.to_string()));
        let free = candidates.find(|(_, key)| !used.contains(key));
        let (number, key) = free.expect("more candidates than used keys");
        used.insert(key.clone());
        *below = number + 1;
        Named::instance(pool.as_str(), &key)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_key_that_two_machines_carry_is_taken_over_by_nobody() {
        let mut observed =
            Observed::empty(crate::fleet::ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
        observed.cluster.name = "c".into();
        for (id, key, state) in [
            ("i-1", "0", InstanceState::Running),
            ("i-2", "1", InstanceState::Running),
            ("i-3", "1", InstanceState::Running),
            ("i-4", "2", InstanceState::Running),
            ("i-5", "2", InstanceState::Stopped),
        ] {
            let mut instance = crate::fleet::fixture::ours(id, "c");
            instance.state = state;
            instance.tags.insert(tag::POOL.to_owned(), "web".to_owned());
            instance.tags.insert(tag::KEY.to_owned(), key.to_owned());
            observed.instances.insert(instance.id.clone(), instance);
        }
        let mut keys = Keys::of(&observed);
        let own = ["i-1", "i-2", "i-3", "i-4"].map(|id| keys.has_number(&id.into()));
        assert_eq!(own, [true, false, false, false]);
        assert_eq!(keys.next(&"web".into()).address.to_string(), r#"ec2_instance.web["3"]"#);
    }

    #[test]
    fn keys_fill_the_gaps_in_order() {
        let mut keys = Keys::default();
        let pool = PoolName::from("web");
        keys.used.insert(pool.clone(), ["0".into(), "2".into(), "i-0abc".into()].into());
        let next: Vec<String> = (0..3).map(|_| keys.next(&pool).address.to_string()).collect();
        assert_eq!(
            next,
            [r#"ec2_instance.web["1"]"#, r#"ec2_instance.web["3"]"#, r#"ec2_instance.web["4"]"#]
        );
    }
}
