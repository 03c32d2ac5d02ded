//! cluster-proportional-autoscaler: a Deployment whose flags name its target. A ConfigMap or a flag
//! sets the number of pods by nodes and cores.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::super::collector::{Collector, Definition};
use super::super::decode::{FieldMap, ProblemCollector, shorten};
use super::super::object_meta::ObjectMeta;
use super::super::yaml::{YamlNode, YamlValue};
use super::command_line;
use crate::model::desired::{
    Ladder, Linear, Problem, Proportional, ProportionalMode, ScaleTarget, Scaler, ScalerRule,
};
use crate::model::ids::{Namespace, Origin};
use crate::model::requirement::{LabelSet, Operator, Requirements};
use crate::model::units::Quantity;

/// Part of the autoscaler's image names.
const IMAGE: &str = "cluster-proportional-autoscaler";

/// Kinds of targets, in the spellings that the autoscaler accepts in any case.
/// Source: `pkg/autoscaler/k8sclient/k8sclient.go`, `requestForTarget`.
const KINDS: [(&str, &str); 8] = [
    ("deployment", "Deployment"),
    ("deployments", "Deployment"),
    ("replicaset", "ReplicaSet"),
    ("replicasets", "ReplicaSet"),
    ("replicationcontroller", "ReplicationController"),
    ("replicationcontrollers", "ReplicationController"),
    ("statefulset", "StatefulSet"),
    ("statefulsets", "StatefulSet"),
];

/// An autoscaler found among the workloads, before its parameters are resolved.
#[derive(Debug, Clone)]
pub(in super::super) struct ProportionalScaler {
    scaler: Scaler,
    /// Selector of the counted nodes, or the problem with it.
    nodes: Result<Requirements, String>,
    /// The namespace and name of its ConfigMap.
    parameters: Option<(Namespace, String)>,
    /// The value of `--default-params`, for a missing ConfigMap.
    default: Option<String>,
}

/// Parameters of a ConfigMap: the scaling mode, or the problem with it.
pub(in super::super) type ProportionalParameters = Result<ProportionalMode, ParameterProblem>;

/// Problem with parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum ParameterProblem {
    /// What they mean is unknown.
    Invalid(String),
    /// The autoscaler cannot read them, and scales nothing.
    Refused(String),
}

impl From<String> for ParameterProblem {
    fn from(why: String) -> Self {
        Self::Invalid(why)
    }
}

/// Records the autoscaler if the pods of a workload run one.
pub(in super::super) fn collect_proportional_autoscaler(
    meta: &ObjectMeta,
    root: &YamlNode<'_>,
    into: &mut Collector,
) {
    let path = ["spec", "template", "spec", "containers"];
    let Some(containers) = path.iter().try_fold(root, |node, key| node.get(key)) else { return };
    let YamlValue::Seq(containers) = &containers.value else { return };
    let is_one = |container: &&YamlNode<'_>| {
        container.get("image").and_then(YamlNode::text).is_some_and(|image| image.contains(IMAGE))
    };
    let Some(container) = containers.iter().find(is_one) else { return };
    let flags = command_line(container).into_iter();
    let flags = flags.filter_map(|(name, value)| Some((name, value?.to_owned())));
    let flags: BTreeMap<&str, String> = flags.collect();
    let flag = |name: &str| flags.get(name).cloned();
    let namespace = flag("namespace").map_or(meta.namespace.clone(), |name| name.as_str().into());
    let name = meta.name.clone();
    let targets = flag("target").map(|text| targets(&text)).unwrap_or_default();
    let nodes = flag("nodelabels").map_or_else(
        || Ok(Requirements::default()),
        |text| node_selector(&text).map_err(|why| format!("its `--nodelabels` is invalid: {why}")),
    );
    let scaler = Scaler {
        object: format!("cluster-proportional-autoscaler {}/{name}", meta.namespace),
        origin: meta.origin.clone(),
        namespace: namespace.clone(),
        name,
        rule: ScalerRule::Unknown(String::new()),
        targets,
    };
    let parameters = flag("configmap").map(|name| (namespace, name));
    into.proportional.push(ProportionalScaler {
        scaler,
        nodes,
        parameters,
        default: flag("default-params"),
    });
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

/// Reads a label selector such as `zone in (a, b),!spot,tier!=web`.
/// Source: `k8s.io/apimachinery/pkg/labels/selector.go`.
fn node_selector(text: &str) -> Result<Requirements, String> {
    let mut requirements = Requirements::default();
    let mut rest = text.trim();
    while !rest.is_empty() {
        // Commas between parentheses separate values.
        let (mut opened, mut closed) = (0_usize, 0_usize);
        let is_end = |letter: char| {
            opened += usize::from(letter == '(');
            closed += usize::from(letter == ')');
            letter == ',' && opened <= closed
        };
        let end = rest.find(is_end).unwrap_or(rest.len());
        let (key, set) = label_requirement(rest[..end].trim())
            .ok_or_else(|| format!("`{}` is no label requirement", shorten(&rest[..end])))?;
        requirements.add(key.as_str().into(), &set);
        rest = rest[end..].trim_start_matches(',').trim();
    }
    Ok(requirements)
}

/// Reads one requirement of a label selector.
fn label_requirement(text: &str) -> Option<(String, LabelSet)> {
    let (key, operator, values) = if let Some((key, value)) = text.split_once("!=") {
        (key, Operator::NotIn, vec![value.trim()])
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Operator::In, vec![value.trim()])
    } else if let Some((head, values)) = text.split_once('(') {
        let (key, word) = head.trim().rsplit_once(char::is_whitespace)?;
        let operator = match word {
            "in" => Operator::In,
            "notin" => Operator::NotIn,
            _ => return None,
        };
        let values = values.strip_suffix(')')?.split(',').map(str::trim);
        (key, operator, values.collect())
    } else if let Some((key, bound)) = text.split_once('>') {
        (key, Operator::Gt, vec![bound.trim()])
    } else if let Some((key, bound)) = text.split_once('<') {
        (key, Operator::Lt, vec![bound.trim()])
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Operator::DoesNotExist, Vec::new())
    } else {
        (text, Operator::Exists, Vec::new())
    };
    let key = key.trim();
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if key.is_empty() || !key.chars().all(is_key) {
        return None;
    }
    Some((key.to_owned(), LabelSet::from_operator(operator, &values).ok()?))
}

/// Records the parameters of a ConfigMap that has any.
pub(in super::super) fn proportional_parameters(
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    let found = root.field.node.get("data").map(|data| {
        let text = |key| data.get(key).and_then(YamlNode::text);
        match (text("linear"), text("ladder")) {
            (Some(text), None) => linear(text),
            (None, Some(text)) => ladder(text),
            (_, _) => Err("it holds both `linear` and `ladder`".to_owned().into()),
        }
    });
    let Some(found) = found else { return };
    into.skip(meta.origin.clone(), "kind ConfigMap");
    let ObjectMeta { namespace, name, origin, .. } = meta;
    let scope = root.field.scope;
    let named =
        Definition { kind: "parameters", name: format!("{namespace}/{name}"), scope, origin };
    into.insert(named, |all| &mut all.parameters, (namespace, name), found, PartialEq::eq);
}

/// Matches autoscalers with their parameters.
pub(in super::super) fn resolve_proportional_autoscalers(
    into: &mut Collector,
    report: &ProblemCollector,
) {
    for found in std::mem::take(&mut into.proportional) {
        let ProportionalScaler { mut scaler, nodes, parameters, default } = found;
        let from_config_map = parameters.as_ref().and_then(|key| into.parameters.get(key).cloned());
        let named = parameters.map(|(namespace, name)| format!("{namespace}/{name}"));
        let mode = from_config_map.or_else(|| default.as_deref().map(default_parameters));
        scaler.rule = match (mode, nodes) {
            (_, Err(why)) => {
                report_error(report, &scaler, why);
                ScalerRule::Unknown("its flags are invalid".to_owned())
            }
            (Some(Ok(mode)), Ok(nodes)) => ScalerRule::Proportional(Proportional { nodes, mode }),
            (Some(Err(ParameterProblem::Refused(why))), Ok(_)) => {
                let named = named.unwrap_or_else(|| "--default-params".to_owned());
                report_refused(report, &scaler, &named, &why);
                continue;
            }
            (Some(Err(ParameterProblem::Invalid(why))), Ok(_)) => {
                let named = named.unwrap_or_else(|| "--default-params".to_owned());
                report_error(
                    report,
                    &scaler,
                    format!("its parameters in {named} are invalid: {why}"),
                );
                ScalerRule::Unknown("its parameters are invalid".to_owned())
            }
            (None, Ok(_)) => {
                let named =
                    named.map_or_else(|| "no ConfigMap".to_owned(), |n| format!("ConfigMap {n}"));
                ScalerRule::Unknown(format!("its parameters ({named}) are not in the repository"))
            }
        };
        if scaler.targets.is_empty() {
            let why = "its `--target` names no workload; write --target=deployment/NAME";
            report_error(report, &scaler, why.to_owned());
            continue;
        }
        into.desired.scalers.push(scaler);
    }
}

fn report_error(report: &ProblemCollector, scaler: &Scaler, message: String) {
    let Scaler { origin, object, .. } = scaler;
    let (origin, object): (Origin, String) = (origin.clone(), object.clone());
    report.add(Problem::error(origin, object, message));
}

/// Reports parameters with which the autoscaler scales nothing.
fn report_refused(report: &ProblemCollector, scaler: &Scaler, named: &str, why: &str) {
    let message = format!(
        "its parameters in {named} are invalid: {why}; the autoscaler scales nothing then, and the \
         replicas of its target count"
    );
    let problem = Problem::warning(scaler.origin.clone(), scaler.object.clone(), message);
    report.add(problem.hint("write true or false without quotes"));
}

/// Reads the value of `--default-params`: one mode under its name.
fn default_parameters(text: &str) -> ProportionalParameters {
    let json: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match (json.get("linear"), json.get("ladder")) {
        (Some(found), None) => linear(&found.to_string()),
        (None, Some(found)) => ladder(&found.to_string()),
        (_, _) => Err("it holds neither `linear` nor `ladder` alone".to_owned().into()),
    }
}

fn object(text: &str) -> Result<serde_json::Map<String, Json>, String> {
    let json: Json = serde_json::from_str(text).map_err(|error| error.to_string())?;
    json.as_object().cloned().ok_or_else(|| "it is not a JSON object".to_owned())
}

fn linear(text: &str) -> ProportionalParameters {
    let json = object(text)?;
    let ratio = |key: &str| match json.get(key) {
        None => Ok(None),
        Some(number) => match milli(number) {
            // The autoscaler takes 0 as absent.
            Some(milli) if milli >= 0 => Ok(Some(milli).filter(|milli| *milli > 0)),
            _ => Err(format!("`{key}` is {number}, not a number from 0")),
        },
    };
    let count = |key: &str| match json.get(key) {
        None => Ok(0),
        Some(number) => count(number).ok_or(format!("`{key}` is {number}, not a whole number")),
    };
    let (cores, nodes) = (ratio("coresPerReplica")?, ratio("nodesPerReplica")?);
    if cores.is_none() && nodes.is_none() {
        return Err("it has neither `coresPerReplica` nor `nodesPerReplica`".to_owned().into());
    }
    let (min, max) = (count("min")?.max(1), count("max")?);
    if max != 0 && min > max {
        return Err(format!("`min` {min} is above `max` {max}").into());
    }
    Ok(ProportionalMode::Linear(Linear {
        cores_per_replica_milli: cores,
        nodes_per_replica_milli: nodes,
        min,
        max,
        prevent_single_point_of_failure: boolean(&json, "preventSinglePointFailure")?,
        include_unschedulable: boolean(&json, "includeUnschedulableNodes")?,
    }))
}

fn ladder(text: &str) -> ProportionalParameters {
    let json = object(text)?;
    let steps = |key: &str| -> Result<Vec<(i64, u32)>, String> {
        let Some(listed) = json.get(key) else { return Ok(Vec::new()) };
        let step = |step: &Json| {
            let [from, replicas] = step.as_array()?.as_slice() else { return None };
            Some((i64::from(count(from)?), count(replicas)?))
        };
        let steps = listed.as_array().map(|all| all.iter().map(step).collect::<Option<Vec<_>>>());
        let mut steps = steps.flatten().ok_or(format!("`{key}` is not a list of pairs"))?;
        steps.sort_unstable();
        Ok(steps)
    };
    let ladder = Ladder {
        cores: steps("coresToReplicas")?,
        nodes: steps("nodesToReplicas")?,
        include_unschedulable: boolean(&json, "includeUnschedulableNodes")?,
    };
    if ladder.cores.is_empty() && ladder.nodes.is_empty() {
        return Err("it has neither `coresToReplicas` nor `nodesToReplicas`".to_owned().into());
    }
    Ok(ProportionalMode::Ladder(ladder))
}

/// Reads a boolean; false if it is absent. The autoscaler refuses parameters with a text there.
fn boolean(json: &serde_json::Map<String, Json>, key: &str) -> Result<bool, ParameterProblem> {
    match json.get(key) {
        None | Some(Json::Null) => Ok(false),
        Some(Json::Bool(value)) => Ok(*value),
        Some(other) => {
            Err(ParameterProblem::Refused(format!("`{key}` is {other}, not true or false")))
        }
    }
}

fn milli(number: &Json) -> Option<i64> {
    let Json::Number(number) = number else { return None };
    Some(number.to_string().parse::<Quantity>().ok()?.ceil_milli())
}

fn count(number: &Json) -> Option<u32> {
    number.as_u64().and_then(|number| u32::try_from(number).ok())
}
