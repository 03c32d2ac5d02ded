//! Differences between EC2, Auto Scaling and Kubernetes about one instance.
//!
//! A difference is no error: instances boot, and nodes outlive them by minutes. Each carries the time
//! at which it can have begun, so that a reader can distinguish transient from lasting differences.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::{Instance, InstanceState, Observed};
use crate::model::ids::{GroupName, InstanceId, NodeName};

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disagreement {
    /// An EC2 instance has no Kubernetes node.
    InstanceWithoutNode,
    /// A member of an Auto Scaling group has no Kubernetes node.
    MemberWithoutNode,
    /// A node names an instance that EC2 does not list.
    NodeWithoutInstance,
    /// A node's instance is shutting down or terminated.
    NodeOfEndedInstance,
    /// Two nodes name the same instance.
    NodesOfOneInstance,
    /// A node names no instance.
    NodeOfNoInstance,
}

impl Disagreement {
    /// Returns a short description for people.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::InstanceWithoutNode => "instance without a node",
            Self::MemberWithoutNode => "member of a group without a node",
            Self::NodeWithoutInstance => "node whose instance EC2 does not list",
            Self::NodeOfEndedInstance => "node whose instance has ended",
            Self::NodesOfOneInstance => "another node of the same instance",
            Self::NodeOfNoInstance => "node without a provider id of EC2",
        }
    }
}

/// A difference between sources about one instance or node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// Its kind.
    pub disagreement: Disagreement,
    /// The EC2 instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// The Kubernetes node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The Auto Scaling group of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The earliest possible start: the launch of the instance, or the registration of the node.
    pub since: Timestamp,
}

impl Observed {
    /// Returns the differences between sources. They are meaningful only if every source was read
    /// completely, see [`Observed::is_complete`].
    #[must_use]
    pub fn differences(&self) -> Vec<Difference> {
        let mut nodes: BTreeSet<&InstanceId> = BTreeSet::new();
        let stale = self.stale_nodes();
        let mut found = Vec::new();
        for (name, node) in self.nodes.iter().filter(|(_, node)| !node.is_fargate()) {
            let id = node.instance.as_ref();
            let instance = id.and_then(|id| self.instances.get(id));
            let disagreement = match (id, instance) {
                (None, _) => Some(Disagreement::NodeOfNoInstance),
                (Some(_), _) if stale.contains_key(name) => Some(Disagreement::NodesOfOneInstance),
                // An unlisted instance may belong to another account.
                (Some(_), None) => Some(Disagreement::NodeWithoutInstance),
                (Some(_), Some(instance)) if is_ending(instance) => {
                    Some(Disagreement::NodeOfEndedInstance)
                }
                (Some(_), Some(_)) => None,
            };
            nodes.extend(id);
            let group = instance.and_then(|instance| instance.group.as_ref());
            found.extend(disagreement.map(|disagreement| Difference {
                disagreement,
                instance: id.cloned(),
                node: Some(name.clone()),
                group: group.map(|group| group.name.clone()),
                since: node.created_at,
            }));
        }
        let alone = |instance: &&Instance| {
            instance.state == InstanceState::Running && !nodes.contains(&instance.id)
        };
        found.extend(self.instances.values().filter(alone).map(|instance| {
            let group = instance.group.as_ref().map(|group| group.name.clone());
            Difference {
                disagreement: match group {
                    Some(_) => Disagreement::MemberWithoutNode,
                    None => Disagreement::InstanceWithoutNode,
                },
                instance: Some(instance.id.clone()),
                node: None,
                group,
                since: instance.launched_at,
            }
        }));
        found.sort();
        found
    }
}

fn is_ending(instance: &Instance) -> bool {
    matches!(instance.state, InstanceState::ShuttingDown | InstanceState::Terminated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observed::{ClusterIdentity, Membership, Node, fixture};

    fn instance(id: &str, state: InstanceState, group: Option<&str>) -> Instance {
        let group = group.map(|name| Membership {
            name: name.into(),
            lifecycle: "InService".to_owned(),
            protected: false,
        });
        Instance { state, group, ..fixture::instance(id) }
    }

    fn node(name: &str, instance: Option<&str>) -> Node {
        Node { instance: instance.map(Into::into), ..fixture::node(name) }
    }

    #[test]
    fn each_difference_is_reported_once() {
        use InstanceState::{Pending, Running, Terminated};
        let mut observed = Observed::empty(ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
        for one in [
            instance("i-1", Running, None),
            instance("i-2", Running, None),
            instance("i-3", Running, Some("web")),
            instance("i-4", Terminated, None),
            instance("i-5", Pending, None),
        ] {
            observed.instances.insert(one.id.clone(), one);
        }
        for one in [
            node("a", Some("i-1")),
            node("b", Some("i-1")),
            node("c", Some("i-4")),
            node("d", Some("i-9")),
            node("e", None),
            node("fargate-f", None),
        ] {
            observed.nodes.insert(one.name.clone(), one);
        }
        let found: Vec<(Disagreement, String)> = observed
            .differences()
            .into_iter()
            .map(|one| {
                let instance = one.instance.map(|id| id.to_string()).unwrap_or_default();
                let node = one.node.map(|name| name.to_string()).unwrap_or_default();
                (one.disagreement, format!("{instance} {node}"))
            })
            .collect();
        let expected = [
            (Disagreement::InstanceWithoutNode, "i-2 "),
            (Disagreement::MemberWithoutNode, "i-3 "),
            (Disagreement::NodeWithoutInstance, "i-9 d"),
            (Disagreement::NodeOfEndedInstance, "i-4 c"),
            (Disagreement::NodesOfOneInstance, "i-1 b"),
            (Disagreement::NodeOfNoInstance, " e"),
        ];
        assert_eq!(found, expected.map(|(what, who)| (what, who.to_owned())));
    }

    #[test]
    fn ready_then_newest_node_is_current_node_of_instance() {
        let second = Timestamp::from_second(1).expect("in range");
        let with =
            |name: &str, ready, created_at| Node { ready, created_at, ..node(name, Some("i-1")) };
        for (name, other) in [("a", "z"), ("z", "a")] {
            for (best, left) in [
                (with(name, true, Timestamp::UNIX_EPOCH), with(other, false, second)),
                (with(name, true, second), with(other, true, Timestamp::UNIX_EPOCH)),
                (with(name, false, second), with(other, false, Timestamp::UNIX_EPOCH)),
            ] {
                let mut observed =
                    Observed::empty(ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
                for one in [&best, &left] {
                    observed.nodes.insert(one.name.clone(), one.clone());
                }
                let id = "i-1".into();
                assert_eq!(observed.node_for_instance(&id), Some(&best));
                assert_eq!(observed.nodes_by_instance(), [(&id, &best)].into());
                assert_eq!(observed.stale_nodes(), [(&left.name, &best)].into());
            }
        }
    }
}
