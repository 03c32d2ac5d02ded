//! Details of each change: the node, its pods, and rejected alternatives.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use super::amount::{amount, hourly, list};
use super::reason::{condition, rejection, retire, row_reason, workloads};
use super::row::{PlanRow, Symbol};
use super::table::ESTIMATED;
use super::text_page::{StyledText, TextPage, Tone, plain};
use crate::model::ids::Address;
use crate::model::market::CapacityType;
use crate::model::node_annotations::{NodeAnnotations, annotations_digest};
use crate::model::requirement::is_well_known;
use crate::model::text::shorten;
use crate::plan::Plan;
use crate::plan::wire::{
    Alternative, AlternativesRow, Amount, Change, ExplainRow, GroupSize, KEY_LABEL, LaunchReason,
    NodeState, Reason, Relaxed, Taint,
};

/// Most workloads, addresses and offerings on one line.
pub(super) const WORKLOADS_MAX: usize = 8;
const ADDRESSES_MAX: usize = 4;
const OFFERINGS_MAX: usize = 3;
const OVERLAYS_MAX: usize = 4;
const DIGEST_CHARS: usize = 16;
/// Most annotations of a launch, and most characters of a value. A digest covers the rest.
const ANNOTATIONS_MAX: usize = 32;
const ANNOTATION_CHARS: usize = 100;

/// Writes a block for each change. Launches that differ only in their key share a block.
pub(super) fn write(page: &mut TextPage, plan: &Plan, rows: &[PlanRow<'_>]) {
    let mut blocks: Vec<Vec<&PlanRow<'_>>> = Vec::new();
    let mut launches: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.symbol.is_change()) {
        let known = launch_key(row).map(|key| *launches.entry(key).or_insert(blocks.len()));
        match known {
            Some(index) if index < blocks.len() => blocks[index].push(row),
            _ => blocks.push(vec![row]),
        }
    }
    for block in blocks {
        write_block(page, plan, &block);
    }
}

/// Returns a key that launches share if they differ only in their own key in the pool.
fn launch_key(row: &PlanRow<'_>) -> Option<String> {
    if row.symbol != Symbol::Launch {
        return None;
    }
    let mut state = row.resource.change.after.clone()?;
    state.labels.remove(KEY_LABEL);
    let explain = row.explain.map(|explain| ExplainRow { address: "".into(), ..explain.clone() });
    Some(format!("{:?} {} {state:?} {explain:?}", row.resource.kind, row.resource.name))
}

/// Writes one change, or several similar launches.
pub(super) fn write_block(page: &mut TextPage, plan: &Plan, rows: &[&PlanRow<'_>]) {
    let Some(row) = rows.first() else { return };
    let addresses: Vec<String> = rows.iter().map(|row| row.resource.address.to_string()).collect();
    page.gap();
    let plural = if rows.len() == 1 { "" } else { ", all alike" };
    let title = format!("  # {} {}{plural}", list(&addresses, ADDRESSES_MAX), outcome(row));
    page.line([StyledText::new(&title, Tone::Strong)]);
    for why in reasons(row) {
        page.line([StyledText::new(&format!("  # ({why})"), Tone::Faint)]);
    }
    page.line([plain("  "), row.symbol.span(), plain(format!(" {}", addresses[0]))]);
    attributes(page, &row.resource.change, &annotations_of_launch(plan, row));
    if let Some(explain) = row.explain {
        notes(page, plan, explain);
    }
}

fn outcome(row: &PlanRow<'_>) -> &'static str {
    match row.symbol {
        Symbol::Terminate => "will be terminated",
        Symbol::TerminateFirst => "must be replaced: terminated, then launched",
        Symbol::LaunchFirst => "must be replaced: launched, then terminated",
        Symbol::Update => "will be updated in place",
        Symbol::Launch => "will be launched",
        Symbol::Blocked => "stays, because it is blocked",
        Symbol::Keep => "stays",
    }
}

fn reasons(row: &PlanRow<'_>) -> Vec<String> {
    let Some(ExplainRow { reason: first, retire_reason, drift, .. }) = row.explain else {
        return row.resource.action_reason.iter().cloned().collect();
    };
    // The launch reason of such a replacement contains the same words.
    let is_in_launch_reason =
        matches!(first, Reason::Launch { because: LaunchReason::Replacement { .. } });
    let second = retire_reason.as_ref().filter(|_| !is_in_launch_reason).map(retire);
    let is_kept = matches!(first, Reason::Keep { .. });
    let due = drift.as_ref().filter(|_| is_kept);
    let due = due.map(|due| format!("a change is due: {}", retire(due)));
    std::iter::once(row_reason(row)).chain(second).chain(due).collect()
}

/// Returns the annotations that the new node of a row gets, each with its value.
fn annotations_of_launch(plan: &Plan, row: &PlanRow<'_>) -> Vec<(String, String)> {
    let is_launched = match row.symbol {
        Symbol::TerminateFirst | Symbol::LaunchFirst | Symbol::Launch => true,
        Symbol::Terminate | Symbol::Update | Symbol::Blocked | Symbol::Keep => false,
    };
    let declared = plan.capacity.node_annotations.get(&row.resource.pool());
    let Some(declared) = declared.filter(|_| is_launched) else { return Vec::new() };
    let listed = declared.iter().take(ANNOTATIONS_MAX);
    let mut lines: Vec<(String, String)> = listed
        .map(|(key, value)| (format!("annotations.{key}"), annotation_value(value)))
        .collect();
    let rest = declared.iter().skip(ANNOTATIONS_MAX);
    let rest: NodeAnnotations = rest.map(|(key, value)| (key.clone(), value.clone())).collect();
    if !rest.is_empty() {
        let digest = digest_prefix(&annotations_digest(&rest));
        lines.push(("annotations".to_owned(), format!("{} more, SHA-256 {digest}", rest.len())));
    }
    lines
}

/// Returns the value of an annotation. A long one is cut, with the digest of the whole.
pub(super) fn annotation_value(value: &str) -> String {
    let shown = shorten(value, ANNOTATION_CHARS);
    if shown == value {
        return shown;
    }
    format!("{shown} (SHA-256 {})", digest_prefix(&hex::encode(Sha256::digest(value))))
}

/// Writes the attributes before and after in Terraform style: `+`, `-`, and `~` with an arrow. The
/// annotations of the new node are attributes after.
fn attributes(page: &mut TextPage, change: &Change, annotations: &[(String, String)]) {
    let before = change.before.as_ref().map(node_attributes);
    let after = change.after.as_ref().map(node_attributes);
    let replaced = before.is_some() && after.is_some();
    let (before, mut after) = (before.unwrap_or_default(), after.unwrap_or_default());
    after.listed.extend_from_slice(annotations);
    let shown = merge_attributes(&before.listed, &after.listed, change);
    let width = shown.iter().map(|(name, ..)| name.len()).max().unwrap_or(0).min(40);
    let mut hidden = 0_u32;
    for (name, old, new) in shown {
        let essential = ESSENTIAL.contains(&name.as_str());
        let (symbol, tone, value) = match (old, new) {
            (Some(old), Some(new)) if old != new => ("~", Tone::Change, format!("{old} -> {new}")),
            (Some(_), Some(new)) if essential => (" ", Tone::Plain, new),
            (Some(old), None) if essential || replaced => ("-", Tone::Delete, old),
            (None, Some(new)) => ("+", Tone::Create, new),
            (Some(_), _) => {
                hidden += 1;
                continue;
            }
            (None, None) => continue,
        };
        let name = format!(" {name:width$} = {value}");
        page.line([plain("      "), StyledText::new(symbol, tone), plain(name)]);
    }
    let well_known = before.well_known.max(after.well_known);
    for (n, noun) in [
        (hidden, if replaced { "unchanged attribute" } else { "attribute" }),
        (well_known, "well-known label"),
    ] {
        if n > 0 {
            let text = format!("        # ({} hidden)", super::amount::count(n, noun));
            page.line([StyledText::new(&text, Tone::Faint)]);
        }
    }
}

/// Attributes that are always shown, even if unchanged or if the whole node is removed.
const ESSENTIAL: [&str; 7] =
    ["pool", "instance_type", "zone", "capacity_type", "instance_id", "node", "desired"];

/// A name with its value before and after.
type Attribute = (String, Option<String>, Option<String>);

fn merge_attributes(
    before: &[(String, String)],
    after: &[(String, String)],
    change: &Change,
) -> Vec<Attribute> {
    let find = |side: &[(String, String)], name: &str| {
        side.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    };
    let only_before = before.iter().filter(|(name, _)| find(after, name).is_none());
    let mut all: Vec<Attribute> = after
        .iter()
        .chain(only_before)
        .map(|(name, _)| (name.clone(), find(before, name), find(after, name)))
        .collect();
    for name in change.after_unknown.iter().filter(|(_, unknown)| **unknown).map(|(name, _)| name) {
        let unknown = Some("(known after apply)".to_owned());
        match all.iter_mut().find(|(n, ..)| n == name) {
            Some(attribute) => attribute.2 = unknown,
            None => all.push((name.clone(), None, unknown)),
        }
    }
    all
}

/// The attributes of a node or group.
#[derive(Default)]
struct NodeAttributes {
    listed: Vec<(String, String)>,
    /// Number of labels that follow from the instance type; they are not listed.
    well_known: u32,
}

fn node_attributes(state: &NodeState) -> NodeAttributes {
    let NodeState {
        pool,
        instance_type,
        zone,
        zone_id,
        capacity_type,
        image,
        labels,
        taints,
        startup_taints,
        capacity,
        allocatable,
        reservation,
        open_labels: _, // listed among the labels
        spec_digest,
        instance_id,
        node,
        node_uid,
        launched_at,
        group,
    } = state;
    let mut listed: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        listed.extend(value.map(|value| (name.to_owned(), value)));
    };
    add("pool", text(pool.as_ref()));
    add("instance_type", text(instance_type.as_ref()));
    add("zone", text(zone.as_ref()));
    add("zone_id", text(zone_id.as_ref()));
    add("capacity_type", text(capacity_type.as_ref()));
    add("image", text(image.as_ref()));
    if let Some(GroupSize { name, min, max, desired }) = group {
        add("name", text(name.as_ref()));
        add("min", Some(min.to_string()));
        add("max", Some(max.to_string()));
        add("desired", Some(desired.to_string()));
        return NodeAttributes { listed, well_known: 0 };
    }
    add("capacity", Some(with_pods(capacity)));
    add("allocatable", Some(with_pods(allocatable)));
    let own = labels.iter().filter(|(key, _)| !is_well_known(key.as_str()));
    let own: Vec<_> = own.filter(|(key, _)| key.as_str() != KEY_LABEL).collect();
    for (key, value) in own {
        add(&format!("labels.{key}"), Some(value.to_string()));
    }
    add("taints", taints_text(taints));
    add("startup_taints", taints_text(startup_taints));
    add("reservation", text(reservation.as_ref()));
    add("spec_digest", spec_digest.as_deref().map(digest_prefix));
    add("instance_id", text(instance_id.as_ref()));
    add("node", text(node.as_ref()));
    add("node_uid", text(node_uid.as_ref()));
    add("launched_at", text(launched_at.as_ref()));
    let well_known = labels.keys().filter(|key| is_well_known(key.as_str())).count();
    NodeAttributes { listed, well_known: u32::try_from(well_known).unwrap_or(u32::MAX) }
}

fn text<T: ToString>(value: Option<&T>) -> Option<String> {
    value.map(ToString::to_string)
}

/// Returns the first characters of a digest; the JSON has all of it.
fn digest_prefix(digest: &str) -> String {
    match digest.char_indices().nth(DIGEST_CHARS) {
        Some((end, _)) => format!("{}…", &digest[..end]),
        None => digest.to_owned(),
    }
}

fn with_pods(of: &Amount) -> String {
    format!("{}, pods {}", amount(of), of.pods)
}

fn taints_text(taints: &[Taint]) -> Option<String> {
    let one = |taint: &Taint| {
        let Taint { key, value, effect } = taint;
        let value = if value.as_str().is_empty() { String::new() } else { format!("={value}") };
        format!("{key}{value}:{effect:?}")
    };
    (!taints.is_empty()).then(|| taints.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Writes notes about a row below its attributes.
fn notes(page: &mut TextPage, plan: &Plan, explain: &ExplainRow) {
    let ExplainRow {
        address,
        group,
        hourly_before,
        hourly_after,
        estimated,
        pods,
        daemons,
        rejected,
        overlays,
        relaxed,
        ..
    } = explain;
    let mut note = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let name = format!("        {name:<9} ");
            let hang = name.len();
            page.hanging(hang, vec![StyledText::new(&name, Tone::Faint), plain(value)]);
        }
    };
    let mut prices: Vec<String> =
        [hourly_before, hourly_after].into_iter().flatten().map(|price| hourly(*price)).collect();
    prices.dedup();
    let mark = if *estimated { format!(" ({ESTIMATED})") } else { String::new() };
    note("price", Some(format!("{}{mark}", prices.join(" -> "))).filter(|_| !prices.is_empty()));
    note("pods", (!pods.is_empty()).then(|| workloads(pods, WORKLOADS_MAX)));
    note("daemons", (daemons != &Amount::default()).then(|| amount(daemons)));
    note("with", group.as_ref().map(|group| group_members(plan, group, address)));
    note("or", alternatives(plan, address, *estimated));
    note("overlays", Some(list(overlays, OVERLAYS_MAX)));
    for Relaxed { key, demanded, remain } in relaxed {
        note("relaxed", Some(format!("{remain} of {demanded} distinct values of {key}")));
    }
    for rejected in rejected {
        note("rejected", Some(rejection(rejected)));
    }
    let conditions = plan.capacity.base.preconditions.iter();
    for precondition in conditions.filter(|precondition| &precondition.address == address) {
        note("condition", Some(condition(&precondition.condition)));
    }
}

/// Returns the other rows of the same group.
fn group_members(plan: &Plan, group: &str, address: &Address) -> String {
    let others = plan.capacity.explain.iter().filter(|row| row.group.as_deref() == Some(group));
    let others: Vec<String> =
        others.filter(|row| &row.address != address).map(|row| row.address.to_string()).collect();
    list(&others, WORKLOADS_MAX)
}

/// Returns the alternatives of a row. If its own price is estimated, so are those of spot.
fn alternatives(plan: &Plan, address: &Address, estimated: bool) -> Option<String> {
    let AlternativesRow { offerings, .. } =
        plan.capacity.alternatives.iter().find(|row| &row.address == address)?;
    let one = |o: &Alternative| {
        let is_estimate = estimated && o.capacity_type == CapacityType::Spot;
        let mark = if is_estimate { format!(" ({ESTIMATED})") } else { String::new() };
        format!("{} {} {} {}{mark}", o.instance_type, o.zone, o.capacity_type, hourly(o.hourly))
    };
    Some(list(&offerings.iter().map(one).collect::<Vec<_>>(), OFFERINGS_MAX))
}
