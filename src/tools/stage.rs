//! The files that a tool gets to see.
//!
//! A kustomization may load files of its own directory and other kustomizations, nothing else. So
//! what it needs is found by following every text in it that is the path of a file or directory;
//! a text that is one by chance adds a file that nobody loads. What is missing here is missing for
//! the tool too, which then fails instead of making something else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::Limits;
use crate::manifest::{
    KUSTOMIZATION, Layer, Order, Recipe, Release, STAGED_PREFIX, Values, loads, normal_path,
    paths_in,
};
use crate::port::Repo;

/// The directory that holds what is not of the repository.
pub(super) const TOP: &str = "top";

/// What a tool gets to see.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// Files of the repository, by path.
    pub(super) files: BTreeMap<String, Arc<[u8]>>,
    /// Further files, by name.
    pub(super) extra: BTreeMap<String, String>,
    /// Those of them that are values of a chart, in their order.
    pub(super) values: Vec<String>,
}

impl Stage {
    /// Gathers what `order` needs.
    pub(super) fn of(order: &Order, repo: &dyn Repo, limits: &Limits) -> Result<Self, String> {
        let mut gather = Gather { repo, limits, stage: Self::default(), bytes: 0 };
        match &order.recipe {
            Recipe::Kustomize(layer) => gather.kustomize(&order.path, layer)?,
            Recipe::Helm(release) => gather.helm(&order.path, release)?,
        }
        Ok(gather.stage)
    }

    /// Writes everything below `folder`.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        for name in [TOP, "home", "tmp", "tree"] {
            fs::create_dir(folder.join(name))?;
        }
        for (path, content) in &self.files {
            let to = folder.join("tree").join(path);
            if let Some(directory) = to.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(to, content)?;
        }
        for (name, content) in &self.extra {
            fs::write(folder.join(TOP).join(name), content)?;
        }
        Ok(())
    }
}

struct Gather<'a> {
    repo: &'a dyn Repo,
    limits: &'a Limits,
    stage: Stage,
    bytes: u64,
}

impl Gather<'_> {
    fn add(&mut self, path: &str) -> Result<Arc<[u8]>, String> {
        if let Some(known) = self.stage.files.get(path) {
            return Ok(Arc::clone(known));
        }
        let content = self.repo.content(path).map_err(|why| format!("{path}: {why}"))?;
        self.bytes += u64::try_from(content.len()).unwrap_or(u64::MAX);
        if self.bytes > self.limits.file_bytes {
            return Err(format!("it is made from more than {} bytes", self.limits.file_bytes));
        }
        if self.stage.files.len() >= self.limits.files {
            return Err(format!("it is made from more than {} files", self.limits.files));
        }
        self.stage.files.insert(path.to_owned(), Arc::clone(&content));
        Ok(content)
    }

    /// Returns the files below `directory`.
    fn below(&self, directory: &str) -> Vec<String> {
        let prefix = prefix(directory);
        let from = self.repo.paths().range(prefix.clone()..);
        from.take_while(|path| path.starts_with(&prefix)).cloned().collect()
    }

    fn kustomization(&self, directory: &str) -> Option<String> {
        let paths = KUSTOMIZATION.map(|name| format!("{}{name}", prefix(directory)));
        paths.into_iter().find(|path| self.repo.paths().contains(path))
    }

    fn kustomize(&mut self, path: &str, layer: &Layer) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        let mut open: Vec<String> = vec![path.to_owned()];
        open.extend(layer.components.iter().cloned());
        while let Some(directory) = open.pop() {
            if !seen.insert(directory.clone()) {
                continue;
            }
            let Some(file) = self.kustomization(&directory) else {
                if directory == path {
                    return Err(format!("`{path}` has no kustomization"));
                }
                // A directory that is named without one may be looked into as a whole.
                for file in self.below(&directory) {
                    self.add(&file)?;
                }
                continue;
            };
            open.extend(self.follow(&directory, &file)?);
        }
        for (file, content) in &self.stage.files {
            let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
            if KUSTOMIZATION.contains(&name) {
                stays_inside(directory, file, content)?;
            }
        }
        self.stage.extra.insert("kustomization.yaml".to_owned(), wrapper(path, layer));
        Ok(())
    }

    /// Adds the kustomization file `top` of `directory` and the files that it names; returns the
    /// directories that it names.
    fn follow(&mut self, directory: &str, top: &str) -> Result<Vec<String>, String> {
        let mut directories = Vec::new();
        let mut open = vec![top.to_owned()];
        while let Some(file) = open.pop() {
            if self.stage.files.contains_key(&file) {
                continue;
            }
            let content = self.add(&file)?;
            // Generators and transformers are files that name further ones.
            let is_yaml = [".yaml", ".yml", "Kustomization"].iter().any(|end| file.ends_with(end));
            if !is_yaml {
                continue;
            }
            for text in paths_in(&content) {
                let Some(path) = normal_path(directory, &text) else { continue };
                if self.repo.paths().contains(&path) {
                    open.push(path);
                } else if path != directory && self.is_directory(&path) {
                    directories.push(path);
                }
            }
        }
        Ok(directories)
    }

    fn is_directory(&self, path: &str) -> bool {
        let prefix = prefix(path);
        let mut from = self.repo.paths().range(prefix.clone()..);
        from.next().is_some_and(|first| first.starts_with(&prefix))
    }

    fn helm(&mut self, path: &str, release: &Release) -> Result<(), String> {
        let chart = self.below(path);
        if !chart.contains(&format!("{}Chart.yaml", prefix(path))) {
            return Err(format!("`{path}` has no Chart.yaml"));
        }
        for file in chart {
            self.add(&file)?;
        }
        for (at, values) in release.values.iter().enumerate() {
            let content = match values {
                Values::Text(text) => text.clone(),
                Values::OptionalFile(path) if !self.repo.paths().contains(path) => continue,
                Values::File(path) | Values::OptionalFile(path) => {
                    if !self.repo.paths().contains(path) {
                        return Err(format!("there is no values file `{path}`"));
                    }
                    let content = self.add(path)?;
                    String::from_utf8(content.to_vec())
                        .map_err(|_| format!("values file `{path}` is not UTF-8 text"))?
                }
            };
            let name = format!("values-{at}.yaml");
            self.stage.extra.insert(name.clone(), content);
            self.stage.values.push(name);
        }
        if release.replaces_values {
            // Those that count were copied by now.
            let own = format!("{}values.yaml", prefix(path));
            self.stage.files.entry(own).and_modify(|content| *content = Arc::default());
        }
        Ok(())
    }
}

/// Checks that a kustomization takes nothing from elsewhere, and leads to no directory outside the
/// repository: such a path, seen from the copy, is one of this machine.
fn stays_inside(directory: &str, file: &str, content: &[u8]) -> Result<(), String> {
    let loads = loads(content);
    if let Some(remote) = loads.remote.first() {
        return Err(format!("{file} takes `{remote}` from elsewhere, which is not fetched"));
    }
    let leaves = |path: &&String| normal_path(directory, path).is_none();
    match loads.built_on.iter().find(leaves) {
        Some(path) => Err(format!("{file} leads to `{path}`, outside the directory that is read")),
        None => Ok(()),
    }
}

/// Returns what every path below `directory` begins with.
fn prefix(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}

/// Returns the kustomization on top: it notes where each object comes from, and holds what whoever
/// delivers the directory puts over it.
fn wrapper(path: &str, layer: &Layer) -> String {
    let Layer { namespace, name_prefix, name_suffix, components, patches, replicas } = layer;
    let mut top = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "buildMetadata": ["originAnnotations"],
        "resources": [format!("{STAGED_PREFIX}{path}")],
    });
    let patches: Vec<serde_json::Value> =
        patches.iter().filter_map(|patch| serde_json::from_str(patch).ok()).collect();
    let replicas: Vec<_> =
        replicas.iter().map(|(name, count)| json!({ "name": name, "count": count })).collect();
    let components: Vec<_> =
        components.iter().map(|path| format!("{STAGED_PREFIX}{path}")).collect();
    for (key, value, is_set) in [
        ("namespace", json!(namespace), namespace.is_some()),
        ("namePrefix", json!(name_prefix), !name_prefix.is_empty()),
        ("nameSuffix", json!(name_suffix), !name_suffix.is_empty()),
        ("components", json!(components), !components.is_empty()),
        ("patches", json!(patches), !patches.is_empty()),
        ("replicas", json!(replicas), !replicas.is_empty()),
    ] {
        if is_set {
            top[key] = value;
        }
    }
    top.to_string()
}
