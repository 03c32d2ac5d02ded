//! Inputs of a case: converts lines to manifests and an observation, and plans.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::OnceLock;

use fleetwright::catalog::{Catalog, InstanceType, MeasuredNodes};
use fleetwright::demand::DemandMode;
use fleetwright::manifest::{read, read_fleet};
use fleetwright::model::desired::{Desired, Fleet, Severity, Tree, TreeFile};
use fleetwright::model::market::{CapacityType, ZoneSetting};
use fleetwright::model::observed::{ClusterIdentity, Node, Observed, tag};
use fleetwright::model::pod::TopologySpread;
use fleetwright::model::units::{MicroUsd, Resources};
use fleetwright::plan::wire::{Base, BaseWorld, Plan, UnschedulableRow};
use fleetwright::planner::{self, Inputs, Scope};
use fleetwright::scheduler::ScheduleNode;
use fleetwright::solver::Settings;

use super::case_line::CaseLine;
use super::expected::CasePlan;
use super::pod_rules::{expression, mapping, spec};
use super::{autoscaler_state, world};

/// Default time of the plan.
pub(crate) const NOW: &str = "2026-11-01T12:00:00Z";

/// Region of every case.
const REGION: &str = "us-east-1";
pub(crate) const CLUSTER: &str = "conformance";

/// Instance families that cases use.
const FAMILIES: [&str; 7] = ["c5", "g4dn", "m5", "m6g", "r5", "t2", "t3"];

const NODE_CLASS: &str = "\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: default }
spec:
  role: nodes
  amiSelectorTerms: [{ alias: al2023@latest }]
  capacityReservationSelectorTerms: [{ tags: { team: \"*\" } }]
  subnetSelectorTerms: [{ tags: { x: shared } }]
  securityGroupSelectorTerms: [{ tags: { x: shared } }]
";

/// Inputs of a case so far.
#[derive(Debug)]
pub(crate) struct CaseInput {
    zones: Vec<String>,
    /// Available instance types. If empty, all types of [`FAMILIES`] are available.
    types: Vec<String>,
    /// Manifests by the line that declares them. A later `pods web` replaces an earlier one.
    manifests: BTreeMap<String, String>,
    /// Lead time of scheduled capacity, in minutes.
    lead: i64,
    mode: DemandMode,
    /// Node groups that the settings enable fleetwright to manage.
    managed: Vec<String>,
    /// Spot price in percent of the on-demand price; `None` if unknown.
    spot: Option<u32>,
    /// Default spread constraints of kube-scheduler; `None` if not configured.
    default_spread: Option<Vec<TopologySpread>>,
    /// True if the manifests are read in reverse order.
    is_reversed: bool,
    pub(crate) world: Observed,
}

impl Default for CaseInput {
    fn default() -> Self {
        let name = |text: &str| text.to_owned();
        let cluster = ClusterIdentity {
            name: name(CLUSTER),
            region: name(REGION),
            account: name("111122223333"),
            uid: name("0f0f"),
        };
        Self {
            zones: ["us-east-1a", "us-east-1b", "us-east-1c"].map(name).into(),
            types: Vec::new(),
            manifests: [(name("0 class"), name(NODE_CLASS))].into(),
            lead: 10,
            mode: DemandMode::Live,
            managed: Vec::new(),
            spot: None,
            default_spread: None,
            is_reversed: false,
            world: Observed::empty(cluster, NOW.parse().expect("a time")),
        }
    }
}

impl CaseInput {
    /// Reads an input line.
    pub(crate) fn read_line(&mut self, line: &CaseLine) -> Result<(), String> {
        match line.word(0)? {
            "zones" => self.zones = line.words[1..].to_vec(),
            "types" => self.types = line.words[1..].to_vec(),
            "pool" => {
                let name = line.word(1)?;
                self.manifests.insert(format!("1 pool {name}"), pool(name, line)?);
            }
            "pods" => {
                let (name, count) = (line.word(1)?, line.count(2)?);
                self.manifests.insert(format!("2 pods {name}"), pods(name, Some(count), line)?);
            }
            "daemon" => {
                let name = line.word(1)?;
                self.manifests.insert(format!("2 pods {name}"), pods(name, None, line)?);
            }
            "manifest" => {
                let name = format!("3 manifest of line {}", line.number);
                self.manifests.insert(name, line.body.join("\n"));
            }
            "node" => {
                let (desired, catalog) = (self.desired(), self.catalog());
                world::add_node(&mut self.world, line, &desired, &catalog)?;
            }
            "manage" => self.managed.extend(line.words[1..].iter().cloned()),
            "spot" => self.spot = Some(line.count(1)?),
            "scheduler" => self.default_spread = default_spread(line)?,
            "group" => world::add_group(&mut self.world, line)?,
            "reservation" => world::add_reservation(&mut self.world, line)?,
            "insufficient-capacity" => world::exclude_offering(&mut self.world, line)?,
            "attaches" => world::set_attach_limit(&mut self.world, line)?,
            "at" => {
                self.world.taken_at = line.word(1)?.parse().map_err(|_| "write at RFC 3339")?;
            }
            "lead" => self.lead = line.count(1)?.into(),
            "mode" => {
                self.mode = match line.word(1)? {
                    "floor" => DemandMode::Floor,
                    "live" => DemandMode::Live,
                    "ceiling" => DemandMode::Ceiling,
                    other => return Err(format!("`{other}` is not a demand mode")),
                };
            }
            "runs" => {
                let desired = self.desired();
                autoscaler_state::runs(&mut self.world, line, &desired)?;
            }
            "hpa" => autoscaler_state::hpa(&mut self.world, line)?,
            "recommends" => autoscaler_state::recommends(&mut self.world, line)?,
            "queue" => autoscaler_state::queue(&mut self.world, line)?,
            other => return Err(format!("`{other}` is not a line of cases")),
        }
        Ok(())
    }

    pub(crate) fn catalog(&self) -> Catalog {
        static ALL: OnceLock<Catalog> = OnceLock::new();
        let all = ALL.get_or_init(|| {
            let mut all = Catalog::load(&REGION.into(), &[]).expect("the region is embedded");
            // A part of the catalog is faster, and protects the cases from changes of other prices.
            let family = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
            all.types.retain(|name, _| FAMILIES.contains(&family(name.as_str()).as_str()));
            all
        });
        let chosen = |list: &[String], name: &str| list.iter().any(|chosen| chosen == name);
        let types = all.types.iter();
        let types =
            types.filter(|(name, _)| self.types.is_empty() || chosen(&self.types, name.as_str()));
        let mut types: BTreeMap<_, _> =
            types.map(|(name, kind)| (name.clone(), kind.clone())).collect();
        for kind in types.values_mut() {
            kind.offerings.retain(|offering| chosen(&self.zones, offering.zone.as_str()));
            self.set_spot_prices(kind);
        }
        types.retain(|_, kind| !kind.offerings.is_empty());
        let mut zones = all.zones.clone();
        zones.retain(|zone| chosen(&self.zones, zone.name.as_str()));
        let Catalog { region, prices, listed, warnings, .. } = all;
        let (region, prices, warnings) = (region.clone(), prices.clone(), warnings.clone());
        let measured = MeasuredNodes::default();
        let (listed, quotas, offered) = (listed.clone(), None, None);
        Catalog { region, zones, types, prices, listed, warnings, measured, quotas, offered }
    }

    /// Sets the prices of the spot offerings of a type, if the case states them.
    fn set_spot_prices(&self, kind: &mut InstanceType) {
        let Some(percent) = self.spot else { return };
        let on_demand = kind.offerings.iter().find(|o| o.capacity_type == CapacityType::OnDemand);
        let list = on_demand.and_then(|offering| offering.price);
        for offering in &mut kind.offerings {
            if offering.capacity_type == CapacityType::Spot {
                offering.price = list.map(|list| MicroUsd(list.0 * i64::from(percent) / 100));
                offering.estimated = false;
            }
        }
    }

    pub(crate) fn desired(&self) -> Desired {
        let mut manifests: Vec<&String> = self.manifests.values().collect();
        if self.is_reversed {
            manifests.reverse();
        }
        let text = manifests.into_iter().fold(String::new(), |mut all, manifest| {
            write!(all, "---\n{manifest}\n").expect("text grows");
            all
        });
        let file = TreeFile { path: "tree.yaml".into(), content: Ok(text.into_bytes().into()) };
        let groups = self.managed.iter().map(|name| (name.clone(), true)).collect();
        let default_spread = self.default_spread.clone();
        let mut fleet = Fleet { groups, default_spread, ..Fleet::default() };
        fleet.demand.lead_time = jiff::SignedDuration::from_mins(self.lead);
        read(&Tree { files: vec![file] }, &fleet)
    }

    /// Returns the input with another observation.
    pub(crate) fn with_world(&self, world: Observed) -> Self {
        Self {
            zones: self.zones.clone(),
            types: self.types.clone(),
            manifests: self.manifests.clone(),
            lead: self.lead,
            mode: self.mode,
            managed: self.managed.clone(),
            spot: self.spot,
            default_spread: self.default_spread.clone(),
            is_reversed: self.is_reversed,
            world,
        }
    }

    /// Returns the input with documents and observed pods in reverse order.
    pub(crate) fn reversed(&self) -> Self {
        let mut world = self.world.clone();
        world.pods.reverse();
        Self { is_reversed: !self.is_reversed, ..self.with_world(world) }
    }

    /// Plans the case. Fails if the inputs have errors that `expected` does not name.
    pub(crate) fn plan(&self, expected: &[&CaseLine]) -> Result<CasePlan, String> {
        let desired = self.desired();
        let catalog = self.catalog();
        let case_plan = CasePlan { plan: self.make_plan(&desired, &catalog), catalog };
        case_plan.check_errors(expected)?;
        Ok(case_plan)
    }

    fn make_plan(&self, desired: &Desired, catalog: &Catalog) -> Plan {
        planner::plan(&self.inputs(desired, catalog))
    }

    /// Returns the inputs of the planner.
    pub(crate) fn inputs<'a>(&'a self, desired: &'a Desired, catalog: &'a Catalog) -> Inputs<'a> {
        let world = BaseWorld::new("file:world.json", &self.world);
        Inputs {
            desired,
            observed: &self.world,
            catalog,
            base: Base::new(".", "0".repeat(64), world, self.mode),
            at: self.world.taken_at,
            demand: self.mode,
            is_forecast: false,
            scope: Scope::default(),
            settings: Settings::default(),
        }
    }

    /// Returns an error if the plan after an apply is not empty.
    pub(crate) fn check_convergence(&self, case_plan: &CasePlan) -> Result<(), String> {
        let needs_next_plan = |row: &UnschedulableRow| {
            row.reasons.iter().any(|why| why.reason == "limit-until-applied")
        };
        // A plan that asks for another plan after the apply is not checked.
        if case_plan.plan.errored
            || case_plan.plan.capacity.unschedulable.iter().any(needs_next_plan)
        {
            return Ok(());
        }
        let desired = self.desired();
        let after = self.with_world(world::after_apply(&self.world, &case_plan.plan, &desired));
        let next = CasePlan {
            plan: after.make_plan(&desired, &case_plan.catalog),
            catalog: case_plan.catalog.clone(),
        };
        let totals = next.plan.summary;
        if (totals.add, totals.change, totals.destroy) == (0, 0, 0) {
            return Ok(());
        }
        Err(next.with_details("the plan after the apply is not empty:"))
    }

    /// Applies the plan to the observation.
    pub(crate) fn apply_plan(&mut self, case_plan: &CasePlan) {
        self.world = world::after_apply(&self.world, &case_plan.plan, &self.desired());
    }

    /// Returns the existing nodes in the form of the scheduler model.
    pub(crate) fn schedule_nodes(&self) -> Vec<ScheduleNode> {
        let seen = |node: &Node| ScheduleNode {
            name: node.name.clone(),
            labels: node.labels.clone(),
            taints: node.taints.clone(),
            allocatable: node.allocatable.clone(),
            unschedulable: node.unschedulable,
        };
        self.world.nodes.values().map(seen).collect()
    }

    /// Returns the capacities of the managed nodes in `pool`.
    pub(crate) fn node_capacities(&self, pool: &str) -> Vec<&Resources> {
        let nodes = self.world.nodes.values().filter(|node| {
            let instance = node.instance.as_ref().and_then(|id| self.world.instances.get(id));
            instance.and_then(|i| i.tags.get(tag::POOL)).is_some_and(|name| name == pool)
        });
        nodes.map(|node| &node.capacity).collect()
    }

    /// Returns whether an instance of `pool` has not joined the cluster.
    pub(crate) fn has_joining(&self, pool: &str) -> bool {
        let joined = |id| self.world.nodes.values().any(|node| node.instance.as_ref() == Some(id));
        let mut of_pool = self
            .world
            .instances
            .values()
            .filter(|instance| instance.tags.get(tag::POOL).is_some_and(|name| name == pool));
        of_pool.any(|instance| !joined(&instance.id))
    }

    /// Returns zone settings, for messages.
    pub(crate) fn zones(&self) -> Vec<ZoneSetting> {
        let setting = |name: &String| ZoneSetting { name: name.as_str().into(), id: None };
        self.zones.iter().map(setting).collect()
    }
}

/// Returns the default spread constraints of `spec.scheduler` in the body of `line`.
fn default_spread(line: &CaseLine) -> Result<Option<Vec<TopologySpread>>, String> {
    let settings = format!(
        "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec:\n  scheduler:\n    {}\n",
        line.body.join("\n    ")
    );
    let content = Ok(settings.into_bytes().into());
    let file = TreeFile { path: "fleetwright.yaml".into(), content };
    let (fleet, problems) = read_fleet(&Tree { files: vec![file] });
    match problems.iter().find(|problem| problem.severity == Severity::Error) {
        Some(problem) => Err(problem.message.clone()),
        None => Ok(fleet.default_spread),
    }
}

/// Converts `key=value:Effect,…` to a YAML list of taints.
fn taints(text: &str) -> Result<String, String> {
    let one = |taint: &str| {
        let (pair, effect) = taint.rsplit_once(':').ok_or("write taints as key=value:Effect")?;
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok(format!("{{ key: {key:?}, value: {value:?}, effect: {effect} }}"))
    };
    let all: Result<Vec<String>, String> = text.split(',').map(one).collect();
    Ok(format!("[{}]", all?.join(", ")))
}

fn pool(name: &str, line: &CaseLine) -> Result<String, String> {
    line.only(&[
        "types",
        "zones",
        "capacity",
        "weight",
        "limits",
        "labels",
        "annotations",
        "taints",
        "startup-taints",
        "replicas",
        "policy",
        "after",
        "class",
    ])?;
    let mut yaml = format!(
        "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {{ name: {name} }}\nspec:\n"
    );
    let mut add = |text: String| yaml.push_str(&text);
    for key in ["weight", "replicas"] {
        if let Some(value) = line.option(key) {
            add(format!("  {key}: {value}\n"));
        }
    }
    if let Some(limits) = line.option("limits") {
        add(format!("  limits: {}\n", mapping(limits)));
    }
    let policy = line.option("policy").unwrap_or("WhenEmptyOrUnderutilized");
    let after = line.option("after").unwrap_or("0s");
    // A case has one plan, and a budget would spread its removals over several.
    add(format!(
        "  disruption: {{ consolidationPolicy: {policy}, consolidateAfter: {after}, \
         budgets: [{{ nodes: '100%' }}] }}\n"
    ));
    add("  template:\n".to_owned());
    let mut metadata: Vec<String> = Vec::new();
    for key in ["labels", "annotations"] {
        metadata.extend(line.option(key).map(|text| format!("{key}: {}", mapping(text))));
    }
    if !metadata.is_empty() {
        add(format!("    metadata: {{ {} }}\n", metadata.join(", ")));
    }
    let class = line.option("class").unwrap_or("default");
    add("    spec:\n      expireAfter: Never\n".to_owned());
    add(format!(
        "      nodeClassRef: {{ group: karpenter.k8s.aws, kind: EC2NodeClass, name: {class} }}\n"
    ));
    for (option, key) in [("taints", "taints"), ("startup-taints", "startupTaints")] {
        if let Some(text) = line.option(option) {
            add(format!("      {key}: {}\n", taints(text)?));
        }
    }
    let requirements = requirements(line)?;
    let none = if requirements.is_empty() { " []" } else { "" };
    add(format!("      requirements:{none}\n{requirements}"));
    Ok(yaml)
}

fn requirements(line: &CaseLine) -> Result<String, String> {
    let mut all = Vec::new();
    for (option, key) in [("types", "type"), ("zones", "zone")] {
        all.extend(line.option(option).map(|values| format!("{key} In {values}")));
    }
    match line.option("capacity").unwrap_or("on-demand") {
        "any" => {}
        capacity => all.push(format!("capacity In {capacity}")),
    }
    all.extend(line.body.iter().cloned());
    let mut yaml = String::new();
    for text in &all {
        let (text, least) = text.split_once(" minValues ").unwrap_or((text, ""));
        let least = if least.is_empty() { String::new() } else { format!(", minValues: {least}") };
        writeln!(yaml, "      - {{ {}{least} }}", expression(text)?).expect("text grows");
    }
    Ok(yaml)
}

fn pods(name: &str, count: Option<u32>, line: &CaseLine) -> Result<String, String> {
    const KNOWN: [&str; 5] = ["kind", "namespace", "labels", "annotations", "priority"];
    let kind =
        line.option("kind").unwrap_or(if count.is_some() { "Deployment" } else { "DaemonSet" });
    let namespace = line.option("namespace").unwrap_or("default");
    let labels = match line.option("labels") {
        None => format!("app={name}"),
        Some(more) => format!("app={name},{more}"),
    };
    let labels = mapping(&labels);
    let group = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    let mut yaml = format!(
        "apiVersion: {group}\nkind: {kind}\nmetadata: {{ name: {name}, namespace: {namespace} }}\nspec:\n"
    );
    let mut add = |text: String| yaml.push_str(&text);
    match (kind, count) {
        ("Job", Some(count)) => add(format!("  parallelism: {count}\n  completions: {count}\n")),
        (_, Some(count)) => add(format!("  replicas: {count}\n")),
        (_, None) => {}
    }
    if kind != "Job" {
        add(format!("  selector: {{ matchLabels: {{ app: {name} }} }}\n"));
    }
    let annotations = line.option("annotations").map(mapping);
    let annotations = annotations.map(|map| format!(", annotations: {map}")).unwrap_or_default();
    add(format!("  template:\n    metadata: {{ labels: {labels}{annotations} }}\n    spec:\n"));
    if let Some(priority) = line.option("priority") {
        add(format!("      priority: {priority}\n"));
    }
    if kind == "Job" && !line.body.iter().any(|text| text.starts_with("restartPolicy")) {
        add("      restartPolicy: Never\n".to_owned());
    }
    if !line.body.iter().any(|text| text.starts_with("containers:")) {
        let amounts = line.options.iter().filter(|(key, _)| !KNOWN.contains(&key.as_str()));
        let of = |(key, value): (&String, &String)| format!("{key:?}: {value:?}");
        let amounts: Vec<String> = amounts.map(of).collect();
        let amounts = amounts.join(", ");
        // Extended resources cannot be overcommitted, so their limits equal their requests.
        let both = format!("{{ requests: {{ {amounts} }}, limits: {{ {amounts} }} }}");
        let resources =
            if amounts.contains('/') { both } else { format!("{{ requests: {{ {amounts} }} }}") };
        add(format!(
            "      containers:\n      - {{ name: app, image: app, resources: {resources} }}\n"
        ));
    }
    let is_claim = |text: &&String| text.starts_with("claims ");
    let (claims, body): (Vec<&String>, Vec<&String>) = line.body.iter().partition(is_claim);
    for text in spec(&body.into_iter().cloned().collect::<Vec<_>>())? {
        add(format!("      {text}\n"));
    }
    if !claims.is_empty() {
        add("  volumeClaimTemplates:\n".to_owned());
    }
    for text in claims {
        let claim = CaseLine::read(line.number, text);
        let (name, class) = (claim.word(1)?, claim.word(2)?);
        add(format!(
            "  - {{ metadata: {{ name: {name} }}, spec: {{ storageClassName: {class} }} }}\n"
        ));
    }
    Ok(yaml)
}
