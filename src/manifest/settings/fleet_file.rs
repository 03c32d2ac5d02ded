//! Reads `fleetwright.yaml`.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use super::super::decode::{
    DEFAULT_NAMESPACES, Field, FieldMap, ObjectContext, ProblemCollector, shorten,
};
use super::super::delivery::NO_POLICY;
use super::super::placeholder::Vars;
use super::super::pod_spec::spread_constraint;
use super::super::resource_list::non_negative_quantity;
use super::super::yaml::{self, YamlNode};
use super::field_values::{money, set, share};
use super::{
    apply_settings, controller_settings, declared_cluster, is_within, normal_path, typical_mistakes,
};
use crate::model::desired::{
    AssumedPods, ClusterSettings, ConsolidationSettings, DeliverySettings, DemandMode,
    DemandSettings, FLEET_FILE, FailureDomains, Fleet, MaxShares, MinValuesPolicy, PoolSource,
    Problem, Renderer, Severity, Signer, SignerKey, Source, Tree, UnresolvedPolicy, WorstCase,
};

use crate::model::fargate::Rates;
use crate::model::ids::{Namespace, Origin, PoolName, Region, ZoneId, ZoneName};
use crate::model::pod::TopologySpread;
use crate::model::printable_url::printable_url;

/// 100 %, in thousandths of a percent.
const WHOLE: u32 = 100_000;

const API_VERSION: &str = "fleetwright.dev/v1";

/// Reads `fleetwright.yaml` at the root of `tree`, and reports every problem in it.
///
/// If the file is absent, or a setting is absent or wrong, the default applies.
pub fn read_fleet(tree: &Tree) -> (Fleet, Vec<Problem>) {
    let report = ProblemCollector::default();
    let mut fleet = Fleet::default();
    if let Some(file) = tree.files.iter().find(|file| &*file.path == FLEET_FILE) {
        fleet.origin = Some(Origin { file: file.path.clone(), line: 0 });
        let vars = Vars::new();
        let object = "Fleet".to_owned();
        let scope = ObjectContext {
            report: &report,
            file: &file.path,
            object,
            vars: &vars,
            rendered_origin: None,
            delivered_by: None,
            is_of_chart: false,
            namespaces: DEFAULT_NAMESPACES,
            policy: &NO_POLICY,
            verbatim: false,
            failed_fields: RefCell::default(),
        };
        match &file.content {
            Ok(bytes) => read_bytes(bytes, &scope, &mut fleet),
            Err(why) => {
                scope.report_problem(Severity::Error, 0, format!("cannot be read: {why}"), None);
            }
        }
        check_sources(&fleet, tree, &report);
    } else {
        typical_mistakes::report_misnamed_file(tree, &report);
        if let Some((name, region)) = declared_cluster::only_eksctl_cluster(tree) {
            fleet.name.clone_from(&name);
            fleet.cluster.name = name;
            fleet.cluster.region = region;
        }
    }
    let mut problems = report.into_problems();
    problems.sort();
    (fleet, problems)
}

fn read_bytes(bytes: &[u8], scope: &ObjectContext<'_>, fleet: &mut Fleet) {
    let error = |line, message, hint| scope.report_problem(Severity::Error, line, message, hint);
    let text = match yaml::decode(bytes) {
        Ok(text) => text,
        Err(fault) => return error(fault.line(), fault.to_string(), None),
    };
    let loaded = yaml::load(&text);
    if let Some(fault) = loaded.fault {
        return error(fault.line, fault.message, fault.hint);
    }
    let mut documents = loaded.documents.into_iter().filter(|doc| !doc.root.is_null());
    let Some(document) = documents.next() else {
        return error(
            0,
            "is empty".to_owned(),
            Some("write the settings: fleetwright init --force; or remove the file".to_owned()),
        );
    };
    for fault in document.faults {
        error(fault.line, fault.message, fault.hint);
    }
    for other in documents {
        error(other.root.line, "holds a second document".to_owned(), None);
    }
    fleet.origin = Some(scope.origin(document.root.line));
    if let Some(root) = Field::root(scope, &document.root).map() {
        read_root(&root, fleet);
    }
}

fn read_root(root: &FieldMap<'_>, fleet: &mut Fleet) {
    if let Some(version) = root.required("apiVersion") {
        version.choice(&[(API_VERSION, ())]);
    }
    if let Some(kind) = root.required("kind") {
        kind.choice(&[("Fleet", ())]);
    }
    let spec = root.get("spec");
    let spec = spec.as_ref().and_then(Field::map);
    let name = root.get("metadata").and_then(|field| {
        let metadata = field.map()?;
        let name = metadata.get("name").and_then(|name| name.non_empty_text()).map(Cow::into_owned);
        metadata.finish(Severity::Error);
        name
    });
    if let Some(name) = &name {
        fleet.cluster.name.clone_from(name);
    }
    if let Some(spec) = &spec {
        read_spec(spec, fleet);
    }
    fleet.name = name.unwrap_or_else(|| fleet.cluster.name.clone());
    typical_mistakes::report_misplaced_keys(root);
    root.finish(Severity::Error);
}

fn read_spec(spec: &FieldMap<'_>, fleet: &mut Fleet) {
    if let Some(map) = spec.get("cluster").as_ref().and_then(Field::map) {
        read_cluster(&map, &mut fleet.cluster);
        map.finish(Severity::Error);
    }
    if let Some(sources) = spec.get("sources") {
        fleet.sources = sources.items().filter_map(|item| source(&item)).collect();
    }
    set(&mut fleet.whole_repository, spec.get("wholeRepository").and_then(|f| f.boolean()));
    if let Some(signers) = spec.get("signers") {
        fleet.signers = signers.items().filter_map(|item| signer(&item)).collect();
    }
    if let Some(map) = spec.get("delivery").as_ref().and_then(Field::map) {
        fleet.delivery = read_delivery(&map);
    }
    if let Some(map) = spec.get("demand").as_ref().and_then(Field::map) {
        read_demand(&map, &mut fleet.demand);
    }
    set(&mut fleet.world, spec.get("world").and_then(|f| typical_mistakes::read_world(&f)));
    if let Some(policies) = spec.get("policies") {
        fleet.policies = policies.items().filter_map(|item| path(&item)).collect();
    }
    if let Some(map) = spec.get("cost").as_ref().and_then(Field::map) {
        fleet.commitments = apply_settings::read_commitments(&map);
        map.finish(Severity::Error);
    }
    if let Some(map) = spec.get("apply").as_ref().and_then(Field::map) {
        apply_settings::read_guard(&map, &mut fleet.guard);
        controller_settings::read_merged_by(&map, &mut fleet.controller);
        map.finish(Severity::Error);
    }
    if let Some(map) = spec.get("controller").as_ref().and_then(Field::map) {
        controller_settings::read_controller(&map, &mut fleet.controller);
    }
    if let Some(map) = spec.get("consolidation").as_ref().and_then(Field::map) {
        read_consolidation(&map, &mut fleet.consolidation);
    }
    if let Some(map) = spec.get("karpenter").as_ref().and_then(Field::map) {
        read_karpenter(&map, fleet);
    }
    if let Some(map) = spec.get("scheduler").as_ref().and_then(Field::map) {
        if let Some(constraints) = map.get("defaultConstraints") {
            fleet.default_spread = Some(default_constraints(&constraints));
        }
        map.finish(Severity::Error);
    }
    if let Some(map) = spec.get("failureDomains").as_ref().and_then(Field::map) {
        let limits = map.entries().filter_map(|(pool, field)| failure_domains(pool, &field));
        fleet.failure_domains = limits.collect();
    }
    if let Some(map) = spec.get("placement").as_ref().and_then(Field::map) {
        let choices = [("capacity", WorstCase::Capacity), ("contingency", WorstCase::Contingency)];
        set(&mut fleet.worst_case, map.get("worstCase").and_then(|f| f.choice(&choices)));
        map.finish(Severity::Error);
    }
    read_spot(spec, fleet);
    if let Some(map) = spec.get("groups").as_ref().and_then(Field::map) {
        fleet.groups = map.entries().filter_map(|(name, field)| group(name, &field)).collect();
    }
    set(&mut fleet.unresolved, unresolved_policy(spec));
    read_pools(spec, fleet);
    if let Some(map) = spec.get("autoscalers").as_ref().and_then(Field::map) {
        fleet.autoscaler_namespaces = autoscaler_namespaces(&map);
    }
    if let Some(map) = spec.get("fargate").as_ref().and_then(Field::map) {
        fleet.fargate = fargate_rates(&map);
        map.finish(Severity::Error);
    }
    spec.finish(Severity::Error);
}

fn read_pools(spec: &FieldMap<'_>, fleet: &mut Fleet) {
    let Some(field) = spec.get("pools") else { return };
    let sources = [("repository", PoolSource::Repository), ("cluster", PoolSource::Cluster)];
    set(&mut fleet.pools, field.choice(&sources));
    fleet.pools_origin = Some(field.origin());
}

fn read_karpenter(map: &FieldMap<'_>, fleet: &mut Fleet) {
    let policies =
        [("Strict", MinValuesPolicy::Strict), ("BestEffort", MinValuesPolicy::BestEffort)];
    let policy = map.get("minValuesPolicy").and_then(|f| f.choice(&policies));
    set(&mut fleet.min_values_policy, policy);
    let profile = map.get("defaultInstanceProfile");
    fleet.default_instance_profile =
        profile.and_then(|field| Some(field.non_empty_text()?.into_owned()));
    map.finish(Severity::Error);
}

fn read_spot(spec: &FieldMap<'_>, fleet: &mut Fleet) {
    let Some(map) = spec.get("spot").as_ref().and_then(Field::map) else { return };
    let share = map.get("maxOfferingShare");
    if let Some(share) = share.and_then(|field| positive_share(&field, "which allows no node")) {
        fleet.max_offering_share = Some(share).filter(|share| *share < WHOLE);
    }
    map.finish(Severity::Error);
}

fn unresolved_policy(spec: &FieldMap<'_>) -> Option<UnresolvedPolicy> {
    let policies = [
        ("hold", UnresolvedPolicy::Hold),
        ("running", UnresolvedPolicy::Running),
        ("ignore", UnresolvedPolicy::Ignore),
    ];
    spec.get("unresolved").and_then(|field| field.choice(&policies))
}

fn autoscaler_namespaces(map: &FieldMap<'_>) -> Option<BTreeSet<Namespace>> {
    let namespaces = map.get("namespaces").map(|field| field.text_list());
    map.finish(Severity::Error);
    namespaces.map(|all| all.into_iter().map(Namespace::from).collect())
}

fn read_demand(map: &FieldMap<'_>, demand: &mut DemandSettings) {
    let counts = [
        ("floor", DemandMode::Floor),
        ("live", DemandMode::Live),
        ("ceiling", DemandMode::Ceiling),
    ];
    set(&mut demand.autoscaled, map.get("autoscaled").and_then(|f| f.choice(&counts)));
    set(&mut demand.lead_time, map.get("lead").and_then(|f| f.duration()));
    set(&mut demand.rollouts, map.get("rollouts").and_then(|f| f.int(0)));
    map.finish(Severity::Error);
}

fn read_consolidation(map: &FieldMap<'_>, consolidation: &mut ConsolidationSettings) {
    set(&mut consolidation.horizon, map.get("horizon").and_then(|f| f.duration()));
    set(&mut consolidation.restart_cost, map.get("restartCost").and_then(|f| money(&f)));
    let saving = map.get("minimumSaving").and_then(|f| share(&f));
    set(&mut consolidation.minimum_saving_milli_percent, saving);
    let fleet_saving = map.get("minimumFleetSaving").and_then(|f| share(&f));
    set(&mut consolidation.minimum_fleet_saving_milli_percent, fleet_saving);
    map.finish(Severity::Error);
}

/// Reads the scheduler's default constraints. Like the scheduler, they have no selector: the pods
/// of a pod's workload count.
fn default_constraints(field: &Field<'_>) -> Vec<TopologySpread> {
    let constraint = |item: Field<'_>| {
        let map = item.map()?;
        let refused = ["labelSelector", "matchLabelKeys"].iter().find_map(|key| map.get(key));
        if let Some(field) = &refused {
            field.error(
                "is not allowed in a default constraint: the pods of a workload count",
                None,
            );
        }
        let read = spread_constraint(&map);
        map.finish(Severity::Error);
        read.filter(|_| refused.is_none())
    };
    field.items().filter_map(constraint).collect()
}

fn failure_domains(pool: &str, field: &Field<'_>) -> Option<(PoolName, FailureDomains)> {
    let map = field.map()?;
    let shares = |key| map.get(key).and_then(|f| shares(&f)).unwrap_or_default();
    let limits = FailureDomains {
        origin: field.origin(),
        workload: shares("workload"),
        pods: shares("pods"),
    };
    map.finish(Severity::Error);
    Some((pool.into(), limits))
}

fn shares(field: &Field<'_>) -> Option<MaxShares> {
    let map = field.map()?;
    let limit = |key| positive_share(&map.get(key)?, "which no pod can satisfy");
    let shares = MaxShares { node: limit("node"), zone: limit("zone") };
    map.finish(Severity::Error);
    Some(shares)
}

/// Returns a share above zero. `why` says in the error why zero is impossible.
fn positive_share(field: &Field<'_>, why: &str) -> Option<u32> {
    let share = share(field)?;
    if share == 0 {
        field.error(format_args!("is 0%, {why}"), "write 1% to 100%".to_owned());
    }
    Some(share).filter(|share| *share > 0)
}

fn group(name: &str, field: &Field<'_>) -> Option<(String, bool)> {
    let map = field.map()?;
    let manage = map.required("manage").and_then(|f| f.boolean());
    map.finish(Severity::Error);
    Some((name.to_owned(), manage?))
}

fn fargate_rates(map: &FieldMap<'_>) -> Option<Rates> {
    let vcpu_hour = map.required("vcpuHour").and_then(|f| money(&f));
    let gb_hour = map.required("gbHour").and_then(|f| money(&f));
    Some(Rates { vcpu_hour: vcpu_hour?, gb_hour: gb_hour? })
}

fn read_cluster(map: &FieldMap<'_>, cluster: &mut ClusterSettings) {
    set(&mut cluster.name, map.get("name").and_then(|f| Some(f.non_empty_text()?.into_owned())));
    set(
        &mut cluster.region,
        map.get("region").and_then(|f| Some(Region::from(&*f.non_empty_text()?))),
    );
    let Some(zones) = map.get("zones") else { return };
    if let yaml::YamlValue::Map(_) = zones.node.value {
        let Some(ids) = zones.map() else { return };
        for (name, id) in ids.entries() {
            let zone_id = id.non_empty_text().map(|id| ZoneId::from(&*id));
            check_zone(&id, name, cluster);
            cluster.zones.insert(name.into(), zone_id);
        }
        return;
    }
    for item in zones.items() {
        let Some(name) = item.non_empty_text() else { continue };
        check_zone(&item, &name, cluster);
        if cluster.zones.insert(ZoneName::from(&*name), None).is_some() {
            item.error(format_args!("names the zone {name} again"), None);
        }
    }
}

fn check_zone(field: &Field<'_>, name: &str, cluster: &ClusterSettings) {
    // The catalog reports a region that does not exist.
    let number = cluster.region.as_str().rsplit_once('-').map(|(_, number)| number);
    if number.is_none_or(|number| number.parse::<u8>().is_err()) {
        return;
    }
    if !name.starts_with(cluster.region.as_str()) || name.len() == cluster.region.as_str().len() {
        field.error(
            format_args!("names the zone `{}`, which is not in {}", shorten(name), cluster.region),
            format!("zones of that region are called {}a and so on", cluster.region),
        );
    }
}

fn source(field: &Field<'_>) -> Option<Source> {
    let map = field.map()?;
    let read_path = map.required("path").and_then(|f| path(&f));
    let renderers = [("kustomize", Renderer::Kustomize), ("helm", Renderer::Helm)];
    let stated = map.get("render");
    let render = stated.as_ref().and_then(|f| f.choice(&renderers));
    let values = map.get("values");
    if let Some(values) =
        values.as_ref().filter(|_| stated.is_some() && render != Some(Renderer::Helm))
    {
        values.error("apply only to `render: helm`", None);
    } else if let Some(values) = values.as_ref().filter(|_| stated.is_none()) {
        values.error("need `render: helm`", None);
    }
    let base = read_path.clone().unwrap_or_default();
    let values = values.map(|f| values_files(&f, &base)).unwrap_or_default();
    let vars = map.get("vars").map(|f| read_vars(&f)).unwrap_or_default();
    let release = map.get("release");
    if let Some(release) = release.as_ref().filter(|_| render != Some(Renderer::Helm)) {
        release.error("applies only to `render: helm`", None);
    }
    let release = release.and_then(|f| name(&f));
    let namespace = map.get("namespace").and_then(|f| name(&f));
    let assume = map.get("assume").and_then(|f| assumed_pods(&f));
    map.finish(Severity::Error);
    // A source with an unknown renderer is still not read as plain manifests.
    let render = render.or(stated.map(|_| Renderer::Kustomize));
    Some(Source {
        origin: field.origin(),
        path: read_path?,
        render,
        release,
        namespace,
        values,
        vars,
        assume,
    })
}

/// Reads the pods that a source is assumed to declare.
fn assumed_pods(field: &Field<'_>) -> Option<AssumedPods> {
    let map = field.map()?;
    let pods = map.required("pods").and_then(|f| f.int(0));
    let cpu = map.required("cpu").and_then(|f| non_negative_quantity(&f));
    let memory = map.required("memory").and_then(|f| non_negative_quantity(&f));
    map.finish(Severity::Error);
    let requests = [("cpu".into(), cpu?.ceil_milli()), ("memory".into(), memory?.ceil_units())];
    Some(AssumedPods { pods: pods?, requests: requests.into() })
}

/// Reads the values files of a chart, relative to the chart's directory.
fn values_files(field: &Field<'_>, chart: &str) -> Vec<String> {
    let inside = |item: Field<'_>| {
        let text = item.non_empty_text()?;
        let normal = normal_path(chart, &text);
        if normal.is_none() {
            item.error(
                format_args!("is `{}`, which leads out of the repository", shorten(&text)),
                "write a path relative to the directory of the chart".to_owned(),
            );
        }
        normal
    };
    field.items().filter_map(inside).collect()
}

/// Reads a name that is valid for a Kubernetes namespace and a Helm release.
fn name(field: &Field<'_>) -> Option<String> {
    let text = field.non_empty_text()?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edges = |c: char| c == '-';
    if text.len() > 63
        || !text.chars().all(plain)
        || text.starts_with(edges)
        || text.ends_with(edges)
    {
        field.error(
            format_args!("is `{}`, not a name", shorten(&text)),
            "write lowercase letters, digits and `-`".to_owned(),
        );
        return None;
    }
    Some(text.into_owned())
}

/// Reads a trusted signer.
fn signer(field: &Field<'_>) -> Option<Signer> {
    let map = field.map()?;
    let name = map.required("name").and_then(|f| Some(f.non_empty_text()?.into_owned()));
    let key = match (map.get("ssh"), map.get("gpg")) {
        (Some(ssh), None) => {
            let text = ssh.non_empty_text()?;
            let line = text.trim();
            // Options before the key, or further lines, would change its meaning.
            let plain = !line.contains(['\n', '\r', '"', ',']) && line.split(' ').count() >= 2;
            let starts = ["ssh-", "ecdsa-", "sk-"].iter().any(|kind| line.starts_with(kind));
            if !plain || !starts {
                ssh.error("is not an SSH public key", "write the line of id_….pub".to_owned());
                return None;
            }
            SignerKey::Ssh(line.to_owned())
        }
        (None, Some(gpg)) => {
            let text = gpg.non_empty_text()?;
            if !text.trim_start().starts_with("-----BEGIN PGP PUBLIC KEY BLOCK-----") {
                let hint = "write the output of `gpg --armor --export`".to_owned();
                gpg.error("is not a GnuPG public key", hint);
                return None;
            }
            SignerKey::Gpg(text.into_owned())
        }
        (Some(_), Some(_)) | (None, None) => {
            field.error("needs either `ssh` or `gpg`", None);
            return None;
        }
    };
    map.finish(Severity::Error);
    Some(Signer { name: name?, key })
}

/// Reads the settings that identify this repository and cluster to Argo CD and Flux.
fn read_delivery(map: &FieldMap<'_>) -> DeliverySettings {
    let texts = |key| map.get(key).map(|field| field.text_list()).unwrap_or_default();
    let settings = DeliverySettings {
        repositories: texts("repositories"),
        revisions: texts("revisions"),
        clusters: texts("clusters"),
        other_clusters: texts("otherClusters"),
        vars: map.get("vars").map(|field| read_vars(&field)).unwrap_or_default(),
        mirrors: map.get("mirrors").map(|field| read_mirrors(&field)).unwrap_or_default(),
        private_hosts: texts("privateHosts"),
    };
    map.finish(Severity::Error);
    settings
}

/// Reads the mirrors of external sources, by the beginning of a URL.
fn read_mirrors(field: &Field<'_>) -> BTreeMap<String, String> {
    let Some(map) = field.map() else { return BTreeMap::new() };
    let pair = |(from, field): (&str, Field<'_>)| {
        let to = field.non_empty_text()?.into_owned();
        let hint = "write the beginning of a URL, such as https://charts.example.com/".to_owned();
        if !from.contains("://") || !to.contains("://") {
            let (from, to) = (printable_url(from), printable_url(&to));
            field.error(format_args!("maps `{}` to `{}`", shorten(&from), shorten(&to)), hint);
            return None;
        }
        Some((from.to_owned(), to))
    };
    map.entries().filter_map(pair).collect()
}

fn read_vars(field: &Field<'_>) -> BTreeMap<String, String> {
    let mut vars = BTreeMap::new();
    let Some(map) = field.map() else { return vars };
    for (name, value) in map.entries() {
        let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if matches!(name, "true" | "false") {
            let hint = format!("quote the name: YAML reads it as {name}");
            value.error("has a name that is a boolean", hint);
            continue;
        }
        if name.starts_with(|c: char| c.is_ascii_digit()) || !name.chars().all(letters) {
            value.error(
                format_args!("has the name `{}`, which no ${{…}} can have", shorten(name)),
                None,
            );
        } else if let Some(word) = value.text_or_number() {
            vars.insert(name.to_owned(), word.into_owned());
        }
    }
    vars
}

/// Reads a path below the root, and normalizes it.
fn path(field: &Field<'_>) -> Option<String> {
    let text = field.non_empty_text()?;
    let normal = normal_path("", &text);
    if normal.is_none() {
        field.error(
            format_args!("is `{}`, which leads out of the repository", shorten(&text)),
            "write a path below the directory of fleetwright.yaml".to_owned(),
        );
    }
    normal
}

/// Reports sources without files, and duplicate sources.
fn check_sources(fleet: &Fleet, tree: &Tree, report: &ProblemCollector) {
    let mut seen = BTreeSet::new();
    for source in &fleet.sources {
        let note = |message, hint: &str| {
            report.add(Problem::error(source.origin.clone(), "Fleet", message).hint(hint));
        };
        if !seen.insert(&source.path) {
            note(format!("source `{}` is named twice", source.path), "keep one of the two");
        }
        if !tree.files.iter().any(|file| is_within(&file.path, &source.path)) {
            let hint = if fleet.whole_repository {
                "paths are relative to the root of the repository (spec.wholeRepository)"
            } else {
                "paths are relative to the directory of fleetwright.yaml"
            };
            note(format!("source `{}` does not exist", source.path), hint);
        }
    }
}

/// Returns whether a document is a fleet file.
pub(in super::super) fn is_fleet_document(root: &YamlNode<'_>) -> bool {
    root.get("apiVersion")
        .and_then(YamlNode::text)
        .is_some_and(|v| v.starts_with("fleetwright.dev/"))
}
