//! cluster-proportional-autoscaler: a Deployment whose flags name its target, and a ConfigMap (or a
//! flag) that says how many pods there are for so many nodes and cores.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::super::collect::{Collected, Named};
use super::super::decode::{Map, Report};
use super::super::meta::Meta;
use super::super::model::{Problem, Severity};
use super::super::yaml::{Node, Value};
use super::{Ladder, Linear, Proportional, ProportionalMode, ScaleTarget, Scaler, ScalerRule};
use crate::ids::{Labels, Namespace, Origin};
use crate::requirement::label;
use crate::units::Quantity;

/// What images of the autoscaler are called.
const IMAGE: &str = "cluster-proportional-autoscaler";

/// Short names of targets, and their kinds.
const KINDS: [(&str, &str); 8] = [
    ("deployment", "Deployment"),
    ("deployments", "Deployment"),
    ("deploy", "Deployment"),
    ("replicaset", "ReplicaSet"),
    ("rs", "ReplicaSet"),
    ("replicationcontroller", "ReplicationController"),
    ("rc", "ReplicationController"),
    ("statefulset", "StatefulSet"),
];

/// An autoscaler found among the workloads, its parameters still to come.
#[derive(Debug, Clone)]
pub(in super::super) struct Found {
    scaler: Scaler,
    node_labels: Labels,
    /// The namespace and name of its ConfigMap.
    parameters: Option<(Namespace, String)>,
    /// What it takes where there is no ConfigMap.
    default: Option<String>,
}

/// Parameters of a ConfigMap: how pods follow nodes, or what is wrong.
pub(in super::super) type Parameters = Result<ProportionalMode, String>;

/// Notes the autoscaler that the pods of a workload are, if they are one.
pub(in super::super) fn autoscaler_of(meta: &Meta, root: &Node<'_>, into: &mut Collected) {
    let path = ["spec", "template", "spec", "containers"];
    let Some(containers) = path.iter().try_fold(root, |node, key| node.get(key)) else { return };
    let Value::Seq(containers) = &containers.value else { return };
    let is_one = |container: &&Node<'_>| {
        container.get("image").and_then(Node::text).is_some_and(|image| image.contains(IMAGE))
    };
    let Some(container) = containers.iter().find(is_one) else { return };
    let flags = flags(container);
    let flag = |name: &str| flags.get(name).cloned();
    let namespace = flag("namespace").map_or(meta.namespace.clone(), |name| name.as_str().into());
    let name = meta.name.clone();
    let targets = flag("target").map(|text| targets(&text)).unwrap_or_default();
    let node_labels = flag("nodelabels").map(|text| node_labels(&text)).unwrap_or_default();
    let scaler = Scaler {
        object: format!("cluster-proportional-autoscaler {}/{name}", meta.namespace),
        origin: meta.origin.clone(),
        namespace: namespace.clone(),
        name,
        rule: ScalerRule::Unknown(String::new()),
        targets,
    };
    let parameters = flag("configmap").map(|name| (namespace, name));
    into.proportional.push(Found {
        scaler,
        node_labels,
        parameters,
        default: flag("default-params"),
    });
}

/// Returns the flags of a container's command line; `--a=b` and `--a b` say the same.
fn flags(container: &Node<'_>) -> BTreeMap<String, String> {
    let words = ["command", "args"].into_iter().filter_map(|key| container.get(key));
    let words = words.flat_map(|list| match &list.value {
        Value::Seq(items) => items.iter().filter_map(Node::text).collect(),
        Value::Plain(_) | Value::Quoted(_) | Value::Map(_) | Value::Tagged(..) => Vec::new(),
    });
    let mut flags = BTreeMap::new();
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or(word.strip_prefix('-')) else { continue };
        if let Some((name, value)) = flag.split_once('=') {
            flags.insert(name.to_owned(), value.to_owned());
        } else if let Some(value) = words.next_if(|next| !next.starts_with('-')) {
            flags.insert(flag.to_owned(), value.to_owned());
        }
    }
    flags
}

fn targets(text: &str) -> Vec<ScaleTarget> {
    let one = |target: &str| {
        let (kind, name) = target.trim().split_once('/')?;
        let known = KINDS.iter().find(|(short, _)| kind.eq_ignore_ascii_case(short));
        let kind = known.map_or(kind, |(_, kind)| kind).to_owned();
        Some(ScaleTarget { kind, name: name.to_owned() })
    };
    text.split(',').filter_map(one).collect()
}

fn node_labels(text: &str) -> Labels {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| label(key.trim(), value.trim())).collect()
}

/// Keeps the parameters of a ConfigMap that holds some.
pub(in super::super) fn parameters(meta: Meta, root: &Map<'_>, into: &mut Collected) {
    let found = root.field.node.get("data").map(|data| {
        let text = |key| data.get(key).and_then(Node::text);
        match (text("linear"), text("ladder")) {
            (Some(text), None) => linear(text),
            (None, Some(text)) => ladder(text),
            (_, _) => Err("it holds both `linear` and `ladder`".to_owned()),
        }
    });
    let Some(found) = found else { return };
    into.skip(meta.origin.clone(), "kind ConfigMap");
    let Meta { namespace, name, origin, .. } = meta;
    let scope = root.field.scope;
    let named = Named { sort: "parameters", name: format!("{namespace}/{name}"), scope, origin };
    into.insert(named, |all| &mut all.parameters, ((namespace, name), found), PartialEq::eq);
}

/// Puts autoscalers and their parameters together.
pub(in super::super) fn join(into: &mut Collected, report: &Report) {
    for found in std::mem::take(&mut into.proportional) {
        let Found { mut scaler, node_labels, parameters, default } = found;
        let held = parameters.as_ref().and_then(|key| into.parameters.get(key).cloned());
        let named = parameters.map(|(namespace, name)| format!("{namespace}/{name}"));
        let mode = held.or_else(|| default.as_deref().map(default_parameters));
        scaler.rule = match mode {
            Some(Ok(mode)) => ScalerRule::Proportional(Proportional { node_labels, mode }),
            Some(Err(why)) => {
                let named = named.unwrap_or_else(|| "--default-params".to_owned());
                note(report, &scaler, format!("its parameters in {named} are of no use: {why}"));
                ScalerRule::Unknown("its parameters are of no use".to_owned())
            }
            None => {
                let named =
                    named.map_or_else(|| "no ConfigMap".to_owned(), |n| format!("ConfigMap {n}"));
                ScalerRule::Unknown(format!("its parameters ({named}) are not in the repository"))
            }
        };
        if scaler.targets.is_empty() {
            let why = "its `--target` names no workload; write --target=deployment/NAME";
            note(report, &scaler, why.to_owned());
            continue;
        }
        into.desired.scalers.push(scaler);
    }
}

fn note(report: &Report, scaler: &Scaler, message: String) {
    let Scaler { origin, object, .. } = scaler;
    let (origin, object): (Origin, String) = (origin.clone(), object.clone());
    report.add(Problem { origin, severity: Severity::Error, object, message, hint: None });
}

/// Reads the value of `--default-params`: one mode by its name.
fn default_parameters(text: &str) -> Parameters {
    let json: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match (json.get("linear"), json.get("ladder")) {
        (Some(found), None) => linear(&found.to_string()),
        (None, Some(found)) => ladder(&found.to_string()),
        (_, _) => Err("it holds neither `linear` nor `ladder` alone".to_owned()),
    }
}

fn object(text: &str) -> Result<serde_json::Map<String, Json>, String> {
    let json: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    json.as_object().cloned().ok_or_else(|| "it is no JSON object".to_owned())
}

fn linear(text: &str) -> Parameters {
    let json = object(text)?;
    let ratio = |key: &str| match json.get(key) {
        None => Ok(None),
        Some(number) => match milli(number) {
            Some(milli) if milli > 0 => Ok(Some(milli)),
            _ => Err(format!("`{key}` is {number}, not a number above 0")),
        },
    };
    let count = |key: &str| match json.get(key) {
        None => Ok(0),
        Some(number) => count(number).ok_or(format!("`{key}` is {number}, not a whole number")),
    };
    let is = |key: &str| json.get(key).and_then(Json::as_bool).unwrap_or(false);
    let (cores, nodes) = (ratio("coresPerReplica")?, ratio("nodesPerReplica")?);
    if cores.is_none() && nodes.is_none() {
        return Err("it has neither `coresPerReplica` nor `nodesPerReplica`".to_owned());
    }
    let (min, max) = (count("min")?.max(1), count("max")?);
    if max != 0 && min > max {
        return Err(format!("`min` {min} is above `max` {max}"));
    }
    Ok(ProportionalMode::Linear(Linear {
        cores_per_replica_milli: cores,
        nodes_per_replica_milli: nodes,
        min,
        max,
        prevent_single_point_of_failure: is("preventSinglePointFailure"),
        include_unschedulable: is("includeUnschedulableNodes"),
    }))
}

fn ladder(text: &str) -> Parameters {
    let json = object(text)?;
    let steps = |key: &str| -> Result<Vec<(i64, u32)>, String> {
        let Some(listed) = json.get(key) else { return Ok(Vec::new()) };
        let step = |step: &Json| {
            let [from, replicas] = step.as_array()?.as_slice() else { return None };
            Some((i64::from(count(from)?), count(replicas)?))
        };
        let steps = listed.as_array().map(|all| all.iter().map(step).collect::<Option<Vec<_>>>());
        let mut steps = steps.flatten().ok_or(format!("`{key}` is no list of pairs"))?;
        steps.sort_unstable();
        Ok(steps)
    };
    let include = json.get("includeUnschedulableNodes").and_then(Json::as_bool);
    let ladder = Ladder {
        cores: steps("coresToReplicas")?,
        nodes: steps("nodesToReplicas")?,
        include_unschedulable: include.unwrap_or(false),
    };
    if ladder.cores.is_empty() && ladder.nodes.is_empty() {
        return Err("it has neither `coresToReplicas` nor `nodesToReplicas`".to_owned());
    }
    Ok(ProportionalMode::Ladder(ladder))
}

fn milli(number: &Json) -> Option<i64> {
    let Json::Number(number) = number else { return None };
    Some(number.to_string().parse::<Quantity>().ok()?.ceil_milli())
}

fn count(number: &Json) -> Option<u32> {
    number.as_u64().and_then(|number| u32::try_from(number).ok())
}
