//! Objects that own pods.

use std::sync::Arc;

use jiff::SignedDuration;

use super::collect::{Collected, Named};
use super::cron;
use super::decode::{Field, Map};
use super::meta::Meta;
use super::model::{Concurrency, CronSchedule, Scale, Severity, Workload};
use super::podspec::{claim_class, pod_template};
use super::scaling::autoscaler_of;
use crate::ids::{WorkloadId, WorkloadKind};
use crate::pod::{PodTemplate, Volume, VolumeSource};

/// Fields of a workload's specification that do not change how many pods it has, or of which shape.
const IRRELEVANT: &[&str] = &[
    "selector",
    "strategy",
    "updateStrategy",
    "minReadySeconds",
    "revisionHistoryLimit",
    "progressDeadlineSeconds",
    "paused",
    "rollbackTo",
    "podManagementPolicy",
    "serviceName",
    "persistentVolumeClaimRetentionPolicy",
    "templateGeneration",
];

/// Fields of a job's specification that change neither.
const JOB_IRRELEVANT: &[&str] = &[
    "activeDeadlineSeconds",
    "backoffLimit",
    "backoffLimitPerIndex",
    "completionMode",
    "managedBy",
    "manualSelector",
    "maxFailedIndexes",
    "podFailurePolicy",
    "podReplacementPolicy",
    "selector",
    "successPolicy",
    "ttlSecondsAfterFinished",
];

/// Fields of a Rollout's specification that change neither.
const ROLLOUT_IRRELEVANT: &[&str] =
    &["analysis", "progressDeadlineAbort", "restartAt", "rollbackWindow", "scaleDownDelaySeconds"];

/// Reads a workload and adds it to what was collected.
pub(super) fn read(kind: WorkloadKind, meta: Meta, root: &Map<'_>, into: &mut Collected) {
    if kind == WorkloadKind::Deployment {
        autoscaler_of(&meta, root.field.node, into);
    }
    if kind == WorkloadKind::Rollout && has_workload_ref(root) {
        let object = root.field.scope.object.clone();
        let why = "its pods are made from a `workloadRef`, which is not followed";
        return into.unresolved(meta.origin, object, why);
    }
    let mut first_ordinal = 0;
    let read = if kind == WorkloadKind::Pod {
        Some((Scale::Replicas(1), pod_template(root)))
    } else {
        root.need("spec").and_then(|spec| {
            let spec = spec.map()?;
            first_ordinal = ordinals_start(&spec);
            scaled(kind, &spec)
        })
    };
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    // A field that could not be read may be what keeps the pods from a node: planning without it
    // would be planning other pods.
    if let Some(field) = root.field.scope.first_failed() {
        let part =
            if field.is_empty() { "part of it".to_owned() } else { format!("its `{field}`") };
        let object = root.field.scope.object.clone();
        return into.unresolved(meta.origin, object, format!("{part} could not be read"));
    }
    let Some((scale, template)) = read else { return };
    let id = WorkloadId { namespace: meta.namespace, name: meta.name.into(), kind };
    let named = Named {
        sort: kind.as_str(),
        name: id.to_string(),
        scope: root.field.scope,
        origin: meta.origin.clone(),
    };
    let (origin, template) = (meta.origin, Arc::new(template));
    let workload = Workload { id: id.clone(), origin, scale, template, first_ordinal };
    let same = |a: &Workload, b: &Workload| {
        a.scale == b.scale && a.template == b.template && a.first_ordinal == b.first_ordinal
    };
    into.insert(named, |all| &mut all.desired.workloads, (id, workload), same);
}

/// Returns whether a Rollout takes its template from another object.
fn has_workload_ref(root: &Map<'_>) -> bool {
    root.field.node.get("spec").is_some_and(|spec| spec.get("workloadRef").is_some())
}

/// Reads the scale and template of a workload with a specification of its own.
fn scaled(kind: WorkloadKind, spec: &Map<'_>) -> Option<(Scale, PodTemplate)> {
    let read = match kind {
        WorkloadKind::Job => {
            let Job { parallelism, completions, suspended, template } = job(spec);
            Some((Scale::Job { pods: parallelism, completions, suspended }, template))
        }
        WorkloadKind::CronJob => cron_job(spec),
        WorkloadKind::DaemonSet => Some((Scale::PerNode, template(spec))),
        WorkloadKind::StatefulSet => {
            let mut template = template(spec);
            if let Some(claims) = spec.get("volumeClaimTemplates") {
                claim_templates(&claims, &mut template);
            }
            Some((Scale::Replicas(count(spec, "replicas")), template))
        }
        WorkloadKind::Deployment
        | WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::Rollout
        | WorkloadKind::Pod => Some((Scale::Replicas(count(spec, "replicas")), template(spec))),
        // Both are read by readers of their own.
        WorkloadKind::ScaledJob | WorkloadKind::CapacityBuffer => None,
    };
    if kind == WorkloadKind::Rollout {
        spec.ignore(ROLLOUT_IRRELEVANT);
    }
    spec.ignore(if kind == WorkloadKind::Job { JOB_IRRELEVANT } else { IRRELEVANT });
    spec.finish_exact();
    read
}

fn template(spec: &Map<'_>) -> PodTemplate {
    let template = spec.need("template").and_then(|field| Some(pod_template(&field.map()?)));
    template.unwrap_or_default()
}

/// Reads a count that is one unless stated.
fn count(spec: &Map<'_>, key: &'static str) -> u32 {
    spec.get(key).and_then(|field| field.int(0)).unwrap_or(1)
}

/// Reads the number that the pods of a `StatefulSet` begin with.
fn ordinals_start(spec: &Map<'_>) -> u32 {
    let start = spec.get("ordinals").and_then(|field| field.map()?.get("start")?.int(0));
    start.unwrap_or(0)
}

/// What the specification of a job says.
pub(super) struct Job {
    parallelism: u32,
    completions: Option<u32>,
    suspended: bool,
    pub(super) template: PodTemplate,
}

impl Job {
    /// Returns how many pods a run of it begins with.
    pub(super) fn pods(&self) -> u32 {
        self.completions.map_or(self.parallelism, |most| self.parallelism.min(most))
    }
}

fn job(spec: &Map<'_>) -> Job {
    Job {
        parallelism: count(spec, "parallelism"),
        completions: spec.get("completions").and_then(|field| field.int(0)),
        suspended: spec.get("suspend").and_then(|field| field.boolean()).unwrap_or(false),
        template: template(spec),
    }
}

fn cron_job(spec: &Map<'_>) -> Option<(Scale, PodTemplate)> {
    let due = spec.need("schedule").and_then(|field| cron::expression(&field));
    let zone = spec.get("timeZone").map(|field| cron::time_zone(&field));
    let policies = [
        ("Allow", Concurrency::Allow),
        ("Forbid", Concurrency::Forbid),
        ("Replace", Concurrency::Replace),
    ];
    let concurrency =
        spec.get("concurrencyPolicy").map_or(Some(Concurrency::Allow), |f| f.choice(&policies));
    let suspended = spec.get("suspend").and_then(|f| f.boolean()).unwrap_or(false);
    let mut deadline = None;
    let of_job = |field: Field<'_>| {
        let template = field.map()?;
        let spec = template.need("spec")?;
        deadline = active_deadline(&spec);
        job_template(&spec)
    };
    let job = spec.need("jobTemplate").and_then(of_job);
    spec.ignore(&["failedJobsHistoryLimit", "successfulJobsHistoryLimit"]);
    spec.ignore(&["startingDeadlineSeconds"]);
    let job = job?;
    let due = match zone {
        None => due?,
        Some(zone) => due?.within(zone?),
    };
    let schedule = CronSchedule { due, concurrency: concurrency?, deadline };
    let (pods, suspended) = (job.pods(), suspended || job.suspended);
    Some((Scale::CronJob { pods, suspended, schedule }, job.template))
}

fn active_deadline(spec: &Field<'_>) -> Option<SignedDuration> {
    let map = spec.map()?;
    let seconds = map.get("activeDeadlineSeconds")?.int(1)?;
    Some(SignedDuration::from_secs(seconds))
}

/// Reads the specification of a job inside another object.
pub(super) fn job_template(field: &Field<'_>) -> Option<Job> {
    let spec = field.map()?;
    let read = job(&spec);
    spec.ignore(JOB_IRRELEVANT);
    spec.finish_exact();
    Some(read)
}

/// Adds the claims that each pod of a `StatefulSet` gets; each takes the place of a volume of its
/// name.
fn claim_templates(field: &Field<'_>, template: &mut PodTemplate) {
    for item in field.items() {
        let name = item.map().and_then(|claim| {
            let metadata = claim.need("metadata")?;
            Some(metadata.map()?.need("name")?.filled()?.into_owned())
        });
        let Some(name) = name else { continue };
        template.spec.volumes.retain(|volume| volume.name != name);
        let source = VolumeSource::ClaimTemplate(claim_class(&item));
        template.spec.volumes.push(Volume { name, source });
    }
}
