//! Hooks of delivery tools: peaks of a sync, not standing demand.
//!
//! Of all hooks of one application or release, the largest step counts: hooks of different phases,
//! waves or weights never run at the same time. Hooks that a successful sync does not run do not
//! count. Pods that run already always count.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::live_pods::LivePods;
use super::{Counts, Decider, Demand, PodGroup};
use crate::model::desired::{Desired, Hook, HookPhase};

/// A step of a sync, in the order of a sync.
type Step<'a> = (HookPhase, i32, &'a str);

/// Requests of all pods of a step: thousandths of a core, and bytes of memory.
type StepSize = (i128, i128);

/// Sizes of the steps, by application or release.
type StepSizes<'a> = BTreeMap<(&'a str, Step<'a>), StepSize>;

/// Sets the counts of hooks that do not run in the largest step of their sync.
pub(super) fn count_peaks(demand: &mut Demand, desired: &Desired, live: &LivePods<'_>) {
    if desired.hooks.is_empty() {
        return;
    }
    let sizes = step_sizes(&demand.groups, &desired.hooks);
    let peaks = peaks(&sizes);
    for group in &mut demand.groups {
        let Some(hook) = desired.hooks.get(&group.workload) else { continue };
        let unit = hook.delivered_by.as_str();
        let because = match peaks.get(unit) {
            _ if hook.phase == HookPhase::Never => {
                "it is a hook that a successful sync does not run".to_owned()
            }
            Some((step, _)) if *step == step_of(hook) => continue,
            peak => {
                let size = sizes.get(&(unit, step_of(hook)));
                let is_equal = size == peak.map(|(_, size)| size);
                let other = if is_equal { "an equal" } else { "a larger" };
                let unit = unit_name(unit);
                format!(
                    "it is a hook of {unit}; {other} hook counts, which runs at another time of \
                     the sync"
                )
            }
        };
        let active = live.active_count(&group.workload);
        group.counts = Counts { floor: 0, live: active, ceiling: active, planned: active };
        group.decided_by = Decider::Schedule { because };
    }
}

/// Returns the name of what runs a hook. A name without a kind is a namespace.
fn unit_name(delivered_by: &str) -> Cow<'_, str> {
    if delivered_by.contains(' ') {
        return Cow::Borrowed(delivered_by);
    }
    Cow::Owned(format!("namespace {delivered_by}"))
}

fn step_of(hook: &Hook) -> Step<'_> {
    (hook.phase, hook.order, &hook.name)
}

fn step_sizes<'a>(
    groups: &[PodGroup],
    hooks: &'a BTreeMap<crate::model::ids::WorkloadId, Hook>,
) -> StepSizes<'a> {
    let mut sizes = StepSizes::new();
    for group in groups {
        let Some(hook) = hooks.get(&group.workload) else { continue };
        if hook.phase == HookPhase::Never {
            continue;
        }
        let pods = i128::from(group.counts.planned);
        let requests = &group.shape.requests;
        let (cpu, memory) = sizes.entry((&hook.delivered_by, step_of(hook))).or_default();
        *cpu += i128::from(requests.cpu.0) * pods;
        *memory += i128::from(requests.memory.0) * pods;
    }
    sizes
}

/// Returns the largest step of each application or release. Of equal ones, it is the first.
fn peaks<'a>(sizes: &StepSizes<'a>) -> BTreeMap<&'a str, (Step<'a>, StepSize)> {
    let mut peaks: BTreeMap<&str, (Step<'_>, StepSize)> = BTreeMap::new();
    for ((unit, step), size) in sizes.iter().map(|(key, size)| (*key, *size)) {
        let peak = peaks.entry(unit).or_insert((step, size));
        if size > peak.1 {
            *peak = (step, size);
        }
    }
    peaks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::DemandMode;
    use crate::model::desired::Scale;
    use crate::model::ids::WorkloadKind;
    use crate::model::observed::{JobProgress, LiveWorkload};
    use crate::testing::Scenario;
    use crate::testing::pods::{deployment, template_requesting};

    fn job(scenario: &mut Scenario, name: &str, cpu: i64, hook: Option<(HookPhase, i32)>) {
        let kind = WorkloadKind::Job;
        let id = crate::model::ids::WorkloadId { kind, ..deployment("shop", name) };
        let scale = Scale::Job { pods: 2, completions: Some(2), suspended: false };
        scenario.declare(id.clone(), scale, template_requesting(&[("cpu", cpu)]));
        let delivered_by = "Application argocd/shop".to_owned();
        scenario.desired.hooks.extend(
            hook.map(|(phase, order)| {
                (id, Hook { delivered_by, phase, order, name: String::new() })
            }),
        );
    }

    #[test]
    fn largest_step_of_a_sync_counts_once() {
        let mut scenario = Scenario::without_workloads(&["m5.large"]);
        job(&mut scenario, "job", 100, None);
        job(&mut scenario, "migrate", 500, Some((HookPhase::Before, 0)));
        job(&mut scenario, "migrate-more", 200, Some((HookPhase::Before, 0)));
        job(&mut scenario, "prepare", 600, Some((HookPhase::Before, -1)));
        job(&mut scenario, "smoke", 300, Some((HookPhase::After, 0)));
        job(&mut scenario, "rollback", 900, Some((HookPhase::Never, 0)));
        let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
        let counts = demand.groups.iter().map(|g| (&*g.workload.name, g.counts.planned));
        let expected = [
            ("job", 2),
            ("migrate", 2),
            ("migrate-more", 2),
            ("prepare", 0),
            ("rollback", 0),
            ("smoke", 0),
        ];
        assert_eq!(counts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn reason_names_the_namespace_and_equal_hooks() {
        let mut scenario = Scenario::without_workloads(&["m5.large"]);
        job(&mut scenario, "equal", 500, Some((HookPhase::After, 0)));
        job(&mut scenario, "first", 500, Some((HookPhase::Before, 0)));
        job(&mut scenario, "small", 200, Some((HookPhase::After, 1)));
        let reason = |scenario: &Scenario, name: &str| {
            let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
            let group = demand.groups.into_iter().find(|group| *group.workload.name == *name);
            let decided_by = group.expect("declared").decided_by;
            let Decider::Schedule { because } = decided_by else { panic!("{decided_by:?}") };
            because
        };
        assert_eq!(
            reason(&scenario, "equal"),
            "it is a hook of Application argocd/shop; an equal hook counts, which runs at another \
             time of the sync"
        );
        for hook in scenario.desired.hooks.values_mut() {
            hook.delivered_by = "shop".to_owned();
        }
        assert_eq!(
            reason(&scenario, "small"),
            "it is a hook of namespace shop; a larger hook counts, which runs at another time of \
             the sync"
        );
    }

    #[test]
    fn job_of_an_earlier_sync_does_not_end_its_hook() {
        let mut scenario = Scenario::without_workloads(&["m5.large"]);
        job(&mut scenario, "job", 100, None);
        job(&mut scenario, "migrate", 500, Some((HookPhase::Before, 0)));
        for name in ["job", "migrate"] {
            let kind = WorkloadKind::Job;
            scenario.observed.workloads.push(LiveWorkload {
                id: crate::model::ids::WorkloadId { kind, ..deployment("shop", name) },
                replicas: 2,
                first_ordinal: 0,
                delivered: false,
                template: None,
                job: Some(JobProgress { succeeded: 2, ended: true }),
            });
        }
        let demand = Demand::build(&scenario.desired, &scenario.observed, DemandMode::Live);
        let counts = demand.groups.iter().map(|g| (&*g.workload.name, g.counts.planned));
        assert_eq!(counts.collect::<Vec<_>>(), [("job", 0), ("migrate", 2)]);
    }
}
