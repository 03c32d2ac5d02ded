//! Generators of an `ApplicationSet`, and the rendering of its template.

use std::collections::{BTreeMap, BTreeSet};

use super::super::repository_layout::parent_directory;
use super::super::settings::is_within;
use super::super::yaml::{self, YamlNode, YamlValue, to_json};
use super::{DeliveryContext, flag_at, items_at, matches, node_at, scalar_text, text_at};

/// Template parameters by path, such as `path.basename`.
pub(super) type Params = BTreeMap<String, String>;

/// Maximum number of applications of one set.
const APPLICATIONS_MAX: usize = 2_000;

/// Maximum bytes of the parameters of one application.
const PARAMS_BYTES_MAX: usize = 32 << 10;

/// Maximum bytes of one application; no API server accepts a larger object.
const APPLICATION_BYTES_MAX: usize = 2 << 20;

/// Keys of the supported generators.
const KINDS: [&str; 4] = ["list", "git", "matrix", "clusters"];

/// Checks the number of applications of a set against its limit.
pub(super) fn check_application_count(count: usize) -> Result<(), String> {
    if count <= APPLICATIONS_MAX {
        return Ok(());
    }
    Err(format!("it makes more than {APPLICATIONS_MAX} applications"))
}

impl DeliveryContext<'_> {
    /// Returns the parameters of each application that a generator produces.
    pub(super) fn generate(&self, generator: &YamlNode<'_>) -> Result<Vec<Params>, String> {
        if node_at(generator, &["selector"]).is_some() {
            return Err("its generator has a selector, which is not supported".to_owned());
        }
        if KINDS.iter().any(|kind| node_at(generator, &[kind, "template"]).is_some()) {
            return Err("its generator has a template of its own".to_owned());
        }
        if let Some(matrix) = node_at(generator, &["matrix"]) {
            return self.matrix(matrix);
        }
        if is_template(&to_json(generator).to_string()) {
            return Err("its generator is a template itself, with nothing to fill it in".to_owned());
        }
        let generated = if let Some(list) = node_at(generator, &["list"]) {
            if node_at(list, &["elementsYaml"]).is_some() {
                return Err("its list generator takes elements from a template".to_owned());
            }
            items_at(list, &["elements"]).iter().map(flatten).collect()
        } else if let Some(git) = node_at(generator, &["git"]) {
            self.git_generator(git)?
        } else if let Some(clusters) = generator.get("clusters") {
            if node_at(clusters, &["selector"]).is_some() {
                return Err("its cluster generator selects by labels that are not in Git".into());
            }
            self.cluster_generator(clusters)
        } else {
            let kind = match &generator.value {
                YamlValue::Map(entries) => entries.first().map_or("", |entry| &*entry.key),
                YamlValue::Plain(_)
                | YamlValue::Quoted(_)
                | YamlValue::Seq(_)
                | YamlValue::Tagged(..) => "",
            };
            return Err(format!("its `{kind}` generator is not supported"));
        };
        check_application_count(generated.len())?;
        for params in &generated {
            self.check_parameter_bytes(params)?;
        }
        Ok(generated)
    }

    /// Checks the bytes of one application's parameters against the limits.
    fn check_parameter_bytes(&self, params: &Params) -> Result<(), String> {
        let bytes = params.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > PARAMS_BYTES_MAX {
            return Err(format!("its parameters take more than {PARAMS_BYTES_MAX} bytes"));
        }
        self.usage.add_text(bytes)
    }

    /// Returns the product of two generators. The second one may be a template, which is rendered
    /// with each result of the first.
    fn matrix(&self, matrix: &YamlNode<'_>) -> Result<Vec<Params>, String> {
        let [one, other] = items_at(matrix, &["generators"]) else {
            return Err("its matrix generator does not have two generators".to_owned());
        };
        let template = to_json(other).to_string();
        let fixed = if is_template(&template) { None } else { Some(self.generate(other)?) };
        let mut generated = Vec::new();
        for row in self.generate(one)? {
            let filled;
            let rows = if let Some(fixed) = &fixed {
                fixed
            } else {
                let text = self.render_template(&template, &row)?;
                let loaded = yaml::load(&text);
                let document = loaded.documents.first().ok_or("its matrix generator is empty")?;
                filled = self.generate(&document.root)?;
                &filled
            };
            check_application_count(generated.len().saturating_add(rows.len()))?;
            for other in rows {
                let both: Params = row.clone().into_iter().chain(other.clone()).collect();
                self.check_parameter_bytes(&both)?;
                generated.push(both);
            }
        }
        Ok(generated)
    }

    /// Returns the results of a cluster generator: for this cluster, and for the other clusters in
    /// the settings, whose directories must be known as theirs.
    fn cluster_generator(&self, clusters: &YamlNode<'_>) -> Vec<Params> {
        let here = (self.fleet.cluster.name.as_str(), "https://kubernetes.default.svc");
        let others = self.fleet.delivery.other_clusters.iter();
        let all = others.map(|name| (name.as_str(), name.as_str())).chain([here]);
        let own = node_at(clusters, &["values"]).map(flatten).unwrap_or_default();
        let values = own.into_iter().map(|(key, value)| (format!("values.{key}"), value));
        let values: Params = values.collect();
        let params = |(name, server): (&str, &str)| {
            let stated = [("name", name), ("nameNormalized", name), ("server", server)];
            let stated = stated.map(|(key, value)| (key.to_owned(), value.to_owned()));
            stated.into_iter().chain(values.clone()).collect()
        };
        all.map(params).collect()
    }

    fn git_generator(&self, git: &YamlNode<'_>) -> Result<Vec<Params>, String> {
        self.check_repository(
            text_at(git, &["repoURL"]).ok_or("its git generator has no repoURL")?,
        )?;
        self.check_revision(text_at(git, &["revision"]).unwrap_or_default())?;
        let own = |entry: &YamlNode<'_>| text_at(entry, &["path"]).map(str::to_owned);
        let patterns = |of: &[&str], excluded: bool| -> Vec<String> {
            let counts = |entry: &&YamlNode<'_>| flag_at(entry, &["exclude"]) == excluded;
            items_at(git, of).iter().filter(counts).filter_map(own).collect()
        };
        let mut generated = Vec::new();
        let (include, exclude) =
            (patterns(&["directories"], false), patterns(&["directories"], true));
        let files = patterns(&["files"], false);
        for pattern in include.iter().chain(&files) {
            self.check_pattern_inside(pattern)?;
        }
        self.usage.add_scan()?;
        for path in self.directories() {
            let fits = |patterns: &[String]| patterns.iter().any(|p| matches(p, &path));
            if fits(&include) && !fits(&exclude) {
                generated.push(path_params(&path));
            }
        }
        let (include, exclude) = (files, patterns(&["files"], true));
        for file in &self.tree.files {
            let path = self.repository_path(&file.path);
            let fits = |patterns: &[String]| patterns.iter().any(|p| matches(p, &path));
            if !fits(&include) || fits(&exclude) {
                continue;
            }
            let Ok(content) = &file.content else {
                return Err(format!("its file {path} cannot be read"));
            };
            let text = yaml::decode(content).map_err(|error| format!("its file {path} {error}"))?;
            for document in yaml::load(&text).documents {
                let mut params = flatten(&document.root);
                params.extend(path_params(parent_directory(&path)));
                check_application_count(generated.len() + 1)?;
                self.check_parameter_bytes(&params)?;
                generated.push(params);
            }
        }
        Ok(generated)
    }

    /// Checks that a pattern matches nothing outside the directory that is read.
    fn check_pattern_inside(&self, pattern: &str) -> Result<(), String> {
        let below = &self.home.path;
        let fixed = pattern.split(['*', '?', '{', '[']).next().unwrap_or_default();
        let fixed = if fixed == pattern { pattern } else { parent_directory(fixed) };
        if below.is_empty() || is_within(fixed, below) {
            return Ok(());
        }
        let pattern = super::super::decode::shorten(pattern);
        Err(format!("its pattern `{pattern}` looks outside the directory that is read"))
    }

    /// Returns every directory that contains a file, relative to the root of the repository.
    fn directories(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for file in &self.tree.files {
            let path = self.repository_path(&file.path);
            let mut above = parent_directory(&path);
            while !above.is_empty() && is_within(above, &self.home.path) {
                if !all.insert(above.to_owned()) {
                    break;
                }
                above = parent_directory(above);
            }
        }
        all
    }

    fn repository_path(&self, path: &str) -> String {
        if self.home.path.is_empty() {
            path.to_owned()
        } else {
            format!("{}/{path}", self.home.path)
        }
    }
}

fn path_params(path: &str) -> Params {
    let basename = path.rsplit('/').next().unwrap_or_default();
    let mut params = Params::new();
    for (key, value) in [
        ("path", path),
        ("path.path", path),
        ("path.basename", basename),
        ("path.basenameNormalized", basename),
    ] {
        params.insert(key.to_owned(), value.to_owned());
    }
    for (at, name) in path.split('/').enumerate() {
        params.insert(format!("path[{at}]"), name.to_owned());
        params.insert(format!("index .path.segments {at}"), name.to_owned());
    }
    params
}

fn is_template(text: &str) -> bool {
    text.contains("{{")
}

/// Returns the scalars of a mapping by path.
fn flatten(node: &YamlNode<'_>) -> Params {
    let mut params = Params::new();
    let mut open = vec![(String::new(), node)];
    while let Some((path, node)) = open.pop() {
        match &node.value {
            YamlValue::Map(entries) => open.extend(entries.iter().map(|entry| {
                let dot = if path.is_empty() { "" } else { "." };
                (format!("{path}{dot}{}", entry.key), &entry.value)
            })),
            YamlValue::Plain(_) | YamlValue::Quoted(_) => {
                params.insert(path, scalar_text(node));
            }
            YamlValue::Seq(_) | YamlValue::Tagged(..) => {}
        }
    }
    params
}

impl DeliveryContext<'_> {
    /// Replaces `{{name}}` and `{{ .name }}` in a template. A parameter without a value is an
    /// error.
    pub(super) fn render_template(
        &self,
        template: &str,
        params: &Params,
    ) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = template;
        while let Some(from) = rest.find("{{") {
            let Some(to) = rest[from..].find("}}").map(|to| from + to) else { break };
            let name = rest[from + 2..to].trim();
            let value = params.get(name).or_else(|| params.get(name.trim_start_matches('.')));
            let Some(value) = value else {
                let name = super::super::decode::shorten(name).into_owned();
                return Err(format!(
                    "its template needs `{name}`, which its generators do not give"
                ));
            };
            out.push_str(&rest[..from]);
            // The template is JSON, so the value is inside a JSON string.
            let quoted = serde_json::Value::from(value.as_str()).to_string();
            out.push_str(&quoted[1..quoted.len() - 1]);
            if out.len() > APPLICATION_BYTES_MAX {
                return Err(format!("it makes more than {APPLICATION_BYTES_MAX} bytes at once"));
            }
            rest = &rest[to + 2..];
        }
        out.push_str(rest);
        self.usage.add_text(out.len())?;
        Ok(out)
    }
}
