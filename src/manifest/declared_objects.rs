//! The objects of a tree as their files write them, for a cluster that stores what it does not
//! simulate.

use serde_json::Value as Json;

use super::hooks;
use super::manifest_sources::{DeliverySources, SourceContext, VisitedText};
use super::manifest_text::{ManifestText, parse_documents, sorted_by_path};
use super::placeholder::{Vars, known_values, substitute};
use super::repository_layout::{RepositoryLayout, is_kustomization};
use super::settings::is_fleet_document;
use super::source_area::source_areas;
use super::tree_reader::without_world_file;
use super::yaml::{self, YamlNode, YamlValue, to_json};
use crate::model::desired::{Fleet, RenderResults, Tree};

/// An object of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct DeclaredObject {
    /// The namespace to which it is delivered, if its kind is namespaced.
    pub namespace: String,
    /// The object.
    pub object: Json,
}

/// Returns every object of `tree` that the sources of `fleet` name, with rendered output, in the
/// order of the files. Files that cannot be read are left out:
/// [`read_with_renderings`](super::read_with_renderings) reports them.
pub fn declared_objects(
    tree: &Tree,
    fleet: &Fleet,
    renderings: &RenderResults,
) -> Vec<DeclaredObject> {
    let tree = &*without_world_file(sorted_by_path(tree), fleet);
    let (layout, areas) = (RepositoryLayout::from_tree(tree), source_areas(fleet));
    let context = SourceContext::new(tree, fleet, &layout, &areas, renderings);
    let sources = DeliverySources::discover(&context);
    let mut objects = Vec::new();
    sources.visit_manifests(&context, &mut |visit| {
        let VisitedText::Manifest(manifest) = visit else { return };
        let Ok(bytes) = &manifest.file.content else { return };
        let excluded = layout.exclusion_reason(&manifest.file.path).is_some();
        if manifest.origins.is_none() && (excluded || is_kustomization(&manifest.file.path)) {
            return;
        }
        let Ok(text) = yaml::decode(bytes) else { return };
        let vars = known_values(manifest.vars);
        let manifest = ManifestText { vars: &vars, ..manifest };
        parse_documents(manifest.format, &text, manifest.vars, |loaded| {
            for document in &loaded.documents {
                add(manifest, &document.root, &mut objects);
            }
        });
    });
    objects
}

fn add(manifest: ManifestText<'_>, root: &YamlNode<'_>, into: &mut Vec<DeclaredObject>) {
    if is_fleet_document(root) || hooks::does_not_stay(manifest, root) {
        return;
    }
    let kind = root.get("kind").and_then(YamlNode::text).unwrap_or_default();
    if let (Some(YamlValue::Seq(items)), true) =
        (root.get("items").map(|items| &items.value), kind.ends_with("List"))
    {
        for item in items {
            add(manifest, item, into);
        }
        return;
    }
    let mut object = to_json(root);
    if !manifest.vars.is_empty() {
        substitute_texts(&mut object, manifest.vars);
    }
    let is_named = |part: &str| object.pointer(part).is_some_and(Json::is_string);
    if !["/kind", "/apiVersion", "/metadata/name"].into_iter().all(is_named) {
        return;
    }
    let own = object["metadata"]["namespace"].as_str().filter(|own| !own.is_empty());
    let namespace = manifest.namespaces.resolve(own).to_owned();
    into.push(DeclaredObject { namespace, object });
}

/// Replaces placeholders in all texts of a value.
fn substitute_texts(value: &mut Json, vars: &Vars) {
    match value {
        Json::String(text) => *text = substitute(text, vars).text.into_owned(),
        Json::Array(items) => items.iter_mut().for_each(|item| substitute_texts(item, vars)),
        Json::Object(fields) => {
            fields.values_mut().for_each(|value| substitute_texts(value, vars));
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::TreeFile;

    #[test]
    fn objects_are_declared_as_written_and_lists_are_opened() {
        let file = |path: &str, text: &str| TreeFile {
            path: path.into(),
            content: Ok(text.as_bytes().into()),
        };
        let tree = Tree {
            files: vec![
                file(
                    "apps.yaml",
                    "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, \
                     metadata: {name: web, namespace: shop}, spec: {ports: [{port: 80}]}}]}\n---\n\
                     {apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {a: '${B:-c}'}}\n\
                     ---\n{kind: NoVersion, metadata: {name: x}}\n---\n[not, an, object]\n",
                ),
                file("kustomization.yaml", "{apiVersion: v1, kind: A, metadata: {name: b}}"),
                file("broken.yaml", "a: [\n"),
                file(
                    "fleetwright.yaml",
                    "{apiVersion: fleetwright.dev/v1, kind: Fleet, \
                     metadata: {name: f}}",
                ),
            ],
        };
        let objects = declared_objects(&tree, &Fleet::default(), &RenderResults::default());
        let found: Vec<String> = objects
            .iter()
            .map(|one| format!("{} {}", one.namespace, one.object["metadata"]["name"]))
            .collect();
        assert_eq!(found, ["shop \"web\"", "default \"c\""]);
        assert_eq!(objects[1].object["data"]["a"], "c", "placeholders have their values in plans");
    }
}
