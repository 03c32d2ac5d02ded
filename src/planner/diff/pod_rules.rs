//! Human-readable scheduling rules of pods, for `explain`.

use std::collections::BTreeMap;

use crate::demand::{PodGroup, PodShape, PodVolume, is_claim_affinity};
use crate::model::pod::{
    Expression, HostPort, PodAffinityTerm, Selector, Toleration, TolerationOperator,
    TopologySpread, WhenUnsatisfiable,
};
use crate::model::requirement::{Operator, Requirements};

/// Returns the scheduling rules of the pods of a group; empty for unconstrained pods.
pub(super) fn rules(group: &PodGroup) -> Vec<String> {
    let shape = &group.shape;
    let mut rules = nodes(shape);
    rules.extend(shape.tolerations.iter().map(toleration));
    rules.extend(shape.host_ports.iter().map(port));
    rules.extend(shape.spread.iter().map(spread));
    let terms = |terms: &[PodAffinityTerm], verb: &str| -> Vec<String> {
        let stated = terms.iter().filter(|term| !is_claim_affinity(term));
        stated.map(|term| format!("{verb} {}", pod_selection(term))).collect()
    };
    let preferences = |preferences: &[(i32, PodAffinityTerm)], verb: &str| -> Vec<String> {
        let preference = |(weight, term): &(i32, PodAffinityTerm)| {
            format!("prefers by {weight} to be {verb} {}", pod_selection(term))
        };
        preferences.iter().map(preference).collect()
    };
    rules.extend(terms(&shape.affinity.required, "has to be with"));
    rules.extend(terms(&shape.anti_affinity.required, "has to be apart from"));
    rules.extend(preferences(&shape.affinity.preferred, "with"));
    rules.extend(preferences(&shape.anti_affinity.preferred, "apart from"));
    rules.extend(volumes(group));
    if shape.priority != 0 {
        let mild = if shape.preempts { "" } else { ", without preemption" };
        rules.push(format!("has priority {}{mild}", shape.priority));
    }
    rules
}

/// Returns the places of the volumes. Pods of one workload may have volumes in different places.
fn volumes(group: &PodGroup) -> Vec<String> {
    let places = |shape: &PodShape| {
        let is_bound = |mount: &&PodVolume| !mount.nodes.iter().any(Requirements::is_unconstrained);
        shape.volumes.iter().filter(is_bound).map(PodVolume::topology_text).collect::<Vec<_>>()
    };
    let mut pods: BTreeMap<String, u32> = BTreeMap::new();
    for part in &group.partitions {
        for place in places(&part.shape) {
            *pods.entry(place).or_insert(0) += part.planned;
        }
    }
    if pods.is_empty() {
        return places(&group.shape);
    }
    let total = group.counts.planned;
    let text = |(place, pods): (String, u32)| {
        if pods == total { place } else { format!("{pods} of {total} pods: {place}") }
    };
    pods.into_iter().map(text).collect()
}

fn nodes(shape: &PodShape) -> Vec<String> {
    let stated = shape.nodes.stated();
    let open = stated.iter().any(Requirements::is_unconstrained);
    let needs: Vec<String> = stated.iter().map(requirements).collect();
    let needs = match needs.as_slice() {
        _ if open => None,
        [] => Some("no term of its node affinity can be met".to_owned()),
        some => Some(format!("needs a node with {}", some.join(", or with "))),
    };
    let preference = |(weight, wanted): &(i32, Requirements)| {
        format!("prefers by {weight} a node with {}", requirements(wanted))
    };
    needs.into_iter().chain(shape.nodes.preferred.iter().map(preference)).collect()
}

fn requirements(all: &Requirements) -> String {
    let one = |(key, set): (&crate::model::ids::LabelKey, &crate::model::requirement::LabelSet)| {
        format!("{key} {set}")
    };
    all.iter().map(one).collect::<Vec<_>>().join(" and ")
}

fn toleration(toleration: &Toleration) -> String {
    let Toleration { key, operator, value, effect, seconds: _ } = toleration;
    let key = if key.is_empty() { "every taint" } else { key };
    let value = match operator {
        TolerationOperator::Equal => format!("={value}"),
        TolerationOperator::Exists => String::new(),
        TolerationOperator::Gt => format!(" above {value}"),
        TolerationOperator::Lt => format!(" below {value}"),
    };
    let effect = effect.map(|effect| format!(":{effect:?}")).unwrap_or_default();
    format!("tolerates {key}{value}{effect}")
}

fn port(port: &HostPort) -> String {
    let HostPort { port, protocol, ip } = port;
    let at = if ip.is_empty() { String::new() } else { format!(" of {ip}") };
    format!("binds port {port}/{protocol}{at} of its node")
}

fn spread(rule: &TopologySpread) -> String {
    let TopologySpread {
        max_skew, topology_key, when_unsatisfiable, selector, min_domains, ..
    } = rule;
    let verb = match when_unsatisfiable {
        WhenUnsatisfiable::DoNotSchedule => "has to be spread",
        WhenUnsatisfiable::ScheduleAnyway => "prefers to be spread",
    };
    let least = min_domains.map(|least| format!(", {least} domains at least"));
    format!(
        "{verb} over {topology_key} with {}, {max_skew} more than elsewhere at most{}",
        selected(selector.as_ref()),
        least.unwrap_or_default()
    )
}

fn pod_selection(term: &PodAffinityTerm) -> String {
    let spaces = match (&term.namespace_selector, term.namespaces.as_slice()) {
        (Some(_), _) => " of selected namespaces".to_owned(),
        (None, []) => String::new(),
        (None, names) => format!(" of namespaces {}", names.join(", ")),
    };
    format!("{}{spaces} in one {}", selected(term.selector.as_ref()), term.topology_key)
}

fn selected(selector: Option<&Selector>) -> String {
    match selector {
        None => "no pods".to_owned(),
        Some(Selector(preferences)) if preferences.is_empty() => "all pods".to_owned(),
        Some(Selector(preferences)) => {
            format!("pods {}", preferences.iter().map(expression).collect::<Vec<_>>().join(" and "))
        }
    }
}

fn expression(preference: &Expression) -> String {
    let Expression { key, operator, values } = preference;
    let values: Vec<&str> = values.iter().map(crate::model::ids::LabelValue::as_str).collect();
    let values = values.join("|");
    match operator {
        Operator::In => format!("{key}={values}"),
        Operator::NotIn => format!("{key} not {values}"),
        Operator::Exists => key.to_string(),
        Operator::DoesNotExist => format!("without {key}"),
        Operator::Gt => format!("{key} above {values}"),
        Operator::Lt => format!("{key} below {values}"),
        Operator::Gte => format!("{key} at least {values}"),
        Operator::Lte => format!("{key} at most {values}"),
    }
}
