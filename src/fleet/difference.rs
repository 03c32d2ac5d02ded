//! Where EC2, Auto Scaling and Kubernetes say different things of one machine.
//!
//! A difference is no error: machines boot, nodes outlive them by minutes. Each carries since when it
//! can have held, so that whoever reads the list tells what passes from what stays.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::Serialize;

use super::{Instance, InstanceState, Observed};
use crate::ids::{GroupName, InstanceId, NodeName};

/// What two sources do not agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disagreement {
    /// EC2 has the machine, and Kubernetes has no node of it.
    InstanceWithoutNode,
    /// A group has the machine as a member, and Kubernetes has no node of it.
    MemberWithoutNode,
    /// Kubernetes has the node, and EC2 lists no such machine.
    NodeWithoutInstance,
    /// Kubernetes has the node, and EC2 says that its machine has ended or is ending.
    NodeOfEndedInstance,
    /// Two nodes say that they are the same machine.
    NodesOfOneInstance,
    /// A node says of no machine that it is it.
    NodeOfNoInstance,
}

impl Disagreement {
    /// Returns what it is, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
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

/// A machine of which the sources say different things.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    /// What they do not agree on.
    pub disagreement: Disagreement,
    /// The machine, as EC2 names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// The machine, as Kubernetes names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
    /// The group that it is a member of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupName>,
    /// The earliest moment at which it can have begun: a launch, or the registration of a node.
    pub since: Timestamp,
}

impl Observed {
    /// Returns where the sources do not agree; nothing can be said of a source that was not read
    /// whole, see [`Observed::is_complete`].
    #[must_use]
    pub fn differences(&self) -> Vec<Difference> {
        let mut nodes: BTreeSet<&InstanceId> = BTreeSet::new();
        let left_behind = self.left_behind();
        let mut found = Vec::new();
        for (name, node) in self.nodes.iter().filter(|(_, node)| !node.is_fargate()) {
            let id = node.instance.as_ref();
            let instance = id.and_then(|id| self.instances.get(id));
            let disagreement = match (id, instance) {
                (None, _) => Some(Disagreement::NodeOfNoInstance),
                (Some(_), _) if left_behind.contains_key(name) => {
                    Some(Disagreement::NodesOfOneInstance)
                }
                // Who else may own machines is not known: an instance that is not listed may be theirs.
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
    use crate::fleet::{ClusterIdentity, Membership, Node, fixture};

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
    fn every_machine_of_which_two_sources_say_different_things_is_named_once() {
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
    fn the_node_of_a_machine_is_the_one_that_is_ready_or_else_came_last_whatever_its_name() {
        let second = Timestamp::from_second(1).expect("in range");
        let of =
            |name: &str, ready, created_at| Node { ready, created_at, ..node(name, Some("i-1")) };
        for (name, other) in [("a", "z"), ("z", "a")] {
            for (best, left) in [
                (of(name, true, Timestamp::UNIX_EPOCH), of(other, false, second)),
                (of(name, true, second), of(other, true, Timestamp::UNIX_EPOCH)),
                (of(name, false, second), of(other, false, Timestamp::UNIX_EPOCH)),
            ] {
                let mut observed =
                    Observed::empty(ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
                for one in [&best, &left] {
                    observed.nodes.insert(one.name.clone(), one.clone());
                }
                let id = "i-1".into();
                assert_eq!(observed.node_of(&id), Some(&best));
                assert_eq!(observed.nodes_by_instance(), [(&id, &best)].into());
                assert_eq!(observed.left_behind(), [(&left.name, &best)].into());
            }
        }
    }
}
