//! The file of a world: a world file, with the rest of the state under one more key.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::budgets::Budget;
use super::controllers::key_of;
use super::delay;
use super::state::{
    Controller, Counters, Due, Machine, PodRef, Reported, State, Timer, Token, Unavailable,
};
use super::{Genesis, LaunchTemplate, ShapeOf, journal};
use crate::fleet::{InstanceState, Observed, PodPhase, WorldError, read_world};
use crate::ids::{GroupName, InstanceId, Labels, Namespace, WorkloadId};

/// Name of the file within its directory.
pub(super) const NAME: &str = "world.json";

/// Why a simulated world cannot be opened or kept.
#[derive(Debug, Error)]
pub enum SimError {
    /// The file cannot be read.
    #[error("cannot read the simulated world `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no world of ours.
    #[error("`{}` holds no simulated world", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// Why.
        source: WorldError,
    },
    /// The file cannot be written.
    #[error("cannot write the simulated world `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What a simulated world keeps beyond what can be observed.
#[derive(Serialize, Deserialize)]
struct Hidden {
    seed: u64,
    now: Timestamp,
    #[serde(default)]
    counters: Counters,
    #[serde(default)]
    machines: BTreeMap<InstanceId, Machine>,
    #[serde(default)]
    tokens: BTreeMap<String, Token>,
    #[serde(default)]
    timers: Vec<Timer>,
    /// What controllers make pods from; how many is a matter of `workloads`.
    #[serde(default)]
    rollouts: Vec<Rollout>,
    #[serde(default)]
    budgets: Vec<Budget>,
    #[serde(default)]
    namespaces: BTreeMap<Namespace, Labels>,
    #[serde(default)]
    unavailable: Vec<Unavailable>,
    #[serde(default)]
    reported: Vec<Reported>,
    #[serde(default)]
    launch_templates: BTreeMap<GroupName, LaunchTemplate>,
}

/// The template that a workload's new pods are made from.
#[derive(Serialize, Deserialize)]
struct Rollout {
    #[serde(flatten)]
    id: WorkloadId,
    template: String,
}

/// Reads the world of `path`; `None` where there is none.
pub(super) fn load(
    path: &Path,
    genesis: &Genesis,
    shape_of: &ShapeOf,
) -> Result<Option<State>, SimError> {
    #[derive(Deserialize)]
    struct Extra {
        #[serde(default)]
        sim: Option<Hidden>,
    }
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SimError::Read { path: path.to_owned(), source }),
    };
    let broken = |source| SimError::Broken { path: path.to_owned(), source };
    let observed = read_world(&bytes).map_err(broken)?;
    let extra: Extra = serde_json::from_slice(&bytes)
        .map_err(|error| broken(WorldError::Malformed(format!("key `sim`: {error}"))))?;
    let begun = extra.sim.is_some();
    let hidden = extra.sim.unwrap_or_else(|| Hidden::begin(&observed, genesis));
    let mut state = revive(observed, hidden, shape_of.clone()).map_err(broken)?;
    if !begun {
        state.resume();
    }
    let unread = |source| SimError::Read { path: path.to_owned(), source };
    journal::replay(path, &mut state).map_err(unread)?;
    Ok(Some(state))
}

/// Writes the world to `path`, whole or not at all.
pub(super) fn store(path: &Path, state: &State) -> Result<(), SimError> {
    #[derive(Serialize)]
    struct WorldFile<'a> {
        #[serde(flatten)]
        observed: &'a Observed,
        sim: &'a Hidden,
    }
    let failed = |source| SimError::Write { path: path.to_owned(), source };
    let (observed, hidden) = (&state.observed(), &Hidden::of(state));
    let mut bytes = serde_json::to_vec_pretty(&WorldFile { observed, sim: hidden })
        .map_err(|error| failed(error.into()))?;
    bytes.push(b'\n');
    replace(path, &bytes).and_then(|()| journal::clear(path)).map_err(failed)
}

/// Puts `bytes` in the place of the file by a rename, so that a reader finds the old or the new.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    // The name is the writer's own: two that write at once do not write into one file.
    let temporary = path.with_extension(format!("json.{}.tmp", std::process::id()));
    let mut file = fs::File::create(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error of the write is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

impl Hidden {
    /// Returns what a world file that was observed elsewhere begins with.
    fn begin(observed: &Observed, genesis: &Genesis) -> Self {
        Self {
            seed: genesis.seed,
            now: observed.taken_at,
            counters: Counters::beyond(observed),
            machines: BTreeMap::new(),
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

    fn of(state: &State) -> Self {
        let rollout = |(id, controller): (&WorkloadId, &Controller)| {
            let template = controller.template.clone()?;
            Some(Rollout { id: id.clone(), template })
        };
        Self {
            seed: state.seed,
            now: state.now,
            counters: state.counters.clone(),
            machines: state.machines.clone(),
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

fn revive(observed: Observed, hidden: Hidden, shape_of: ShapeOf) -> Result<State, WorldError> {
    let Observed {
        format_version: _,
        cluster,
        taken_at: _,
        sources: _,
        instances,
        nodes,
        workloads,
        templates,
        pods,
        storage,
        exclusions,
        reservations,
        fargate_profiles,
        scaling,
        groups,
        // Its market is the embedded one.
        market: _,
        resolved,
    } = observed;
    let Hidden {
        seed,
        now,
        counters,
        machines,
        tokens,
        timers,
        rollouts,
        budgets,
        namespaces,
        unavailable,
        reported,
        launch_templates,
    } = hidden;
    let mut state = State::new(&Genesis { cluster, now, seed }, shape_of);
    state.counters = counters;
    state.instances = instances;
    state.resolved = resolved;
    state.nodes = nodes;
    state.templates = templates;
    state.storage = storage;
    state.exclusions = exclusions;
    state.reservations = reservations;
    state.fargate_profiles = fargate_profiles;
    state.scaling = scaling;
    state.groups = groups;
    state.launch_templates = launch_templates;
    for pod in pods {
        state.pods.insert(Arc::unwrap_or_clone(pod));
    }
    for live in workloads {
        let controller = Controller {
            replicas: live.replicas,
            first_ordinal: live.first_ordinal,
            delivered: live.delivered,
            template: None,
        };
        state.controllers.insert(live.id, controller);
    }
    roll_out(&mut state, rollouts)?;
    state.tick_due = timers.iter().any(|timer| timer.due == Due::Tick);
    state.machines = machines;
    state.tokens = tokens;
    state.timers = timers.into_iter().collect();
    state.budgets = budgets;
    state.namespaces = namespaces;
    state.unavailable = unavailable;
    state.reported = reported;
    Ok(state)
}

/// Tells controllers what they make pods from.
fn roll_out(state: &mut State, rollouts: Vec<Rollout>) -> Result<(), WorldError> {
    for Rollout { id, template } in rollouts {
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

impl State {
    /// Sets what is under way in a world that was observed elsewhere, and has no timers.
    fn resume(&mut self) {
        for instance in self.instances.values().cloned().collect::<Vec<_>>() {
            let id = instance.id;
            match instance.state {
                InstanceState::Pending => self.after(delay::RUNNING, Due::Runs { instance: id }),
                InstanceState::ShuttingDown => {
                    self.after(delay::TERMINATED, Due::Gone { instance: id });
                }
                InstanceState::Terminated => self.instance_gone(&id),
                InstanceState::Running | InstanceState::Stopping | InstanceState::Stopped => {}
            }
        }
        for pod in self.pods.iter().cloned().collect::<Vec<_>>() {
            let (namespace, name) = key_of(&pod);
            let reference = PodRef { namespace, name, uid: pod.uid };
            if pod.terminating {
                self.after(delay::POD_STOPPED, Due::PodStopped { pod: reference });
            } else if pod.node.is_some() && pod.phase == PodPhase::Pending {
                self.after(delay::POD_RUNNING, Due::PodRuns { pod: reference });
            }
        }
        self.wake_scheduler();
    }
}
