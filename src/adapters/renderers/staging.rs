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
    ChartDependency, KUSTOMIZATION, RemoteReference, STAGED_PREFIX, candidate_paths,
    chart_dependencies, dependency_source, kustomization_references, normal_path,
    parse_remote_reference, stays_inside_repository,
};
use crate::model::desired::{
    CommonLabels, ExternalSource, Layer, Recipe, Release, RenderRequest, Values, is_external,
};
use crate::model::printable_url::printable_url;

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
    /// kustomize needs Helm, because a kustomization has charts.
    pub(super) needs_helm: bool,
    /// kustomize may load files anywhere in the copy: no kustomization can name others.
    pub(super) loads_anywhere: bool,
}

impl StagedFiles {
    /// Collects the files for a request.
    pub(super) fn collect(
        order: &RenderRequest,
        repo: &dyn RepositoryFiles,
        limits: &RendererLimits,
    ) -> Result<Self, String> {
        let (staged, missing) = (Self::default(), Vec::new());
        let mut stager = FileStager { repo, limits, staged, bytes: 0, missing };
        match &order.recipe {
            Recipe::Kustomize(layer) => stager.kustomize(&order.path, layer)?,
            Recipe::Helm(release) => stager.helm(&order.path, release)?,
        }
        match stager.missing.into_iter().next() {
            Some(why) => Err(why),
            None => Ok(stager.staged),
        }
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
    /// Reasons why external sources are not available. All of them are requested before the
    /// rendering fails.
    missing: Vec<String>,
}

impl FileStager<'_> {
    fn add_file(&mut self, path: &str) -> Result<Arc<[u8]>, String> {
        self.add_file_as(path, path)
    }

    /// Adds the file at `path` of the repository as the file at `staged`.
    fn add_file_as(&mut self, path: &str, staged: &str) -> Result<Arc<[u8]>, String> {
        if let Some(known) = self.staged.files.get(staged) {
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
        self.staged.files.insert(staged.to_owned(), Arc::clone(&content));
        Ok(content)
    }

    /// Adds all files of the directory `from` of the repository below `to`.
    fn add_directory_as(&mut self, from: &str, to: &str) -> Result<(), String> {
        let prefix = directory_prefix(from);
        for file in self.files_below(from) {
            let rest = file.strip_prefix(&prefix).unwrap_or(&file);
            self.add_file_as(&file, &format!("{}{rest}", directory_prefix(to)))?;
        }
        Ok(())
    }

    /// Returns the directory of an external source; `None` if it is not available.
    fn external(&mut self, source: &ExternalSource) -> Option<String> {
        match self.repo.external_directory(source) {
            Ok(directory) => Some(directory),
            Err(why) => {
                self.missing.push(why);
                None
            }
        }
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
                if directory == path && layer.is_flux {
                    open.extend(self.generate_kustomization(path)?);
                    continue;
                }
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
        if !self.missing.is_empty() {
            return Ok(());
        }
        let mut stays_inside = true;
        for (file, content) in &self.staged.files {
            let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
            if KUSTOMIZATION.contains(&name) {
                check_inside_repository(directory, file, content)?;
                stays_inside &= stays_inside_repository(content, directory);
            }
        }
        self.staged.loads_anywhere = layer.is_flux && stays_inside;
        self.staged
            .generated
            .insert("kustomization.yaml".to_owned(), wrapper_kustomization(path, layer));
        Ok(())
    }

    /// Adds a kustomization of all manifests below `path`, as Flux generates it, and returns the
    /// directories that it names: those with a kustomization of their own.
    fn generate_kustomization(&mut self, path: &str) -> Result<Vec<String>, String> {
        let prefix = directory_prefix(path);
        let (mut directories, mut resources) = (Vec::new(), Vec::new());
        let own = self.files_below(path).into_iter();
        for file in own.filter(|file| is_external(file) == is_external(path)) {
            let above = file.rsplit_once('/').map_or("", |(directory, _)| directory);
            let inner = directories_above(above, path).find(|d| self.kustomization(d).is_some());
            if let Some(inner) = inner {
                if !directories.contains(&inner) {
                    resources.push(inner.strip_prefix(&prefix).unwrap_or(&inner).to_owned());
                    directories.push(inner);
                }
            } else if [".yaml", ".yml"].iter().any(|end| file.ends_with(end)) {
                self.add_file(&file)?;
                resources.push(file.strip_prefix(&prefix).unwrap_or(&file).to_owned());
            }
        }
        let kustomization = json!({
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": resources,
        });
        let content = kustomization.to_string().into_bytes().into();
        self.staged.files.insert(format!("{prefix}{}", KUSTOMIZATION[0]), content);
        Ok(directories)
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
            let mut content = self.add_file(&file)?;
            if KUSTOMIZATION.contains(&file.rsplit('/').next().unwrap_or(&file)) {
                content = self.localize(&file, &content, &mut directories)?;
            }
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

    /// Replaces the remote references of a kustomization by the directories of their sources, and
    /// adds its charts. Returns the new content.
    fn localize(
        &mut self,
        file: &str,
        content: &Arc<[u8]>,
        directories: &mut Vec<String>,
    ) -> Result<Arc<[u8]>, String> {
        let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
        let references = kustomization_references(content);
        if let Some(why) = references.unsupported {
            return Err(format!("{file} uses {why}"));
        }
        for chart in &references.charts {
            self.staged.needs_helm = true;
            let to = normal_path(directory, &chart.directory);
            let to = to.ok_or_else(|| format!("{file} has charts outside of the repository"))?;
            match &chart.source {
                // A chart that the repository contains needs no source, as with kustomize.
                _ if self.is_directory(&to) => self.add_directory_as(&to, &to)?,
                None => return Err(format!("{file} uses the chart `{to}`, which is absent")),
                Some(source) => {
                    if let Some(from) = self.external(source) {
                        self.add_directory_as(&from, &to)?;
                    }
                }
            }
        }
        let mut remote = references.remote;
        if remote.is_empty() {
            return Ok(Arc::clone(content));
        }
        // A URL may be the beginning of another one.
        remote.sort_by_key(|text| std::cmp::Reverse(text.len()));
        remote.dedup();
        let mut text = String::from_utf8_lossy(content).into_owned();
        for reference in &remote {
            let Some(RemoteReference { source, path }) = parse_remote_reference(reference) else {
                return Err(format!(
                    "{file} loads `{}`, which is neither a file at a URL without a token nor a Git \
                     repository with https or ssh",
                    printable_url(reference)
                ));
            };
            let Some(from) = self.external(&source) else { continue };
            let path = normal_path(&from, &path).filter(|path| path.starts_with(&from));
            let path = path.ok_or_else(|| {
                format!("`{}` is outside of its source", printable_url(reference))
            })?;
            let up = directory.split('/').filter(|part| !part.is_empty()).map(|_| "../");
            text = text.replace(reference, &format!("{}{path}", up.collect::<String>()));
            if self.is_directory(&path) {
                directories.push(path);
            }
        }
        let content: Arc<[u8]> = text.into_bytes().into();
        self.staged.files.insert(file.to_owned(), Arc::clone(&content));
        Ok(content)
    }

    fn is_directory(&self, path: &str) -> bool {
        let prefix = directory_prefix(path);
        let mut from = self.repo.paths().range(prefix.clone()..);
        from.next().is_some_and(|first| first.starts_with(&prefix))
    }

    /// Adds the dependencies of the chart at `path` that its directory does not contain.
    fn dependencies(&mut self, path: &str) -> Result<(), String> {
        let prefix = directory_prefix(path);
        let read = |name: &str| self.staged.files.get(&format!("{prefix}{name}")).cloned();
        let Some(chart) = read("Chart.yaml") else { return Ok(()) };
        // Charts of the first API version list their dependencies in a file of their own.
        let (listed, lock) = match read("requirements.yaml") {
            Some(listed) => (listed, read("requirements.lock")),
            None => (chart, read("Chart.lock")),
        };
        for dependency in chart_dependencies(&listed, lock.as_deref()) {
            let to = format!("{prefix}charts/{}", dependency.name);
            let is_archive = |file: &String| {
                let rest = file.strip_prefix(&to).and_then(|rest| rest.strip_prefix('-'));
                let version = rest.and_then(|rest| rest.strip_suffix(".tgz")).unwrap_or_default();
                version.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit())
            };
            if dependency.repository.is_empty()
                || self.is_directory(&to)
                || self.staged.files.keys().any(is_archive)
            {
                continue;
            }
            if let Some(local) = dependency.repository.strip_prefix("file://") {
                let from = normal_path(path, local).filter(|from| self.is_directory(from));
                let from = from.ok_or_else(|| {
                    format!("its dependency `{}` is not in the repository", dependency.name)
                })?;
                self.add_directory_as(&from, &to)?;
                continue;
            }
            let source = dependency_source(&dependency).ok_or_else(|| {
                let ChartDependency { name, repository, .. } = &dependency;
                let repository = printable_url(repository);
                format!("its dependency {name} is in repository `{repository}`, which is no URL")
            })?;
            if let Some(from) = self.external(&source) {
                self.add_directory_as(&from, &to)?;
            }
        }
        Ok(())
    }

    fn helm(&mut self, path: &str, release: &Release) -> Result<(), String> {
        let chart = self.files_below(path);
        if !chart.contains(&format!("{}Chart.yaml", directory_prefix(path))) {
            return Err(format!("`{path}` has no Chart.yaml"));
        }
        for file in chart {
            self.add_file(&file)?;
        }
        self.dependencies(path)?;
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
        let remote = printable_url(remote);
        return Err(format!("{file} loads `{remote}` from a remote source, which is not allowed"));
    }
    let is_outside = |path: &&String| normal_path(directory, path).is_none();
    match references.bases.iter().find(is_outside) {
        Some(path) => Err(format!("{file} loads `{path}`, outside the directory that is read")),
        None => Ok(()),
    }
}

/// Returns the directories from below `top` down to `directory`, the outermost first.
fn directories_above(directory: &str, top: &str) -> impl Iterator<Item = String> {
    let start = directory_prefix(top).len();
    let ends = directory.match_indices('/').map(|(at, _)| at).chain([directory.len()]);
    let ends: Vec<usize> = ends.filter(|end| *end > start).collect();
    let directory = directory.to_owned();
    ends.into_iter().map(move |end| directory[..end].to_owned())
}

fn directory_prefix(directory: &str) -> String {
    if directory.is_empty() { String::new() } else { format!("{directory}/") }
}

/// Returns the wrapper kustomization. It records the origin of each object and contains the
/// overrides of the delivery tool.
fn wrapper_kustomization(path: &str, layer: &Layer) -> String {
    let Layer {
        namespace,
        name_prefix,
        name_suffix,
        components,
        patches,
        replicas,
        labels,
        is_flux: _,
    } = layer;
    let labels = labels.iter().map(|CommonLabels { pairs, in_selectors }| {
        json!({ "pairs": pairs, "includeSelectors": in_selectors, "includeTemplates": true })
    });
    let labels: Vec<_> = labels.collect();
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
        ("labels", json!(labels), !labels.is_empty()),
    ] {
        if is_set {
            top[key] = value;
        }
    }
    top.to_string()
}
