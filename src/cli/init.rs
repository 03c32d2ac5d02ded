//! `init`: writes a `fleetwright.yaml` for a directory, or lists the directories that have one.

pub(super) mod detect;
pub(super) mod matrix;
mod selection;
mod template;

use std::fmt::Write as _;
use std::path::Path;

use super::error::CliError;
use super::repository::{self, Repository};
use super::settings::{InitSettings, SourceSettings};
use super::{Console, Exit, files, source_tree};
use crate::catalog::Catalog;
use crate::manifest::ports::RepositoryFiles;
use crate::manifest::{Alternatives, AlternativesKind, named, shared_example};
use crate::model::desired::SOURCE_LOCK_FILE;
use crate::model::shell::quote_word;
use crate::render::escape;
use detect::{Detected, Evidence};
use selection::Selection;
use template::FleetTemplate;

/// Name of the file.
const FILE: &str = "fleetwright.yaml";

/// Region of a directory that names none.
const REGION: &str = "us-east-1";

pub(super) fn run(settings: &InitSettings, console: &mut Console) -> Result<Exit, CliError> {
    let InitSettings { path, name, destination, region, force } = settings;
    let file = path.join(FILE);
    if !path.is_dir() {
        return Err(CliError::text(format!("`{}` is not a directory", path.display()))
            .hint("name a directory of manifests that is on this computer"));
    }
    if file.exists() && !force {
        return Err(CliError::text(format!("`{}` exists already", file.display()))
            .hint("edit it, or overwrite it with --force"));
    }
    if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        return Err(CliError::text("--name is empty")
            .hint("write the name of the cluster, or leave --name out"));
    }
    if let Some(region) = region {
        // An unknown region is an error now rather than in the first plan.
        Catalog::load(&region.as_str().into(), &[])?;
    }
    let source = SourceSettings { path: path.clone(), revision: None };
    let read = source_tree::read_alone(&source)?;
    let alternatives = repository::alternatives(&read);
    let detected = Detected { alternatives, ..Detected::from_tree(&read.tree) };
    let own_directory = own_cluster_directory(&read.base.below);
    let cluster = cluster_name(name.as_deref(), &detected, path);
    let region = region_name(region.as_deref(), &detected);
    let selection = Selection::choose(
        &read.tree,
        &detected,
        &cluster.value,
        name.is_some(),
        destination.as_deref(),
    )?;
    let template = FleetTemplate {
        cluster: &cluster,
        region: &region,
        detected: &detected,
        selection: &selection,
        own_directory,
    };
    files::write(&file, &template.to_string())?;
    let is_jsonnet =
        |path: &&String| [".jsonnet", ".libsonnet"].iter().any(|end| path.ends_with(end));
    let jsonnet = read.files.paths().iter().filter(is_jsonnet).count();
    let elsewhere = sources_elsewhere(&source);
    console.print(&summary(path, &template, jsonnet, &elsewhere))?;
    Ok(Exit::Done)
}

/// Returns the objects whose charts or files are elsewhere and not pinned, by the settings that were
/// written. `validate`, the next step, reports a tree that cannot be read.
fn sources_elsewhere(source: &SourceSettings) -> Vec<String> {
    let Ok(tree) = source_tree::read(source) else { return Vec::new() };
    let unresolved = Repository::read(&tree).desired.unresolved.into_iter();
    let unpinned = unresolved.filter(|one| one.reason.contains(SOURCE_LOCK_FILE));
    unpinned.map(|one| one.object).collect()
}

/// Returns the path of a directory in its repository if it is that of one cluster, below `clusters`.
fn own_cluster_directory(below: &str) -> Option<&str> {
    let parent = below.rsplit('/').nth(1);
    (parent == Some("clusters")).then_some(below)
}

/// A value of the file, and why it has been chosen.
#[derive(Debug)]
struct Choice {
    value: String,
    why: String,
}

impl Choice {
    fn from_evidence(Evidence { value, file }: &Evidence) -> Self {
        Self { value: value.clone(), why: format!("from {file}") }
    }

    fn from_option(value: &str, option: &str) -> Self {
        Self { value: value.to_owned(), why: format!("from {option}") }
    }
}

fn cluster_name(option: Option<&str>, detected: &Detected, path: &Path) -> Choice {
    if let Some(name) = option {
        return Choice::from_option(name, "--name");
    }
    if let Some(found) = &detected.cluster {
        return Choice::from_evidence(found);
    }
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = absolute.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = name.chars().map(plain).collect();
    let name = name.trim_matches('-');
    let value = if name.is_empty() { "cluster".to_owned() } else { name.to_owned() };
    Choice { value, why: "the name of the directory: correct it if needed".to_owned() }
}

fn region_name(option: Option<&str>, detected: &Detected) -> Choice {
    if let Some(region) = option {
        return Choice::from_option(region, "--region");
    }
    let known = |found: &&Evidence| Catalog::load(&found.value.as_str().into(), &[]).is_ok();
    match detected.region.as_ref().filter(known) {
        Some(found) => Choice::from_evidence(found),
        None => Choice {
            value: REGION.to_owned(),
            why: "not found in the files: correct it if needed".to_owned(),
        },
    }
}

/// Returns what was found and the next steps.
fn summary(
    path: &Path,
    template: &FleetTemplate<'_>,
    jsonnet: usize,
    elsewhere: &[String],
) -> String {
    let FleetTemplate { cluster, region, detected, .. } = template;
    let mut out = format!("Wrote {}.\n\nFound:\n", path.join(FILE).display());
    let counts = [
        counted(detected.workloads, "workload"),
        counted(detected.pools, "NodePool"),
        counted(detected.node_groups, "node group"),
        counted(detected.kustomizations.len(), "kustomization"),
        counted(detected.charts.len(), "Helm chart"),
    ];
    let counts: Vec<String> = counts.into_iter().flatten().collect();
    if counts.is_empty() {
        out.push_str("  no workloads and no pools\n");
    } else {
        let _ = writeln!(out, "  {}", counts.join(", "));
    }
    if !counts.is_empty() && detected.pools == 0 && detected.node_groups == 0 {
        out.push_str(
            "  no pools: if another tool creates them in the cluster, set spec.pools: cluster\n",
        );
    }
    if let Some(files) = counted(jsonnet, "Jsonnet file") {
        let _ = writeln!(out, "  {files} not read: render in CI, and commit the result");
    }
    if let Some(count) = counted(elsewhere.len(), "source") {
        let all = named(elsewhere.iter().map(String::as_str));
        let _ = writeln!(out, "  {count} elsewhere, not read: {}", escape(&all));
    }
    for (what, Choice { value, why }) in [("cluster", cluster), ("region", region)] {
        let _ = writeln!(out, "  {what} {} ({})", escape(value), escape(why));
    }
    write_choices(&mut out, template);
    let argument =
        if path == Path::new(".") { String::new() } else { format!(" {}", path.display()) };
    let argument = escape(&argument);
    out.push_str("\nNext:\n");
    if cfg!(feature = "live") && !elsewhere.is_empty() {
        let _ = writeln!(
            out,
            "  fleetwright sources update{argument}       download and pin the sources elsewhere"
        );
    }
    let _ =
        writeln!(out, "  fleetwright validate{argument}             report problems in the files");
    let catalog = Catalog::load(&region.value.as_str().into(), &[]);
    if cfg!(feature = "live") && catalog.is_ok_and(|catalog| catalog.prices.is_other_region) {
        let _ = writeln!(
            out,
            "  fleetwright catalog prices{argument}       download the list prices of {}",
            escape(&region.value)
        );
    }
    let _ = write!(
        out,
        "  \
         fleetwright plan{argument}                 show what these workloads need\n  \
         fleetwright plan{argument} --world live    show what to change in the cluster\n"
    );
    out
}

/// Writes how the file chooses between clusters, and which choices are left.
fn write_choices(out: &mut String, template: &FleetTemplate<'_>) {
    let FleetTemplate { cluster, detected, selection, own_directory, .. } = template;
    if own_directory.is_some() {
        out.push_str("  spec.wholeRepository is set, so that references may lead anywhere in the repository\n");
    } else if let Some(directory) = detected.directory_of(&cluster.value) {
        let _ = writeln!(
            out,
            "  spec.sources lists {}, the directory of this cluster",
            escape(directory)
        );
    } else if let Some(name) = detected.example_cluster() {
        let all = detected.cluster_directories.iter().map(String::as_str);
        let _ = writeln!(
            out,
            "  several clusters: {}\n  name one, such as --name {} --force, or list its directory under \
             spec.sources",
            escape(&named(all)),
            escape(&quote_word(name))
        );
    }
    let has_rendered = !detected.kustomizations.is_empty() || !detected.charts.is_empty();
    write_open(out, &selection.open);
    if let Some((own, _)) = &selection.destinations {
        let _ = writeln!(out, "  spec.delivery.clusters lists {}", escape(&own.join(", ")));
    }
    if !selection.sources.is_empty() {
        let all = named(selection.sources.iter().map(|source| &*source.path));
        let count = counted(selection.sources.len(), "path").unwrap_or_default();
        let _ = writeln!(out, "  spec.sources lists {count}: {}", escape(&all));
        if !selection.left_out.is_empty() {
            let all = named(selection.left_out.iter().map(String::as_str));
            let _ = writeln!(out, "  left out, for other clusters: {}", escape(&all));
        }
    } else if has_rendered && own_directory.is_none() {
        out.push_str("  kustomizations and charts are listed as comments under spec.sources\n");
    }
}

/// Writes the alternatives without a choice, and the options that choose.
fn write_open(out: &mut String, open: &[Alternatives]) {
    let overlays: Vec<&Alternatives> = open.iter().filter(|one| one.is_overlays()).collect();
    for one in &overlays {
        let _ = writeln!(out, "  several overlays: {}", escape(&one.named()));
    }
    // One name chooses between all overlays.
    if let Some(name) = shared_example(&overlays) {
        let fits_all = overlays.iter().all(|one| one.choice_of(name).is_some());
        let rest =
            if fits_all { "" } else { ", and list one of each of the rest under spec.sources" };
        let name = escape(&quote_word(name)).into_owned();
        let _ = writeln!(out, "  choose one, such as --name {name} --force{rest}");
    }
    let destinations = open.iter().filter(|one| one.kind == AlternativesKind::Destinations);
    for one in destinations {
        let _ = writeln!(
            out,
            "  several Argo CD destinations: {}\n  choose one, such as --destination {} --force",
            escape(&one.named()),
            escape(&quote_word(one.example()))
        );
    }
}

fn counted(count: usize, noun: &str) -> Option<String> {
    match count {
        0 => None,
        1 => Some(format!("1 {noun}")),
        _ => Some(format!("{count} {noun}s")),
    }
}
