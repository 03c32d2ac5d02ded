//! Differences between EC2, Auto Scaling and Kubernetes in the state of an instance.
//!
//! Short differences are normal: instances need time to boot, and nodes exist for minutes after
//! their instances end. No source states when a difference began. Each one has the time before which
//! it cannot have begun: a young instance or node may still change.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::{Instance, InstanceState, Observed};
use crate::model::ids::{GroupName, InstanceId, NodeName};

/// Kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disagreement {
    /// An EC2 instance has no Kubernetes node.
    InstanceWithoutNode,
    /// A member of an Auto Scaling group has no Kubernetes node.
    MemberWithoutNode,
    /// The instance of a node is absent from EC2.
    NodeWithoutInstance,
    /// The instance of a node is shutting down or terminated.
    NodeOfEndedInstance,
    /// Two nodes refer to the same instance.
    NodesOfOneInstance,
    /// A node refers to no instance.
    NodeOfNoInstance,
}

impl Disagreement {
    /// Returns the event at the time `since` of a difference.
    pub fn event(self) -> &'static str {
        match self {
            Self::InstanceWithoutNode | Self::MemberWithoutNode => "launched",
            Self::NodeWithoutInstance
            | Self::NodeOfEndedInstance
            | Self::NodesOfOneInstance
            | Self::NodeOfNoInstance => "registered",
        }
    }

    /// Returns a short human-readable description.
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
    /// Kind of the difference.
    pub disagreement: Disagreement,
    /// EC2 instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Kubernetes node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// Auto Scaling group of the instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// Launch of the instance, or registration of the node. The difference began later, at an
    /// unknown time.
    pub since: Timestamp,
}

impl Observed {
    /// Returns the differences between sources. They are meaningful only if every source was read
    /// completely; see [`Observed::is_complete`].
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
                (Some(_), Some(instance)) if instance.has_ended() => {
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
        let lacks_node = |instance: &&Instance| {
            instance.state == InstanceState::Running && !nodes.contains(&instance.id)
        };
        found.extend(self.instances.values().filter(lacks_node).map(|instance| {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observed::{Membership, Node};
    use crate::testing::world;

    fn instance(id: &str, state: InstanceState, group: Option<&str>) -> Instance {
        let group = group.map(|name| Membership {
            name: name.into(),
            lifecycle: "InService".to_owned(),
            protected: false,
        });
        Instance { state, group, ..world::instance(id) }
    }

    fn node(name: &str, instance: Option<&str>) -> Node {
        Node { instance: instance.map(Into::into), ..world::node(name) }
    }

    #[test]
    fn each_difference_is_reported_once() {
        use InstanceState::{Pending, Running, Terminated};
        let instances = [
            instance("i-1", Running, None),
            instance("i-2", Running, None),
            instance("i-3", Running, Some("web")),
            instance("i-4", Terminated, None),
            instance("i-5", Pending, None),
        ];
        let nodes = [
            node("a", Some("i-1")),
            node("b", Some("i-1")),
            node("c", Some("i-4")),
            node("d", Some("i-9")),
            node("e", None),
            node("fargate-f", None),
        ];
        let observed = Observed::of_cluster("", Timestamp::UNIX_EPOCH);
        let observed = instances.into_iter().fold(observed, Observed::with_instance);
        let observed = nodes.into_iter().fold(observed, Observed::with_node);
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
        assert_eq!(found, expected.map(|(kind, names)| (kind, names.to_owned())));
    }

    #[test]
    fn current_node_is_ready_then_newest() {
        let second = Timestamp::from_second(1).expect("in range");
        let with =
            |name: &str, ready, created_at| Node { ready, created_at, ..node(name, Some("i-1")) };
        for (name, other) in [("a", "z"), ("z", "a")] {
            for (current, stale_node) in [
                (with(name, true, Timestamp::UNIX_EPOCH), with(other, false, second)),
                (with(name, true, second), with(other, true, Timestamp::UNIX_EPOCH)),
                (with(name, false, second), with(other, false, Timestamp::UNIX_EPOCH)),
            ] {
                let mut observed = Observed::of_cluster("", Timestamp::UNIX_EPOCH);
                for one in [&current, &stale_node] {
                    observed.nodes.insert(one.name.clone(), one.clone());
                }
                let id = "i-1".into();
                assert_eq!(observed.node_for_instance(&id), Some(&current));
                assert_eq!(observed.nodes_by_instance(), [(&id, &current)].into());
                assert_eq!(observed.stale_nodes(), [(&stale_node.name, &current)].into());
            }
        }
    }
}
