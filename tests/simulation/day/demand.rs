//! The demand of a day: services with a daily curve, rollouts, new and deleted services, and waves
//! of an hourly job.

use std::collections::BTreeMap;
use std::sync::Arc;

use fleetwright::model::ids::{WorkloadId, WorkloadKind};
use fleetwright::model::pod::PodTemplate;
use fleetwright::simulator::RollingUpdate;
use serde_json::Value;

use crate::simulation::harness::Simulation;
use crate::simulation::random::Random;
use crate::simulation::repository::Commit;

const POOL: &str = include_str!("../../bench/trees/web/pool.yaml");
const WORKLOADS: &str = include_str!("../../bench/trees/web/workloads.yaml");

const FLEET: &str = "apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: test }
spec:
  cluster: { name: test, region: us-east-1, zones: [us-east-1a, us-east-1b, us-east-1c] }
  controller: { mode: full, steer: true, settle: 15s, removals: { most: 10%, within: 1m } }
";

/// Lowest number of replicas of a service, in percent of the highest.
const LOWEST_PERCENT: i64 = 40;
/// Time between two steps of the autoscalers.
const CURVE_STEP: i64 = 10 * 60;
const ROLLOUTS_A_DAY: i64 = 30;
/// New services a day, and deleted ones.
const REPLACED_A_DAY: i64 = 5;
const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;
/// Hour of the day at which a run starts, and hour of the lowest demand.
const START_HOUR: i64 = 12;
const LOWEST_HOUR: i64 = 4;
/// Pods of an hourly wave, their duration and their CPU request.
const WAVE_PODS: u32 = 100;
const WAVE_TIME: i64 = 10 * 60;
const WAVE_MILLI_CPU: i64 = 500;

const WAVE: &str = "apiVersion: batch/v1
kind: CronJob
metadata: { name: wave, namespace: default }
spec:
  schedule: 0 * * * *
  jobTemplate: { spec: { parallelism: 100, completions: 100, activeDeadlineSeconds: 600, template: { spec: {
    restartPolicy: Never,
    containers: [{ name: job, image: job, resources: { requests: { cpu: 500m, memory: 1Gi } } }],
  } } } }
";

/// A Deployment with an autoscaler.
#[derive(Clone)]
struct Service {
    name: String,
    /// Highest number of replicas.
    most: u32,
    requests: Value,
    /// Incremented by each rollout.
    version: u32,
}

impl Service {
    /// Reads a Deployment of the tree.
    fn read(text: &str) -> Self {
        let object: Value = serde_json::from_str(text).expect("a Deployment");
        let field = |path: &str| object.pointer(path).cloned().expect("a field");
        let most = field("/spec/replicas").as_u64().and_then(|count| u32::try_from(count).ok());
        Self {
            name: field("/metadata/name").as_str().expect("a name").to_owned(),
            most: most.expect("a small number"),
            requests: field("/spec/template/spec/containers/0/resources/requests"),
            version: 1,
        }
    }

    fn id(&self) -> WorkloadId {
        workload(&self.name, WorkloadKind::Deployment)
    }

    fn milli_cpu(&self) -> i64 {
        let cpu = self.requests.get("cpu").and_then(Value::as_str).unwrap_or_default();
        cpu.trim_end_matches('m').parse().expect("millicores")
    }

    /// Returns the Deployment and its autoscaler, which decides the replicas.
    fn manifests(&self) -> String {
        let Self { name, most, requests, version } = self;
        let least = replicas(*most, LOWEST_PERCENT);
        format!(
            "---
apiVersion: apps/v1
kind: Deployment
metadata: {{ name: {name}, namespace: default }}
spec:
  selector: {{ matchLabels: {{ app: {name} }} }}
  template:
    metadata: {{ labels: {{ app: {name} }}, annotations: {{ version: '{version}' }} }}
    spec: {{ containers: [{{ name: app, image: app, resources: {{ requests: {requests} }} }}] }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{ name: {name}, namespace: default }}
spec: {{ minReplicas: {least}, maxReplicas: {most},
  scaleTargetRef: {{ apiVersion: apps/v1, kind: Deployment, name: {name} }} }}
"
        )
    }
}

fn workload(name: &str, kind: WorkloadKind) -> WorkloadId {
    WorkloadId { namespace: "default".into(), name: name.into(), kind }
}

/// Returns a share of the replicas, rounded up.
fn replicas(most: u32, percent: i64) -> u32 {
    let share = u32::try_from(percent).unwrap_or(100);
    most.saturating_mul(share).div_ceil(100).max(1)
}

/// Returns the load at a time, in percent of the highest: a line up for half a day, and down again.
fn load(seconds: i64) -> i64 {
    let since_lowest = (seconds + (START_HOUR - LOWEST_HOUR) * HOUR).rem_euclid(DAY);
    let from_lowest = since_lowest.min(DAY - since_lowest);
    LOWEST_PERCENT + (100 - LOWEST_PERCENT) * from_lowest / (DAY / 2)
}

/// A change of the demand.
#[derive(Debug)]
pub(super) enum Change {
    /// The autoscalers set the replicas.
    Curve { percent: i64 },
    /// The service with this index gets a new template.
    Rollout(usize),
    /// A service like the one with this index is added.
    Add(usize),
    /// The service with this index is deleted.
    Delete(usize),
    /// The hourly job has this number of pods.
    Wave(u32),
}

/// All services, and the hourly job.
pub(super) struct Demand {
    services: Vec<Service>,
    percent: i64,
    wave: u32,
    /// Number of services that were added.
    added: u32,
}

impl Demand {
    /// Reads at most `limit` services of the tree `web`.
    pub(super) fn new(limit: usize) -> Self {
        let texts = WORKLOADS.split("---\n").filter(|text| !text.trim().is_empty());
        let services = texts.take(limit).map(Service::read).collect();
        Self { services, percent: load(0), wave: 0, added: 0 }
    }

    /// Returns the files of the repository.
    pub(super) fn files(&self) -> BTreeMap<&'static str, String> {
        let pool = POOL.replace("[on-demand]", "[spot, on-demand]");
        let workloads = self.services.iter().map(Service::manifests).collect();
        let files = [("fleetwright.yaml", FLEET.to_owned()), ("pool.yaml", pool)];
        let jobs = [("wave.yaml", WAVE.to_owned()), ("workloads.yaml", workloads)];
        files.into_iter().chain(jobs).collect()
    }

    /// Returns the requested CPU in millicores, without daemons.
    pub(super) fn requested(&self) -> i64 {
        let of = |s: &Service| i64::from(replicas(s.most, self.percent)) * s.milli_cpu();
        self.services.iter().map(of).sum::<i64>() + i64::from(self.wave) * WAVE_MILLI_CPU
    }

    /// Returns the changes that are due at a time since the start.
    pub(super) fn changes_at(&self, seconds: i64, random: &mut Random) -> Vec<Change> {
        let mut any = || {
            let n = random.below(u64::try_from(self.services.len()).unwrap_or(0));
            usize::try_from(n).unwrap_or(0)
        };
        let is_due = |every: i64, offset: i64| seconds >= offset && (seconds - offset) % every == 0;
        let mut due = Vec::new();
        if is_due(CURVE_STEP, 0) && load(seconds) != self.percent {
            due.push(Change::Curve { percent: load(seconds) });
        }
        if is_due(DAY / ROLLOUTS_A_DAY, 13 * 60) {
            due.push(Change::Rollout(any()));
        }
        if is_due(DAY / REPLACED_A_DAY, 65 * 60) {
            due.push(Change::Add(any()));
        }
        if is_due(DAY / REPLACED_A_DAY, 125 * 60) {
            due.push(Change::Delete(any()));
        }
        // The first hour begins after the warm-up.
        if is_due(HOUR, HOUR - 20 * 60) {
            due.push(Change::Wave(WAVE_PODS));
        }
        if is_due(HOUR, HOUR - 20 * 60 + WAVE_TIME) {
            due.push(Change::Wave(0));
        }
        due
    }

    /// Sets the replicas of all services.
    pub(super) fn apply_curve(&self, run: &Simulation) {
        for service in &self.services {
            run.shared.world.set_replicas(&service.id(), replicas(service.most, self.percent));
        }
    }

    /// Applies a change to the repository and to the cluster.
    pub(super) fn apply(&mut self, run: &mut Simulation, change: &Change) {
        match *change {
            Change::Curve { percent } => {
                self.percent = percent;
                self.apply_curve(run);
            }
            Change::Wave(pods) => {
                self.wave = pods;
                run.shared.world.set_replicas(&workload("wave", WorkloadKind::CronJob), pods);
            }
            Change::Rollout(index) => {
                self.services[index].version += 1;
                let (id, template) = self.merge(run, index);
                run.shared.world.roll_out(&id, &template, RollingUpdate::default());
            }
            Change::Add(index) => {
                self.added += 1;
                let name = format!("added{}", self.added);
                self.services.push(Service { name, version: 1, ..self.services[index].clone() });
                let count = replicas(self.services[index].most, self.percent);
                let (id, template) = self.merge(run, self.services.len() - 1);
                run.shared.world.set_workload(&id, count, 0, &template);
            }
            Change::Delete(index) => {
                let id = self.services.remove(index).id();
                self.merge(run, 0);
                run.shared.world.remove_workload(&id);
            }
        }
    }

    /// Merges the files. Returns the id and the pod template of a service.
    fn merge(&self, run: &mut Simulation, index: usize) -> (WorkloadId, Arc<PodTemplate>) {
        let own_files = self.files();
        let files = run.merge(|commit| Commit { own_files, ..commit });
        let id = self.services[index].id();
        let template = Arc::clone(&files.desired.workloads[&id].template);
        (id, template)
    }
}
