//! Pods that a source is assumed to declare, in place of objects that are not read.
//!
//! A custom resource below a source with `assume` counts as read: over an observed cluster, its pods
//! are those that run. A chart or a kustomization that is not rendered stays unresolved, because it
//! may declare workloads, and a plan must not free their capacity.

use std::collections::{BTreeMap, BTreeSet};

use super::collector::{Collector, CustomObjects};
use super::decode::ProblemCollector;
use super::settings::is_within;
use crate::model::code::Code;
use crate::model::desired::{AssumedPods, Fleet, Problem, Scale, Skipped, Source, Workload};
use crate::model::ids::{Origin, WorkloadId, WorkloadKind};
use crate::model::pod::{Container, ContainerResources, PodSpec, PodTemplate};

/// Most kinds that a warning lists.
const LISTED_MAX: usize = 8;

/// Decides about the custom resources that were found: those below a source with `assume` have its
/// pods. Returns a workload for each such source, and for each other source with `assume` that is
/// not read. Its name is none that an object can have.
pub(super) fn resolve<'f>(
    fleet: &'f Fleet,
    report: &ProblemCollector,
    into: &mut Collector,
) -> Vec<Workload> {
    let CustomObjects { with_pods, of_unknown_kinds } = std::mem::take(&mut into.custom);
    let mut replaced: BTreeSet<(&Origin, &str)> = BTreeSet::new();
    let key = |source: &'f Source| (&source.origin, source.path.as_str());
    for object in with_pods {
        match source_assuming(fleet, &object.origin) {
            Some(source) => {
                replaced.insert(key(source));
                into.skip(object.origin, "object whose pods are assumed");
            }
            None => into.desired.unresolved.push(object),
        }
    }
    let mut unknown: Vec<Skipped> = Vec::new();
    for object in of_unknown_kinds {
        match source_assuming(fleet, &object.origin) {
            Some(source) => {
                replaced.insert(key(source));
            }
            None => unknown.push(object),
        }
    }
    report_unknown_kinds(unknown, report);
    let unread = into.desired.unresolved.iter();
    replaced.extend(unread.filter_map(|object| source_assuming(fleet, &object.origin)).map(key));
    let of_source = |source: &'f Source| {
        let assumed = source.assume.as_ref()?;
        if replaced.contains(&key(source)) {
            return (assumed.pods > 0).then(|| workload(source, assumed));
        }
        let message = "states `assume`, which has no effect: each of its objects is read";
        let object = format!("source {}", if source.path.is_empty() { "." } else { &source.path });
        report
            .add(Problem::warning(source.origin.clone(), object, message).hint("remove `assume`"));
        None
    };
    fleet.sources.iter().filter_map(of_source).collect()
}

/// Returns the source that states the pods of an object at `origin`: the innermost one around its
/// file, or the one in the settings that the object is located at.
fn source_assuming<'f>(fleet: &'f Fleet, origin: &Origin) -> Option<&'f Source> {
    let around = fleet.sources.iter().filter(|source| is_within(&origin.file, &source.path));
    let innermost = around.max_by_key(|source| source.path.len());
    let mut all = fleet.sources.iter();
    let named = all.find(|source| source.origin == *origin && source.assume.is_some());
    named.or(innermost).filter(|source| source.assume.is_some())
}

/// Reports objects of kinds that are not known, by kind. Their controllers may make pods.
fn report_unknown_kinds(mut objects: Vec<Skipped>, report: &ProblemCollector) {
    objects.sort();
    let Some(first) = objects.first().map(|object| object.origin.clone()) else { return };
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for object in &objects {
        *counts.entry(object.reason.as_str()).or_default() += 1;
    }
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let rest = counts.len().saturating_sub(LISTED_MAX);
    let listed = counts.iter().take(LISTED_MAX).map(|(kind, n)| format!("{n} {kind}"));
    let mut listed: Vec<String> = listed.collect();
    if rest > 0 {
        listed.push(format!("and {rest} more kinds"));
    }
    let message = format!(
        "{} not read: {}. Pods that their controllers make are not counted",
        if objects.len() == 1 {
            "1 object of a kind that is".to_owned()
        } else {
            format!("{} objects of kinds that are", objects.len())
        },
        listed.join(", "),
    );
    let hint = "if they make pods, state the number with `assume` under spec.sources in \
                fleetwright.yaml";
    report.add(Problem::warning(first, "", message).hint(hint).code(Code::KindNotRead));
}

fn workload(source: &Source, assumed: &AssumedPods) -> Workload {
    let AssumedPods { pods, requests } = assumed;
    let resources = ContainerResources { requests: requests.clone(), ..Default::default() };
    let container = Container { name: "assumed".into(), resources, ..Default::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    let namespace = source.namespace.as_deref().unwrap_or("default").into();
    let name = format!("assumed:{}", source.path.replace('/', "-")).into();
    let id = WorkloadId { namespace, name, kind: WorkloadKind::Deployment };
    let template = PodTemplate { spec, ..PodTemplate::default() };
    let (origin, scale) = (source.origin.clone(), Scale::Replicas(*pods));
    Workload::new(id, origin, scale, template.into())
}
