//! Defects of waves and preconditions.

use super::*;
use crate::plan::wire::{Wave, WaveStep};

pub(super) const DEFECTS: &[Defect] = &[
    ("waves/rows", "a launch without a wave", |p, _| {
        drop(p.capacity.waves[0].addresses.pop());
    }),
    ("waves/rows", "a replacement without a removal wave", |p, _| {
        drop(p.capacity.waves[1].addresses.pop());
    }),
    ("waves/rows", "a retained node in a removal wave", |p, _| {
        p.capacity.waves[1].addresses.insert(0, address("0"));
    }),
    ("waves/rows", "a wave with an unknown address", |p, _| {
        p.capacity.waves[1].addresses.push(address("7"));
    }),
    ("waves/rows", "a node launched twice", |p, _| {
        let again = Wave { step: WaveStep::Launch, addresses: vec![address("3")] };
        p.capacity.waves.insert(0, again);
    }),
    ("waves/rows", "an update without a wave", |p, _| {
        row(p, "0").change.actions = vec![Action::Update];
    }),
    ("waves/order", "retirement before launch", |p, _| p.capacity.waves.reverse()),
    ("waves/order", "addresses out of order", |p, _| p.capacity.waves[0].addresses.reverse()),
    ("waves/empty", "an empty wave", |p, _| {
        p.capacity.waves.push(Wave { step: WaveStep::Retire, addresses: Vec::new() });
    }),
    ("conditions/order", "conditions out of order", |p, _| {
        p.capacity.base.preconditions.reverse();
    }),
    ("conditions/missing", "a missing identity of the removed node", |p, _| {
        drop(p.capacity.base.preconditions.remove(0));
    }),
    ("conditions/missing", "a missing condition on a shrinking workload", |p, _| {
        drop(p.capacity.base.preconditions.remove(1));
    }),
    ("conditions/missing", "a missing condition on a deleted workload", |_, i| {
        let mut orphan = i.observed.pods[2].clone();
        std::sync::Arc::make_mut(&mut orphan).owner = Some(workload("ghost"));
        i.observed.pods.push(orphan);
    }),
    ("conditions/missing", "a missing condition on a key", |p, _| {
        drop(p.capacity.base.preconditions.pop());
    }),
    ("conditions/possible", "an instance with another node", |p, _| {
        p.capacity.base.preconditions[0].condition =
            Condition::InstanceIs { instance_id: "i-1".into(), node_uid: None };
    }),
    ("conditions/possible", "a key that is in use", |p, _| {
        let key = Condition::KeyUnused { pool: "web".into(), key: "0".to_owned() };
        p.capacity.base.preconditions[4].condition = key;
    }),
    ("conditions/possible", "another number of replicas than planned", |p, _| {
        p.capacity.base.preconditions[1].condition =
            Condition::ReplicasAtMost { workload: workload("api"), replicas: 4 };
    }),
    ("conditions/row", "a condition of a retained node", |p, _| {
        p.capacity.base.preconditions[0].address = address("0");
    }),
];
