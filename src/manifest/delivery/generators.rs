//! Generators of an `ApplicationSet`, and the filling in of its template.

use std::collections::{BTreeMap, BTreeSet};

use super::super::fleet::is_below;
use super::super::layout::directory;
use super::super::yaml::{self, Node, Value, to_json};
use super::argo::items;
use super::{Around, at, flag, matches, text, word};

/// Values of a template's parameters, by their path, as in `path.basename`.
pub(super) type Params = BTreeMap<String, String>;

/// Most applications that one set may make.
const APPLICATIONS_MAX: usize = 2_000;

/// Most bytes of the parameters of one application.
const PARAMS_BYTES_MAX: usize = 32 << 10;

/// Most bytes of one application; no API server takes a larger object.
const APPLICATION_BYTES_MAX: usize = 2 << 20;

/// Keys of the generators that are understood.
const KINDS: [&str; 4] = ["list", "git", "matrix", "clusters"];

/// Checks how many applications a set makes.
pub(super) fn bounded(count: usize) -> Result<(), String> {
    if count <= APPLICATIONS_MAX {
        return Ok(());
    }
    Err(format!("it makes more than {APPLICATIONS_MAX} applications"))
}

impl Around<'_> {
    /// Returns the parameters of each application that a generator makes.
    pub(super) fn generate(&self, generator: &Node<'_>) -> Result<Vec<Params>, String> {
        if at(generator, &["selector"]).is_some() {
            return Err("its generator has a selector, which is not understood".to_owned());
        }
        if KINDS.iter().any(|kind| at(generator, &[kind, "template"]).is_some()) {
            return Err("its generator has a template of its own".to_owned());
        }
        if let Some(matrix) = at(generator, &["matrix"]) {
            return self.matrix(matrix);
        }
        if is_template(&to_json(generator).to_string()) {
            return Err("its generator is a template itself, with nothing to fill it in".to_owned());
        }
        let made = if let Some(list) = at(generator, &["list"]) {
            if at(list, &["elementsYaml"]).is_some() {
                return Err("its list generator takes elements from a template".to_owned());
            }
            items(list, &["elements"]).iter().map(flat).collect()
        } else if let Some(git) = at(generator, &["git"]) {
            self.git_generator(git)?
        } else if let Some(clusters) = generator.get("clusters") {
            if at(clusters, &["selector"]).is_some() {
                return Err("its cluster generator selects by labels that are not in Git".into());
            }
            self.clusters(clusters)
        } else {
            let kind = match &generator.value {
                Value::Map(entries) => entries.first().map_or("", |entry| &*entry.key),
                Value::Plain(_) | Value::Quoted(_) | Value::Seq(_) | Value::Tagged(..) => "",
            };
            return Err(format!("its generator `{kind}` is not understood"));
        };
        bounded(made.len())?;
        for params in &made {
            self.weigh(params)?;
        }
        Ok(made)
    }

    /// Counts the bytes of the parameters of one application.
    fn weigh(&self, params: &Params) -> Result<(), String> {
        let bytes = params.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > PARAMS_BYTES_MAX {
            return Err(format!("its parameters take more than {PARAMS_BYTES_MAX} bytes"));
        }
        self.used.text(bytes)
    }

    /// Returns every pair of what two generators make; the second one may be a template that is
    /// filled in with what the first one makes.
    fn matrix(&self, matrix: &Node<'_>) -> Result<Vec<Params>, String> {
        let [one, other] = items(matrix, &["generators"]) else {
            return Err("its matrix generator does not have two generators".to_owned());
        };
        let template = to_json(other).to_string();
        let fixed = if is_template(&template) { None } else { Some(self.generate(other)?) };
        let mut made = Vec::new();
        for row in self.generate(one)? {
            let filled;
            let rows = if let Some(fixed) = &fixed {
                fixed
            } else {
                let text = self.fill_in(&template, &row)?;
                let loaded = yaml::load(&text);
                let document = loaded.documents.first().ok_or("its matrix generator is empty")?;
                filled = self.generate(&document.root)?;
                &filled
            };
            bounded(made.len().saturating_add(rows.len()))?;
            for other in rows {
                let both: Params = row.clone().into_iter().chain(other.clone()).collect();
                self.weigh(&both)?;
                made.push(both);
            }
        }
        Ok(made)
    }

    /// Returns what a cluster generator makes: for this cluster, and for those that the settings
    /// list as others, so that their directories are known to be theirs.
    fn clusters(&self, clusters: &Node<'_>) -> Vec<Params> {
        let here = (self.fleet.cluster.name.as_str(), "https://kubernetes.default.svc");
        let others = self.fleet.delivery.other_clusters.iter();
        let all = others.map(|name| (name.as_str(), name.as_str())).chain([here]);
        let own = at(clusters, &["values"]).map(flat).unwrap_or_default();
        let values = own.into_iter().map(|(key, value)| (format!("values.{key}"), value));
        let values: Params = values.collect();
        let params = |(name, server): (&str, &str)| {
            let stated = [("name", name), ("nameNormalized", name), ("server", server)];
            let stated = stated.map(|(key, value)| (key.to_owned(), value.to_owned()));
            stated.into_iter().chain(values.clone()).collect()
        };
        all.map(params).collect()
    }

    fn git_generator(&self, git: &Node<'_>) -> Result<Vec<Params>, String> {
        self.is_here(text(git, &["repoURL"]).ok_or("its git generator has no repoURL")?)?;
        self.is_this_revision(text(git, &["revision"]).unwrap_or_default())?;
        let own = |entry: &Node<'_>| text(entry, &["path"]).map(str::to_owned);
        let wanted = |of: &[&str], but: bool| -> Vec<String> {
            let counts = |entry: &&Node<'_>| flag(entry, &["exclude"]) == but;
            items(git, of).iter().filter(counts).filter_map(own).collect()
        };
        let mut made = Vec::new();
        let (take, leave) = (wanted(&["directories"], false), wanted(&["directories"], true));
        let files = wanted(&["files"], false);
        for pattern in take.iter().chain(&files) {
            self.looks_inside(pattern)?;
        }
        self.used.look()?;
        for path in self.directories() {
            let fits = |patterns: &[String]| patterns.iter().any(|p| matches(p, &path));
            if fits(&take) && !fits(&leave) {
                made.push(path_params(&path));
            }
        }
        let (take, leave) = (files, wanted(&["files"], true));
        for file in &self.tree.files {
            let path = self.in_repository(&file.path);
            let fits = |patterns: &[String]| patterns.iter().any(|p| matches(p, &path));
            if !fits(&take) || fits(&leave) {
                continue;
            }
            let Ok(content) = &file.content else {
                return Err(format!("its file {path} cannot be read"));
            };
            let text = yaml::decode(content).map_err(|error| format!("its file {path} {error}"))?;
            for document in yaml::load(&text).documents {
                let mut params = flat(&document.root);
                params.extend(path_params(directory(&path)));
                bounded(made.len() + 1)?;
                self.weigh(&params)?;
                made.push(params);
            }
        }
        Ok(made)
    }

    /// Checks that a pattern fits nothing outside the directory that is read.
    fn looks_inside(&self, pattern: &str) -> Result<(), String> {
        let below = &self.home.below;
        let fixed = pattern.split(['*', '?', '{', '[']).next().unwrap_or_default();
        let fixed = if fixed == pattern { pattern } else { directory(fixed) };
        if below.is_empty() || is_below(fixed, below) {
            return Ok(());
        }
        let pattern = super::super::decode::shorten(pattern);
        Err(format!("its pattern `{pattern}` looks outside the directory that is read"))
    }

    /// Returns every directory that holds a file, counted from the root of the repository.
    fn directories(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for file in &self.tree.files {
            let path = self.in_repository(&file.path);
            let mut above = directory(&path);
            while !above.is_empty() && is_below(above, &self.home.below) {
                if !all.insert(above.to_owned()) {
                    break;
                }
                above = directory(above);
            }
        }
        all
    }

    fn in_repository(&self, path: &str) -> String {
        if self.home.below.is_empty() {
            path.to_owned()
        } else {
            format!("{}/{path}", self.home.below)
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

/// Returns whether a text has something to fill in.
fn is_template(text: &str) -> bool {
    text.contains("{{")
}

/// Returns the scalars of a mapping by their paths.
fn flat(node: &Node<'_>) -> Params {
    let mut params = Params::new();
    let mut open = vec![(String::new(), node)];
    while let Some((path, node)) = open.pop() {
        match &node.value {
            Value::Map(entries) => open.extend(entries.iter().map(|entry| {
                let dot = if path.is_empty() { "" } else { "." };
                (format!("{path}{dot}{}", entry.key), &entry.value)
            })),
            Value::Plain(_) | Value::Quoted(_) => {
                params.insert(path, word(node));
            }
            Value::Seq(_) | Value::Tagged(..) => {}
        }
    }
    params
}

impl Around<'_> {
    /// Fills `{{name}}` and `{{ .name }}` of a template in; what stays open is an error.
    pub(super) fn fill_in(&self, template: &str, params: &Params) -> Result<String, String> {
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
            // The template is JSON, so the value stands inside a JSON text.
            let quoted = serde_json::Value::from(value.as_str()).to_string();
            out.push_str(&quoted[1..quoted.len() - 1]);
            if out.len() > APPLICATION_BYTES_MAX {
                return Err(format!("it makes more than {APPLICATION_BYTES_MAX} bytes at once"));
            }
            rest = &rest[to + 2..];
        }
        out.push_str(rest);
        self.used.text(out.len())?;
        Ok(out)
    }
}
