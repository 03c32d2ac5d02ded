//! The form of a plan file without rows of unchanged nodes.
//!
//! Rows that change nothing are grouped by the properties that they share. Readers restore the
//! rows, so both forms read back as the same plan, with the same digest and the same identity.
//! Policies, approvals and `apply` never see the shorter form.

use std::collections::{BTreeMap, BTreeSet};

use super::canonical;
use super::saved::{ReadPlanError, write};
use super::wire::{
    Action, Change, ExplainRow, KEY_LABEL, NodeState, Plan, ResourceChange, UnchangedGroup,
    UnchangedReason, UnchangedRow,
};
use crate::model::ids::{Address, LabelKey, LabelValue, Labels};
use crate::model::requirement::key;

/// Maximum size of the restored rows in bytes of compact JSON, about 150,000 nodes. A small file
/// must not fill the memory.
pub const UNCHANGED_BYTES_MAX: usize = 1 << 30;

/// Memory of an entry of a map or a list, without its text.
const ENTRY_BYTES: usize = 100;

/// Rows that a file or an output contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RowSelection {
    /// All rows.
    #[default]
    All,
    /// Rows with changes. Other rows are grouped.
    ChangesOnly,
}

impl Plan {
    /// Returns the plan file with the selected rows.
    pub fn to_file_json(&self, rows: RowSelection) -> String {
        match rows {
            RowSelection::All => self.to_json(),
            RowSelection::ChangesOnly => write(&with_changes_only(self)),
        }
    }

    /// Returns the output of `--format json` with the selected rows. Its derived sections have the
    /// same rows.
    pub fn to_selected_output_json(&self, rows: RowSelection) -> String {
        match rows {
            RowSelection::All => self.to_output_json(),
            RowSelection::ChangesOnly => with_changes_only(self).to_output_json(),
        }
    }
}

/// Returns the plan with its unchanged rows in groups. [`restore`] is the inverse.
fn with_changes_only(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    let explained = plan.capacity.explain.iter().map(|row| &row.address);
    if !is_ascending(plan.resource_changes.iter().map(|row| &row.address))
        || !is_ascending(explained)
    {
        // Rows in another order could not be restored.
        return plan;
    }
    let mut explain: BTreeMap<Address, ExplainRow> = BTreeMap::new();
    for row in std::mem::take(&mut plan.capacity.explain) {
        explain.insert(row.address.clone(), row);
    }
    let mut groups: BTreeMap<String, UnchangedGroup> = BTreeMap::new();
    for row in std::mem::take(&mut plan.resource_changes) {
        let found = explain.get(&row.address);
        let Some((group, unchanged)) = found.and_then(|why| separated(&row, why)) else {
            plan.resource_changes.push(row);
            continue;
        };
        explain.remove(&row.address);
        let properties = canonical::hash(&group);
        groups.entry(properties).or_insert(group).rows.push(unchanged);
    }
    plan.capacity.explain = explain.into_values().collect();
    plan.unchanged = groups.into_values().collect();
    plan.unchanged.sort_by(|a, b| first_address(a).cmp(&first_address(b)));
    plan
}

fn first_address(group: &UnchangedGroup) -> Option<&Address> {
    group.rows.first().map(|row| &row.address)
}

fn is_ascending<'a>(addresses: impl Iterator<Item = &'a Address>) -> bool {
    addresses.is_sorted_by(|a, b| a < b)
}

/// Separates the properties of an unchanged row that other rows may share. Returns `None` for a
/// row that has more than a group can express.
fn separated(row: &ResourceChange, why: &ExplainRow) -> Option<(UnchangedGroup, UnchangedRow)> {
    let ResourceChange { address, kind, name, index, mode, provider_name, change, action_reason } =
        row;
    let Change { actions, before, after, after_unknown, termination_grace_seconds } = change;
    let ExplainRow {
        address: _,
        group,
        reason,
        retire_reason,
        drift,
        differences,
        hourly_before,
        hourly_after,
        estimated,
        pods,
        pods_before,
        daemons,
        rejected,
        overlays,
        relaxed,
    } = why;
    let is_plain = actions == &[Action::NoOp]
        && before == after
        && after_unknown.is_empty()
        && termination_grace_seconds.is_none()
        && mode.is_none()
        && provider_name.is_none()
        && group.is_none()
        && retire_reason.is_none()
        && rejected.is_empty()
        && relaxed.is_empty();
    let whole = before.as_ref().filter(|_| is_plain)?;
    let (own, shared) = whole.labels.iter().partition(|(key, value)| is_own(whole, key, value));
    let state = shared_state(whole, cloned(shared));
    let explain = UnchangedReason {
        reason: reason.clone(),
        drift: drift.clone(),
        differences: differences.clone(),
        hourly_before: *hourly_before,
        hourly_after: *hourly_after,
        estimated: *estimated,
        daemons: daemons.clone(),
        overlays: overlays.clone(),
    };
    let unchanged = UnchangedRow {
        address: address.clone(),
        index: index.clone(),
        instance_id: whole.instance_id.clone(),
        node: whole.node.clone(),
        node_uid: whole.node_uid.clone(),
        launched_at: whole.launched_at,
        labels: cloned(own),
        pods: pods.clone(),
        pods_before: (pods_before != pods).then(|| pods_before.clone()),
    };
    let group = UnchangedGroup {
        kind: *kind,
        name: name.clone(),
        action_reason: action_reason.clone(),
        state,
        explain,
        rows: Vec::new(),
    };
    Some((group, unchanged))
}

/// Returns the state of a node without what no other node has, and with these labels.
fn shared_state(whole: &NodeState, labels: Labels) -> NodeState {
    NodeState {
        labels,
        instance_id: None,
        node: None,
        node_uid: None,
        launched_at: None,
        ..whole.clone()
    }
}

fn cloned(labels: Vec<(&LabelKey, &LabelValue)>) -> Labels {
    labels.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns whether a label names the node or its instance, so that no other node has its value.
fn is_own(state: &NodeState, key: &LabelKey, value: &LabelValue) -> bool {
    let (key, value) = (key.as_str(), value.as_str());
    let node = state.node.as_ref().is_some_and(|node| node.as_str() == value);
    let instance = state.instance_id.as_ref().is_some_and(|id| id.as_str() == value);
    key == key::HOSTNAME || key == KEY_LABEL || node || instance
}

/// Restores the unchanged rows of a plan that was read.
pub(super) fn restore(plan: &mut Plan) -> Result<(), ReadPlanError> {
    let groups = std::mem::take(&mut plan.unchanged);
    if groups.is_empty() {
        return Ok(());
    }
    let size = groups.iter().map(restored_size).fold(0, usize::saturating_add);
    if size > UNCHANGED_BYTES_MAX {
        return Err(ReadPlanError::TooManyUnchanged { bytes: size });
    }
    for UnchangedGroup { kind, name, action_reason, state, explain, rows } in groups {
        for row in rows {
            let UnchangedRow { address, index, labels, pods, pods_before, .. } = row;
            let mut state = NodeState {
                instance_id: row.instance_id,
                node: row.node,
                node_uid: row.node_uid,
                launched_at: row.launched_at,
                ..state.clone()
            };
            state.labels.extend(labels);
            plan.resource_changes.push(ResourceChange {
                address: address.clone(),
                kind,
                name: name.clone(),
                index,
                mode: None,
                provider_name: None,
                change: Change {
                    actions: vec![Action::NoOp],
                    before: Some(state.clone()),
                    after: Some(state),
                    after_unknown: BTreeMap::new(),
                    termination_grace_seconds: None,
                },
                action_reason: action_reason.clone(),
            });
            plan.capacity.explain.push(ExplainRow {
                address,
                group: None,
                reason: explain.reason.clone(),
                retire_reason: None,
                drift: explain.drift.clone(),
                differences: explain.differences.clone(),
                hourly_before: explain.hourly_before,
                hourly_after: explain.hourly_after,
                estimated: explain.estimated,
                pods_before: pods_before.unwrap_or_else(|| pods.clone()),
                pods,
                daemons: explain.daemons.clone(),
                rejected: Vec::new(),
                overlays: explain.overlays.clone(),
                relaxed: Vec::new(),
            });
        }
    }
    plan.resource_changes.sort_by(|a, b| a.address.cmp(&b.address));
    plan.capacity.explain.sort_by(|a, b| a.address.cmp(&b.address));
    let mut addresses = BTreeSet::new();
    let twice = plan.resource_changes.iter().find(|row| !addresses.insert(&row.address));
    twice.map_or(Ok(()), |row| {
        Err(ReadPlanError::Contradiction(format!("it states {} twice", row.address)))
    })
}

/// Returns the memory of the restored rows in bytes, roughly. Each row has the state before and after,
/// and a copy of the labels.
fn restored_size(group: &UnchangedGroup) -> usize {
    let UnchangedGroup { state, explain, name, rows, .. } = group;
    let text = canonical::compact(&(state, explain, name)).map_or(usize::MAX, |text| text.len());
    let entries = [
        2 * state.capacity.extended.len(),
        2 * state.allocatable.extended.len(),
        2 * (state.taints.len() + state.startup_taints.len() + state.open_labels.len()),
        state.labels.len() + explain.daemons.extended.len() + explain.overlays.len(),
    ];
    let entries = entries.iter().sum::<usize>().saturating_mul(ENTRY_BYTES);
    text.saturating_mul(2).saturating_add(entries).saturating_mul(rows.len())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::requirement::label;
    use crate::plan::checksum::with_checksum;
    use crate::plan::read_plan;
    use crate::testing::valid_plan::plan;

    fn short(plan: &Plan) -> Value {
        serde_json::from_str(&plan.to_file_json(RowSelection::ChangesOnly)).unwrap()
    }

    /// Reads a value as a plan file with a valid checksum.
    fn read(mut value: Value) -> Result<Plan, ReadPlanError> {
        value.as_object_mut().unwrap().remove("checksum");
        read_plan(with_checksum(canonical::pretty(&value).unwrap()).as_bytes())
    }

    /// Returns a plan with an unchanged node that has a label of its own, and whose pods change.
    fn with_unchanged() -> Plan {
        let mut plan = plan();
        let rows = plan.resource_changes.iter_mut();
        let mut kept = rows.filter(|row| row.change.actions == [Action::NoOp]);
        let row = kept.next().expect("an unchanged row");
        let address = row.address.clone();
        for state in [&mut row.change.before, &mut row.change.after].into_iter().flatten() {
            let id = state.instance_id.as_ref().map(ToString::to_string).unwrap_or_default();
            state.labels.extend([label("example.com/instance", &id), label("example.com/a", "b")]);
        }
        let why = plan.capacity.explain.iter_mut().find(|why| why.address == address).unwrap();
        why.pods_before = [("a/Deployment/gone".into(), 1)].into();
        plan.with_identity()
    }

    #[test]
    fn both_forms_read_back_as_the_same_plan() {
        for plan in [plan(), with_unchanged()] {
            let value = short(&plan);
            assert!(!value["unchanged"].as_array().unwrap().is_empty());
            let rows = value["resource_changes"].as_array().unwrap();
            assert!(rows.iter().all(|row| row["change"]["actions"] != json!(["no-op"])));
            assert_eq!(value["capacity"]["digest"], json!(plan.capacity.digest));
            assert_eq!(value["capacity"]["plan_id"], json!(plan.capacity.plan_id));
            for text in [
                plan.to_file_json(RowSelection::ChangesOnly),
                plan.to_selected_output_json(RowSelection::ChangesOnly),
            ] {
                let read = Plan::from_json(&text).unwrap();
                assert_eq!(read, plan);
                assert_eq!(read.to_json(), plan.to_json());
            }
        }
    }

    #[test]
    fn labels_of_one_node_are_not_shared() {
        let value = short(&with_unchanged());
        let groups = value["unchanged"].as_array().unwrap();
        let group = groups.iter().find(|group| {
            group["state"]["labels"].as_object().unwrap().contains_key("example.com/a")
        });
        let group = group.expect("the label of the pool is shared");
        let shared = group["state"]["labels"].as_object().unwrap();
        assert!(!shared.contains_key("example.com/instance"));
        let row = &group["rows"][0];
        assert!(row["labels"].as_object().unwrap().contains_key("example.com/instance"));
        assert_eq!(row["pods_before"], json!({ "a/Deployment/gone": 1 }));
    }

    #[test]
    fn rows_out_of_order_are_written_as_they_are() {
        let mut plan = plan();
        plan.resource_changes.reverse();
        let plan = plan.with_identity();
        assert_eq!(plan.to_file_json(RowSelection::ChangesOnly), plan.to_json());
    }

    #[test]
    fn edited_group_is_found() {
        let value = short(&with_unchanged());
        assert!(read(value.clone()).is_ok());
        for change in [
            |value: &mut Value| drop(value.as_object_mut().unwrap().remove("unchanged")),
            |value: &mut Value| drop(value["unchanged"][0]["rows"].as_array_mut().unwrap().pop()),
            |value: &mut Value| value["unchanged"][0]["rows"][0]["instance_id"] = "i-9".into(),
            |value: &mut Value| value["unchanged"][0]["rows"][0]["pods"] = json!({}),
            |value: &mut Value| {
                value["unchanged"][0]["explain"]["hourly_after"] = "0.000001".into();
            },
            |value: &mut Value| {
                let again = value["unchanged"][0].clone();
                value["unchanged"].as_array_mut().unwrap().push(again);
            },
        ] {
            let mut value = value.clone();
            change(&mut value);
            let error = read(value).unwrap_err();
            assert!(error.to_string().contains("altered"), "{error}");
        }
    }

    #[test]
    fn small_file_does_not_fill_the_memory() {
        let long_text: fn(&mut Value) = |state| state["image"] = "x".repeat(1 << 20).into();
        let many_entries: fn(&mut Value) = |state| {
            let entries = (0..10_000).map(|n| (format!("a{n}"), json!(1)));
            state["capacity"]["extended"] = entries.collect::<serde_json::Map<_, _>>().into();
        };
        for (edit, rows) in [(long_text, 600), (many_entries, 5_900)] {
            let mut value = short(&with_unchanged());
            let group = &mut value["unchanged"][0];
            edit(&mut group["state"]);
            let row = group["rows"][0].clone();
            group["rows"] = vec![row; rows].into();
            let error = read(value).unwrap_err();
            assert!(matches!(error, ReadPlanError::TooManyUnchanged { .. }), "{error}");
        }
    }
}
