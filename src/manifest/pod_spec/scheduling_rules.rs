//! Taints, tolerations and topology spread constraints.

use super::super::decode::{Field, FieldMap};
use super::super::labels::{LabelOwner, label_key, label_keys, label_value, selector};
use super::super::yaml::{YamlNode, YamlValue};
use crate::model::desired::Severity;
use crate::model::pod::{
    NodeInclusion, Taint, TaintEffect, Toleration, TolerationOperator, TopologySpread,
    WhenUnsatisfiable,
};

const EFFECTS: [(&str, TaintEffect); 3] = [
    ("NoSchedule", TaintEffect::NoSchedule),
    ("PreferNoSchedule", TaintEffect::PreferNoSchedule),
    ("NoExecute", TaintEffect::NoExecute),
];

const OPERATORS: [(&str, TolerationOperator); 4] = [
    ("Equal", TolerationOperator::Equal),
    ("Exists", TolerationOperator::Exists),
    ("Gt", TolerationOperator::Gt),
    ("Lt", TolerationOperator::Lt),
];

/// Reads a list of taints.
pub(in super::super) fn taints(field: Option<Field<'_>>) -> Vec<Taint> {
    let Some(field) = field else { return Vec::new() };
    field.items().filter_map(|item| taint(&item)).collect()
}

fn taint(field: &Field<'_>) -> Option<Taint> {
    let map = field.map()?;
    let key = map.required("key").and_then(|f| label_key(&f, LabelOwner::Object));
    let value = map.get("value").map_or(Some("".into()), |f| label_value(&f));
    let effect = map.required("effect").and_then(|f| f.choice(&EFFECTS));
    map.ignore(&["timeAdded"]);
    map.finish(Severity::Warning);
    Some(Taint { key: key?, value: value?, effect: effect? })
}

/// Reads a list of tolerations.
pub(in super::super) fn tolerations(field: Option<Field<'_>>) -> Vec<Toleration> {
    let Some(field) = field else { return Vec::new() };
    field.items().filter_map(|item| toleration(&item.map()?)).collect()
}

fn toleration(map: &FieldMap<'_>) -> Option<Toleration> {
    let key = map.get("key").map_or(Some("".into()), |f| f.text());
    let operator = map.get("operator").filter(|f| f.node.text() != Some(""));
    let operator = operator.map_or(Some(TolerationOperator::Equal), |f| f.choice(&OPERATORS));
    let value = map.get("value").map_or(Some("".into()), |f| f.text());
    let effect = map.get("effect").filter(|f| f.node.text() != Some(""));
    let effect = match effect {
        Some(field) => Some(field.choice(&EFFECTS)?),
        None => None,
    };
    let seconds = map.get("tolerationSeconds").and_then(|f| f.int(i64::MIN));
    map.finish(Severity::Warning);
    let toleration = Toleration {
        key: key?.into_owned(),
        operator: operator?,
        value: value?.into_owned(),
        effect,
        seconds,
    };
    refusal(&toleration).map_or(Some(toleration), |why| {
        map.field.error(why, None);
        None
    })
}

/// Returns the reason why the API server rejects the toleration.
fn refusal(toleration: &Toleration) -> Option<&'static str> {
    let number = || toleration.value.parse::<i64>().is_ok();
    match toleration.operator {
        TolerationOperator::Exists if !toleration.value.is_empty() => {
            Some("has a value, which operator Exists does not take")
        }
        TolerationOperator::Equal | TolerationOperator::Gt | TolerationOperator::Lt
            if toleration.key.is_empty() =>
        {
            Some("has no key, which only operator Exists may leave out")
        }
        TolerationOperator::Gt | TolerationOperator::Lt if !number() => {
            Some("compares with a value that is not an integer")
        }
        TolerationOperator::Exists
        | TolerationOperator::Equal
        | TolerationOperator::Gt
        | TolerationOperator::Lt => (toleration.seconds.is_some()
            && toleration.effect != Some(TaintEffect::NoExecute))
        .then_some("has `tolerationSeconds`, which only effect NoExecute takes"),
    }
}

/// Reads a list of topology spread constraints.
pub(super) fn topology_spread(field: Option<Field<'_>>) -> Vec<TopologySpread> {
    let Some(field) = field else { return Vec::new() };
    let mut constraints: Vec<TopologySpread> = Vec::new();
    // The API server compares keys as they are written; a deprecated key is another one.
    let mut written: Vec<(String, WhenUnsatisfiable)> = Vec::new();
    for item in field.items() {
        let Some(map) = item.map() else { continue };
        let read = spread_constraint(&map);
        require_selector(&map);
        map.finish(Severity::Warning);
        let Some(read) = read else { continue };
        let key = item.node.get("topologyKey").and_then(|key| key.text()).unwrap_or_default();
        let pair = (key.to_owned(), read.when_unsatisfiable);
        let is_repeated = !item.scope.verbatim && written.contains(&pair);
        written.push(pair);
        if is_repeated {
            item.error(
                format_args!(
                    "has the `topologyKey` `{}` and the `whenUnsatisfiable` of an earlier \
                     constraint, so that the API server refuses the pods",
                    read.topology_key
                ),
                "keep one of the two".to_owned(),
            );
        }
        constraints.push(read);
    }
    constraints
}

/// Reports label keys without a label selector: the API server refuses the pod.
pub(super) fn require_selector(map: &FieldMap<'_>) {
    let of_rule = map.field.node;
    let is_listed = |key: &str| {
        let keys = of_rule.get(key).map(|keys| &keys.value);
        matches!(keys, Some(YamlValue::Seq(keys)) if !keys.is_empty())
    };
    let listed = ["matchLabelKeys", "mismatchLabelKeys"].into_iter().find(|key| is_listed(key));
    let is_absent = of_rule.get("labelSelector").is_none_or(YamlNode::is_null);
    if let Some(key) = listed.filter(|_| is_absent) {
        map.field.error(
            format_args!(
                "has `{key}` without a `labelSelector`, so that the API server refuses it"
            ),
            "add a `labelSelector`, or remove the label keys".to_owned(),
        );
    }
}

/// Reads a topology spread constraint, and leaves its map open for further keys.
pub(in super::super) fn spread_constraint(map: &FieldMap<'_>) -> Option<TopologySpread> {
    let policies = [("Honor", NodeInclusion::Honor), ("Ignore", NodeInclusion::Ignore)];
    let unsatisfiable = [
        ("DoNotSchedule", WhenUnsatisfiable::DoNotSchedule),
        ("ScheduleAnyway", WhenUnsatisfiable::ScheduleAnyway),
    ];
    let policy = |key, default| map.get(key).map_or(Some(default), |f| f.choice(&policies));
    let max_skew = map.required("maxSkew").and_then(|f| f.int(1));
    let topology_key = map.required("topologyKey").and_then(|f| label_key(&f, LabelOwner::Node));
    let when = map.required("whenUnsatisfiable").and_then(|f| f.choice(&unsatisfiable));
    let selector = map.get("labelSelector").and_then(|f| selector(&f));
    let match_label_keys = label_keys(map.get("matchLabelKeys"), LabelOwner::Object);
    let min_domains = map.get("minDomains").and_then(|f| f.int::<i32>(1));
    let affinity_policy = policy("nodeAffinityPolicy", NodeInclusion::Honor);
    let taints_policy = policy("nodeTaintsPolicy", NodeInclusion::Ignore);
    if min_domains.is_some() && when == Some(WhenUnsatisfiable::ScheduleAnyway) {
        map.field.error("has `minDomains`, which only DoNotSchedule takes", None);
    }
    Some(TopologySpread {
        max_skew: max_skew?,
        topology_key: topology_key?,
        when_unsatisfiable: when?,
        selector,
        match_label_keys,
        min_domains,
        node_affinity_policy: affinity_policy?,
        node_taints_policy: taints_policy?,
    })
}
