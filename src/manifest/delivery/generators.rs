//! Generators of an `ApplicationSet`, and the rendering of its template.

use std::collections::{BTreeMap, BTreeSet};

use super::super::repository_layout::parent_directory;
use super::super::settings::is_within;
use super::super::yaml::{self, YamlNode, YamlValue, to_json};
use crate::model::desired::{TreeFile, is_external};

use super::expression::evaluate;
use super::label_selector::matches_labels;
use super::{
    DeliveryContext, GlobDialect, PathPattern, flag_at, items_at, node_at, scalar_text, text_at,
};

/// Template parameters by path, such as `path.basename`.
pub(super) type Params = BTreeMap<String, String>;

/// Maximum number of applications of one set.
const APPLICATIONS_MAX: usize = 2_000;

/// Maximum bytes of the parameters of one application.
const PARAMS_BYTES_MAX: usize = 32 << 10;

/// Maximum bytes of one application; no API server accepts a larger object.
pub(super) const APPLICATION_BYTES_MAX: usize = 2 << 20;

/// Maximum length of a DNS name.
const DNS_NAME_MAX: usize = 253;

/// Keys of the supported generators.
const KINDS: [&str; 5] = ["list", "git", "matrix", "merge", "clusters"];

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
        let mut generated = self.generate_all(generator)?;
        if let Some(selector) = node_at(generator, &["selector"]) {
            let fits = generated.iter().map(|params| matches_labels(selector, params));
            let fits = fits.collect::<Result<Vec<_>, _>>()?;
            let mut fits = fits.into_iter();
            generated.retain(|_| fits.next().unwrap_or(false));
        }
        Ok(generated)
    }

    fn generate_all(&self, generator: &YamlNode<'_>) -> Result<Vec<Params>, String> {
        if KINDS.iter().any(|kind| node_at(generator, &[kind, "template"]).is_some()) {
            return Err("its generator has a template of its own".to_owned());
        }
        if let Some(matrix) = node_at(generator, &["matrix"]) {
            return self.matrix(matrix);
        }
        if let Some(merge) = node_at(generator, &["merge"]) {
            return self.merge(merge);
        }
        if let Some(clusters) = generator.get("clusters") {
            let generated = self.cluster_generator(clusters)?;
            for params in &generated {
                self.check_parameter_bytes(params)?;
            }
            return Ok(generated);
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

    /// Returns the results of the first generator, with the values of the others that have the same
    /// merge keys.
    fn merge(&self, merge: &YamlNode<'_>) -> Result<Vec<Params>, String> {
        let keys = items_at(merge, &["mergeKeys"]).iter().filter_map(YamlNode::text);
        let keys: Vec<&str> = keys.collect();
        let [base, others @ ..] = items_at(merge, &["generators"]) else {
            return Err("its merge generator has no generators".to_owned());
        };
        if keys.is_empty() || others.is_empty() {
            return Err("its merge generator needs mergeKeys and two generators".to_owned());
        }
        let key_of = |params: &Params| -> Vec<Option<String>> {
            keys.iter().map(|key| params.get(*key).cloned()).collect()
        };
        let mut merged = self.generate(base)?;
        for other in others {
            for row in self.generate(other)? {
                let key = key_of(&row);
                // Only results of the first generator make applications.
                for params in merged.iter_mut().filter(|params| key_of(params) == key) {
                    params.extend(row.clone());
                    self.check_parameter_bytes(params)?;
                }
            }
        }
        Ok(merged)
    }

    fn git_generator(&self, git: &YamlNode<'_>) -> Result<Vec<Params>, String> {
        self.check_repository(
            text_at(git, &["repoURL"]).ok_or("its git generator has no repoURL")?,
        )?;
        self.check_revision(text_at(git, &["revision"]).unwrap_or_default())?;
        // With both, Argo CD only reads the directories.
        if items_at(git, &["directories"]).is_empty() {
            return self.git_files(&self.path_rules(git, "files", GlobDialect::GitPathspec)?);
        }
        let rules = self.path_rules(git, "directories", GlobDialect::GoPath)?;
        let mut generated = Vec::new();
        for path in self.directories() {
            match rules.choice(&path) {
                PathChoice::Included => generated.push(path_params(&path)),
                PathChoice::Excluded => {
                    let local = self.local_directory(&path).ok();
                    self.excluded_directories.borrow_mut().extend(local);
                }
                PathChoice::Unnamed => {}
            }
        }
        Ok(generated)
    }

    /// Reads the paths of a Git generator under `key`.
    fn path_rules(
        &self,
        git: &YamlNode<'_>,
        key: &str,
        dialect: GlobDialect,
    ) -> Result<PathRules, String> {
        let mut rules = PathRules::default();
        for entry in items_at(git, &[key]) {
            let Some(path) = text_at(entry, &["path"]) else { continue };
            let pattern = PathPattern::new(path, dialect)?;
            if flag_at(entry, &["exclude"]) {
                rules.exclude.push(pattern);
            } else {
                self.check_pattern_inside(path)?;
                rules.include.push(pattern);
            }
        }
        self.usage.add_scan()?;
        Ok(rules)
    }

    fn git_files(&self, rules: &PathRules) -> Result<Vec<Params>, String> {
        let mut generated = Vec::new();
        for file in self.own_files() {
            let path = self.repository_path(&file.path);
            if rules.choice(&path) != PathChoice::Included {
                continue;
            }
            let Ok(content) = &file.content else {
                return Err(format!("its file {path} cannot be read"));
            };
            let text = yaml::decode(content).map_err(|error| format!("its file {path} {error}"))?;
            let loaded = yaml::load(&text);
            if loaded.fault.is_some() {
                return Err(format!("its file {path} cannot be parsed"));
            }
            for document in loaded.documents {
                let mut params = flatten(&document.root);
                params.extend(path_params(parent_directory(&path)));
                let name = path.rsplit('/').next().unwrap_or_default();
                params.insert("path.filename".to_owned(), name.to_owned());
                params.insert("path.filenameNormalized".to_owned(), normalized_name(name));
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

    /// Returns the files of this repository.
    fn own_files(&self) -> impl Iterator<Item = &TreeFile> {
        self.tree.files.iter().filter(|file| !is_external(&file.path))
    }

    /// Returns every directory that contains a file, relative to the root of the repository, but for
    /// hidden ones.
    fn directories(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for file in self.own_files() {
            let path = self.repository_path(&file.path);
            let mut above = parent_directory(&path);
            while !above.is_empty() && is_within(above, &self.home.path) {
                let is_hidden = above.split('/').any(|name| name.starts_with('.'));
                if !is_hidden && !all.insert(above.to_owned()) {
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

/// The paths that a Git generator includes and excludes.
#[derive(Debug, Default)]
struct PathRules {
    include: Vec<PathPattern>,
    exclude: Vec<PathPattern>,
}

/// What a Git generator does with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PathChoice {
    Included,
    Excluded,
    Unnamed,
}

impl PathRules {
    /// An exclusion takes precedence, wherever it is in the list.
    fn choice(&self, path: &str) -> PathChoice {
        let fits = |patterns: &[PathPattern]| patterns.iter().any(|one| one.matches(path));
        match (fits(&self.include), fits(&self.exclude)) {
            (true, false) => PathChoice::Included,
            (true, true) => PathChoice::Excluded,
            (false, _) => PathChoice::Unnamed,
        }
    }
}

/// Returns a name with `-` for each character that a DNS name has not, as Argo CD does.
fn normalized_name(name: &str) -> String {
    let plain = |c: char| if matches!(c, 'a'..='z' | '0'..='9' | '-' | '.') { c } else { '-' };
    let name: String = name.to_lowercase().chars().map(plain).take(DNS_NAME_MAX).collect();
    name.trim_matches(['-', '.']).to_owned()
}

fn path_params(path: &str) -> Params {
    let basename = path.rsplit('/').next().unwrap_or_default();
    let mut params = Params::new();
    for (key, value) in [
        ("path", path),
        ("path.path", path),
        ("path.basename", basename),
        ("path.basenameNormalized", &normalized_name(basename)),
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
pub(super) fn flatten(node: &YamlNode<'_>) -> Params {
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
    /// Replaces the expressions of a template, such as `{{name}}` and `{{ .name }}`. A parameter
    /// without a value is an error.
    pub(super) fn render_template(
        &self,
        template: &str,
        params: &Params,
    ) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = template;
        while let Some(from) = rest.find("{{") {
            let Some(to) = rest[from..].find("}}").map(|to| from + to) else { break };
            // The template is JSON, so the expression is a part of a JSON string.
            let inner = rest[from + 2..to].trim_start_matches('-').trim_end_matches('-');
            let inner: Option<String> = serde_json::from_str(&format!("\"{inner}\"")).ok();
            let inner = inner.ok_or("its template has an expression that cannot be read")?;
            let value = evaluate(&inner, params)?;
            out.push_str(&rest[..from]);
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
