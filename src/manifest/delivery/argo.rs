//! `Application` and `ApplicationSet` of Argo CD.

use super::super::order::{Layer, Order, Recipe, Release, SetValue, Values};
use super::super::yaml::{self, Node, Value, to_json};
use super::{
    Around, Content, Files, Parcel, Whose, at, flag, generators, normal_path, release_name, text,
};

/// How Argo CD calls the cluster that it runs in.
const IN_CLUSTER: [&str; 2] = ["https://kubernetes.default.svc", "in-cluster"];

impl Around<'_> {
    /// Returns what an `Application` that lives in the cluster `home` delivers.
    pub(super) fn application(&self, root: &Node<'_>, home: Whose) -> Vec<Result<Parcel, String>> {
        let Some(spec) = at(root, &["spec"]) else { return vec![Err("it has no `spec`".into())] };
        let whose = match self.whose(spec, home) {
            Ok(whose) => whose,
            Err(reason) => return vec![Err(reason)],
        };
        let name = text(root, &["metadata", "name"]).unwrap_or("release");
        let namespace = text(spec, &["destination", "namespace"]);
        let sources: Vec<&Node<'_>> = match at(spec, &["sources"]).map(|node| &node.value) {
            Some(Value::Seq(items)) => items.iter().collect(),
            Some(_) | None => at(spec, &["source"]).into_iter().collect(),
        };
        if whose == Whose::Theirs {
            // What of it could not be read need not be known here.
            return sources.iter().filter_map(|source| self.argo_theirs(source)).map(Ok).collect();
        }
        if sources.is_empty() {
            return vec![Err("it has no source".to_owned())];
        }
        // A source that only lends values files to the others delivers nothing.
        let delivers = |source: &&&Node<'_>| {
            text(source, &["ref"]).is_none() || text(source, &["path"]).is_some()
        };
        let one = |source: &&Node<'_>| self.argo_source(source, name, namespace, &sources);
        sources.iter().filter(delivers).map(one).collect()
    }

    /// Returns what the applications of an `ApplicationSet` deliver.
    pub(super) fn application_set(
        &self,
        root: &Node<'_>,
        home: Whose,
    ) -> Vec<Result<Parcel, String>> {
        self.applications(root, home).unwrap_or_else(|reason| vec![Err(reason)])
    }

    fn applications(
        &self,
        root: &Node<'_>,
        home: Whose,
    ) -> Result<Vec<Result<Parcel, String>>, String> {
        let spec = at(root, &["spec"]).ok_or("it has no `spec`")?;
        if at(spec, &["templatePatch"]).is_some() {
            return Err("its templatePatch is not understood".to_owned());
        }
        let template = at(spec, &["template"]).ok_or("it has no template")?;
        let Some(Value::Seq(generators)) = at(spec, &["generators"]).map(|node| &node.value) else {
            return Err("it has no generators".to_owned());
        };
        let template = to_json(template).to_string();
        let (mut parcels, mut count) = (Vec::new(), 0);
        for generator in generators {
            let made = self.generate(generator)?;
            count += made.len();
            generators::bounded(count)?;
            // One application at a time: all of them together may be large.
            for params in &made {
                let text = self.fill_in(&template, params)?;
                let loaded = yaml::load(&text);
                let document = loaded.documents.first().ok_or("its template gives no object")?;
                parcels.extend(self.application(&document.root, home));
            }
        }
        Ok(parcels)
    }

    /// Returns which cluster the destination is, for an object that lives in the cluster `home`.
    fn whose(&self, spec: &Node<'_>, home: Whose) -> Result<Whose, String> {
        let destination =
            text(spec, &["destination", "name"]).or(text(spec, &["destination", "server"]));
        let Some(destination) = destination else {
            return Err("it has no destination".to_owned());
        };
        if IN_CLUSTER.contains(&destination) {
            return Ok(home);
        }
        self.listed(destination).ok_or_else(|| {
            format!(
                "whether its destination `{}` is this cluster is not known; list it under \
                 `delivery.clusters` or `delivery.otherClusters` in fleetwright.yaml",
                super::super::decode::shorten(destination)
            )
        })
    }

    /// Returns what a source gives to another cluster, as far as it is in this tree.
    fn argo_theirs(&self, source: &Node<'_>) -> Option<Parcel> {
        self.is_here(text(source, &["repoURL"])?).ok()?;
        let parcel = self.theirs(self.inside(text(source, &["path"])?).ok()?);
        let Content::Files(Files { path, .. }) = parcel.content else { return Some(parcel) };
        Some(Parcel { content: Content::Files(argo_files(source, path)), ..parcel })
    }

    fn argo_source(
        &self,
        source: &Node<'_>,
        name: &str,
        namespace: Option<&str>,
        all: &[&Node<'_>],
    ) -> Result<Parcel, String> {
        let url = text(source, &["repoURL"]).ok_or("its source has no repoURL")?;
        if let Some(chart) = text(source, &["chart"]) {
            return Err(format!("chart {chart} of {url} is not in this repository"));
        }
        self.is_here(url)?;
        self.is_this_revision(text(source, &["targetRevision"]).unwrap_or_default())?;
        if at(source, &["plugin"]).is_some() {
            return Err("a config management plugin makes its manifests".to_owned());
        }
        let path = self.inside(text(source, &["path"]).ok_or("its source has no path")?)?;
        let is_helm = at(source, &["helm"]).is_some() || self.has_chart(&path);
        let content = if is_helm {
            let mut release = self.argo_helm(source, &path, all)?;
            let stated = text(source, &["helm", "releaseName"]);
            release.name = stated.map_or_else(|| release_name(name), str::to_owned);
            let own = text(source, &["helm", "namespace"]).or(namespace);
            own.unwrap_or("default").clone_into(&mut release.namespace);
            Content::Rendered(Order { path, recipe: Recipe::Helm(release) })
        } else if at(source, &["kustomize"]).is_some() || self.has_kustomization(&path) {
            let overlay = argo_kustomize(source, &path)?;
            Content::Rendered(Order { path, recipe: Recipe::Kustomize(overlay) })
        } else {
            if at(source, &["directory", "jsonnet"]).is_some() {
                return Err("Jsonnet is not understood".to_owned());
            }
            Content::Files(argo_files(source, path))
        };
        Ok(Parcel {
            content,
            namespace: namespace.map(str::to_owned),
            target_namespace: None,
            vars: self.fleet.delivery.vars.clone(),
            whose: Whose::Ours,
        })
    }

    fn argo_helm(
        &self,
        source: &Node<'_>,
        path: &str,
        all: &[&Node<'_>],
    ) -> Result<Release, String> {
        let Some(helm) = at(source, &["helm"]) else { return Ok(Release::default()) };
        let optional = flag(helm, &["ignoreMissingValueFiles"]);
        let mut values = Vec::new();
        for file in items(helm, &["valueFiles"]) {
            let file = file.text().ok_or("a values file is no text")?;
            let path = self.values_file(file, path, all)?;
            values.push(if optional { Values::OptionalFile(path) } else { Values::File(path) });
        }
        match (at(helm, &["valuesObject"]), text(helm, &["values"])) {
            (Some(object), _) => values.push(Values::Text(to_json(object).to_string())),
            (None, Some(text)) => values.push(Values::Text(text.to_owned())),
            (None, None) => {}
        }
        for key in ["fileParameters", "kubeVersion", "apiVersions"] {
            if at(helm, &[key])
                .is_some_and(|node| !matches!(&node.value, Value::Seq(all) if all.is_empty()))
            {
                return Err(format!("helm.{key} is not understood"));
            }
        }
        let parameter = |item: &Node<'_>| {
            Some(SetValue {
                name: text(item, &["name"])?.to_owned(),
                value: escaped(text(item, &["value"]).unwrap_or_default()),
                is_text: flag(item, &["forceString"]),
            })
        };
        let set = items(helm, &["parameters"]).iter().filter_map(parameter).collect();
        Ok(Release { values, set, ..Release::default() })
    }

    /// Returns a values file as a path below the root. `$NAME/` means the root of another source.
    fn values_file(&self, file: &str, path: &str, all: &[&Node<'_>]) -> Result<String, String> {
        if file.contains("://") {
            return Err(format!("values file {file} is not in this repository"));
        }
        let Some(rest) = file.strip_prefix('$') else {
            if file.starts_with('/') {
                return self.inside_file(file);
            }
            let outside = || format!("values file {file} is outside the directory that is read");
            return normal_path(path, file).ok_or_else(outside);
        };
        let (name, file) = rest.split_once('/').ok_or("a values file names no file")?;
        let lends = all.iter().find(|source| text(source, &["ref"]) == Some(name));
        let lends = lends.ok_or_else(|| format!("values file ${rest} names no source"))?;
        self.is_here(text(lends, &["repoURL"]).unwrap_or_default())?;
        self.is_this_revision(text(lends, &["targetRevision"]).unwrap_or_default())?;
        self.inside_file(file)
    }
}

/// Returns the value of a parameter as Argo CD hands it to Helm: a comma would begin the next
/// value, unless it is escaped already or all of it is a list.
fn escaped(value: &str) -> String {
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

/// Returns the files that a source takes as they are.
fn argo_files(source: &Node<'_>, path: String) -> Files {
    let pattern = |key| text(source, &["directory", key]).unwrap_or_default().to_owned();
    Files {
        path,
        recurse: flag(source, &["directory", "recurse"]),
        include: pattern("include"),
        exclude: pattern("exclude"),
        ..Files::default()
    }
}

/// Returns a patch that is put over a kustomization, as JSON.
pub(super) fn patch(item: &Node<'_>) -> Result<String, String> {
    match text(item, &["path"]) {
        Some(path) => {
            Err(format!("its patch of the file {path} is not understood; write it inline"))
        }
        None => Ok(to_json(item).to_string()),
    }
}

fn argo_kustomize(source: &Node<'_>, path: &str) -> Result<Layer, String> {
    let Some(own) = at(source, &["kustomize"]) else { return Ok(Layer::default()) };
    let word = |key| text(own, &[key]).unwrap_or_default().to_owned();
    let component = |item: &Node<'_>| {
        let inside = item.text().and_then(|item| normal_path(path, item));
        inside.ok_or_else(|| "a component is outside the repository".to_owned())
    };
    let replicas = |item: &Node<'_>| {
        let count = text(item, &["count"]).and_then(|count| count.parse().ok());
        let named = text(item, &["name"]).map(str::to_owned).zip(count);
        named.ok_or_else(|| "an item of kustomize.replicas is not understood".to_owned())
    };
    Ok(Layer {
        namespace: text(own, &["namespace"]).map(str::to_owned),
        name_prefix: word("namePrefix"),
        name_suffix: word("nameSuffix"),
        components: items(own, &["components"]).iter().map(component).collect::<Result<_, _>>()?,
        patches: items(own, &["patches"]).iter().map(patch).collect::<Result<_, _>>()?,
        replicas: items(own, &["replicas"]).iter().map(replicas).collect::<Result<_, _>>()?,
    })
}

pub(super) fn items<'n, 't>(node: &'n Node<'t>, path: &[&str]) -> &'n [Node<'t>] {
    match at(node, path).map(|node| &node.value) {
        Some(Value::Seq(items)) => items,
        Some(_) | None => &[],
    }
}
