//! Random node groups, and their sizes.

use fleetwright::model::ids::PoolName;
use fleetwright::model::observed::{Instance, Observed};
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Strategy};

use super::proof_case::ProofCase;
use super::tree_features::TreeFeature;

/// A managed or unmanaged group of eksctl, with its live group and members.
pub(super) fn groups() -> BoxedStrategy<TreeFeature> {
    let more = select(vec![
        "",
        ", labels: { disk: ssd }",
        ", taints: [{ key: team, value: a, effect: NoSchedule }]",
        ", availabilityZones: [us-east-1b], labels: { disk: hdd }",
    ]);
    let of = (select(vec!["m5.large", "m5.xlarge", "c5.large"]), more);
    let managed = proptest::bool::weighted(0.85);
    let sizes = (0..3_u32, 0..2_u32, 0..3_u32);
    (of, managed, sizes, select(vec!["us-east-1a", "us-east-1b"]))
        .prop_map(|((kind, more), managed, (members, min, room), zone)| {
            let zones = format!(", availabilityZones: [{zone}]");
            let (zone, more) = match more.strip_prefix(", availabilityZones") {
                Some(_) => ("us-east-1b", more.to_owned()),
                None => (zone, format!("{zones}{more}")),
            };
            let (min, max) = (min.min(members), members + room);
            let config = format!(
                "manifest\n  apiVersion: eksctl.io/v1alpha5\n  kind: ClusterConfig\n  metadata: {{ \
                 name: conformance, region: us-east-1 }}\n  nodeGroups:\n  - {{ name: g0, \
                 instanceType: {kind}, minSize: {min}, maxSize: {max}{more} }}"
            );
            let group = format!("group g0 desired={members} min={min} max={max}");
            let mut feature = TreeFeature::from_lines(&[&config, &group]);
            feature.lines.extend(managed.then(|| "manage g0".to_owned()));
            let member = |number| format!("node m{number} {kind} {zone} member=g0");
            feature.last.extend((0..members).map(member));
            feature
        })
        .boxed()
}

impl ProofCase {
    /// Returns the maximum number of members of group `pool`; `None` if `pool` is not a group.
    pub(super) fn most_members(&self, pool: &PoolName) -> Option<u32> {
        let declared = self.desired.node_groups.get(pool)?;
        let live = self.input.world.groups.get(format!("asg-{pool}").as_str());
        let most = live.map_or(declared.max, |live| live.max.min(declared.max));
        Some(if declared.manage { most } else { 0 })
    }
}

/// Returns the number of instances of a group.
pub(super) fn members(world: &Observed, pool: &PoolName) -> u32 {
    let name = format!("asg-{pool}");
    let is_member =
        |i: &&Instance| i.group.as_ref().is_some_and(|group| group.name.as_str() == name);
    u32::try_from(world.instances.values().filter(is_member).count()).unwrap_or(u32::MAX)
}
