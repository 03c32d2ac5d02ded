//! Defects of rows: order, addresses, actions and reasons.

use super::*;

pub(super) const DEFECTS: &[Defect] = &[
    ("row/order", "rows out of order", |p, _| p.resource_changes.swap(0, 1)),
    ("row/order", "a duplicate row", |p, _| {
        let twice = p.resource_changes[0].clone();
        p.resource_changes.insert(0, twice);
    }),
    ("row/order", "demand out of order", |p, _| p.capacity.demand.reverse()),
    ("row/order", "placements out of order", |p, _| p.capacity.placements.reverse()),
    ("row/missing", "a reason without a row", |p, _| {
        drop(p.resource_changes.remove(3));
    }),
    ("row/address", "an address without its key", |p, _| {
        row(p, "0").address = "ec2_instance.web".into();
    }),
    ("row/address", "an index that differs from the address", |p, _| {
        row(p, "0").index = Some("00".to_owned());
    }),
    ("row/address", "the name of another pool", |p, _| {
        edit_kept_node(p, |state| state.pool = Some("api".into()));
    }),
    ("row/actions", "an unknown list of actions", |p, _| row(p, "2").change.actions.reverse()),
    ("row/actions", "no actions", |p, _| row(p, "0").change.actions.clear()),
    ("row/actions", "a create with a state before", |p, _| {
        row(p, "2").change.actions = vec![Action::Create];
    }),
    ("row/actions", "a no-op that changes a label", |p, _| {
        after(p, "0").labels.extend([label("a", "b")]);
    }),
    ("row/actions", "an update that changes nothing", |p, _| {
        row(p, "0").change.actions = vec![Action::Update];
    }),
    ("row/undecided", "a launch without a zone", |p, _| after(p, "3").zone = None),
    ("row/undecided", "a launch without an image", |p, _| after(p, "3").image = None),
    ("row/unknown", "the id of an instance before its launch", |p, _| {
        after(p, "3").instance_id = Some("i-7".into());
    }),
    ("row/unknown", "an unknown instance type", |p, _| {
        row(p, "3").change.after_unknown.insert("instance_type".to_owned(), true);
    }),
    ("row/unknown", "an unknown field of a retained node", |p, _| {
        row(p, "0").change.after_unknown.insert("node".to_owned(), true);
    }),
    ("row/kind", "a group", |p, _| row(p, "0").kind = ResourceKind::AutoscalingGroup),
    ("explain/missing", "a row without a reason", |p, _| drop(p.capacity.explain.remove(0))),
    ("explain/reason", "a launch for the reason of a removal", |p, _| {
        explain(p, "3").reason = explain(p, "1").reason.clone();
    }),
    ("explain/reason", "a replacement without the reason for its removal", |p, _| {
        explain(p, "2").retire_reason = None;
    }),
];
