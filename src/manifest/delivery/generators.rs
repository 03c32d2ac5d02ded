//! Generators of an `ApplicationSet`, and the filling in of its template.

use std::collections::{BTreeMap, BTreeSet};

use super::super::fleet::is_below;
use super::super::layout::directory;
use super::super::yaml::{self, Node, Value};
use super::argo::items;
use super::{Around, at, flag, matches, text, word};

/// Values of a template's parameters, by their path, as in `path.basename`.
pub(super) type Params = BTreeMap<String, String>;

/// Most applications that one set may make.
const APPLICATIONS_MAX: usize = 2_000;

impl Around<'_> {
    /// Returns the parameters of each application that a generator makes.
    pub(super) fn generate(&self, generator: &Node<'_>) -> Result<Vec<Params>, String> {
        let made = if let Some(list) = at(generator, &["list"]) {
            if at(list, &["elementsYaml"]).is_some() {
                return Err("its list generator takes elements from a template".to_owned());
            }
            items(list, &["elements"]).iter().map(flat).collect()
        } else if let Some(git) = at(generator, &["git"]) {
            self.git_generator(git)?
        } else if let Some(matrix) = at(generator, &["matrix"]) {
            let [one, other] = items(matrix, &["generators"]) else {
                return Err("its matrix generator does not have two generators".to_owned());
            };
            product(&self.generate(one)?, &self.generate(other)?)?
        } else if let Some(clusters) = generator.get("clusters") {
            if at(clusters, &["selector"]).is_some() {
                return Err("its cluster generator selects by labels that are not in Git".into());
            }
            vec![self.this_cluster(clusters)]
        } else {
            let kind = match &generator.value {
                Value::Map(entries) => entries.first().map_or("", |entry| &*entry.key),
                Value::Plain(_) | Value::Quoted(_) | Value::Seq(_) | Value::Tagged(..) => "",
            };
            return Err(format!("its generator `{kind}` is not understood"));
        };
        if at(generator, &["selector"]).is_some() {
            return Err("its generator has a selector, which is not understood".to_owned());
        }
        if made.len() > APPLICATIONS_MAX {
            return Err(format!("it makes more than {APPLICATIONS_MAX} applications"));
        }
        Ok(made)
    }

    /// Returns what a cluster generator makes for this cluster; what it makes for others is theirs.
    fn this_cluster(&self, clusters: &Node<'_>) -> Params {
        let name = &self.fleet.cluster.name;
        let mut params: Params = [
            ("name", name.as_str()),
            ("nameNormalized", name.as_str()),
            ("server", "https://kubernetes.default.svc"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        if let Some(values) = at(clusters, &["values"]) {
            params.extend(flat(values).into_iter().map(|(key, v)| (format!("values.{key}"), v)));
        }
        params
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
        for path in self.directories() {
            let fits = |patterns: &[String]| patterns.iter().any(|p| matches(p, &path));
            if fits(&take) && !fits(&leave) {
                made.push(path_params(&path));
            }
        }
        let take = wanted(&["files"], false);
        for file in &self.tree.files {
            let path = self.in_repository(&file.path);
            if !take.iter().any(|pattern| matches(pattern, &path)) {
                continue;
            }
            let Ok(content) = &file.content else {
                return Err(format!("its file {path} cannot be read"));
            };
            let text = yaml::decode(content).map_err(|error| format!("its file {path} {error}"))?;
            for document in yaml::load(&text).documents {
                let mut params = flat(&document.root);
                params.extend(path_params(directory(&path)));
                made.push(params);
            }
        }
        Ok(made)
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

fn product(one: &[Params], other: &[Params]) -> Result<Vec<Params>, String> {
    if one.len().saturating_mul(other.len()) > APPLICATIONS_MAX {
        return Err(format!("it makes more than {APPLICATIONS_MAX} applications"));
    }
    let both = |a: &Params, b: &Params| a.clone().into_iter().chain(b.clone()).collect();
    Ok(one.iter().flat_map(|a| other.iter().map(move |b| both(a, b))).collect())
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

/// Fills `{{name}}` and `{{ .name }}` of a template in; what stays open is an error.
pub(super) fn fill_in(template: &str, params: &Params) -> Result<String, String> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(from) = rest.find("{{") {
        let Some(to) = rest[from..].find("}}").map(|to| from + to) else { break };
        let name = rest[from + 2..to].trim();
        let value = params.get(name).or_else(|| params.get(name.trim_start_matches('.')));
        let Some(value) = value else {
            let name = super::super::decode::shorten(name).into_owned();
            return Err(format!("its template needs `{name}`, which its generators do not give"));
        };
        out.push_str(&rest[..from]);
        // The template is JSON, so the value stands inside a JSON text.
        let quoted = serde_json::Value::from(value.as_str()).to_string();
        out.push_str(&quoted[1..quoted.len() - 1]);
        rest = &rest[to + 2..];
    }
    out.push_str(rest);
    Ok(out)
}
