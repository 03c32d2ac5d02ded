//! World file of the simulator: a world file with the hidden state under an additional key.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::state::{
    ClientToken, IdCounters, NodeRegistration, OfferingOutage, PodRef, ReportedResources,
    ScheduledEvent, Timer, WorkloadController, WorldBudget, WorldState, pod_key,
};
use super::{LaunchTemplate, ShapeFn, WorldInit, delay, journal};
use crate::adapters::files::read_regular;
use crate::model::ids::{GroupName, InstanceId, Labels, Namespace, WorkloadId};
use crate::model::observed::{
    InstanceState, LiveWorkload, Observed, PodPhase, WorldError, read_world,
};

/// File name within the directory.
pub(super) const NAME: &str = "world.json";

/// The reason that a simulated world cannot be opened or saved.
#[derive(Debug, Error)]
pub enum SimError {
    /// The file cannot be read.
    #[error("cannot read the simulated world `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not a valid world.
    #[error("`{}` is not a simulated world", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: WorldError,
    },
    /// The file cannot be written.
    #[error("cannot write the simulated world `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The state of a simulated world that an observation does not contain.
#[derive(Serialize, Deserialize)]
struct HiddenState {
    seed: u64,
    now: Timestamp,
    #[serde(default)]
    counters: IdCounters,
    #[serde(default, rename = "machines")]
    registrations: BTreeMap<InstanceId, NodeRegistration>,
    #[serde(default)]
    tokens: BTreeMap<String, ClientToken>,
    #[serde(default)]
    timers: Vec<Timer>,
    /// Templates of workloads. `workloads` contains the replicas.
    #[serde(default)]
    rollouts: Vec<WorkloadTemplate>,
    #[serde(default)]
    budgets: Vec<WorldBudget>,
    #[serde(default)]
    namespaces: BTreeMap<Namespace, Labels>,
    #[serde(default)]
    unavailable: Vec<OfferingOutage>,
    #[serde(default)]
    reported: Vec<ReportedResources>,
    #[serde(default)]
    launch_templates: BTreeMap<GroupName, LaunchTemplate>,
}

/// The template of new pods of a workload.
#[derive(Serialize, Deserialize)]
struct WorkloadTemplate {
    #[serde(flatten)]
    id: WorkloadId,
    template: String,
}

/// Most bytes of a world and of its journal.
pub(super) const WORLD_BYTES_MAX: u64 = 512 << 20;

/// Reads the world of `path`, or returns `None` if there is none.
pub(super) fn load(
    path: &Path,
    genesis: &WorldInit,
    pod_shape: &ShapeFn,
) -> Result<Option<WorldState>, SimError> {
    #[derive(Deserialize)]
    struct WorldExtension {
        #[serde(default)]
        sim: Option<HiddenState>,
    }
    let read = fs::canonicalize(path).and_then(|path| read_regular(&path, WORLD_BYTES_MAX));
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SimError::Read { path: path.to_owned(), source }),
    };
    let broken = |source| SimError::Broken { path: path.to_owned(), source };
    let observed = read_world(&bytes).map_err(broken)?;
    let extra: WorldExtension = serde_json::from_slice(&bytes)
        .map_err(|error| broken(WorldError::Malformed(format!("key `sim`: {error}"))))?;
    let has_hidden_state = extra.sim.is_some();
    let hidden = extra.sim.unwrap_or_else(|| HiddenState::from_observed(&observed, genesis));
    let mut state = restore(observed, hidden, pod_shape.clone()).map_err(broken)?;
    if !has_hidden_state {
        state.resume();
    }
    let unread = |source| SimError::Read { path: path.to_owned(), source };
    journal::replay(path, &mut state).map_err(unread)?;
    Ok(Some(state))
}

/// Writes the world to `path` atomically.
pub(super) fn store(path: &Path, state: &WorldState) -> Result<(), SimError> {
    #[derive(Serialize)]
    struct WorldFile<'a> {
        #[serde(flatten)]
        observed: &'a Observed,
        sim: &'a HiddenState,
    }
    let failed = |source| SimError::Write { path: path.to_owned(), source };
    let (observed, hidden) = (&state.observed(), &HiddenState::from_state(state));
    let mut bytes = serde_json::to_vec_pretty(&WorldFile { observed, sim: hidden })
        .map_err(|error| failed(error.into()))?;
    bytes.push(b'\n');
    replace(path, &bytes).and_then(|()| journal::clear(path)).map_err(failed)
}

/// Replaces the file by a rename, so that a reader finds either the old or the new content.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    // The name contains the process ID, so that concurrent writers use different files.
    let temporary = path.with_extension(format!("json.{}.tmp", std::process::id()));
    // A link with this name would lead elsewhere.
    let _ = fs::remove_file(&temporary);
    let mut file = fs::File::create_new(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The write error is reported, not this one.
        let _ = fs::remove_file(&temporary);
    }
    written
}

impl HiddenState {
    /// Returns the initial hidden state of an observed world.
    fn from_observed(observed: &Observed, genesis: &WorldInit) -> Self {
        Self {
            seed: genesis.seed,
            now: observed.taken_at,
            counters: IdCounters::after_observed(observed),
            registrations: BTreeMap::new(),
            tokens: BTreeMap::new(),
            timers: Vec::new(),
            rollouts: Vec::new(),
            budgets: Vec::new(),
            namespaces: BTreeMap::new(),
            unavailable: Vec::new(),
            reported: Vec::new(),
            launch_templates: BTreeMap::new(),
        }
    }

    fn from_state(state: &WorldState) -> Self {
        let rollout = |(id, controller): (&WorkloadId, &WorkloadController)| {
            let template = controller.template.clone()?;
            Some(WorkloadTemplate { id: id.clone(), template })
        };
        Self {
            seed: state.seed,
            now: state.now,
            counters: state.counters.clone(),
            registrations: state.registrations.clone(),
            tokens: state.tokens.clone(),
            timers: state.timers.iter().cloned().collect(),
            rollouts: state.controllers.iter().filter_map(rollout).collect(),
            budgets: state.budgets.clone(),
            namespaces: state.namespaces.clone(),
            unavailable: state.unavailable.clone(),
            reported: state.reported.clone(),
            launch_templates: state.launch_templates.clone(),
        }
    }
}

fn restore(
    observed: Observed,
    hidden: HiddenState,
    pod_shape: ShapeFn,
) -> Result<WorldState, WorldError> {
    let cluster = observed.cluster.clone();
    let genesis = WorldInit { cluster, now: hidden.now, seed: hidden.seed };
    let mut state = WorldState::new(&genesis, pod_shape);
    restore_observed(&mut state, observed);
    restore_hidden(&mut state, hidden)?;
    Ok(state)
}

fn restore_observed(state: &mut WorldState, observed: Observed) {
    let Observed {
        format_version: _,
        cluster: _,
        taken_at: _,
        sources: _,
        instances,
        nodes,
        workloads,
        jobs,
        templates,
        pods,
        storage,
        exclusions,
        reservations,
        fargate_profiles,
        scaling,
        groups,
        // The simulator uses the embedded market.
        market: _,
        // Each plan computes it anew.
        planned_pods: _,
        resolved,
        unread,
        pools,
    } = observed;
    state.instances = instances;
    state.resolved = resolved;
    state.unread = unread;
    state.pools = pools;
    state.nodes = nodes;
    state.templates = templates;
    state.storage = storage;
    state.exclusions = exclusions;
    state.reservations = reservations;
    state.fargate_profiles = fargate_profiles;
    state.scaling = scaling;
    state.groups = groups;
    for pod in pods {
        state.pods.insert(Arc::unwrap_or_clone(pod));
    }
    state.controllers.extend(workloads.into_iter().map(restored_controller));
    state.jobs.extend(jobs.into_iter().map(|job| (job.id.clone(), job)));
}

fn restore_hidden(state: &mut WorldState, hidden: HiddenState) -> Result<(), WorldError> {
    let HiddenState {
        seed: _,
        now: _,
        counters,
        registrations,
        tokens,
        timers,
        rollouts,
        budgets,
        namespaces,
        unavailable,
        reported,
        launch_templates,
    } = hidden;
    restore_templates(state, rollouts)?;
    state.counters = counters;
    state.tick_due = timers.iter().any(|timer| timer.due == ScheduledEvent::Tick);
    state.registrations = registrations;
    state.tokens = tokens;
    state.timers = timers.into_iter().collect();
    state.budgets = budgets;
    state.namespaces = namespaces;
    state.unavailable = unavailable;
    state.reported = reported;
    state.launch_templates = launch_templates;
    Ok(())
}

fn restored_controller(live: LiveWorkload) -> (WorkloadId, WorkloadController) {
    let LiveWorkload { id, replicas, first_ordinal, delivered, template: _, job } = live;
    let (template, rolling) = (None, None);
    let controller =
        WorkloadController { replicas, first_ordinal, delivered, template, rolling, job };
    (id, controller)
}

/// Restores the templates of controllers.
fn restore_templates(
    state: &mut WorldState,
    rollouts: Vec<WorkloadTemplate>,
) -> Result<(), WorldError> {
    for WorkloadTemplate { id, template } in rollouts {
        if !state.templates.contains_key(&template) {
            return Err(WorldError::Inconsistent(vec![format!(
                "workload `{id}` rolls out the template `{template}`, which is not among \
                 `templates`"
            )]));
        }
        if let Some(controller) = state.controllers.get_mut(&id) {
            controller.template = Some(template);
        }
    }
    Ok(())
}

impl WorldState {
    /// Schedules the events of an observed world, which has no timers.
    fn resume(&mut self) {
        for instance in self.instances.values().cloned().collect::<Vec<_>>() {
            let id = instance.id;
            match instance.state {
                InstanceState::Pending => {
                    self.after(delay::RUNNING, ScheduledEvent::Runs { instance: id });
                }
                InstanceState::ShuttingDown => {
                    self.after(delay::TERMINATED, ScheduledEvent::Gone { instance: id });
                }
                InstanceState::Terminated => self.mark_instance_terminated(&id),
                InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => {}
            }
        }
        for pod in self.pods.iter().cloned().collect::<Vec<_>>() {
            let (namespace, name) = pod_key(&pod);
            let reference = PodRef { namespace, name, uid: pod.uid };
            if pod.terminating {
                self.after(delay::POD_STOPPED, ScheduledEvent::PodStopped { pod: reference });
            } else if pod.node.is_some() && pod.phase == PodPhase::Pending {
                self.after(delay::POD_RUNNING, ScheduledEvent::PodRuns { pod: reference });
            }
        }
        self.wake_scheduler();
    }
}
