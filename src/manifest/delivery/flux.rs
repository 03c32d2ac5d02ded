//! `Kustomization` and `HelmRelease` of Flux.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::super::placeholder::{Vars, add_unread_source, is_open, one_line, unread_source};
use super::super::remote_reference::chart_source;
use super::super::repository_layout::parent_directory;
use super::super::settings::is_within;
use super::super::yaml::{YamlNode, YamlValue, to_json};
use super::argo::{MAY_DIFFER, inline_patch};
use super::external::SourceRoot;
use super::{
    ConfigMapData, DeliveryContext, FileSelection, GlobDialect, HelmChart, ManifestContent,
    ManifestSet, ObjectLocation, PathPattern, ReferenceKey, ReferencedObjects, SOURCE_IGNORE,
    SyncPolicy, TargetCluster, flag_at, items_at, node_at, normal_path, scalar_text, text_at,
};
use crate::model::desired::{Layer, Recipe, Release, RenderRequest, Tree, Values};

/// Namespace and name of the repository from which Flux delivers itself.
const BOOTSTRAP_NAME: &str = "flux-system";

/// Maximum length of a release name; Flux shortens longer ones with a hash of its own.
const RELEASE_NAME_MAX: usize = 53;

impl DeliveryContext<'_> {
    /// Returns the manifests that a Flux `Kustomization` delivers.
    pub(super) fn kustomization(
        &self,
        root: &YamlNode<'_>,
        location: ObjectLocation<'_>,
    ) -> Vec<Result<ManifestSet, String>> {
        let Some(spec) = node_at(root, &["spec"]) else {
            return vec![Err("it has no `spec`".into())];
        };
        let (cluster, mut why) = self.flux_cluster(spec, location.cluster);
        if cluster == TargetCluster::This {
            // The files of a suspended object are no workloads of their own.
            why = check_not_suspended(spec).err();
        }
        if cluster == TargetCluster::This && why.is_none() {
            return match self.flux_manifest_sets(spec, location.namespace) {
                Ok(parts) => parts.into_iter().map(Ok).collect(),
                Err(reason) => vec![Err(reason)],
            };
        }
        let mut manifest_sets: Vec<_> = why.map(Err).into_iter().collect();
        let check_repository = self.flux_source(spec, &["sourceRef"], location);
        let path = self.local_directory(text_at(spec, &["path"]).unwrap_or_default());
        if let (Ok(()), Ok(path)) = (check_repository, path) {
            let manifest_set = self.skipped_set(path.clone(), cluster);
            if let ManifestContent::Files(files) = &manifest_set.content {
                let files = FileSelection { recurse: true, ..files.clone() };
                manifest_sets.push(Ok(ManifestSet {
                    content: ManifestContent::Files(files),
                    ..manifest_set
                }));
                let inner = self.kustomizations_below(&path).into_iter();
                manifest_sets.extend(inner.map(|path| Ok(self.skipped_set(path, cluster))));
            } else {
                manifest_sets.push(Ok(manifest_set));
            }
        }
        manifest_sets
    }

    /// Returns the target cluster of a Flux object, and the problem to report if its kubeConfig is
    /// unknown.
    ///
    /// The target is the kubeConfig's cluster, else the object's own. An unknown kubeConfig counts
    /// as another cluster, because the own cluster needs none.
    fn flux_cluster(
        &self,
        spec: &YamlNode<'_>,
        home: TargetCluster,
    ) -> (TargetCluster, Option<String>) {
        let Some(config) = node_at(spec, &["kubeConfig"]) else { return (home, None) };
        let mut names = ["secretRef", "configMapRef"].into_iter();
        let name = names.find_map(|key| text_at(config, &[key, "name"])).unwrap_or_default();
        if let Some(cluster) = self.cluster_by_name(name) {
            return (cluster, None);
        }
        let name = super::super::decode::shorten(name);
        let why = format!(
            "it is unknown whether its kubeConfig `{name}` belongs to this cluster; list it under \
             `delivery.clusters` or `delivery.otherClusters` in fleetwright.yaml"
        );
        (TargetCluster::Other, Some(why))
    }

    fn flux_manifest_sets(
        &self,
        spec: &YamlNode<'_>,
        namespace: &str,
    ) -> Result<Vec<ManifestSet>, String> {
        let root = self.flux_source_root(spec, &["sourceRef"], namespace)?;
        let path = self.directory_in(&root, text_at(spec, &["path"]).unwrap_or_default())?;
        let vars = self.post_build(spec, namespace)?;
        let overlay = flux_layer(spec, &path)?;
        let target_namespace = overlay.namespace.clone();
        let manifest_set = |content| ManifestSet {
            content,
            namespace: None,
            target_namespace: target_namespace.clone(),
            vars: vars.clone(),
            cluster: TargetCluster::This,
            policy: SyncPolicy::of_kustomization(spec),
        };
        let rendered = |path: String| {
            let recipe = Recipe::Kustomize(overlay.clone());
            manifest_set(ManifestContent::Rendered(RenderRequest { path, recipe }))
        };
        if self.has_kustomization(&path) {
            return Ok(vec![rendered(path)]);
        }
        // Without a kustomization, Flux takes every manifest in the directory tree, and each nested
        // kustomization as a whole. A renderer is only needed for changes.
        let missing = self.ignored_files(&root, &path)?;
        let mut inner = self.kustomizations_below(&path);
        inner.retain(|path| {
            self.layout.kustomization_path(path).is_some_and(|file| !missing.contains(file))
        });
        let (namespace, is_flux) = (overlay.namespace.clone(), true);
        if overlay != (Layer { namespace, is_flux, ..Layer::default() }) {
            if missing.is_empty() {
                return Ok(vec![rendered(path)]);
            }
            return Err(format!(
                "it changes a directory without a kustomization, from which {SOURCE_IGNORE} leaves \
                 files out; add a kustomization that lists its files"
            ));
        }
        let files = FileSelection {
            path,
            recurse: true,
            // The kustomization that Flux generates has YAML only.
            exclude: Some(PathPattern::new("*.json", GlobDialect::ArgoDirectory)?),
            excluded_directories: inner.iter().cloned().collect(),
            missing_files: missing,
            ..FileSelection::default()
        };
        let mut parts = vec![manifest_set(ManifestContent::Files(files))];
        parts.extend(inner.into_iter().map(rendered));
        Ok(parts)
    }

    /// Returns the files below `path` that the source lacks.
    fn ignored_files(&self, root: &SourceRoot, path: &str) -> Result<BTreeSet<String>, String> {
        if *root != SourceRoot::Own {
            return Ok(BTreeSet::new());
        }
        let ignore = self.source_ignore.as_ref().map_err(Clone::clone)?;
        let inside = self.tree.files.iter().map(|file| &*file.path);
        let inside = inside.filter(|file| is_within(file, path) && ignore.ignores(file));
        Ok(inside.map(str::to_owned).collect())
    }

    /// Returns the outermost directories below `path` that have a kustomization.
    fn kustomizations_below(&self, path: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for file in self.layout.kustomizations.keys() {
            let own = parent_directory(file);
            if is_within(own, path) && !found.iter().any(|outer| is_within(own, outer)) {
                found.retain(|inner| !is_within(inner, own));
                found.push(own.to_owned());
            }
        }
        found
    }

    /// Returns the source at `path`, if it is this repository.
    fn flux_source(
        &self,
        spec: &YamlNode<'_>,
        path: &[&str],
        location: ObjectLocation<'_>,
    ) -> Result<(), String> {
        let source = node_at(spec, path).ok_or("it names no source")?;
        let kind = text_at(source, &["kind"]).unwrap_or("GitRepository");
        let name = text_at(source, &["name"]).ok_or("its source has no name")?;
        if kind != "GitRepository" {
            return Err(format!("its source {kind} {name} is not in this repository"));
        }
        let namespace = text_at(source, &["namespace"]).unwrap_or(location.namespace);
        if self.is_bootstrap_repository(namespace, name) {
            return Ok(());
        }
        let key = (location.cluster, namespace.to_owned(), name.to_owned());
        let found = found_object(&self.repositories, &key, kind)?;
        self.check_repository(&found.url)
    }

    /// Returns the root of the source at `path`: this repository, or an external source.
    fn flux_source_root(
        &self,
        spec: &YamlNode<'_>,
        path: &[&str],
        namespace: &str,
    ) -> Result<SourceRoot, String> {
        let source = node_at(spec, path).ok_or("it names no source")?;
        let kind = text_at(source, &["kind"]).unwrap_or("GitRepository");
        let name = text_at(source, &["name"]).ok_or("its source has no name")?;
        let namespace = text_at(source, &["namespace"]).unwrap_or(namespace);
        self.root_of_object(kind, namespace, name)
    }

    /// Returns the root of the files that a source object provides.
    fn root_of_object(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<SourceRoot, String> {
        if kind == "OCIRepository" {
            let repository = referenced(&self.oci_repositories, kind, namespace, name)?;
            let source = chart_source(&repository.url, "", &repository.version);
            return self.external_directory(source).map(SourceRoot::External);
        }
        if kind == "ExternalArtifact" {
            let artifact = referenced(&self.artifacts, kind, namespace, name)?.clone()?;
            let (kind, of_namespace, name) = artifact.source();
            let of = self.root_of_object(kind, of_namespace.unwrap_or(namespace), name)?;
            return Ok(SourceRoot::Artifact { of: Box::new(of), artifact });
        }
        if kind != "GitRepository" {
            return Err(format!(
                "its source {kind} {name} is not supported; the renderers read Git and OCI"
            ));
        }
        if self.is_bootstrap_repository(namespace, name) {
            return Ok(SourceRoot::Own);
        }
        let found = referenced(&self.repositories, kind, namespace, name)?;
        if let Some(changed) = found.changed {
            return Err(format!("its source {changed}, which is not supported"));
        }
        self.git_root(&found.url, &found.revision)
    }

    /// Returns true for the repository from which Flux delivers itself, if no file declares one.
    /// `flux bootstrap` and Flux Operator give it this name, and create it in the cluster.
    fn is_bootstrap_repository(&self, namespace: &str, name: &str) -> bool {
        (namespace, name) == (BOOTSTRAP_NAME, BOOTSTRAP_NAME) && !self.declares_bootstrap_repository
    }

    /// Returns the values of Flux's post-build substitution.
    fn post_build(&self, spec: &YamlNode<'_>, namespace: &str) -> Result<Vars, String> {
        let mut vars = self.fleet.delivery.vars.clone();
        for item in items_at(spec, &["postBuild", "substituteFrom"]) {
            let found = self.config_values(item, namespace, &vars).map_err(|why| {
                let is_secret = text_at(item, &["kind"]) == Some("Secret");
                let hint =
                    "; list those that affect capacity under `delivery.vars` in fleetwright.yaml";
                if is_secret { why + hint } else { why }
            });
            let found = found?;
            if found.is_none_or(|found| found.values().any(|text| is_open(text))) {
                // It may replace each value of the sources before it.
                let first = unread_source(&vars).map(str::to_owned);
                vars.clone_from(&self.fleet.delivery.vars);
                let source = first.unwrap_or_else(|| referenced_values(item, namespace));
                add_unread_source(&mut vars, source);
            }
            let known = found.into_iter().flatten().filter(|(_, value)| !is_open(value));
            vars.extend(known.map(|(key, value)| (key.clone(), one_line(value))));
        }
        if let Some(YamlValue::Map(entries)) =
            node_at(spec, &["postBuild", "substitute"]).map(|node| &node.value)
        {
            for entry in entries {
                vars.insert(entry.key.to_string(), one_line(&scalar_text(&entry.value)));
            }
        }
        Ok(vars)
    }

    /// Returns the values of the `ConfigMap` that `item` names; `None` if the cluster may have them.
    /// Flux takes the values of an optional object, too, if it exists.
    fn config_values(
        &self,
        item: &YamlNode<'_>,
        namespace: &str,
        vars: &Vars,
    ) -> Result<Option<&ConfigMapData>, String> {
        let kind = text_at(item, &["kind"]).unwrap_or("ConfigMap");
        let name = text_at(item, &["name"]).unwrap_or_default();
        let key = (TargetCluster::This, namespace.to_owned(), name.to_owned());
        match self.config_maps.get(&key).filter(|_| kind == "ConfigMap") {
            Some(Some(found)) => Ok(Some(found)),
            Some(None) => Err(format!("{kind} {namespace}/{name} has two different definitions")),
            None if flag_at(item, &["optional"]) => Ok(None),
            // Secrets are not read; the settings may provide their values.
            None if kind == "Secret" && !vars.is_empty() => Ok(None),
            None => Err(format!("values of {kind} {namespace}/{name} are not in this tree")),
        }
    }

    /// Returns the reason why the files that a `FluxInstance` syncs are not read, if they are not those
    /// of this repository. The Kustomization that Flux Operator makes of `sync` delivers them.
    pub(super) fn flux_instance(
        &self,
        root: &YamlNode<'_>,
        cluster: TargetCluster,
    ) -> Vec<Result<ManifestSet, String>> {
        let sync = node_at(root, &["spec", "sync"]).filter(|_| cluster == TargetCluster::This);
        let Some(sync) = sync else { return Vec::new() };
        let check = || -> Result<(), String> {
            let url = text_at(sync, &["url"]).ok_or("its `sync` has no `url`")?;
            self.check_repository(url)?;
            self.local_directory(text_at(sync, &["path"]).unwrap_or_default()).map(drop)
        };
        check().err().map(Err).into_iter().collect()
    }

    /// Returns the manifests that a `HelmRelease` delivers.
    pub(super) fn helm_release(
        &self,
        root: &YamlNode<'_>,
        location: ObjectLocation<'_>,
    ) -> Vec<Result<ManifestSet, String>> {
        let Some(spec) = node_at(root, &["spec"]) else {
            return vec![Err("it has no `spec`".into())];
        };
        let (cluster, why) = self.flux_cluster(spec, location.cluster);
        if cluster == TargetCluster::This {
            return vec![self.flux_release(root, spec, location.namespace)];
        }
        let other_cluster = || {
            let chart = node_at(spec, &["chart", "spec"])?;
            self.flux_source(chart, &["sourceRef"], location).ok()?;
            let path = self.local_directory(text_at(chart, &["chart"])?).ok()?;
            Some(self.skipped_set(path, cluster))
        };
        why.map(Err).into_iter().chain(other_cluster().map(Ok)).collect()
    }

    fn flux_release(
        &self,
        root: &YamlNode<'_>,
        spec: &YamlNode<'_>,
        namespace: &str,
    ) -> Result<ManifestSet, String> {
        check_not_suspended(spec)?;
        if !items_at(spec, &["postRenderers"]).is_empty() {
            return Err("its postRenderers are not supported".to_owned());
        }
        let (path, files) = self.flux_chart(spec, namespace)?;
        let target = text_at(spec, &["targetNamespace"]);
        let lives_in = target.unwrap_or(namespace).to_owned();
        let release = Release {
            name: flux_release_name(root, spec, target)?,
            namespace: lives_in.clone(),
            // Flux builds a chart whose values are only those files.
            replaces_values: !files.is_empty(),
            values: files.into_iter().chain(self.flux_values(spec, namespace)?).collect(),
            set: Vec::new(),
            skips_schema: ["install", "upgrade"]
                .iter()
                .any(|action| flag_at(spec, &[action, "disableSchemaValidation"])),
        };
        Ok(ManifestSet {
            content: ManifestContent::Rendered(RenderRequest {
                path,
                recipe: Recipe::Helm(release),
            }),
            namespace: Some(lives_in),
            target_namespace: None,
            vars: self.fleet.delivery.vars.clone(),
            cluster: TargetCluster::This,
            policy: SyncPolicy::default(),
        })
    }

    /// Returns the directory of a release's chart and its values files.
    fn flux_chart(
        &self,
        spec: &YamlNode<'_>,
        namespace: &str,
    ) -> Result<(String, Vec<Values>), String> {
        if let Some(reference) = node_at(spec, &["chartRef"]) {
            let kind = text_at(reference, &["kind"]).unwrap_or_default();
            let name = text_at(reference, &["name"]).ok_or("its chartRef has no name")?;
            let namespace = text_at(reference, &["namespace"]).unwrap_or(namespace);
            if kind != "HelmChart" {
                let root = self.root_of_object(kind, namespace, name)?;
                return Ok((self.directory_in(&root, "")?, Vec::new()));
            }
            let chart = referenced(&self.helm_charts, kind, namespace, name)?;
            return self.chart_directory(chart, namespace);
        }
        let template =
            node_at(spec, &["chart", "spec"]).ok_or("it has neither `chart` nor `chartRef`")?;
        let chart = read_helm_chart(template).ok_or("its chart has no name")?;
        let namespace = text_at(template, &["sourceRef", "namespace"]).unwrap_or(namespace);
        self.chart_directory(&chart, namespace)
    }

    /// Returns the directory of a chart and its values files.
    fn chart_directory(
        &self,
        chart: &HelmChart,
        namespace: &str,
    ) -> Result<(String, Vec<Values>), String> {
        let HelmChart { chart, version, source_kind, source_name, values_files, ignores_missing } =
            chart;
        let (path, root) = if source_kind == "HelmRepository" {
            let kind = "HelmRepository";
            let found = referenced(&self.helm_repositories, kind, namespace, source_name)?;
            let path = self.external_directory(chart_source(&found.url, chart, version))?;
            // Values files are relative to the source, which is the chart itself.
            (path.clone(), SourceRoot::External(path))
        } else {
            let root = self.root_of_object(source_kind, namespace, source_name)?;
            (self.directory_in(&root, chart)?, root)
        };
        let one = |file: &String| {
            let path = self.file_in(&root, file)?;
            Ok(if *ignores_missing { Values::OptionalFile(path) } else { Values::File(path) })
        };
        let files = values_files.iter().map(one).collect::<Result<_, String>>()?;
        Ok((path, files))
    }

    /// Returns the values of a release in order of precedence, lowest first: referenced values in
    /// their order, then its own.
    fn flux_values(&self, spec: &YamlNode<'_>, namespace: &str) -> Result<Vec<Values>, String> {
        let mut values = Vec::new();
        for item in items_at(spec, &["valuesFrom"]) {
            let config = self.config_values(item, namespace, &Vars::new())?;
            let config = config.ok_or_else(|| {
                format!(
                    "values of {} are not in this tree, and `optional` ignores only an object that \
                     does not exist; remove the reference, or write the values in a ConfigMap of \
                     this tree",
                    referenced_values(item, namespace)
                )
            })?;
            let key = text_at(item, &["valuesKey"]).unwrap_or("values.yaml");
            let Some(value) = config.get(key) else {
                if flag_at(item, &["optional"]) {
                    continue;
                }
                let name = text_at(item, &["name"]).unwrap_or_default();
                return Err(format!("ConfigMap {namespace}/{name} has no key `{key}`"));
            };
            if is_open(value) {
                let name = referenced_values(item, namespace);
                return Err(format!("{name} has values that depend on a source that is not read"));
            }
            values.push(Values::Text(match text_at(item, &["targetPath"]) {
                Some(path) => nested_value(path, value)?,
                None => value.clone(),
            }));
        }
        values.extend(node_at(spec, &["values"]).map(|own| Values::Text(to_json(own).to_string())));
        Ok(values)
    }
}

/// Returns the object whose values `item` refers to, for display.
fn referenced_values(item: &YamlNode<'_>, namespace: &str) -> String {
    let kind = text_at(item, &["kind"]).unwrap_or("ConfigMap");
    let name = text_at(item, &["name"]).unwrap_or_default();
    let shorten = super::super::decode::shorten;
    format!("{} {}/{}", shorten(kind), shorten(namespace), shorten(name))
}

/// Reads the chart of a `HelmRelease` or `HelmChart`.
pub(in super::super) fn read_helm_chart(spec: &YamlNode<'_>) -> Option<HelmChart> {
    let text = |path: &[&str]| text_at(spec, path).unwrap_or_default().to_owned();
    let files = items_at(spec, &["valuesFiles"]).iter();
    Some(HelmChart {
        chart: text_at(spec, &["chart"])?.to_owned(),
        version: text(&["version"]),
        source_kind: text_at(spec, &["sourceRef", "kind"]).unwrap_or("HelmRepository").to_owned(),
        source_name: text(&["sourceRef", "name"]),
        values_files: files.filter_map(|file| file.text().map(str::to_owned)).collect(),
        ignores_missing: flag_at(spec, &["ignoreMissingValuesFiles"]),
    })
}

/// Returns the object `name` of this cluster that a delivery object refers to.
fn referenced<'a, T>(
    objects: &'a ReferencedObjects<T>,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<&'a T, String> {
    found_object(objects, &(TargetCluster::This, namespace.to_owned(), name.to_owned()), kind)
}

fn found_object<'a, T>(
    objects: &'a ReferencedObjects<T>,
    key: &ReferenceKey,
    kind: &str,
) -> Result<&'a T, String> {
    let (_, namespace, name) = key;
    let shown = || format!("{kind} {namespace}/{name}, its source,");
    let found = objects.get(key).ok_or_else(|| format!("{} is not in this tree", shown()))?;
    found.as_ref().ok_or_else(|| format!("{} has two different definitions", shown()))
}

fn flux_release_name(
    root: &YamlNode<'_>,
    spec: &YamlNode<'_>,
    target: Option<&str>,
) -> Result<String, String> {
    let name = text_at(root, &["metadata", "name"]).unwrap_or_default();
    let release = text_at(spec, &["releaseName"]).map(str::to_owned);
    let release = release.unwrap_or_else(|| match target {
        Some(target) => format!("{target}-{name}"),
        None => name.to_owned(),
    });
    if release.len() > RELEASE_NAME_MAX {
        return Err(format!("the name of its release, {release}, is too long for Helm"));
    }
    Ok(release)
}

/// Returns, as JSON, the values in which `value` is at `path`. Helm's path syntax also has lists
/// and escapes; only keys and scalars are supported here.
fn nested_value(path: &str, value: &str) -> Result<String, String> {
    let quoted = ['"', '\''].into_iter().find_map(|quote| {
        value.strip_prefix(quote)?.strip_suffix(quote).filter(|inner| !inner.is_empty())
    });
    let is_plain = !path.contains(['[', ']', ',', '=', '\\', '{', '}'])
        && path.split('.').all(|key| !key.is_empty())
        && !quoted.unwrap_or(value).contains([',', '\\', '{', '}', '[', ']']);
    if !is_plain {
        let path = super::super::decode::shorten(path);
        return Err(format!("its value for targetPath `{path}` is not supported"));
    }
    let scalar = match (quoted, value) {
        (Some(text), _) => Json::from(text),
        (None, "true") => Json::from(true),
        (None, "false") => Json::from(false),
        (None, "null") => Json::Null,
        (None, "0") => Json::from(0),
        (None, text) => match text.parse::<i64>() {
            // A text with a leading zero or plus sign stays a string.
            Ok(number) if number.to_string() == text => Json::from(number),
            Ok(_) | Err(_) => Json::from(text),
        },
    };
    let nest =
        |inner: Json, key: &str| Json::Object([(key.to_owned(), inner)].into_iter().collect());
    Ok(path.rsplit('.').fold(scalar, nest).to_string())
}

fn check_not_suspended(spec: &YamlNode<'_>) -> Result<(), String> {
    if flag_at(spec, &["suspend"]) {
        return Err(format!("it is suspended, {MAY_DIFFER}"));
    }
    Ok(())
}

fn flux_layer(spec: &YamlNode<'_>, path: &str) -> Result<Layer, String> {
    let field_text = |key| text_at(spec, &[key]).unwrap_or_default().to_owned();
    for old in ["patchesStrategicMerge", "patchesJson6902"] {
        if node_at(spec, &[old]).is_some() {
            return Err(format!("its {old} are not supported; write them as patches"));
        }
    }
    let component = |item: &YamlNode<'_>| {
        let inside = item.text().and_then(|item| normal_path(path, item));
        inside.ok_or_else(|| "a component is outside the repository".to_owned())
    };
    Ok(Layer {
        namespace: text_at(spec, &["targetNamespace"]).map(str::to_owned),
        name_prefix: field_text("namePrefix"),
        name_suffix: field_text("nameSuffix"),
        components: items_at(spec, &["components"])
            .iter()
            .map(component)
            .collect::<Result<_, _>>()?,
        patches: items_at(spec, &["patches"]).iter().map(inline_patch).collect::<Result<_, _>>()?,
        is_flux: true,
        ..Layer::default()
    })
}

/// Returns true if a file may declare the repository from which Flux delivers itself, also one that
/// is not read as a source.
pub(in super::super) fn declares_bootstrap_repository(tree: &Tree) -> bool {
    tree.files.iter().any(|file| {
        let Ok(bytes) = &file.content else { return true };
        let Ok(text) = super::super::yaml::decode(bytes) else { return true };
        // In a list or in flow style, a kind is not at the start of a line.
        let is_block = !text.contains("kind: List") && !text.starts_with('{');
        let declares = |kind: &str| {
            text.lines().any(|line| {
                let line = if is_block { line } else { line.trim_start() };
                let stated = line.strip_prefix("kind:").map(|kind| kind.trim().trim_matches('"'));
                stated == Some(kind) || !is_block && line.contains(kind)
            })
        };
        declares("FluxInstance") || text.contains(BOOTSTRAP_NAME) && declares("GitRepository")
    })
}
