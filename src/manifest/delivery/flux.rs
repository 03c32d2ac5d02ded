//! `Kustomization` and `HelmRelease` of Flux.

use serde_json::Value as Json;

use super::super::fleet::is_below;
use super::super::layout::directory;
use super::super::order::{Layer, Order, Recipe, Release, Values};
use super::super::placeholder::Vars;
use super::super::yaml::{Node, Value, to_json};
use super::argo::{items, patch};
use super::{
    Around, ConfigMap, Content, Files, Parcel, Repository, Whose, at, flag, normal_path, text, word,
};

/// Longest name of a release; Flux shortens longer ones with a hash of its own.
const RELEASE_NAME_MAX: usize = 53;

impl Around<'_> {
    /// Returns what a `Kustomization` of Flux delivers that lives in `namespace` of a cluster.
    pub(super) fn kustomization(
        &self,
        root: &Node<'_>,
        (home, namespace): (Whose, &str),
    ) -> Vec<Result<Parcel, String>> {
        let Some(spec) = at(root, &["spec"]) else { return vec![Err("it has no `spec`".into())] };
        let (whose, why) = self.flux_cluster(spec, home);
        if whose == Whose::Ours {
            return match self.flux_parts(spec, namespace) {
                Ok(parts) => parts.into_iter().map(Ok).collect(),
                Err(reason) => vec![Err(reason)],
            };
        }
        let mut parcels: Vec<_> = why.map(Err).into_iter().collect();
        let is_here = self.flux_source(spec, &["sourceRef"], (home, namespace));
        let path = self.inside(text(spec, &["path"]).unwrap_or_default());
        if let (Ok(_), Ok(path)) = (is_here, path) {
            let parcel = self.theirs(path.clone());
            if let Content::Files(files) = &parcel.content {
                let files = Files { recurse: true, ..files.clone() };
                parcels.push(Ok(Parcel { content: Content::Files(files), ..parcel }));
                let inner = self.kustomizations_below(&path);
                parcels.extend(inner.into_iter().map(|path| Ok(self.theirs(path))));
            } else {
                parcels.push(Ok(parcel));
            }
        }
        parcels
    }

    /// Returns the cluster that an object of Flux delivers to: that of its kubeConfig, else the one
    /// that it lives in; and what is to be said where a kubeConfig's is not known. Such a one is
    /// taken for another cluster, since nobody needs a kubeConfig for his own.
    fn flux_cluster(&self, spec: &Node<'_>, home: Whose) -> (Whose, Option<String>) {
        let Some(config) = at(spec, &["kubeConfig"]) else { return (home, None) };
        let mut names = ["secretRef", "configMapRef"].into_iter();
        let name = names.find_map(|key| text(config, &[key, "name"])).unwrap_or_default();
        if let Some(whose) = self.listed(name) {
            return (whose, None);
        }
        let name = super::super::decode::shorten(name);
        let why = format!(
            "whether its kubeConfig `{name}` is of this cluster is not known; list it under \
             `delivery.clusters` or `delivery.otherClusters` in fleetwright.yaml"
        );
        (Whose::Theirs, Some(why))
    }

    fn flux_parts(&self, spec: &Node<'_>, namespace: &str) -> Result<Vec<Parcel>, String> {
        is_at_work(spec)?;
        self.flux_revision(spec, &["sourceRef"], namespace)?;
        let path = self.inside(text(spec, &["path"]).unwrap_or_default())?;
        let vars = self.post_build(spec, namespace)?;
        let overlay = flux_overlay(spec, &path)?;
        let target_namespace = overlay.namespace.clone();
        let parcel = |content| Parcel {
            content,
            namespace: None,
            target_namespace: target_namespace.clone(),
            vars: vars.clone(),
            whose: Whose::Ours,
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

    /// Returns the source at `path`, which is this repository.
    fn flux_source(
        &self,
        spec: &Node<'_>,
        path: &[&str],
        (home, namespace): (Whose, &str),
    ) -> Result<&Repository, String> {
        let source = at(spec, path).ok_or("it names no source")?;
        let kind = text(source, &["kind"]).unwrap_or("GitRepository");
        let name = text(source, &["name"]).ok_or("its source has no name")?;
        if kind != "GitRepository" {
            return Err(format!("its source {kind} {name} is not in this repository"));
        }
        let namespace = text(source, &["namespace"]).unwrap_or(namespace);
        let found = self.repositories.get(&(home, namespace.to_owned(), name.to_owned()));
        let found = found.ok_or_else(|| {
            format!("GitRepository {namespace}/{name}, its source, is not in this tree")
        })?;
        let found = found.as_ref().ok_or_else(|| {
            format!("GitRepository {namespace}/{name}, its source, is defined twice, differently")
        })?;
        self.is_here(&found.url)?;
        Ok(found)
    }

    /// Checks that the source at `path` is this repository, as it is read here.
    fn flux_revision(&self, spec: &Node<'_>, path: &[&str], namespace: &str) -> Result<(), String> {
        let found = self.flux_source(spec, path, (Whose::Ours, namespace))?;
        if let Some(changed) = found.changed {
            return Err(format!("its source {changed}, which is not understood"));
        }
        self.is_this_revision(&found.revision)
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
        let key = (Whose::Ours, namespace.to_owned(), name.to_owned());
        match self.config_maps.get(&key).filter(|_| kind == "ConfigMap") {
            Some(Some(found)) => Ok(found.clone()),
            Some(None) => Err(format!("{kind} {namespace}/{name} is defined twice, differently")),
            None if flag(item, &["optional"]) => Ok(ConfigMap::new()),
            // What a Secret holds is not for us; the settings may say what it stands for.
            None if kind == "Secret" && !vars.is_empty() => Ok(ConfigMap::new()),
            None => Err(format!("values of {kind} {namespace}/{name} are not in this tree")),
        }
    }

    /// Returns what a `HelmRelease` delivers that lives in `namespace` of a cluster.
    pub(super) fn helm_release(
        &self,
        root: &Node<'_>,
        (home, namespace): (Whose, &str),
    ) -> Vec<Result<Parcel, String>> {
        let Some(spec) = at(root, &["spec"]) else { return vec![Err("it has no `spec`".into())] };
        let (whose, why) = self.flux_cluster(spec, home);
        if whose == Whose::Ours {
            return vec![self.flux_release(root, spec, namespace)];
        }
        let theirs = || {
            let chart = at(spec, &["chart", "spec"])?;
            self.flux_source(chart, &["sourceRef"], (home, namespace)).ok()?;
            Some(self.theirs(self.inside(text(chart, &["chart"])?).ok()?))
        };
        why.map(Err).into_iter().chain(theirs().map(Ok)).collect()
    }

    fn flux_release(
        &self,
        root: &Node<'_>,
        spec: &Node<'_>,
        namespace: &str,
    ) -> Result<Parcel, String> {
        is_at_work(spec)?;
        let chart = at(spec, &["chart", "spec"]).ok_or("its chart is not in this repository")?;
        let chart_name = text(chart, &["chart"]).ok_or("its chart has no name")?;
        let source_kind = text(chart, &["sourceRef", "kind"]).unwrap_or("HelmRepository");
        if source_kind != "GitRepository" {
            let name = text(chart, &["sourceRef", "name"]).unwrap_or_default();
            return Err(format!(
                "chart {chart_name} of {source_kind} {name} is not in this repository"
            ));
        }
        self.flux_revision(chart, &["sourceRef"], namespace)?;
        if !items(spec, &["postRenderers"]).is_empty() {
            return Err("its postRenderers are not understood".to_owned());
        }
        let path = self.inside(chart_name)?;
        let target = text(spec, &["targetNamespace"]);
        let lives_in = target.unwrap_or(namespace).to_owned();
        let files = self.flux_values_files(chart)?;
        let release = Release {
            name: release_of(root, spec, target)?,
            namespace: lives_in.clone(),
            // Flux makes a chart of its own whose values are those files and nothing else.
            replaces_values: !files.is_empty(),
            values: files.into_iter().chain(self.flux_values(spec, namespace)?).collect(),
            set: Vec::new(),
        };
        Ok(Parcel {
            content: Content::Rendered(Order { path, recipe: Recipe::Helm(release) }),
            namespace: Some(lives_in),
            target_namespace: None,
            vars: self.fleet.delivery.vars.clone(),
            whose: Whose::Ours,
        })
    }

    fn flux_values_files(&self, chart: &Node<'_>) -> Result<Vec<Values>, String> {
        let optional = flag(chart, &["ignoreMissingValuesFiles"]);
        let one = |file: &Node<'_>| {
            let path = self.inside_file(file.text().unwrap_or_default())?;
            Ok(if optional { Values::OptionalFile(path) } else { Values::File(path) })
        };
        items(chart, &["valuesFiles"]).iter().map(one).collect()
    }

    /// Returns the values of a release, later ones over earlier ones: those from elsewhere in their
    /// order, and its own over all of them.
    fn flux_values(&self, spec: &Node<'_>, namespace: &str) -> Result<Vec<Values>, String> {
        let mut values = Vec::new();
        for item in items(spec, &["valuesFrom"]) {
            let config = self.config(item, namespace, &Vars::new())?;
            let key = text(item, &["valuesKey"]).unwrap_or("values.yaml");
            let Some(value) = config.get(key) else {
                if flag(item, &["optional"]) {
                    continue;
                }
                let name = text(item, &["name"]).unwrap_or_default();
                return Err(format!("ConfigMap {namespace}/{name} has no key `{key}`"));
            };
            values.push(Values::Text(match text(item, &["targetPath"]) {
                Some(path) => value_at(path, value)?,
                None => value.clone(),
            }));
        }
        values.extend(at(spec, &["values"]).map(|own| Values::Text(to_json(own).to_string())));
        Ok(values)
    }
}

/// Returns the name of a release.
fn release_of(root: &Node<'_>, spec: &Node<'_>, target: Option<&str>) -> Result<String, String> {
    let name = text(root, &["metadata", "name"]).unwrap_or_default();
    let release = text(spec, &["releaseName"]).map(str::to_owned);
    let release = release.unwrap_or_else(|| match target {
        Some(target) => format!("{target}-{name}"),
        None => name.to_owned(),
    });
    if release.len() > RELEASE_NAME_MAX {
        return Err(format!("the name of its release, {release}, is too long for Helm"));
    }
    Ok(release)
}

/// Returns, as JSON, the values in which `value` stands at `path`. Helm's own way of writing paths
/// and values knows lists and escapes; of it no more than keys and scalars is understood here.
fn value_at(path: &str, value: &str) -> Result<String, String> {
    let quoted = ['"', '\''].into_iter().find_map(|quote| {
        value.strip_prefix(quote)?.strip_suffix(quote).filter(|inner| !inner.is_empty())
    });
    let is_plain = !path.contains(['[', ']', ',', '=', '\\', '{', '}'])
        && path.split('.').all(|key| !key.is_empty())
        && !quoted.unwrap_or(value).contains([',', '\\', '{', '}', '[', ']']);
    if !is_plain {
        let path = super::super::decode::shorten(path);
        return Err(format!("its value for targetPath `{path}` is not understood"));
    }
    let scalar = match (quoted, value) {
        (Some(text), _) => Json::from(text),
        (None, "true") => Json::from(true),
        (None, "false") => Json::from(false),
        (None, "null") => Json::Null,
        (None, "0") => Json::from(0),
        (None, text) => match text.parse::<i64>() {
            // What begins with a zero, or a sign that is none of a number's, stays a text.
            Ok(number) if number.to_string() == text => Json::from(number),
            Ok(_) | Err(_) => Json::from(text),
        },
    };
    let nest =
        |inner: Json, key: &str| Json::Object([(key.to_owned(), inner)].into_iter().collect());
    Ok(path.rsplit('.').fold(scalar, nest).to_string())
}

/// Checks that an object of Flux is at work.
fn is_at_work(spec: &Node<'_>) -> Result<(), String> {
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
        patches: items(spec, &["patches"]).iter().map(patch).collect::<Result<_, _>>()?,
        ..Layer::default()
    })
}
