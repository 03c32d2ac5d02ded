//! Objects that own pods.

use std::sync::Arc;

use jiff::SignedDuration;

use super::autoscaling::collect_proportional_autoscaler;
use super::collector::{Collector, Definition};
use super::decode::{Field, FieldMap, ObjectContext, shorten};
use super::delivery::is_left_alone_by_flux;
use super::object_meta::ObjectMeta;
use super::placeholder::unread_source;
use super::pod_spec::{claim_class, pod_template};
use super::yaml::{YamlNode, YamlValue};
use super::{cron, hooks, job_retries, labels};
use crate::model::code::Code;
use crate::model::desired::{Concurrency, CronSchedule, RolloutShare, Scale, Severity, Workload};
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::pod::{PodTemplate, Volume, VolumeSource};

/// Fields of a workload's specification that affect neither the number nor the shape of its pods.
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

/// Fields of a job's specification that affect neither.
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

/// Fields of a Rollout's specification that affect neither.
const ROLLOUT_IRRELEVANT: &[&str] =
    &["analysis", "progressDeadlineAbort", "restartAt", "rollbackWindow", "scaleDownDelaySeconds"];

/// Reads a workload into the collector.
pub(super) fn read(
    kind: WorkloadKind,
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    if !root.field.scope.verbatim && exclude_foreign(kind, &meta, root, into) {
        return;
    }
    if kind == WorkloadKind::Deployment {
        collect_proportional_autoscaler(&meta, root.field.node, into);
    }
    if kind == WorkloadKind::Rollout && has_workload_ref(root) {
        let object = root.field.scope.object.clone();
        let why = "its pods are made from a `workloadRef`, which is not followed";
        return into.add_unresolved(meta.origin, object, why);
    }
    let id = WorkloadId { namespace: meta.namespace, name: meta.name.into(), kind };
    if record_sync_policy(&id, root, into) == Applied::Never {
        return into.skip(meta.origin, "left alone by Flux");
    }
    let max_surge = max_surge(kind, root);
    let mut first_ordinal = 0;
    let read = if kind == WorkloadKind::Pod {
        Some((Scale::Replicas(1), pod_template(root)))
    } else {
        root.required("spec").and_then(|spec| {
            let spec = spec.map()?;
            require_selector(kind, root, &spec);
            first_ordinal = ordinals_start(&spec);
            scaled(kind, &spec)
        })
    };
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
    // An unreadable field may be a scheduling constraint. Without it, the plan would be for
    // different pods.
    if let Some(field) = root.field.scope.first_failed_field() {
        let scope = root.field.scope;
        let reason = unread_reason(&field, scope);
        return into.add_unresolved(meta.origin, scope.object.clone(), reason);
    }
    let Some((scale, template)) = read else { return };
    let named = Definition {
        kind: kind.as_str(),
        name: id.to_string(),
        scope: root.field.scope,
        origin: meta.origin.clone(),
    };
    let delivered_by =
        root.field.scope.delivered_by.map_or(id.namespace.as_str(), |by| by.object.as_str());
    // Which tool made an object of a cluster is not known.
    let is_of_chart = root.field.scope.is_of_chart || root.field.scope.verbatim;
    if matches!(kind, WorkloadKind::Job | WorkloadKind::Pod)
        && let Some(hook) = hooks::hook(&meta.annotations, &id.name, delivered_by, is_of_chart)
    {
        into.desired.hooks.insert(id.clone(), hook);
    }
    let queue = queue_name(kind, root, &template);
    let scale = if queue.is_some() && !root.field.scope.verbatim { resumed(scale) } else { scale };
    let workload = Workload {
        first_ordinal,
        max_surge,
        queue,
        retries: job_retries::read_declared(kind, root),
        ..Workload::new(id.clone(), meta.origin, scale, Arc::new(template))
    };
    into.insert(named, |all| &mut all.desired.workloads, id, workload, has_same_pods);
}

/// Returns whether two definitions of a workload do not contradict each other. The update strategy
/// changes no pod.
fn has_same_pods(a: &Workload, b: &Workload) -> bool {
    a.scale == b.scale
        && a.template == b.template
        && a.first_ordinal == b.first_ordinal
        && a.queue == b.queue
}

/// Returns the reason why a workload with an unreadable field is unresolved.
fn unread_reason(field: &str, scope: &ObjectContext<'_>) -> String {
    let part = if field.is_empty() { "part of it".to_owned() } else { format!("its `{field}`") };
    match unread_source(scope.vars) {
        Some(source) if !scope.report.has_error_of(&scope.object) => format!(
            "{source} may give a value to {part}; list it under `delivery.vars` in \
             fleetwright.yaml"
        ),
        Some(_) | None => format!("{part} could not be read"),
    }
}

/// Whether a delivery tool applies a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    Always,
    /// Flux neither changes nor removes it. Running pods stay.
    Never,
}

/// Records what the delivery tool leaves alone about a workload.
fn record_sync_policy(id: &WorkloadId, root: &FieldMap<'_>, into: &mut Collector) -> Applied {
    let scope = root.field.scope;
    if scope.verbatim {
        return Applied::Always;
    }
    let node = root.field.node;
    // The annotations of Flux have no effect for other tools.
    let is_of_flux = scope.delivered_by.is_none_or(|by| by.object.starts_with("Kustomization "));
    let is_left_alone = is_of_flux && is_left_alone_by_flux(node);
    if is_left_alone || scope.policy.retains(node) {
        into.desired.retained.insert(id.clone());
    }
    if scope.policy.retains {
        into.desired.retaining_namespaces.insert(id.namespace.clone());
    }
    if let Some(live) = scope.policy.live_replicas(node, id.namespace.as_str(), &id.name) {
        into.desired.live_replicas.insert(id.clone(), live);
    }
    if is_left_alone { Applied::Never } else { Applied::Always }
}

/// Reports a workload of a file whose pods another object or controller makes. Returns true if it is
/// one.
fn exclude_foreign(
    kind: WorkloadKind,
    meta: &ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) -> bool {
    if let Some(reason) = made_elsewhere(root) {
        skip_with_warning(meta, root, (&reason, Some(OWNED_HINT)), into);
        return true;
    }
    match job_manager(kind, root) {
        Some(MULTI_KUEUE) => {
            let reason = "is run in another cluster, as its `managedBy` says";
            skip_with_warning(meta, root, (reason, None), into);
            true
        }
        Some(_) => {
            let object = root.field.scope.object.clone();
            let why = "its `managedBy` names another controller, which decides on its pods";
            into.add_unresolved(meta.origin.clone(), object, why);
            true
        }
        None => false,
    }
}

/// Value of `managedBy` for Jobs whose copies in other clusters run.
const MULTI_KUEUE: &str = "kueue.x-k8s.io/multikueue";

/// Value of `managedBy` for the controller that is built in.
const JOB_CONTROLLER: &str = "batch.kubernetes.io/job-controller";

/// Returns the controller that replaces the built-in Job controller for a Job or a `CronJob`.
fn job_manager<'n>(kind: WorkloadKind, root: &FieldMap<'n>) -> Option<&'n str> {
    let path: &[&str] = match kind {
        WorkloadKind::Job => &["spec", "managedBy"],
        WorkloadKind::CronJob => &["spec", "jobTemplate", "spec", "managedBy"],
        WorkloadKind::Deployment
        | WorkloadKind::StatefulSet
        | WorkloadKind::DaemonSet
        | WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::Pod
        | WorkloadKind::Rollout
        | WorkloadKind::ScaledJob
        | WorkloadKind::CapacityBuffer => return None,
    };
    let found = path.iter().try_fold(root.field.node, |node, key| node.get(key))?;
    found.text().filter(|manager| *manager != JOB_CONTROLLER)
}

/// Returns why a controller or the kubelet makes the object itself; `None` if the file declares it.
/// Such objects are exports of a cluster. Their owner decides, and the garbage collector deletes them
/// without it.
fn made_elsewhere(root: &FieldMap<'_>) -> Option<String> {
    let metadata = root.field.node.get("metadata")?;
    if metadata.get("annotations").is_some_and(|all| all.get(MIRROR).is_some()) {
        return Some("is a mirror pod, which a kubelet makes from a file of its node".to_owned());
    }
    let YamlValue::Seq(owners) = &metadata.get("ownerReferences")?.value else { return None };
    let is_controller =
        |owner: &&YamlNode<'_>| owner.get("controller").and_then(YamlNode::text) == Some("true");
    let owner = owners.iter().find(is_controller)?;
    let text = |key| shorten(owner.get(key).and_then(YamlNode::text).unwrap_or_default());
    Some(format!(
        "has the controller `{} {}` in its `ownerReferences`, which makes such objects itself",
        text("kind"),
        text("name")
    ))
}

/// Label with the `LocalQueue` of Kueue.
const QUEUE: &str = "kueue.x-k8s.io/queue-name";

/// Returns the `LocalQueue` that admits the pods of a workload. Kueue looks for the label on the object
/// itself where it knows the kind, and on the pods.
fn queue_name(kind: WorkloadKind, root: &FieldMap<'_>, template: &PodTemplate) -> Option<String> {
    let path: &[&str] = match kind {
        WorkloadKind::Job
        | WorkloadKind::Deployment
        | WorkloadKind::StatefulSet
        | WorkloadKind::Pod => &["metadata", "labels", QUEUE],
        WorkloadKind::CronJob => &["spec", "jobTemplate", "metadata", "labels", QUEUE],
        WorkloadKind::DaemonSet | WorkloadKind::CapacityBuffer => return None,
        WorkloadKind::ReplicaSet
        | WorkloadKind::ReplicationController
        | WorkloadKind::Rollout
        | WorkloadKind::ScaledJob => &["spec", "template", "metadata", "labels", QUEUE],
    };
    let found = path.iter().try_fold(root.field.node, |node, key| node.get(key));
    let of_pods = || Some(template.labels.get(QUEUE)?.to_string());
    let found = found.and_then(YamlNode::text).filter(|name| !name.is_empty()).map(str::to_owned);
    found.or_else(of_pods).filter(|name| !name.is_empty())
}

/// Returns the scale of a Job that Kueue resumes, whether or not the file suspends it.
fn resumed(mut scale: Scale) -> Scale {
    if let Scale::Job { suspended, .. } = &mut scale {
        *suspended = false;
    }
    scale
}

/// Annotation of mirror pods.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What to do about such an object.
const OWNED_HINT: &str = "remove it from the files, or declare its owner in its place";

/// Records that an object is not planned, and warns of it.
fn skip_with_warning(
    meta: &ObjectMeta,
    root: &FieldMap<'_>,
    (reason, hint): (&str, Option<&str>),
    into: &mut Collector,
) {
    into.skip(meta.origin.clone(), "made by a controller, a kubelet or in another cluster");
    root.field.scope.report_problem(
        Severity::Warning,
        root.field.node.line,
        format!("{reason}: it is not planned"),
        hint.map(str::to_owned),
    );
}

/// Returns whether a Rollout takes its template from another object.
fn has_workload_ref(root: &FieldMap<'_>) -> bool {
    root.field.node.get("spec").is_some_and(|spec| spec.get("workloadRef").is_some())
}

/// Returns the pods that a rolling update creates first. An unreadable value counts as the default,
/// because it changes no pod. A blue-green update of a Rollout creates every pod once more.
fn max_surge(kind: WorkloadKind, root: &FieldMap<'_>) -> RolloutShare {
    if !matches!(kind, WorkloadKind::Deployment | WorkloadKind::Rollout) {
        return RolloutShare::NONE;
    }
    let strategy = root.field.node.get("spec").and_then(|spec| spec.get("strategy"));
    let Some(strategy) = strategy else { return RolloutShare::DEFAULT };
    if strategy.get("type").and_then(YamlNode::text) == Some("Recreate") {
        return RolloutShare::NONE;
    }
    if strategy.get("blueGreen").is_some() {
        return RolloutShare::Percent(100);
    }
    let surge = ["rollingUpdate", "canary"]
        .into_iter()
        .find_map(|key| strategy.get(key)?.get("maxSurge")?.text());
    let Some(surge) = surge else { return RolloutShare::DEFAULT };
    match surge.strip_suffix('%') {
        Some(percent) => percent.parse().map_or(RolloutShare::DEFAULT, RolloutShare::Percent),
        None => surge.parse().map_or(RolloutShare::DEFAULT, RolloutShare::Pods),
    }
}

/// Reads the scale and template of a workload with a specification of its own.
fn scaled(kind: WorkloadKind, spec: &FieldMap<'_>) -> Option<(Scale, PodTemplate)> {
    let read = match kind {
        WorkloadKind::Job => {
            let JobSpec { parallelism, completions, suspended, template } = job(spec);
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
        // Both have readers of their own.
        WorkloadKind::ScaledJob | WorkloadKind::CapacityBuffer => None,
    };
    if matches!(
        kind,
        WorkloadKind::Deployment
            | WorkloadKind::StatefulSet
            | WorkloadKind::DaemonSet
            | WorkloadKind::ReplicaSet
    ) && let Some((_, template)) = &read
    {
        check_selector(spec, template);
    }
    if kind == WorkloadKind::Rollout {
        spec.ignore(ROLLOUT_IRRELEVANT);
    }
    spec.ignore(if kind == WorkloadKind::Job { JOB_IRRELEVANT } else { IRRELEVANT });
    spec.finish_with_typo_check();
    read
}

/// What to write as a selector.
const SELECTOR_HINT: &str = "write the labels of the template under `spec.selector.matchLabels`";

/// Reports a missing selector: the API server refuses the workload. Removed API versions and other
/// kinds have a default.
fn require_selector(kind: WorkloadKind, root: &FieldMap<'_>, spec: &FieldMap<'_>) {
    let is_required = matches!(
        kind,
        WorkloadKind::Deployment
            | WorkloadKind::StatefulSet
            | WorkloadKind::DaemonSet
            | WorkloadKind::ReplicaSet
    );
    let api_version = root.field.node.get("apiVersion").and_then(YamlNode::text);
    let is_live = root.field.scope.verbatim;
    if is_required && !is_live && api_version == Some("apps/v1") && spec.get("selector").is_none() {
        spec.field.coded_error(
            Code::FieldMissing,
            "has no `selector`, so that the API server refuses it",
            SELECTOR_HINT.to_owned(),
        );
    }
}

/// Reports an empty selector, and one that does not select the pods of its own template: the API
/// server refuses both.
fn check_selector(spec: &FieldMap<'_>, template: &PodTemplate) {
    let Some(field) = spec.get("selector") else { return };
    let Some(selector) = labels::selector(&field) else { return };
    if selector.0.is_empty() && !spec.field.scope.verbatim {
        field.error("selects nothing, so that the API server refuses it", SELECTOR_HINT.to_owned());
        return;
    }
    if !selector.matches(&template.labels) {
        field.error(
            "does not select the pods of `spec.template`",
            "write the labels of the template under `matchLabels`".to_owned(),
        );
    }
}

fn template(spec: &FieldMap<'_>) -> PodTemplate {
    let template = spec.required("template").and_then(|field| Some(pod_template(&field.map()?)));
    template.unwrap_or_default()
}

/// Reads a count that defaults to one.
fn count(spec: &FieldMap<'_>, key: &'static str) -> u32 {
    spec.get(key).and_then(|field| field.int(0)).unwrap_or(1)
}

/// Reads the first ordinal of a `StatefulSet`.
fn ordinals_start(spec: &FieldMap<'_>) -> u32 {
    let start = spec.get("ordinals").and_then(|field| field.map()?.get("start")?.int(0));
    start.unwrap_or(0)
}

/// The capacity-related fields of a job's specification.
pub(super) struct JobSpec {
    parallelism: u32,
    completions: Option<u32>,
    suspended: bool,
    pub(super) template: PodTemplate,
}

impl JobSpec {
    /// Returns the number of pods with which a run starts.
    pub(super) fn pods(&self) -> u32 {
        self.completions.map_or(self.parallelism, |most| self.parallelism.min(most))
    }
}

fn job(spec: &FieldMap<'_>) -> JobSpec {
    JobSpec {
        parallelism: count(spec, "parallelism"),
        completions: spec.get("completions").and_then(|field| field.int(0)),
        suspended: spec.get("suspend").and_then(|field| field.boolean()).unwrap_or(false),
        template: template(spec),
    }
}

fn cron_job(spec: &FieldMap<'_>) -> Option<(Scale, PodTemplate)> {
    let due = spec.required("schedule").and_then(|field| cron::expression(&field));
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
        let spec = template.required("spec")?;
        deadline = active_deadline(&spec);
        job_template(&spec)
    };
    let job = spec.required("jobTemplate").and_then(of_job);
    spec.ignore(&["failedJobsHistoryLimit", "successfulJobsHistoryLimit"]);
    spec.ignore(&["startingDeadlineSeconds"]);
    let job = job?;
    let due = match zone {
        None => due?,
        Some(zone) => due?.in_time_zone(zone?),
    };
    let schedule = CronSchedule { schedule: due, concurrency: concurrency?, deadline };
    let (pods, suspended) = (job.pods(), suspended || job.suspended);
    Some((Scale::CronJob { pods, suspended, schedule }, job.template))
}

fn active_deadline(spec: &Field<'_>) -> Option<SignedDuration> {
    let map = spec.map()?;
    let seconds = map.get("activeDeadlineSeconds")?.int(0)?;
    Some(SignedDuration::from_secs(seconds))
}

/// Reads the specification of a job inside another object.
pub(super) fn job_template(field: &Field<'_>) -> Option<JobSpec> {
    let spec = field.map()?;
    let read = job(&spec);
    spec.ignore(JOB_IRRELEVANT);
    spec.finish_with_typo_check();
    Some(read)
}

/// Adds the claims of each pod of a `StatefulSet`. Each replaces the volume of its name.
fn claim_templates(field: &Field<'_>, template: &mut PodTemplate) {
    for item in field.items() {
        let name = item.map().and_then(|claim| {
            let metadata = claim.required("metadata")?;
            Some(metadata.map()?.required("name")?.non_empty_text()?.into_owned())
        });
        let Some(name) = name else { continue };
        template.spec.volumes.retain(|volume| volume.name != name);
        let source = VolumeSource::ClaimTemplate(claim_class(&item));
        template.spec.volumes.push(Volume { name, source });
    }
}
