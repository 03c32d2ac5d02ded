//! Collects the files that a tool may see.
//!
//! A kustomization may only load files of its own directory and other kustomizations. This module
//! follows every text that is the path of a file or directory. An accidental match adds an unused
//! file. A file that is missing here is also missing for the tool, which then fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};
use std::sync::Arc;
use std::{fs, io};

use serde_json::json;

use super::RendererLimits;
use crate::manifest::ports::RepositoryFiles;
use crate::manifest::{
    KUSTOMIZATION, STAGED_PREFIX, candidate_paths, kustomization_references, normal_path,
};
use crate::model::desired::{Layer, Recipe, Release, RenderRequest, Values};

/// Directory of the wrapper files, which are not in the repository.
pub(super) const WRAPPER_DIRECTORY: &str = "top";

#[derive(Debug, Default)]
pub(super) struct StagedFiles {
    /// Files of the repository, by path.
    pub(super) files: BTreeMap<String, Arc<[u8]>>,
    /// Generated files, by name.
    pub(super) generated: BTreeMap<String, String>,
    /// Generated values files of a chart, in order.
    pub(super) values: Vec<String>,
}

impl StagedFiles {
    /// Collects the files for a request.
    pub(super) fn collect(
        order: &RenderRequest,
        repo: &dyn RepositoryFiles,
        limits: &RendererLimits,
    ) -> Result<Self, String> {
        let mut stager = FileStager { repo, limits, staged: Self::default(), bytes: 0 };
        match &order.recipe {
            Recipe::Kustomize(layer) => stager.kustomize(&order.path, layer)?,
            Recipe::Helm(release) => stager.helm(&order.path, release)?,
        }
        Ok(stager.staged)
    }

    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        for name in [WRAPPER_DIRECTORY, "home", "tmp", "tree"] {
            fs::create_dir(folder.join(name))?;
        }
        for (path, content) in &self.files {
            // A path of a crafted commit could lead out of the directory.
            if !Path::new(path).components().all(|part| matches!(part, Component::Normal(_))) {
                let reason = format!("`{path}` is not a path below the repository");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
            }
            let to = folder.join("tree").join(path);
            if let Some(directory) = to.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(to, content)?;
        }
        for (name, content) in &self.generated {
            fs::write(folder.join(WRAPPER_DIRECTORY).join(name), content)?;
        }
        Ok(())
    }
}

struct FileStager<'a> {
    repo: &'a dyn RepositoryFiles,
    limits: &'a RendererLimits,
    staged: StagedFiles,
    bytes: u64,
}

impl FileStager<'_> {
    fn add_file(&mut self, path: &str) -> Result<Arc<[u8]>, String> {
        if let Some(known) = self.staged.files.get(path) {
            return Ok(Arc::clone(known));
        }
        let content = self.repo.content(path).map_err(|why| format!("{path}: {why}"))?;
        self.bytes += u64::try_from(content.len()).unwrap_or(u64::MAX);
        if self.bytes > self.limits.file_bytes {
            return Err(format!("its input has more than {} bytes", self.limits.file_bytes));
        }
        if self.staged.files.len() >= self.limits.files {
            return Err(format!("its input has more than {} files", self.limits.files));
        }
        self.staged.files.insert(path.to_owned(), Arc::clone(&content));
        Ok(content)
    }

    fn files_below(&self, directory: &str) -> Vec<String> {
        let prefix = directory_prefix(directory);
        let from = self.repo.paths().range(prefix.clone()..);
        from.take_while(|path| path.starts_with(&prefix)).cloned().collect()
    }

    fn kustomization(&self, directory: &str) -> Option<String> {
        let paths = KUSTOMIZATION.map(|name| format!("{}{name}", directory_prefix(directory)));
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
                    let shown = if path.is_empty() { "." } else { path };
                    return Err(format!("`{shown}` has no kustomization"));
                }
                // A directory without a kustomization may be loaded as a whole.
                for file in self.files_below(&directory) {
                    self.add_file(&file)?;
                }
                continue;
            };
            open.extend(self.follow(&directory, &file)?);
        }
        for (file, content) in &self.staged.files {
            let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
            if KUSTOMIZATION.contains(&name) {
                check_inside_repository(directory, file, content)?;
            }
        }
        self.staged
            .generated
            .insert("kustomization.yaml".to_owned(), wrapper_kustomization(path, layer));
        Ok(())
    }

    /// Adds the kustomization file `top` of `directory` and the files that it names. Returns the
    /// directories that it names.
    fn follow(&mut self, directory: &str, top: &str) -> Result<Vec<String>, String> {
        let mut directories = Vec::new();
        let mut open = vec![top.to_owned()];
        while let Some(file) = open.pop() {
            if self.staged.files.contains_key(&file) {
                continue;
            }
            let content = self.add_file(&file)?;
            // Generators and transformers are files that name further files.
            let is_yaml = [".yaml", ".yml", "Kustomization"].iter().any(|end| file.ends_with(end));
            if !is_yaml {
                continue;
            }
            for text in candidate_paths(&content) {
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
        let prefix = directory_prefix(path);
        let mut from = self.repo.paths().range(prefix.clone()..);
        from.next().is_some_and(|first| first.starts_with(&prefix))
    }

    fn helm(&mut self, path: &str, release: &Release) -> Result<(), String> {
        let chart = self.files_below(path);
        if !chart.contains(&format!("{}Chart.yaml", directory_prefix(path))) {
            return Err(format!("`{path}` has no Chart.yaml"));
        }
        for file in chart {
            self.add_file(&file)?;
        }
        for (at, values) in release.values.iter().enumerate() {
            let content = match values {
                Values::Text(text) => text.clone(),
                Values::OptionalFile(path) if !self.repo.paths().contains(path) => continue,
                Values::File(path) | Values::OptionalFile(path) => {
                    if !self.repo.paths().contains(path) {
                        return Err(format!("values file `{path}` does not exist"));
                    }
                    let content = self.add_file(path)?;
                    String::from_utf8(content.to_vec())
                        .map_err(|_| format!("values file `{path}` is not UTF-8 text"))?
                }
            };
            let name = format!("values-{at}.yaml");
            self.staged.generated.insert(name.clone(), content);
            self.staged.values.push(name);
        }
        if release.replaces_values {
            // The relevant values were copied before.
            let own = format!("{}values.yaml", directory_prefix(path));
            self.staged.files.entry(own).and_modify(|content| *content = Arc::default());
        }
        Ok(())
    }
}

/// Checks that a kustomization loads nothing remote and nothing outside the repository. In the
/// copy, such a path would point to the host.
fn check_inside_repository(directory: &str, file: &str, content: &[u8]) -> Result<(), String> {
    let references = kustomization_references(content);
    if let Some(why) = references.unknown {
        return Err(format!("{file} {why}"));
    }
    if let Some(remote) = references.remote.first() {
        return Err(format!("{file} loads `{remote}` from a remote source, which is not allowed"));
    }
    let is_outside = |path: &&String| normal_path(directory, path).is_none();
    match references.bases.iter().find(is_outside) {
        Some(path) => Err(format!("{file} loads `{path}`, outside the directory that is read")),
        None => Ok(()),
    }
}

fn directory_prefix(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}

/// Returns the wrapper kustomization. It records the origin of each object and contains the
/// overrides of the delivery tool.
fn wrapper_kustomization(path: &str, layer: &Layer) -> String {
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
