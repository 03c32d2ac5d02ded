//! Pods that a node takes and evicts again, over and over.

use super::warning;
use crate::demand::{Demand, PodGroup};
use crate::manifest::{Desired, Pool, Problem};
use crate::pod::{Taint, TaintEffect, Toleration, untolerated};

/// Returns a warning for each workload and pool of which the pool's nodes always have a `NoExecute`
/// taint that the pods tolerate for some time only: kube-scheduler does not look at the time, and
/// the pods are evicted when it is over.
pub(super) fn for_a_time(desired: &Desired, demand: &Demand) -> Vec<Problem> {
    let groups = demand.groups.iter().filter(|group| group.counts.ceiling > 0);
    let of_group = |group| desired.pools.values().filter_map(move |pool| verdict(group, pool));
    groups.flat_map(of_group).collect()
}

fn verdict(group: &PodGroup, pool: &Pool) -> Option<Problem> {
    let tolerations = &group.shape.tolerations;
    if untolerated(&pool.taints, tolerations).is_some() {
        return None;
    }
    let (taint, seconds) = pool.taints.iter().find_map(|taint| stood_for(taint, tolerations))?;
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

/// Returns the taint and for how long a pod stands it, where that is not for ever: the first
/// toleration that matches decides.
///
/// Source: `k8s.io/kubernetes/pkg/controller/tainteviction`, `getMinTolerationTime`.
fn stood_for<'a>(taint: &'a Taint, tolerations: &[Toleration]) -> Option<(&'a Taint, i64)> {
    if taint.effect != TaintEffect::NoExecute {
        return None;
    }
    let first = tolerations.iter().find(|toleration| toleration.tolerates(taint))?;
    first.seconds.map(|seconds| (taint, seconds.max(0)))
}
