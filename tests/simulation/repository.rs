//! The repository of the simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use fleetwright::catalog::Catalog;
use fleetwright::controller::{PlanScope, PodScope, Revision, RevisionPlanner};
use fleetwright::demand::{DemandMode, ShapeContext, pod_shape};
use fleetwright::manifest::{self, read_fleet};
use fleetwright::model::desired::{ApprovalRule, Desired, Fleet, Scale, Tree, TreeFile};
use fleetwright::model::observed::Observed;
use fleetwright::model::storage::Storage;
use fleetwright::plan::wire::{Base, BaseWorld, Check, CheckStatus, WaveStep};
use fleetwright::plan::{Plan, RevalidatedPlan, set_identity};
use fleetwright::planner::{self, Inputs, Scope};
use fleetwright::policy;
use fleetwright::simulator::{DeliveredWorkload, Delivery, ShapeFn, eksctl_groups};
use fleetwright::solver::Settings;
use jiff::SignedDuration;

use super::environment::SharedWorld;

/// Instance types of the pools, few to keep plans cheap.
const TYPES: [&str; 4] = ["m5.large", "m5.xlarge", "c5.large", "r5.large"];

const POOLS: &str = r"
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: POOL }
spec:
  DISRUPTION
  template:
    spec:
      TEMPLATE
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large, m5.xlarge, c5.large, r5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand, spot] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: web }
spec:
  role: web
  amiSelectorTerms: [{ alias: al2023@v20260901 }]
  subnetSelectorTerms: [{ tags: { x: z } }]
  securityGroupSelectorTerms: [{ tags: { x: z } }]
";

/// The content of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Commit {
    /// Number of replicas by workload.
    pub(crate) replicas: BTreeMap<String, u32>,
    /// Image of the nodes.
    pub(crate) image: String,
    /// `minAvailable` of the disruption budget of `api`, if it has one.
    pub(crate) budget: Option<String>,
    /// CPU request of each pod, in millicores.
    pub(crate) cpu: u32,
    /// Node groups of eksctl, which Fleetwright scales.
    pub(crate) groups: String,
    /// Name of the pool, if there is one.
    pub(crate) pool: Option<String>,
    /// True if the node class of the pool exists.
    pub(crate) class: bool,
    /// Additional fields of the template of the pool.
    pub(crate) template: String,
    /// Additional fields of the pool.
    pub(crate) disruption: String,
    /// Annotations of the pods of `api`.
    pub(crate) annotations: String,
    /// Additional objects.
    pub(crate) objects: String,
    /// Additional fields of `spec`.
    pub(crate) fleet: String,
    /// Mode of the controller.
    pub(crate) mode: &'static str,
    /// Additional fields of `spec.controller`.
    pub(crate) controller: String,
    /// Additional fields of `spec.apply`.
    pub(crate) apply: String,
    /// Files by path, in place of the files that the other fields describe.
    pub(crate) own_files: BTreeMap<&'static str, String>,
}

impl Default for Commit {
    fn default() -> Self {
        Self {
            replicas: [("api".to_owned(), 4), ("jobs".to_owned(), 2)].into(),
            image: "al2023@v20260901".to_owned(),
            budget: None,
            cpu: 700,
            groups: String::new(),
            pool: Some("web".to_owned()),
            class: true,
            template: String::new(),
            disruption: "disruption: { consolidateAfter: 0s, budgets: [{ nodes: '100%' }] }"
                .to_owned(),
            annotations: String::new(),
            objects: String::new(),
            fleet: String::new(),
            mode: "full",
            controller: "removals: { most: 100% }, massRemoval: 100%".to_owned(),
            apply: String::new(),
            own_files: BTreeMap::new(),
        }
    }
}

impl Commit {
    /// Returns the commit with another number of replicas of a workload.
    #[must_use]
    pub(crate) fn with(mut self, workload: &str, replicas: u32) -> Self {
        self.replicas.insert(workload.to_owned(), replicas);
        self
    }

    fn files(&self) -> Tree {
        let file = |path: &str, text: String| TreeFile {
            path: path.into(),
            content: Ok(text.into_bytes().into()),
        };
        if !self.own_files.is_empty() {
            let own_files = self.own_files.iter().map(|(path, text)| file(path, text.clone()));
            return Tree { files: own_files.collect() };
        }
        let fleet = format!(
            "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{ name: test }}\nspec:\n  \
             cluster: {{ name: test, region: us-east-1, zones: [us-east-1a, us-east-1b] }}\n  \
             apply: {{ {} }}\n  controller: {{ mode: {}, {} }}\n{}",
            self.apply, self.mode, self.controller, self.fleet
        );
        let workload = |(name, replicas): (&String, &u32)| {
            let cpu = self.cpu;
            let annotations = if name == "api" { self.annotations.as_str() } else { "" };
            format!(
                "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{ name: {name}, namespace: \
                 web }}\nspec:\n  replicas: {replicas}\n  selector: {{ matchLabels: {{ app: {name} }} \
                 }}\n  template:\n    metadata: {{ labels: {{ app: {name} }}, \
                 annotations: {{ {annotations} }} }}\n    spec:\n      \
                 containers:\n      - {{ name: main, image: x, resources: {{ requests: {{ cpu: {cpu}m, \
                 memory: 1Gi }} }} }}\n"
            )
        };
        let budget = self.budget.iter().map(|least| {
            format!(
                "---\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {{ name: api, \
                 namespace: web }}\nspec:\n  minAvailable: {least}\n  selector: {{ matchLabels: {{ \
                 app: api }} }}\n"
            )
        });
        let workloads: Vec<String> = self.replicas.iter().map(workload).chain(budget).collect();
        let workloads = format!("{}{}", workloads.concat(), self.objects);
        let pool = |pool: &String| POOLS.replace("POOL", pool);
        let pools = self.pool.as_ref().map(pool).unwrap_or_default();
        let without_class = pools.split("---\n").next().filter(|_| !self.class);
        let pools = without_class.map(ToOwned::to_owned).unwrap_or(pools);
        let pools = pools.replace("al2023@v20260901", &self.image);
        let pools = pools.replace("TEMPLATE", &self.template);
        let pools = pools.replace("DISRUPTION", &self.disruption);
        let files = [
            file("fleetwright.yaml", fleet),
            file("pools.yaml", pools),
            file("workloads.yaml", workloads),
            file("cluster.yaml", self.groups.clone()),
        ];
        // An empty render produces no file.
        let holds = |file: &TreeFile| file.content.as_ref().is_ok_and(|text| !text.is_empty());
        Tree { files: files.into_iter().filter(holds).collect() }
    }
}

/// A parsed commit.
pub(crate) struct SimulatedCommit {
    pub(crate) name: String,
    pub(crate) fleet: Fleet,
    pub(crate) desired: Rc<Desired>,
    /// Available instance types.
    pub(crate) catalog: Rc<Catalog>,
}

impl SimulatedCommit {
    /// Parses a commit.
    ///
    /// # Panics
    /// Panics if the commit has problems other than a missing node class.
    #[must_use]
    pub(crate) fn read(commit: &Commit, number: usize, catalog: &Rc<Catalog>) -> Rc<Self> {
        let tree = commit.files();
        let (fleet, problems) = read_fleet(&tree);
        assert!(problems.is_empty(), "{problems:#?}");
        let desired = manifest::read(&tree, &fleet);
        assert!(desired.problems.is_empty() == commit.class, "{:#?}", desired.problems);
        Rc::new(Self {
            name: format!("{number:040x}"),
            fleet,
            desired: Rc::new(desired),
            catalog: Rc::clone(catalog),
        })
    }

    /// Returns whether the commit declares neither workloads nor pools.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.desired.workloads.is_empty() && self.desired.pools.is_empty()
    }

    /// Returns the revision of the commit as the controller reads it.
    #[must_use]
    pub(crate) fn revision(&self) -> Revision {
        let rests = self.desired.pools.values();
        let rests = rests.filter_map(|pool| Some((pool.name.clone(), pool.consolidate_after?)));
        Revision {
            commit: self.name.clone(),
            origin: None,
            pool_limits: [].into(),
            controller: self.fleet.controller.clone(),
            guard: self.fleet.guard.clone(),
            consolidate_after: rests.collect(),
            error_count: u32::try_from(self.desired.problems.len()).unwrap_or(u32::MAX),
            is_empty: self.is_empty(),
            autoscaler_namespaces: None,
            auto_mode: false,
            policies: [].into(),
            unresolved: self.desired.unresolved_policy,
            fleet_digest: String::new(),
            cluster_pools: None,
            verified: None,
        }
    }

    /// Returns the workloads that a delivery tool applies to the world.
    #[must_use]
    pub(crate) fn delivery(&self) -> Delivery {
        let workloads = self.desired.workloads.values().map(|workload| {
            let replicas = match workload.scale {
                Scale::Replicas(count) => count,
                Scale::Job { pods, completions, suspended: false } => {
                    completions.unwrap_or(u32::MAX).min(pods)
                }
                Scale::PerNode
                | Scale::Job { suspended: true, .. }
                | Scale::CronJob { .. }
                | Scale::ScaledJob(_)
                | Scale::Buffer(_) => 0,
            };
            let template = Arc::clone(&workload.template);
            (workload.id.clone(), DeliveredWorkload { replicas, first_ordinal: 0, template })
        });
        Delivery {
            retained: self.desired.retained.clone(),
            retaining_namespaces: self.desired.retaining_namespaces.clone(),
            workloads: workloads.collect(),
            job_retries: self
                .desired
                .workloads
                .iter()
                .filter_map(|(id, workload)| Some((id.clone(), workload.retries?)))
                .collect(),
            budgets: self.desired.disruption_budgets.clone(),
            namespaces: self.desired.namespaces.clone(),
            storage: Storage::default(),
            groups: eksctl_groups(&self.desired, &self.catalog),
            fargate_profiles: BTreeMap::new(),
        }
    }

    /// Returns the function that computes the shapes of the world's pods.
    #[must_use]
    pub(crate) fn shapes(self: &Rc<Self>) -> ShapeFn {
        let files = Rc::clone(self);
        Rc::new(move |namespace, template| {
            pod_shape(namespace, template, &ShapeContext::new(&files.desired))
        })
    }
}

/// Returns the instance types of the simulation.
///
/// # Panics
/// Panics if the embedded catalog lacks the region.
#[must_use]
pub(crate) fn catalog() -> Rc<Catalog> {
    let mut catalog = Catalog::load(&"us-east-1".into(), &[]).expect("the region is embedded");
    catalog.types.retain(|name, _| TYPES.contains(&name.as_str()));
    Rc::new(catalog)
}

/// Maximum number of launches without a warning of the simulated policy.
const LAUNCHES_WITHOUT_WARNING: usize = 2;

/// Attaches the result of a policy check if policies approve plans. The policy warns about many
/// launches.
fn with_policy_checks(mut plan: Plan, fleet: &Fleet) -> Plan {
    if fleet.controller.approval == ApprovalRule::Policy {
        let launch = plan.capacity.waves.iter().filter(|wave| wave.step == WaveStep::Launch);
        let many = launch.flat_map(|wave| &wave.addresses).count() > LAUNCHES_WITHOUT_WARNING;
        let status = if many { CheckStatus::Warn } else { CheckStatus::Pass };
        let check = Check { name: "many.warn".to_owned(), status, ..Check::default() };
        policy::attach_checks(&mut plan, vec![check]);
        set_identity(&mut plan);
    }
    plan
}

/// A planner for a commit.
pub(crate) struct SimulatedPlanner {
    pub(crate) files: Rc<SimulatedCommit>,
    /// Replica that plans.
    pub(crate) replica: usize,
    /// Shared state, with the time and the duration of planning.
    pub(crate) shared: Rc<SharedWorld>,
}

impl SimulatedPlanner {
    /// Waits for the duration of planning.
    async fn wait_for_planning(&self) {
        let seconds = i64::try_from(self.shared.faults.get().planning_seconds).unwrap_or(0);
        if seconds > 0 {
            self.shared.time.sleep(SignedDuration::from_secs(seconds)).await;
        }
    }

    fn inputs<'a>(&'a self, observed: &'a Observed, scope: Scope) -> Inputs<'a> {
        let (name, world) = (&self.files.name, BaseWorld::new("sim:world", observed));
        let base = Base::new("repository", format!("sha256:{name}"), world, DemandMode::Live);
        Inputs {
            desired: &self.files.desired,
            observed,
            catalog: &self.files.catalog,
            base: Base { commit: Some(name.clone()), ..base },
            at: observed.taken_at,
            demand: DemandMode::Live,
            is_forecast: false,
            scope,
            settings: Settings {
                // As in production: the controller waits from the last pod event.
                keep_young_nodes: false,
                workers: Some(std::num::NonZeroUsize::MIN),
                ..Settings::default()
            },
        }
    }
}

/// Returns the scope of a plan of the whole fleet for these pods.
fn scope_of(pods: PodScope) -> Scope {
    Scope { running_pods_only: pods == PodScope::RunningOnly, ..Scope::default() }
}

impl RevisionPlanner for SimulatedPlanner {
    async fn plan(&self, world: Arc<Observed>, limits: PlanScope) -> Plan {
        let PlanScope {
            changeable_nodes,
            excluded_addresses,
            running_pods_only,
            skips_demand_scenarios,
        } = limits;
        let scope = Scope {
            changeable_nodes,
            excluded_addresses: excluded_addresses.iter().map(ToString::to_string).collect(),
            running_pods_only,
            skips_demand_scenarios,
            ..Scope::default()
        };
        self.wait_for_planning().await;
        let is_full = scope == Scope::default();
        let plan =
            with_policy_checks(planner::plan(&self.inputs(&world, scope)), &self.files.fleet);
        if let Some(observer) = self.shared.plan_observer.borrow_mut().as_mut().filter(|_| is_full)
        {
            observer(&world, &plan);
        }
        plan
    }

    async fn reproduce(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> Option<RevalidatedPlan> {
        self.wait_for_planning().await;
        let found = planner::reproduce(&self.inputs(&world, scope_of(pods)), &plan)?;
        self.shared.record_replan(self.replica, &plan.capacity.plan_id, BTreeSet::new());
        Some(found)
    }

    async fn revalidate(
        &self,
        plan: Arc<Plan>,
        world: Arc<Observed>,
        pods: PodScope,
    ) -> RevalidatedPlan {
        self.wait_for_planning().await;
        let pinned = planner::revalidate(&self.inputs(&world, scope_of(pods)), &plan);
        let dropped = pinned.dropped.keys().cloned().collect();
        self.shared.record_replan(self.replica, &plan.capacity.plan_id, dropped);
        pinned
    }

    fn catalog(&self) -> &Catalog {
        &self.files.catalog
    }
}
