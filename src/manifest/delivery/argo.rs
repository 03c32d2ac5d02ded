//! `Application` and `ApplicationSet` of Argo CD.

use std::collections::BTreeSet;

use super::super::decode::shorten;
use super::super::remote_reference::chart_source;
use super::super::settings::is_within;
use super::super::yaml::{self, YamlNode, YamlValue, to_json};
use super::build_environment::BuildEnvironment;
use super::{
    DeliveryContext, FileSelection, GlobDialect, ManifestContent, ManifestSet, PathPattern,
    SyncPolicy, TargetCluster, flag_at, generators, items_at, node_at, normal_path, scalar_text,
    text_at,
};
use crate::model::desired::{
    CommonLabels, Layer, Recipe, Release, RenderRequest, SetValue, Values,
};
use crate::model::printable_url::printable_url;

/// An `Application`, as its sources see it.
struct ArgoApplication<'a> {
    name: &'a str,
    project: &'a str,
    /// The namespace of its destination.
    namespace: Option<&'a str>,
    sources: &'a [&'a YamlNode<'a>],
}

/// Names that Argo CD uses for its own cluster.
pub const IN_CLUSTER: [&str; 2] = ["https://kubernetes.default.svc", "in-cluster"];

/// Annotation with which Argo CD does not reconcile an `Application`.
const SKIP_RECONCILE: &str = "argocd.argoproj.io/skip-reconcile";

/// The consequence of an object that is not reconciled.
pub(super) const MAY_DIFFER: &str = "so the cluster may differ from Git";

impl DeliveryContext<'_> {
    /// Returns the manifests that an `Application` in the cluster `home` delivers.
    pub(super) fn application(
        &self,
        root: &YamlNode<'_>,
        home: TargetCluster,
    ) -> Vec<Result<ManifestSet, String>> {
        let Some(spec) = node_at(root, &["spec"]) else {
            return vec![Err("it has no `spec`".into())];
        };
        let sources: Vec<&YamlNode<'_>> = match node_at(spec, &["sources"]).map(|node| &node.value)
        {
            Some(YamlValue::Seq(items)) => items.iter().collect(),
            Some(_) | None => node_at(spec, &["source"]).into_iter().collect(),
        };
        self.record_destination(spec, &sources);
        let cluster = match self.destination_cluster(spec, home) {
            Ok(cluster) => cluster,
            Err(reason) => return vec![Err(reason)],
        };
        let name = text_at(root, &["metadata", "name"]).unwrap_or("release");
        let namespace = text_at(spec, &["destination", "namespace"]);
        if cluster == TargetCluster::Other {
            // Unreadable parts of another cluster's application do not matter here.
            return sources
                .iter()
                .filter_map(|source| self.argo_skipped_set(source, cluster))
                .map(Ok)
                .collect();
        }
        if sources.is_empty() {
            return vec![Err("it has no source".to_owned())];
        }
        if text_at(root, &["metadata", "annotations", SKIP_RECONCILE]) == Some("true") {
            let reason = format!("its annotation {SKIP_RECONCILE} stops it, {MAY_DIFFER}");
            // Its files are no workloads of their own.
            let files = sources.iter().filter_map(|source| self.argo_skipped_set(source, cluster));
            return std::iter::once(Err(reason)).chain(files.map(Ok)).collect();
        }
        let policy = SyncPolicy::of_application(spec);
        // A source that only provides values files to the others delivers nothing.
        let delivers = |source: &&&YamlNode<'_>| {
            text_at(source, &["ref"]).is_none() || text_at(source, &["path"]).is_some()
        };
        let project = text_at(spec, &["project"]).unwrap_or_default();
        let application = ArgoApplication { name, project, namespace, sources: &sources };
        let one = |source: &&YamlNode<'_>| {
            let delivered = self.argo_source(source, &application);
            delivered.map(|set| ManifestSet { policy: policy.clone(), ..set })
        };
        sources.iter().filter(delivers).map(one).collect()
    }

    /// Returns the manifests that the applications of an `ApplicationSet` deliver.
    pub(super) fn application_set(
        &self,
        root: &YamlNode<'_>,
        home: TargetCluster,
    ) -> Vec<Result<ManifestSet, String>> {
        let known = self.excluded_directories.take();
        let manifest_sets = self.applications(root, home);
        let excluded = self.excluded_directories.replace(known);
        // What an application of another cluster lacks may be delivered here.
        if manifest_sets.as_ref().is_ok_and(|sets| self.delivers_here(root, home, sets)) {
            self.excluded_directories.borrow_mut().extend(excluded);
        }
        manifest_sets.unwrap_or_else(|reason| vec![Err(reason)])
    }

    /// Returns whether an `ApplicationSet` with these manifests delivers to this cluster.
    fn delivers_here(
        &self,
        root: &YamlNode<'_>,
        home: TargetCluster,
        manifest_sets: &[Result<ManifestSet, String>],
    ) -> bool {
        if manifest_sets.is_empty() {
            let spec = node_at(root, &["spec", "template", "spec"]);
            return spec.is_some_and(|spec| {
                self.destination_cluster(spec, home) == Ok(TargetCluster::This)
            });
        }
        manifest_sets.iter().flatten().any(|set| set.cluster == TargetCluster::This)
    }

    fn applications(
        &self,
        root: &YamlNode<'_>,
        home: TargetCluster,
    ) -> Result<Vec<Result<ManifestSet, String>>, String> {
        let spec = node_at(root, &["spec"]).ok_or("it has no `spec`")?;
        if node_at(spec, &["templatePatch"]).is_some() {
            return Err("its templatePatch is not supported".to_owned());
        }
        let template = node_at(spec, &["template"]).ok_or("it has no template")?;
        let Some(YamlValue::Seq(generators)) =
            node_at(spec, &["generators"]).map(|node| &node.value)
        else {
            return Err("it has no generators".to_owned());
        };
        let template = to_json(template).to_string();
        let (mut manifest_sets, mut count) = (Vec::new(), 0);
        for generator in generators {
            let generated = self.generate(generator)?;
            count += generated.len();
            generators::check_application_count(count)?;
            // One application at a time, because all of them together may be large.
            for params in &generated {
                let text = self.render_template(&template, params)?;
                let loaded = yaml::load(&text);
                let document = loaded.documents.first().ok_or("its template gives no object")?;
                manifest_sets.extend(self.application(&document.root, home));
            }
        }
        self.makes_nothing.set(count == 0);
        Ok(manifest_sets)
    }

    /// Returns the destination cluster of an object in the cluster `home`.
    fn destination_cluster(
        &self,
        spec: &YamlNode<'_>,
        home: TargetCluster,
    ) -> Result<TargetCluster, String> {
        let Some(destination) = destination(spec) else {
            return Err("it has no destination".to_owned());
        };
        // Argo CD may run in another cluster, which the settings list.
        let listed = self.cluster_by_name(destination);
        if listed.is_none() && IN_CLUSTER.contains(&destination) {
            return Ok(home);
        }
        listed.ok_or_else(|| {
            format!(
                "it is unknown whether its destination `{}` is this cluster; list it under \
                 `delivery.clusters` or `delivery.otherClusters` in fleetwright.yaml",
                // The user copies the value, and servers of EKS are long.
                printable_url(destination).replace(char::is_control, " ")
            )
        })
    }

    /// Records the destination of an application, unless the settings list it.
    fn record_destination(&self, spec: &YamlNode<'_>, sources: &[&YamlNode<'_>]) {
        let Some(destination) = destination(spec) else { return };
        if self.cluster_by_name(destination).is_some() {
            return;
        }
        let local = sources.iter().filter_map(|source| {
            self.check_repository(text_at(source, &["repoURL"])?).ok()?;
            self.local_directory(text_at(source, &["path"])?).ok()
        });
        // Argo CD has two names for its own cluster.
        let is_own = IN_CLUSTER.contains(&destination);
        let name = if is_own { "in-cluster".to_owned() } else { printable_url(destination) };
        self.destinations.borrow_mut().entry(name).or_default().extend(local);
    }

    /// Returns the manifests of a source that are skipped here, if they are in this tree.
    fn argo_skipped_set(
        &self,
        source: &YamlNode<'_>,
        cluster: TargetCluster,
    ) -> Option<ManifestSet> {
        self.check_repository(text_at(source, &["repoURL"])?).ok()?;
        let path = self.local_directory(text_at(source, &["path"])?).ok()?;
        let manifest_set = self.skipped_set(path, cluster);
        let ManifestContent::Files(FileSelection { path, .. }) = manifest_set.content else {
            return Some(manifest_set);
        };
        let files = self.argo_files(source, path).ok()?;
        Some(ManifestSet { content: ManifestContent::Files(files), ..manifest_set })
    }

    fn argo_source(
        &self,
        source: &YamlNode<'_>,
        application: &ArgoApplication<'_>,
    ) -> Result<ManifestSet, String> {
        let url = text_at(source, &["repoURL"]).ok_or("its source has no repoURL")?;
        let revision = text_at(source, &["targetRevision"]).unwrap_or_default();
        let path = if let Some(chart) = text_at(source, &["chart"]) {
            self.external_directory(chart_source(&argo_chart_url(url), chart, revision))?
        } else {
            let root = self.git_root(url, revision)?;
            let path = text_at(source, &["path"]).ok_or("its source has no path")?;
            self.directory_in(&root, path)?
        };
        let content = match self.overridden_source(source, &path, application.name)? {
            None => self.argo_content(source, path, application)?,
            Some(text) => {
                let loaded = yaml::load(&text);
                let document = loaded.documents.first().ok_or("its overrides make no source")?;
                self.argo_content(&document.root, path, application)?
            }
        };
        Ok(ManifestSet {
            content,
            namespace: application.namespace.map(str::to_owned),
            target_namespace: None,
            vars: self.fleet.delivery.vars.clone(),
            cluster: TargetCluster::This,
            policy: SyncPolicy::default(),
        })
    }

    /// Returns the content of a source at `path`, with its overrides.
    fn argo_content(
        &self,
        source: &YamlNode<'_>,
        path: String,
        application: &ArgoApplication<'_>,
    ) -> Result<ManifestContent, String> {
        if node_at(source, &["plugin"]).is_some() {
            return Err("a config management plugin makes its manifests".to_owned());
        }
        let states = |key: &str| node_at(source, &[key]).is_some();
        if states("helm") && states("kustomize") {
            return Err("it states `helm` and `kustomize`, which Argo CD refuses".to_owned());
        }
        // Of a directory with both, Argo CD takes the kustomization.
        if states("kustomize") || !states("helm") && self.has_kustomization(&path) {
            let environment = build_environment(source, application);
            let recipe = Recipe::Kustomize(argo_layer(source, &path, &environment)?);
            return Ok(ManifestContent::Rendered(RenderRequest { path, recipe }));
        }
        if states("helm") || self.has_chart(&path) {
            let mut release = self.argo_release(source, &path, application)?;
            let name = text_at(source, &["helm", "releaseName"]).unwrap_or(application.name);
            name.clone_into(&mut release.name);
            let own = text_at(source, &["helm", "namespace"]).or(application.namespace);
            own.unwrap_or("default").clone_into(&mut release.namespace);
            let recipe = Recipe::Helm(release);
            return Ok(ManifestContent::Rendered(RenderRequest { path, recipe }));
        }
        if node_at(source, &["directory", "jsonnet"]).is_some() {
            return Err("Jsonnet is not supported".to_owned());
        }
        Ok(ManifestContent::Files(self.argo_files(source, path)?))
    }

    fn argo_release(
        &self,
        source: &YamlNode<'_>,
        path: &str,
        application: &ArgoApplication<'_>,
    ) -> Result<Release, String> {
        let Some(helm) = node_at(source, &["helm"]) else { return Ok(Release::default()) };
        let environment = build_environment(source, application);
        let mut values = self.values_files(helm, path, application.sources, &environment)?;
        match (node_at(helm, &["valuesObject"]), text_at(helm, &["values"])) {
            (Some(object), _) => values.push(Values::Text(to_json(object).to_string())),
            (None, Some(text)) => values.push(Values::Text(text.to_owned())),
            (None, None) => {}
        }
        for key in ["fileParameters", "kubeVersion", "apiVersions"] {
            if node_at(helm, &[key])
                .is_some_and(|node| !matches!(&node.value, YamlValue::Seq(all) if all.is_empty()))
            {
                return Err(format!("helm.{key} is not supported"));
            }
        }
        let parameter = |item: &YamlNode<'_>| {
            let name = text_at(item, &["name"])?.to_owned();
            let value = environment.substitute(text_at(item, &["value"]).unwrap_or_default());
            let is_text = flag_at(item, &["forceString"]);
            Some(value.map(|value| SetValue { name, value: escape_commas(&value), is_text }))
        };
        let set = items_at(helm, &["parameters"]).iter().filter_map(parameter);
        let set = set.collect::<Result<_, _>>()?;
        let skips_schema = flag_at(helm, &["skipSchemaValidation"]);
        Ok(Release { values, set, skips_schema, ..Release::default() })
    }

    /// Returns the values files of a source. A pattern stands for the files that match and that are
    /// not listed by themselves.
    fn values_files(
        &self,
        helm: &YamlNode<'_>,
        path: &str,
        all: &[&YamlNode<'_>],
        environment: &BuildEnvironment<'_>,
    ) -> Result<Vec<Values>, String> {
        let optional = flag_at(helm, &["ignoreMissingValueFiles"]);
        let mut stated = Vec::new();
        for file in items_at(helm, &["valueFiles"]) {
            let file = file.text().ok_or("a values file is not a string")?;
            stated.push(self.values_file(file, path, all, environment)?);
        }
        let (mut values, mut seen) = (Vec::new(), BTreeSet::new());
        for file in &stated {
            if !is_pattern(file) {
                if seen.insert(file.clone()) {
                    let file = file.clone();
                    values.push(if optional {
                        Values::OptionalFile(file)
                    } else {
                        Values::File(file)
                    });
                }
                continue;
            }
            let pattern = PathPattern::new(file, GlobDialect::Doublestar)?;
            self.usage.add_scan()?;
            let paths = self.tree.files.iter().map(|file| &*file.path);
            let matching: Vec<&str> = paths.filter(|path| pattern.matches(path)).collect();
            if matching.is_empty() && !optional {
                return Err(format!("no values file matches its pattern `{}`", shorten(file)));
            }
            for path in matching {
                if !stated.iter().any(|stated| stated == path) && seen.insert(path.to_owned()) {
                    values.push(Values::File(path.to_owned()));
                }
            }
        }
        Ok(values)
    }

    /// Returns the path of a values file in the tree. `$NAME/` refers to the root of another
    /// source.
    fn values_file(
        &self,
        file: &str,
        path: &str,
        all: &[&YamlNode<'_>],
        environment: &BuildEnvironment<'_>,
    ) -> Result<String, String> {
        if let Some(rest) = file.strip_prefix('$') {
            let (name, inner) = rest.split_once('/').unwrap_or((rest, ""));
            let referenced = all.iter().find(|source| text_at(source, &["ref"]) == Some(name));
            if let Some(referenced) = referenced {
                if inner.is_empty() {
                    return Err("a values file names no file".to_owned());
                }
                let url = text_at(referenced, &["repoURL"]).unwrap_or_default();
                let revision = text_at(referenced, &["targetRevision"]).unwrap_or_default();
                let inner = environment.substitute(inner)?;
                return self.file_in(&self.git_root(url, revision)?, &inner);
            }
            if !BuildEnvironment::starts_with_variable(file) {
                return Err(format!("values file ${rest} names no source"));
            }
        }
        let file = &*environment.substitute(file)?;
        if file.contains("://") {
            return Err(format!("values file {} is not in this repository", printable_url(file)));
        }
        if file.starts_with('/') {
            return self.local_file(file);
        }
        let outside = || format!("values file {file} is outside the directory that is read");
        normal_path(path, file).ok_or_else(outside)
    }

    /// Returns the files that a source delivers unrendered.
    fn argo_files(&self, source: &YamlNode<'_>, path: String) -> Result<FileSelection, String> {
        let pattern = |key| {
            let text = text_at(source, &["directory", key]);
            text.map(|text| PathPattern::new(text, GlobDialect::ArgoDirectory)).transpose()
        };
        let marked = self.skipped_files.iter().filter(|file| is_within(file, &path));
        Ok(FileSelection {
            recurse: flag_at(source, &["directory", "recurse"]),
            include: pattern("include")?,
            exclude: pattern("exclude")?,
            missing_files: marked.map(|file| (*file).to_owned()).collect(),
            path,
            ..FileSelection::default()
        })
    }
}

/// Returns the variables that a source may use.
fn build_environment<'a>(
    source: &'a YamlNode<'_>,
    application: &ArgoApplication<'a>,
) -> BuildEnvironment<'a> {
    let own = |key: &str| text_at(source, &[key]).unwrap_or_default();
    BuildEnvironment {
        name: application.name,
        namespace: application.namespace.unwrap_or_default(),
        project: application.project,
        source_path: own("path"),
        source_url: own("repoURL"),
        source_revision: own("targetRevision"),
    }
}

/// Returns whether a values file is a pattern, as Argo CD decides.
fn is_pattern(file: &str) -> bool {
    file.contains(['*', '?', '['])
}

fn destination<'n>(spec: &'n YamlNode<'_>) -> Option<&'n str> {
    text_at(spec, &["destination", "name"]).or(text_at(spec, &["destination", "server"]))
}

/// Returns the URL of a chart repository. Argo CD writes OCI registries without a scheme.
fn argo_chart_url(url: &str) -> String {
    if url.contains("://") { url.to_owned() } else { format!("oci://{url}") }
}

/// Escapes a parameter as Argo CD does for Helm: an unescaped comma would begin the next value,
/// except in a list.
fn escape_commas(value: &str) -> String {
    if value.starts_with('{') && value.ends_with('}') {
        return value.to_owned();
    }
    let mut out = String::with_capacity(value.len());
    let mut before = None;
    for letter in value.chars() {
        if letter == ',' && before != Some('\\') {
            out.push('\\');
        }
        out.push(letter);
        before = Some(letter);
    }
    out
}

/// Returns an inline patch of a kustomization, as JSON.
pub(super) fn inline_patch(item: &YamlNode<'_>) -> Result<String, String> {
    match text_at(item, &["path"]) {
        Some(path) => {
            Err(format!("its patch of the file {path} is not supported; write it inline"))
        }
        None => Ok(to_json(item).to_string()),
    }
}

fn argo_layer(
    source: &YamlNode<'_>,
    path: &str,
    environment: &BuildEnvironment<'_>,
) -> Result<Layer, String> {
    let Some(own) = node_at(source, &["kustomize"]) else { return Ok(Layer::default()) };
    let field_text = |key| text_at(own, &[key]).unwrap_or_default().to_owned();
    let component = |item: &YamlNode<'_>| {
        let inside = item.text().and_then(|item| normal_path(path, item));
        inside.ok_or_else(|| "a component is outside the repository".to_owned())
    };
    let replicas = |item: &YamlNode<'_>| {
        let count = text_at(item, &["count"]).and_then(|count| count.parse().ok());
        let named = text_at(item, &["name"]).map(str::to_owned).zip(count);
        named.ok_or_else(|| "an item of kustomize.replicas is not supported".to_owned())
    };
    Ok(Layer {
        namespace: text_at(own, &["namespace"]).map(str::to_owned),
        name_prefix: field_text("namePrefix"),
        name_suffix: field_text("nameSuffix"),
        components: items_at(own, &["components"])
            .iter()
            .map(component)
            .collect::<Result<_, _>>()?,
        patches: items_at(own, &["patches"]).iter().map(inline_patch).collect::<Result<_, _>>()?,
        replicas: items_at(own, &["replicas"]).iter().map(replicas).collect::<Result<_, _>>()?,
        labels: pod_labels(own, environment)?,
        is_flux: false,
    })
}

/// Returns the labels that a source adds to pods; `None` if it adds them to other objects only.
fn pod_labels(
    own: &YamlNode<'_>,
    environment: &BuildEnvironment<'_>,
) -> Result<Option<CommonLabels>, String> {
    let in_selectors = !flag_at(own, &["labelWithoutSelector"]);
    let Some(YamlValue::Map(entries)) = node_at(own, &["commonLabels"]).map(|node| &node.value)
    else {
        return Ok(None);
    };
    if entries.is_empty() || !in_selectors && !flag_at(own, &["labelIncludeTemplates"]) {
        return Ok(None);
    }
    let pair = |entry: &yaml::YamlEntry<'_>| {
        let value = environment.substitute(&scalar_text(&entry.value));
        value.map(|value| (entry.key.to_string(), value))
    };
    let pairs = entries.iter().map(pair).collect::<Result<_, String>>()?;
    Ok(Some(CommonLabels { pairs, in_selectors }))
}
