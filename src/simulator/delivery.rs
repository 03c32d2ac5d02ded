//! The objects that a delivery tool and the autoscalers create for a repository.

use std::collections::BTreeMap;

use super::{DeliveredWorkload, Delivery};
use crate::demand::{ClusterSize, Demand, DemandQuery, sized_template};
use crate::model::desired::{Desired, Scale, Workload};
use crate::model::ids::WorkloadId;
use crate::model::observed::Observed;
use crate::model::storage::Storage;

impl Delivery {
    /// Returns the objects that a delivery tool would create, with current replica counts of
    /// autoscalers.
    pub fn from_desired(desired: &Desired, observed: &Observed) -> Self {
        let demand_request = DemandQuery {
            at: observed.taken_at,
            size: ClusterSize::from_observed(observed, |_| true),
            // Windows and schedules determine the counts, not the existing replicas.
            is_forecast: true,
            ..DemandQuery::default()
        };
        let demand = Demand::for_query(desired, observed, &demand_request);
        let mut live: BTreeMap<&WorkloadId, u32> =
            demand.groups.iter().map(|group| (&group.workload, group.counts.live)).collect();
        // Fargate pods need no node, but they exist.
        live.extend(demand.fargate.iter().map(|group| (&group.workload, group.counts.live)));
        let replicas = |workload: &Workload| match &workload.scale {
            // A sync runs hooks and removes them; the world is that between syncs.
            _ if desired.hooks.contains_key(&workload.id) => 0,
            // Completed jobs stay counted, as in their controllers.
            Scale::Job { pods, completions, suspended: false } => {
                completions.unwrap_or(u32::MAX).min(*pods)
            }
            // The number of DaemonSet pods follows the nodes; a buffer has no pods.
            Scale::PerNode | Scale::Job { suspended: true, .. } | Scale::Buffer(_) => 0,
            Scale::Replicas(_) | Scale::CronJob { .. } | Scale::ScaledJob(_) => {
                live.get(&workload.id).copied().unwrap_or(0)
            }
        };
        let workloads = desired.workloads.values().map(|workload| {
            // The webhook of a vertical autoscaler resizes pods at admission.
            let template = sized_template(desired, observed, workload);
            let (replicas, first_ordinal) = (replicas(workload), workload.first_ordinal);
            (workload.id.clone(), DeliveredWorkload { replicas, first_ordinal, template })
        });
        Self {
            workloads: workloads.collect(),
            job_retries: desired
                .workloads
                .iter()
                .filter_map(|(id, workload)| Some((id.clone(), workload.retries?)))
                .collect(),
            retained: desired.retained.clone(),
            retaining_namespaces: desired.retaining_namespaces.clone(),
            budgets: desired.disruption_budgets.clone(),
            namespaces: desired.namespaces.clone(),
            storage: declared_storage(desired),
            fargate_profiles: desired.fargate_profiles.clone(),
            groups: Vec::new(),
        }
    }
}

/// Returns the storage objects of the repository.
fn declared_storage(desired: &Desired) -> Storage {
    let mut storage = Storage {
        classes: desired.storage_classes.clone(),
        volumes: desired.volumes.clone(),
        ..Storage::default()
    };
    for ((namespace, name), declared) in &desired.claims {
        let claims = storage.claims.entry(namespace.clone()).or_default();
        claims.insert(name.clone(), declared.claim.clone());
    }
    storage
}
