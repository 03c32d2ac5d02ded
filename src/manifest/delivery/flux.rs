//! `Kustomization` and `HelmRelease` of Flux.

use super::super::fleet::is_below;
use super::super::layout::directory;
use super::super::order::{Layer, Order, Recipe, Release, SetValue, Values};
use super::super::placeholder::Vars;
use super::super::yaml::{Node, Value, to_json};
use super::argo::items;
use super::{Around, ConfigMap, Content, Files, Parcel, at, flag, normal_path, text, word};

/// Longest name of a release; Flux shortens longer ones with a hash of its own.
const RELEASE_NAME_MAX: usize = 53;

impl Around<'_> {
    /// Returns what a `Kustomization` of Flux delivers.
    pub(super) fn kustomization(
        &self,
        root: &Node<'_>,
        namespace: &str,
    ) -> Vec<Result<Parcel, String>> {
        match self.flux_parts(root, namespace) {
            Ok(parts) => parts.into_iter().map(Ok).collect(),
            Err(reason) => vec![Err(reason)],
        }
    }

    fn flux_parts(&self, root: &Node<'_>, namespace: &str) -> Result<Vec<Parcel>, String> {
        let spec = at(root, &["spec"]).ok_or("it has no `spec`")?;
        runs_here(spec)?;
        self.flux_source(spec, &["sourceRef"], namespace)?;
        let path = self.inside(text(spec, &["path"]).unwrap_or_default())?;
        let vars = self.post_build(spec, namespace)?;
        let overlay = flux_overlay(spec, &path)?;
        let target_namespace = overlay.namespace.clone();
        let parcel = |content| Parcel {
            content,
            namespace: None,
            target_namespace: target_namespace.clone(),
            vars: vars.clone(),
        };
        let rendered = |path: String| {
            let recipe = Recipe::Kustomize(overlay.clone());
            parcel(Content::Rendered(Order { path, recipe }))
        };
        if self.has_kustomization(&path) {
            return Ok(vec![rendered(path)]);
        }
        // Without a kustomization Flux takes every manifest below, and each kustomization that it
        // meets on the way as a whole.
        let inner = self.kustomizations_below(&path);
        let plain = Layer { namespace: overlay.namespace.clone(), ..Layer::default() };
        if plain != overlay {
            return Err("it changes plain manifests, which have no kustomization".to_owned());
        }
        let files =
            Files { path, recurse: true, but: inner.iter().cloned().collect(), ..Files::default() };
        let mut parts = vec![parcel(Content::Files(files))];
        parts.extend(inner.into_iter().map(rendered));
        Ok(parts)
    }

    /// Returns the outermost directories below `path` that have a kustomization.
    fn kustomizations_below(&self, path: &str) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for file in self.layout.kustomizations.keys() {
            let own = directory(file);
            if is_below(own, path) && !found.iter().any(|outer| is_below(own, outer)) {
                found.retain(|inner| !is_below(inner, own));
                found.push(own.to_owned());
            }
        }
        found
    }

    /// Checks that the source at `path` is this repository.
    fn flux_source(&self, spec: &Node<'_>, path: &[&str], namespace: &str) -> Result<(), String> {
        let source = at(spec, path).ok_or("it names no source")?;
        let kind = text(source, &["kind"]).unwrap_or("GitRepository");
        let name = text(source, &["name"]).ok_or("its source has no name")?;
        if kind != "GitRepository" {
            return Err(format!("its source {kind} {name} is not in this repository"));
        }
        let namespace = text(source, &["namespace"]).unwrap_or(namespace);
        let url = self.repositories.get(&(namespace.to_owned(), name.to_owned()));
        let url = url.ok_or_else(|| {
            format!("GitRepository {namespace}/{name}, its source, is not in this tree")
        })?;
        self.is_here(url)
    }

    /// Returns the values that Flux substitutes after it built the manifests.
    fn post_build(&self, spec: &Node<'_>, namespace: &str) -> Result<Vars, String> {
        let mut vars = self.fleet.delivery.vars.clone();
        for item in items(spec, &["postBuild", "substituteFrom"]) {
            vars.extend(self.config(item, namespace, &vars)?);
        }
        if let Some(Value::Map(entries)) =
            at(spec, &["postBuild", "substitute"]).map(|node| &node.value)
        {
            for entry in entries {
                vars.insert(entry.key.to_string(), word(&entry.value));
            }
        }
        Ok(vars)
    }

    /// Returns what the `ConfigMap` that `item` names holds.
    fn config(&self, item: &Node<'_>, namespace: &str, vars: &Vars) -> Result<ConfigMap, String> {
        let kind = text(item, &["kind"]).unwrap_or("ConfigMap");
        let name = text(item, &["name"]).unwrap_or_default();
        let found = self.config_maps.get(&(namespace.to_owned(), name.to_owned()));
        match found.filter(|_| kind == "ConfigMap") {
            Some(found) => Ok(found.clone()),
            None if flag(item, &["optional"]) => Ok(ConfigMap::new()),
            // What a Secret holds is not for us; the settings may say what it stands for.
            None if kind == "Secret" && !vars.is_empty() => Ok(ConfigMap::new()),
            None => Err(format!("values of {kind} {namespace}/{name} are not in this tree")),
        }
    }

    /// Returns what a `HelmRelease` delivers.
    pub(super) fn helm_release(&self, root: &Node<'_>, namespace: &str) -> Result<Parcel, String> {
        let spec = at(root, &["spec"]).ok_or("it has no `spec`")?;
        runs_here(spec)?;
        let chart = at(spec, &["chart", "spec"]).ok_or("its chart is not in this repository")?;
        let chart_name = text(chart, &["chart"]).ok_or("its chart has no name")?;
        let source_kind = text(chart, &["sourceRef", "kind"]).unwrap_or("HelmRepository");
        if source_kind != "GitRepository" {
            let name = text(chart, &["sourceRef", "name"]).unwrap_or_default();
            return Err(format!(
                "chart {chart_name} of {source_kind} {name} is not in this repository"
            ));
        }
        self.flux_source(chart, &["sourceRef"], namespace)?;
        if !items(spec, &["postRenderers"]).is_empty() {
            return Err("its postRenderers are not understood".to_owned());
        }
        let path = self.inside(chart_name)?;
        let target = text(spec, &["targetNamespace"]);
        let name = text(root, &["metadata", "name"]).unwrap_or_default();
        let release = text(spec, &["releaseName"]).map(str::to_owned);
        let release = release.unwrap_or_else(|| match target {
            Some(target) => format!("{target}-{name}"),
            None => name.to_owned(),
        });
        if release.len() > RELEASE_NAME_MAX {
            return Err(format!("the name of its release, {release}, is too long for Helm"));
        }
        let lives_in = target.unwrap_or(namespace).to_owned();
        let (values, set) = self.flux_values(spec, chart, namespace)?;
        let release = Release { name: release, namespace: lives_in.clone(), values, set };
        Ok(Parcel {
            content: Content::Rendered(Order { path, recipe: Recipe::Helm(release) }),
            namespace: Some(lives_in),
            target_namespace: None,
            vars: self.fleet.delivery.vars.clone(),
        })
    }

    fn flux_values(
        &self,
        spec: &Node<'_>,
        chart: &Node<'_>,
        namespace: &str,
    ) -> Result<(Vec<Values>, Vec<SetValue>), String> {
        let mut values = Vec::new();
        let ignore_missing = flag(chart, &["ignoreMissingValuesFiles"]);
        for file in items(chart, &["valuesFiles"]) {
            let file = file.text().unwrap_or_default();
            let path = self.inside_file(file)?;
            let optional = ignore_missing;
            values.push(if optional { Values::OptionalFile(path) } else { Values::File(path) });
        }
        let mut set = Vec::new();
        for item in items(spec, &["valuesFrom"]) {
            let config = self.config(item, namespace, &Vars::new())?;
            let key = text(item, &["valuesKey"]).unwrap_or("values.yaml");
            let Some(value) = config.get(key) else { continue };
            match text(item, &["targetPath"]) {
                Some(path) => set.push(SetValue {
                    name: path.to_owned(),
                    value: value.clone(),
                    is_text: false,
                }),
                None => values.push(Values::Text(value.clone())),
            }
        }
        if let Some(own) = at(spec, &["values"]) {
            values.push(Values::Text(to_json(own).to_string()));
        }
        Ok((values, set))
    }

    fn inside_file(&self, file: &str) -> Result<String, String> {
        let outside = || format!("values file {file} is outside the directory that is read");
        let normal = normal_path("", file.trim_start_matches('/')).ok_or_else(outside)?;
        let below = &self.home.below;
        let rest = normal.strip_prefix(below.as_str()).filter(|_| is_below(&normal, below));
        Ok(rest.ok_or_else(outside)?.trim_start_matches('/').to_owned())
    }
}

/// Checks that an object of Flux is at work, and on the cluster that it lives in.
fn runs_here(spec: &Node<'_>) -> Result<(), String> {
    if at(spec, &["kubeConfig"]).is_some() {
        return Err("it delivers to the cluster of a kubeConfig".to_owned());
    }
    if flag(spec, &["suspend"]) {
        return Err("it is suspended, so that what runs need not be what is in Git".to_owned());
    }
    Ok(())
}

fn flux_overlay(spec: &Node<'_>, path: &str) -> Result<Layer, String> {
    let word = |key| text(spec, &[key]).unwrap_or_default().to_owned();
    for old in ["patchesStrategicMerge", "patchesJson6902"] {
        if at(spec, &[old]).is_some() {
            return Err(format!("its {old} are not understood; write them as patches"));
        }
    }
    let component = |item: &Node<'_>| {
        let inside = item.text().and_then(|item| normal_path(path, item));
        inside.ok_or_else(|| "a component is outside the repository".to_owned())
    };
    Ok(Layer {
        namespace: text(spec, &["targetNamespace"]).map(str::to_owned),
        name_prefix: word("namePrefix"),
        name_suffix: word("nameSuffix"),
        components: items(spec, &["components"]).iter().map(component).collect::<Result<_, _>>()?,
        patches: items(spec, &["patches"]).iter().map(|item| to_json(item).to_string()).collect(),
        ..Layer::default()
    })
}
