//! Lint for pods that are repeatedly scheduled to a node and evicted from it.

use super::warning;
use crate::demand::{Demand, PodGroup};
use crate::model::desired::{Desired, Pool, Problem};
use crate::model::pod::{Taint, TaintEffect, Toleration, untolerated};

/// Returns a warning for each workload that tolerates a permanent `NoExecute` taint of a pool for a
/// limited time.
///
/// kube-scheduler ignores `tolerationSeconds`, and the pods are evicted after that time.
pub(super) fn timed_tolerations(desired: &Desired, demand: &Demand) -> Vec<Problem> {
    let groups = demand.groups.iter().filter(|group| group.counts.ceiling > 0);
    let of_group = |group| desired.pools.values().filter_map(move |pool| check_pool(group, pool));
    groups.flat_map(of_group).collect()
}

fn check_pool(group: &PodGroup, pool: &Pool) -> Option<Problem> {
    let tolerations = &group.shape.tolerations;
    if untolerated(&pool.taints, tolerations).is_some() {
        return None;
    }
    let (taint, seconds) =
        pool.taints.iter().find_map(|taint| tolerated_seconds(taint, tolerations))?;
    let id = &group.workload;
    let Taint { key, value, .. } = taint;
    let message = format!(
        "tolerates the taint {key}={value}:NoExecute of pool {} for {seconds} s only: its pods are \
         placed on such nodes and evicted again after that time",
        pool.name
    );
    let hint = "leave out `tolerationSeconds`, or keep the pods off the pool's nodes";
    Some(warning(group.origin.as_ref()?, &format!("{} {id}", id.kind), message, hint))
}

/// Returns the taint and its toleration time in seconds, if the time is limited. The first matching
/// toleration decides.
///
/// Source: `k8s.io/kubernetes/pkg/controller/tainteviction`, `getMinTolerationTime`.
fn tolerated_seconds<'a>(taint: &'a Taint, tolerations: &[Toleration]) -> Option<(&'a Taint, i64)> {
    if taint.effect != TaintEffect::NoExecute {
        return None;
    }
    let first = tolerations.iter().find(|toleration| toleration.tolerates(taint))?;
    first.seconds.map(|seconds| (taint, seconds.max(0)))
}
