//! `Application` and `ApplicationSet` of Argo CD.

use super::super::remote_reference::chart_source;
use super::super::yaml::{self, YamlNode, YamlValue, to_json};
use super::{
    DeliveryContext, FileSelection, ManifestContent, ManifestSet, SyncPolicy, TargetCluster,
    flag_at, generators, items_at, node_at, normal_path, release_name, text_at,
};
use crate::model::desired::{Layer, Recipe, Release, RenderRequest, SetValue, Values};
use crate::model::printable_url::printable_url;

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
                .filter_map(|source| self.argo_other_cluster_set(source))
                .map(Ok)
                .collect();
        }
        if sources.is_empty() {
            return vec![Err("it has no source".to_owned())];
        }
        if text_at(root, &["metadata", "annotations", SKIP_RECONCILE]) == Some("true") {
            let reason = format!("its annotation {SKIP_RECONCILE} stops it, {MAY_DIFFER}");
            // Its files are no workloads of their own.
            let files = sources.iter().filter_map(|source| self.argo_other_cluster_set(source));
            return std::iter::once(Err(reason)).chain(files.map(Ok)).collect();
        }
        let policy = SyncPolicy::of_application(spec);
        // A source that only provides values files to the others delivers nothing.
        let delivers = |source: &&&YamlNode<'_>| {
            text_at(source, &["ref"]).is_none() || text_at(source, &["path"]).is_some()
        };
        let one = |source: &&YamlNode<'_>| {
            let delivered = self.argo_source(source, name, namespace, &sources);
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
        self.applications(root, home).unwrap_or_else(|reason| vec![Err(reason)])
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
                super::super::decode::shorten(&printable_url(destination))
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

    /// Returns the manifests that a source delivers to another cluster, if they are in this tree.
    fn argo_other_cluster_set(&self, source: &YamlNode<'_>) -> Option<ManifestSet> {
        self.check_repository(text_at(source, &["repoURL"])?).ok()?;
        let manifest_set =
            self.other_cluster_set(self.local_directory(text_at(source, &["path"])?).ok()?);
        let ManifestContent::Files(FileSelection { path, .. }) = manifest_set.content else {
            return Some(manifest_set);
        };
        Some(ManifestSet {
            content: ManifestContent::Files(argo_files(source, path)),
            ..manifest_set
        })
    }

    fn argo_source(
        &self,
        source: &YamlNode<'_>,
        name: &str,
        namespace: Option<&str>,
        all: &[&YamlNode<'_>],
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
        if node_at(source, &["plugin"]).is_some() {
            return Err("a config management plugin makes its manifests".to_owned());
        }
        let is_helm = node_at(source, &["helm"]).is_some() || self.has_chart(&path);
        let content = if is_helm {
            let mut release = self.argo_release(source, &path, all)?;
            let stated = text_at(source, &["helm", "releaseName"]);
            release.name = stated.map_or_else(|| release_name(name), str::to_owned);
            let own = text_at(source, &["helm", "namespace"]).or(namespace);
            own.unwrap_or("default").clone_into(&mut release.namespace);
            ManifestContent::Rendered(RenderRequest { path, recipe: Recipe::Helm(release) })
        } else if node_at(source, &["kustomize"]).is_some() || self.has_kustomization(&path) {
            let overlay = argo_layer(source, &path)?;
            ManifestContent::Rendered(RenderRequest { path, recipe: Recipe::Kustomize(overlay) })
        } else {
            if node_at(source, &["directory", "jsonnet"]).is_some() {
                return Err("Jsonnet is not supported".to_owned());
            }
            ManifestContent::Files(argo_files(source, path))
        };
        Ok(ManifestSet {
            content,
            namespace: namespace.map(str::to_owned),
            target_namespace: None,
            vars: self.fleet.delivery.vars.clone(),
            cluster: TargetCluster::This,
            policy: SyncPolicy::default(),
        })
    }

    fn argo_release(
        &self,
        source: &YamlNode<'_>,
        path: &str,
        all: &[&YamlNode<'_>],
    ) -> Result<Release, String> {
        let Some(helm) = node_at(source, &["helm"]) else { return Ok(Release::default()) };
        let optional = flag_at(helm, &["ignoreMissingValueFiles"]);
        let mut values = Vec::new();
        for file in items_at(helm, &["valueFiles"]) {
            let file = file.text().ok_or("a values file is not a string")?;
            let path = self.values_file(file, path, all)?;
            values.push(if optional { Values::OptionalFile(path) } else { Values::File(path) });
        }
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
            Some(SetValue {
                name: text_at(item, &["name"])?.to_owned(),
                value: escape_commas(text_at(item, &["value"]).unwrap_or_default()),
                is_text: flag_at(item, &["forceString"]),
            })
        };
        let set = items_at(helm, &["parameters"]).iter().filter_map(parameter).collect();
        Ok(Release { values, set, ..Release::default() })
    }

    /// Returns the path of a values file in the tree. `$NAME/` refers to the root of another
    /// source.
    fn values_file(&self, file: &str, path: &str, all: &[&YamlNode<'_>]) -> Result<String, String> {
        if file.contains("://") {
            return Err(format!("values file {} is not in this repository", printable_url(file)));
        }
        let Some(rest) = file.strip_prefix('$') else {
            if file.starts_with('/') {
                return self.local_file(file);
            }
            let outside = || format!("values file {file} is outside the directory that is read");
            return normal_path(path, file).ok_or_else(outside);
        };
        let (name, file) = rest.split_once('/').ok_or("a values file names no file")?;
        let referenced = all.iter().find(|source| text_at(source, &["ref"]) == Some(name));
        let referenced =
            referenced.ok_or_else(|| format!("values file ${rest} names no source"))?;
        let url = text_at(referenced, &["repoURL"]).unwrap_or_default();
        let revision = text_at(referenced, &["targetRevision"]).unwrap_or_default();
        self.file_in(&self.git_root(url, revision)?, file)
    }
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

/// Returns the files that a source delivers unrendered.
fn argo_files(source: &YamlNode<'_>, path: String) -> FileSelection {
    let pattern = |key| text_at(source, &["directory", key]).unwrap_or_default().to_owned();
    FileSelection {
        path,
        recurse: flag_at(source, &["directory", "recurse"]),
        include: pattern("include"),
        exclude: pattern("exclude"),
        ..FileSelection::default()
    }
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

fn argo_layer(source: &YamlNode<'_>, path: &str) -> Result<Layer, String> {
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
        is_flux: false,
    })
}
