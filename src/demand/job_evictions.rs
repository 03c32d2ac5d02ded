//! Jobs that might fail if their pods are evicted.
//!
//! The Job controller counts an evicted pod as failed, unless the `podFailurePolicy` of the Job
//! ignores disruptions. A failure is never given back. A pod may therefore be evicted only if its
//! Job survives the loss of all pods that it has now.
//!
//! The evictions of all plans and drains then add up to no more than the Job survives, although
//! observations lag behind them. An eviction turns an unfinished pod into a failed one, and its
//! replacement counts in addition.
//!
//! One failure of each limit is spared, for a failure of the Job's own. The Job and its pods are
//! observed separately, so that a failed pod may be gone before the Job is observed to list it. The
//! spared failure bears one such pod.
//!
//! Invariant: an unknown limit or number of failures refuses the eviction.
//!
//! Source: Kubernetes, `pkg/controller/job/job_controller.go` (`exceedsBackoffLimit`) and
//! `pkg/controller/job/backoff_utils.go`.

use std::collections::BTreeMap;
use std::fmt;

use crate::model::desired::Desired;
use crate::model::ids::{WorkloadId, WorkloadKind};
use crate::model::job::{INDEX_FAILURES, JobRetries, OnEviction};
use crate::model::observed::{LiveJob, Observed, Pod, PodPhase};

/// Labels of a pod with the name of its Job, the current one first.
const JOB_NAME_LABELS: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];

/// Reason why a pod of a Job is not evicted. Its text is a sentence about the Job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRefusal {
    /// Kind, namespace and name of the Job, or of its owner if the Job is not known.
    pub job: String,
    /// Reason, as a phrase.
    pub why: String,
}

impl fmt::Display for JobRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.job, self.why)
    }
}

/// Numbers of pods of a Job.
#[derive(Debug, Clone, Copy, Default)]
struct PodCounts {
    /// Pods that have not finished, terminating ones included.
    unfinished: u32,
    /// Failed pods that still exist.
    failed: u32,
}

/// Evictions that the Jobs of a cluster survive.
#[derive(Debug)]
pub struct JobEvictions<'a> {
    observed: &'a Observed,
    /// Declarations, which stand in for Jobs that were not read.
    desired: Option<&'a Desired>,
    jobs: BTreeMap<&'a WorkloadId, &'a LiveJob>,
    pods: BTreeMap<WorkloadId, PodCounts>,
}

impl<'a> JobEvictions<'a> {
    /// Returns the evictions that Jobs survive, with the declarations of those that were not read.
    pub fn new(observed: &'a Observed, desired: &'a Desired) -> Self {
        Self { desired: Some(desired), ..Self::of_read_jobs(observed) }
    }

    /// Returns the evictions that the observed Jobs survive. Other Jobs are not judged.
    pub fn of_read_jobs(observed: &'a Observed) -> Self {
        let mut pods: BTreeMap<WorkloadId, PodCounts> = BTreeMap::new();
        for pod in &observed.pods {
            let Some(id) = job_of(pod, observed) else { continue };
            let counts = pods.entry(id).or_default();
            match pod.phase {
                PodPhase::Pending | PodPhase::Running => counts.unfinished += 1,
                // It exists until the Job lists it as failed.
                PodPhase::Failed if pod.terminating => counts.unfinished += 1,
                PodPhase::Failed => counts.failed += 1,
                PodPhase::Succeeded => {}
            }
        }
        let jobs = observed.jobs.iter().map(|job| (&job.id, job)).collect();
        Self { observed, desired: None, jobs, pods }
    }

    /// Returns why a pod must not be evicted for the sake of its Job; `None` if it may be.
    pub fn refusal(&self, pod: &Pod) -> Option<JobRefusal> {
        let id = job_of(pod, self.observed)?;
        let counts = self.pods.get(&id).copied().unwrap_or_default();
        let why = if let Some(job) = self.jobs.get(&id) {
            // The Job may be observed before it lists its failed pods.
            self.reason(pod, job.retries, job.failed.max(counts.failed), counts.unfinished)
        } else {
            let declared = self.desired?.workloads.get(pod.owner.as_ref()?);
            let retries = declared.and_then(|workload| workload.retries);
            // Evicted pods are deleted, so that only the Job knows the failures.
            retries
                .is_none_or(|retries| retries.on_eviction != OnEviction::Ignored)
                .then(|| "was not read, so it might fail without its pods".to_owned())
        };
        why.map(|why| JobRefusal { job: format!("{} {id}", id.kind), why })
    }

    fn reason(
        &self,
        pod: &Pod,
        retries: JobRetries,
        failed: u32,
        unfinished: u32,
    ) -> Option<String> {
        let JobRetries { backoff_limit, per_index, on_eviction } = retries;
        match on_eviction {
            OnEviction::Ignored => return None,
            OnEviction::Fatal => {
                return Some("fails at an eviction, by its podFailurePolicy".to_owned());
            }
            OnEviction::Counted => {}
        }
        if let Some(limit) = per_index {
            let Some(failures) = self.index_failures(pod) else {
                return Some("does not state the failures of the index of a pod".to_owned());
            };
            if failures >= for_evictions(limit) {
                return Some(format!(
                    "might fail at an index if its pod is evicted (backoffLimitPerIndex {limit}, \
                     {failures} failed)"
                ));
            }
        }
        (failed.saturating_add(unfinished) > for_evictions(backoff_limit)).then(|| {
            format!(
                "might fail if its pods are evicted (backoffLimit {backoff_limit}, {failed} \
                 failed, {unfinished} unfinished)"
            )
        })
    }

    /// Returns the failures of the index of a pod, as the Job controller wrote them.
    fn index_failures(&self, pod: &Pod) -> Option<u32> {
        let template = self.observed.templates.get(&*pod.template)?;
        template.annotations.get(INDEX_FAILURES)?.parse().ok()
    }
}

/// Returns the failed pods of a limit that evictions may use.
fn for_evictions(limit: u32) -> u32 {
    limit.saturating_sub(1)
}

/// Returns the Job of a pod. It is the owner of the Job if the pod does not name the Job.
fn job_of(pod: &Pod, observed: &Observed) -> Option<WorkloadId> {
    let owner = pod.owner.as_ref()?;
    if owner.kind == WorkloadKind::Job {
        return Some(owner.clone());
    }
    if !matches!(owner.kind, WorkloadKind::CronJob | WorkloadKind::ScaledJob) {
        return None;
    }
    let labels = observed.templates.get(&*pod.template).map(|template| &template.labels);
    let name = labels.and_then(|labels| JOB_NAME_LABELS.iter().find_map(|key| labels.get(*key)));
    let Some(name) = name else { return Some(owner.clone()) };
    let namespace = owner.namespace.clone();
    Some(WorkloadId { namespace, name: name.as_str().into(), kind: WorkloadKind::Job })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;

    use super::*;
    use crate::model::desired::{Scale, Workload};
    use crate::model::ids::Origin;
    use crate::model::observed::ClusterIdentity;
    use crate::model::pod::PodTemplate;
    use crate::model::requirement::label;
    use crate::testing::world;

    const COUNTED: OnEviction = OnEviction::Counted;

    fn id(kind: WorkloadKind, name: &str) -> WorkloadId {
        WorkloadId { namespace: "web".into(), name: name.into(), kind }
    }

    fn retries(backoff_limit: u32, on_eviction: OnEviction) -> JobRetries {
        JobRetries { backoff_limit, per_index: None, on_eviction }
    }

    /// Returns a world with pods of an owner, which have all of these labels and annotations.
    fn world_of(owner: &WorkloadId, pods: u32, template: PodTemplate) -> Observed {
        let mut observed = Observed::empty(ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
        observed.templates.insert("t".to_owned(), Arc::new(template));
        let pod = |n| Arc::new(world::pod(&format!("{}-{n}", owner.name)).owned_by(owner).on("n1"));
        observed.pods = (0..pods).map(pod).collect();
        observed
    }

    fn live(name: &str, retries: JobRetries, failed: u32) -> LiveJob {
        LiveJob { id: id(WorkloadKind::Job, name), retries, failed }
    }

    #[test]
    fn job_survives_the_loss_of_all_its_pods_or_keeps_them() {
        for (limit, on_eviction, failed, pods, is_evicted) in [
            (6, COUNTED, 0, 5, true),
            (6, COUNTED, 0, 6, false),
            (6, COUNTED, 0, 105, false),
            (6, COUNTED, 4, 1, true),
            (6, COUNTED, 5, 1, false),
            (6, COUNTED, 9, 1, false),
            (2, COUNTED, 0, 1, true),
            (2, COUNTED, 1, 1, false),
            (1, COUNTED, 0, 1, false),
            (0, COUNTED, 0, 1, false),
            (6, COUNTED, u32::MAX, 1, false),
            (0, OnEviction::Ignored, 9, 105, true),
            (9, OnEviction::Fatal, 0, 1, false),
        ] {
            let mut observed = world_of(&id(WorkloadKind::Job, "a"), pods, PodTemplate::default());
            observed.jobs = vec![live("a", retries(limit, on_eviction), failed)];
            let found = JobEvictions::of_read_jobs(&observed).refusal(&observed.pods[0]);
            let case = format!("{limit} {on_eviction:?} {failed} {pods}: {found:?}");
            assert_eq!(found.is_none(), is_evicted, "{case}");
        }
    }

    #[test]
    fn evictions_add_up_to_no_more_than_the_limit() {
        let mut observed = world_of(&id(WorkloadKind::Job, "a"), 2, PodTemplate::default());
        observed.jobs = vec![live("a", retries(6, COUNTED), 0)];
        let mut evicted = 0;
        // Each pod that may be evicted is, and its replacement starts before it counts as failed.
        while JobEvictions::of_read_jobs(&observed).refusal(&observed.pods[0]).is_none() {
            evicted += 1;
            Arc::make_mut(&mut observed.pods[0]).terminating = true;
            let replacement = Arc::new(world::pod("new").owned_by(&id(WorkloadKind::Job, "a")));
            observed.pods.insert(0, replacement);
            assert!(evicted < 9, "it ends");
        }
        assert_eq!(evicted, 4);
        // Terminated pods count as failed instead.
        observed.pods.retain(|pod| !pod.terminating);
        observed.jobs[0].failed = evicted;
        let refusal = JobEvictions::of_read_jobs(&observed).refusal(&observed.pods[0]);
        let expected = "Job web/a might fail if its pods are evicted (backoffLimit 6, 4 failed, 2 \
                        unfinished)";
        assert_eq!(refusal.expect("refused").to_string(), expected);
    }

    #[test]
    fn each_job_of_an_owner_counts_by_itself() {
        let cron = id(WorkloadKind::CronJob, "nightly");
        for key in JOB_NAME_LABELS {
            let labels = [label(key, "nightly-1")].into();
            let template = PodTemplate { labels, ..PodTemplate::default() };
            let mut observed = world_of(&cron, 1, template);
            let other = [label(key, "nightly-2")].into();
            let other = PodTemplate { labels: other, ..PodTemplate::default() };
            observed.templates.insert("other".to_owned(), Arc::new(other));
            let mut pod = world::pod("b").owned_by(&cron).on("n1");
            pod.template = "other".into();
            observed.pods.push(Arc::new(pod));
            observed.jobs = vec![
                live("nightly-1", retries(2, COUNTED), 0),
                live("nightly-2", retries(2, COUNTED), 1),
            ];
            let jobs = JobEvictions::of_read_jobs(&observed);
            let refused: Vec<_> = observed.pods.iter().map(|pod| jobs.refusal(pod)).collect();
            assert_eq!(refused[0], None, "{key}");
            let second = refused[1].as_ref().expect("refused");
            assert_eq!(second.job, "Job web/nightly-2", "{key}");
        }
    }

    #[test]
    fn index_of_a_pod_has_retries_of_its_own() {
        for (limit, failures, is_evicted) in [
            (3, Some("1"), true),
            (3, Some("2"), false),
            (1, Some("0"), false),
            (0, Some("0"), false),
            (3, Some("many"), false),
            (3, None, false),
        ] {
            let failures = failures.map(|n| (INDEX_FAILURES.to_owned(), n.to_owned()));
            let annotations = failures.clone().into_iter().collect();
            let template = PodTemplate { annotations, ..PodTemplate::default() };
            let mut observed = world_of(&id(WorkloadKind::Job, "a"), 105, template);
            let per_index = JobRetries { per_index: Some(limit), ..retries(u32::MAX, COUNTED) };
            observed.jobs = vec![live("a", per_index, 40)];
            let found = JobEvictions::of_read_jobs(&observed).refusal(&observed.pods[0]);
            assert_eq!(found.is_none(), is_evicted, "{limit} {failures:?}: {found:?}");
        }
    }

    #[test]
    fn failed_pods_count_before_the_job_lists_them() {
        for (terminating, listed, is_evicted) in
            [(true, 0, false), (false, 0, false), (false, 1, false), (false, 2, false)]
        {
            let mut observed = world_of(&id(WorkloadKind::Job, "a"), 2, PodTemplate::default());
            observed.jobs = vec![live("a", retries(2, COUNTED), listed)];
            let failed = Arc::make_mut(&mut observed.pods[1]);
            (failed.phase, failed.terminating) = (PodPhase::Failed, terminating);
            let found = JobEvictions::of_read_jobs(&observed).refusal(&observed.pods[0]);
            assert_eq!(found.is_none(), is_evicted, "{terminating} {listed}: {found:?}");
            observed.jobs[0].retries.backoff_limit = 4;
            let found = JobEvictions::of_read_jobs(&observed).refusal(&observed.pods[0]);
            assert_eq!(found, None, "{terminating} {listed}");
        }
    }

    #[test]
    fn unread_job_keeps_its_pods_unless_it_ignores_evictions() {
        let job = id(WorkloadKind::Job, "a");
        let observed = world_of(&job, 1, PodTemplate::default());
        let template = Arc::<PodTemplate>::default();
        let scale = Scale::Job { pods: 1, completions: None, suspended: false };
        for (declared, is_evicted) in [
            (None, false),
            (Some(retries(6, COUNTED)), false),
            (Some(retries(0, OnEviction::Ignored)), true),
        ] {
            let mut desired = Desired::default();
            let origin = Origin::new("job.yaml", 1);
            let workload = Workload::new(job.clone(), origin, scale.clone(), template.clone());
            desired.workloads.insert(job.clone(), Workload { retries: declared, ..workload });
            let refusal = JobEvictions::new(&observed, &desired).refusal(&observed.pods[0]);
            assert_eq!(refusal.is_none(), is_evicted, "{declared:?}: {refusal:?}");
            assert_eq!(JobEvictions::of_read_jobs(&observed).refusal(&observed.pods[0]), None);
        }
        let desired = Desired::default();
        let unread = JobEvictions::new(&observed, &desired).refusal(&observed.pods[0]);
        let expected = "Job web/a was not read, so it might fail without its pods";
        assert_eq!(unread.expect("refused").to_string(), expected);
        let mut other = Pod::clone(&observed.pods[0]);
        other.owner = Some(id(WorkloadKind::Deployment, "a"));
        assert_eq!(JobEvictions::new(&observed, &desired).refusal(&other), None);
    }
}
