use std::collections::BTreeSet;

use proptest::prelude::*;

use jiff::Timestamp;

use super::*;
use crate::demand::DemandMode;
use crate::model::requirement::label;
use crate::model::units::MicroUsd;
use crate::plan::wire::{Check, CheckStatus};
use crate::testing::plan::address;
use crate::testing::valid_plan::plan;

/// A change to a plan, by name.
type PlanEdit = (&'static str, fn(&mut Plan));

fn before(plan: &mut Plan) -> &mut NodeState {
    plan.resource_changes[1].change.before.as_mut().unwrap()
}

fn after(plan: &mut Plan) -> &mut NodeState {
    plan.resource_changes[3].change.after.as_mut().unwrap()
}

fn size() -> GroupSize {
    GroupSize { name: Some("g".into()), min: 0, max: 9, desired: 3 }
}

/// Every decision of a plan: all fields that `apply` reads.
const DECIDED: &[PlanEdit] = &[
    ("cluster name", |p| p.capacity.base.world.cluster.name.push('x')),
    ("cluster region", |p| p.capacity.base.world.cluster.region.push('x')),
    ("cluster account", |p| p.capacity.base.world.cluster.account.push('x')),
    ("cluster uid", |p| p.capacity.base.world.cluster.uid.push('x')),
    ("complete", |p| p.complete = false),
    ("address", |p| p.resource_changes[1].address = address("7")),
    ("name", |p| p.resource_changes[1].name.push('x')),
    ("index, which becomes a tag", |p| p.resource_changes[3].index = Some("7".to_owned())),
    ("batch, which can block a termination", |p| {
        let row = p.explain_mut(&address("1"));
        row.group = Some("x".to_owned());
    }),
    ("kind", |p| p.resource_changes[1].kind = ResourceKind::KubernetesNode),
    ("actions", |p| p.resource_changes[1].change.actions = vec![Action::Update]),
    ("order of actions", |p| p.resource_changes[2].change.actions.reverse()),
    ("row gone", |p| drop(p.resource_changes.remove(3))),
    ("no-op turned into a change", |p| {
        p.resource_changes[0].change.actions = vec![Action::Delete];
    }),
    ("no before", |p| p.resource_changes[1].change.before = None),
    ("before.instance_id", |p| before(p).instance_id = Some("i-7".into())),
    ("before.node_uid", |p| before(p).node_uid = None),
    ("before.pool", |p| before(p).pool = None),
    ("before.instance_type", |p| before(p).instance_type = Some("x".into())),
    ("before.zone", |p| before(p).zone = Some("x".into())),
    ("before.capacity_type", |p| before(p).capacity_type = Some(CapacityType::Spot)),
    ("before.group", |p| before(p).group = Some(size())),
    ("no after", |p| p.resource_changes[3].change.after = None),
    ("after.pool", |p| after(p).pool = Some("x".into())),
    ("after.instance_type", |p| after(p).instance_type = Some("x".into())),
    ("after.zone", |p| after(p).zone = Some("x".into())),
    ("after.zone_id", |p| after(p).zone_id = None),
    ("after.capacity_type", |p| after(p).capacity_type = Some(CapacityType::Spot)),
    ("after.image", |p| after(p).image = Some("x".to_owned())),
    ("after.labels", |p| after(p).labels.extend([label("a", "b")])),
    ("after.taints", |p| after(p).taints.clear()),
    ("after.startup_taints", |p| after(p).startup_taints.clear()),
    ("taint moved to startup", |p| {
        let taints = std::mem::take(&mut after(p).taints);
        after(p).startup_taints.extend(taints);
    }),
    ("after.spec_digest", |p| after(p).spec_digest = None),
    ("after.capacity", |p| after(p).capacity.cpu_milli += 1),
    ("after.allocatable", |p| after(p).allocatable.cpu_milli += 1),
    ("after.open_labels, which become tags", |p| after(p).open_labels.push("x".into())),
    ("after.reservation", |p| after(p).reservation = Some("cr-7".into())),
    ("after.group", |p| after(p).group = Some(size())),
    ("order of waves", |p| p.capacity.waves.reverse()),
    ("step of a wave", |p| p.capacity.waves[0].step = WaveStep::Retire),
    ("address of a wave", |p| drop(p.capacity.waves[0].addresses.pop())),
    ("waves joined", |p| {
        let wave = p.capacity.waves.pop().unwrap();
        p.capacity.waves[0].addresses.extend(wave.addresses);
    }),
    ("address of alternatives", |p| p.capacity.alternatives[0].address = address("7")),
    ("alternative gone", |p| drop(p.capacity.alternatives[0].offerings.pop())),
    ("alternative.instance_type", |p| {
        p.capacity.alternatives[0].offerings[0].instance_type = "x".into();
    }),
    ("alternative.zone", |p| p.capacity.alternatives[0].offerings[0].zone = "x".into()),
    ("alternative.capacity_type", |p| {
        p.capacity.alternatives[0].offerings[0].capacity_type = CapacityType::Spot;
    }),
    ("node_annotations", |p| {
        let annotations = [("team".to_owned(), "a".to_owned())].into();
        p.capacity.node_annotations.insert("web".into(), annotations);
    }),
    ("precondition gone", |p| drop(p.capacity.base.preconditions.pop())),
    ("address of a precondition", |p| p.capacity.base.preconditions[0].address = address("7")),
    ("replicas of a precondition", |p| {
        let Condition::ReplicasAtMost { replicas, .. } =
            &mut p.capacity.base.preconditions[1].condition
        else {
            panic!("the second precondition is on replicas")
        };
        *replicas += 1;
    }),
];

/// Returns a contingency of two pools.
fn contingency() -> Contingency {
    let pool = |name: &str| PoolContingency {
        pool: name.into(),
        nodes: 1,
        hourly: MicroUsd(5),
        node_hourly: MicroUsd(5),
        instance_types: vec!["m5.large".into(), "c5.large".into()],
    };
    let pools = vec![pool("a"), pool("b")];
    Contingency { nodes: 2, hourly: MicroUsd(10), pods: 3, pools }
}

#[test]
fn digest_covers_contingency_nodes_and_identity_their_price() {
    let with = |edit: fn(&mut Contingency)| {
        let mut plan = plan();
        let mut contingency = contingency();
        edit(&mut contingency);
        plan.capacity.placement.contingency = Some(contingency);
        let digest = digest(&plan);
        let identity = crate::plan::plan_id(&plan, &digest);
        (digest, identity)
    };
    let (plain, identity) = with(|_| ());
    assert_ne!(plain, digest(&plan()), "a contingency is a decision");
    let decided: [fn(&mut Contingency); 4] = [
        |c| c.pools[0].nodes += 1,
        |c| c.pools[0].pool = "c".into(),
        |c| c.pools[0].instance_types.truncate(1),
        |c| c.pools.truncate(1),
    ];
    for edit in decided {
        assert_ne!(with(edit).0, plain);
    }
    let priced: [fn(&mut Contingency); 4] = [
        |c| c.hourly.0 += 1,
        |c| c.pools[0].hourly.0 += 1,
        |c| c.pools[0].node_hourly.0 += 1,
        |c| c.pods += 1,
    ];
    for edit in priced {
        let (digest, id) = with(edit);
        assert_eq!(digest, plain, "a price list voids no approval");
        assert_ne!(id, identity);
    }
    assert_eq!(with(|c| c.pools.reverse()).0, plain);
}

/// Every informational field.
const INFORMATIONAL: &[PlanEdit] = &[
    ("format version", |p| p.format_version = "1.7".to_owned()),
    ("tool version", |p| p.tool_version.push('x')),
    ("time", |p| p.timestamp = Timestamp::UNIX_EPOCH),
    ("world taken at", |p| p.capacity.base.world.taken_at = Timestamp::UNIX_EPOCH),
    ("expiry", |p| p.capacity.expires_at = Timestamp::UNIX_EPOCH),
    ("commit", |p| p.capacity.base.commit = None),
    ("tree", |p| p.capacity.base.tree.push('x')),
    ("repository", |p| p.capacity.base.repository = Some("x".to_owned())),
    ("path", |p| p.capacity.base.path.push('x')),
    ("flags", |p| (p.applyable, p.errored) = (false, true)),
    ("totals", |p| p.summary.add = 7),
    ("dirty", |p| p.capacity.base.dirty = true),
    ("world name", |p| p.capacity.base.world.name.push('x')),
    ("demand mode", |p| p.capacity.base.demand = DemandMode::Ceiling),
    ("stated digest", |p| p.capacity.digest = "x".into()),
    ("stated identity", |p| p.capacity.plan_id = "x".into()),
    ("prices", |p| {
        p.capacity.cost.hourly_after = MicroUsd(1);
        p.capacity.cost.prices.date.push('x');
        for row in &mut p.capacity.explain {
            row.hourly_after = Some(MicroUsd(1));
        }
        for offering in p.capacity.alternatives.iter_mut().flat_map(|row| &mut row.offerings) {
            offering.hourly = MicroUsd(1);
        }
    }),
    ("order of alternatives, which follows prices", |p| {
        p.capacity.alternatives[0].offerings.reverse();
    }),
    ("reasons", |p| {
        for row in &mut p.capacity.explain {
            row.pods.clear();
            row.rejected.clear();
        }
        p.resource_changes[1].action_reason = Some("x".to_owned());
    }),
    ("policies", |p| {
        p.checks.push(Check {
            name: "x".to_owned(),
            status: CheckStatus::Pass,
            ..Check::default()
        });
    }),
    ("rows that change nothing", |p| drop(p.resource_changes.remove(0))),
    ("node name", |p| before(p).node = None),
    ("order of taints", |p| {
        let mut row = after(p).taints.clone();
        row.extend(std::mem::take(&mut after(p).startup_taints));
        after(p).taints = row;
    }),
];

#[test]
fn every_decided_field_changes_the_digest() {
    let mut digests = BTreeSet::from([digest(&plan())]);
    for (name, edit) in DECIDED {
        let mut other = plan();
        edit(&mut other);
        assert!(digests.insert(digest(&other)), "{name}");
    }
}

#[test]
fn informational_fields_do_not_change_the_digest() {
    for (name, edit) in INFORMATIONAL {
        let (mut one, mut other) = (plan(), plan());
        edit(&mut other);
        if *name == "order of taints" {
            // Both have two taints, in opposite order.
            edit(&mut one);
            after(&mut other).taints.reverse();
            assert_ne!(one, other);
        }
        assert_eq!(digest(&other), digest(&one), "{name}");
    }
}

proptest! {
    #[test]
    fn digest_is_independent_of_row_order(
        rows in Just(plan().resource_changes).prop_shuffle(),
        alternatives in Just(plan().capacity.alternatives).prop_shuffle(),
        preconditions in Just(plan().capacity.base.preconditions).prop_shuffle(),
        wave in Just(plan().capacity.waves[0].addresses.clone()).prop_shuffle(),
    ) {
        let mut other = plan();
        other.resource_changes = rows;
        other.capacity.alternatives = alternatives;
        other.capacity.base.preconditions = preconditions;
        other.capacity.waves[0].addresses = wave;
        prop_assert_eq!(digest(&other), digest(&plan()));
    }

    #[test]
    fn digest_ignores_informational_edits_beside_decisions(
        decided in proptest::sample::subsequence(DECIDED.to_vec(), 0..4),
        shown in proptest::sample::subsequence(INFORMATIONAL.to_vec(), 0..4),
    ) {
        let (mut one, mut other) = (plan(), plan());
        // Removed rows cannot be edited, so edits that remove rows are skipped.
        let gone = |name: &str| name.contains("gone") || name.starts_with("no ");
        let removes = |(name, _): &&PlanEdit| gone(name) || name.contains("rows");
        for (_, edit) in decided.iter().filter(|edit| !removes(edit)) {
            edit(&mut one);
            edit(&mut other);
        }
        for (_, edit) in shown.iter().filter(|edit| !removes(edit) && edit.0 != "order of taints") {
            edit(&mut other);
        }
        prop_assert_eq!(digest(&other), digest(&one));
    }
}

#[test]
fn old_format_digests_are_stable_and_distinct() {
    for (name, edit) in DECIDED {
        let (mut old, mut new) = (plan(), plan());
        edit(&mut old);
        edit(&mut new);
        old.format_version = "1.1".to_owned();
        assert_ne!(digest(&old), digest(&new), "{name}");
    }
    let mut old = plan();
    old.format_version = "1.0".to_owned();
    let before = digest(&old);
    after(&mut old).allocatable.cpu_milli += 1;
    old.resource_changes[3].index = Some("7".to_owned());
    assert_eq!(digest(&old), before, "formats 1.0 and 1.1 omit these fields");
}
