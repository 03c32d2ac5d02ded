//! `OpenAPI` documents: as much as `kubectl apply` needs.
//!
//! kubectl checks whether the server validates fields. There are no Kubernetes schemas: fields are
//! stored as written, and `kubectl explain` has no content.

use serde_json::{Map, Value as Json, json};

use super::resource::{RESOURCES, ServedResource};

/// Advertised patch types. Strategic merge is supported but not listed: clients would then require
/// schemas, and they know those of Kubernetes without them.
const PATCHES: [&str; 3] =
    ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];

/// Returns the index: a document for each group and version.
pub(super) fn groups() -> Json {
    let mut paths = Map::new();
    for resource in RESOURCES.iter().filter(|resource| resource.is_stored()) {
        let path = path_of(resource);
        let served = format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"));
        paths.insert(path, json!({ "serverRelativeURL": served }));
    }
    json!({ "paths": paths })
}

/// Returns the document of a group and version, if it exists.
pub(super) fn group(group: &str, version: &str) -> Option<Json> {
    let of = |r: &&ServedResource| r.group == group && r.version == version && r.is_stored();
    let paths: Map<String, Json> = RESOURCES
        .iter()
        .filter(of)
        .map(|resource| {
            let base = path_of(resource);
            let scope = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
            let path = format!("/{base}{scope}/{}/{{name}}", resource.plural);
            (path, json!({ "patch": patch(resource) }))
        })
        .collect();
    (!paths.is_empty()).then(|| {
        json!({
            "openapi": "3.0.0", "info": { "title": "Kubernetes", "version": "v1.33.0" },
            "paths": paths, "components": { "schemas": {} }
        })
    })
}

fn path_of(resource: &ServedResource) -> String {
    let root = if resource.group.is_empty() { "api" } else { "apis" };
    format!("{root}/{}", resource.api_version())
}

fn patch(resource: &ServedResource) -> Json {
    let parameter = |name: &str| {
        json!({
            "name": name, "in": "query", "description": "",
            "schema": { "type": "string", "uniqueItems": true }
        })
    };
    let parameters = ["dryRun", "fieldManager", "fieldValidation", "force"].map(parameter);
    let body: Map<String, Json> =
        PATCHES.iter().map(|media| ((*media).to_owned(), json!({}))).collect();
    json!({
        "operationId": format!("patch{}", resource.kind),
        "parameters": parameters,
        "requestBody": { "content": body },
        "responses": { "200": { "description": "OK" } },
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": {
            "group": resource.group, "version": resource.version, "kind": resource.kind
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_in_openapi() {
        let listed = groups();
        for resource in RESOURCES.iter().filter(|resource| resource.is_stored()) {
            let ServedResource { group: name, version, kind, plural, .. } = resource;
            assert!(listed["paths"][path_of(resource)].is_object(), "{kind}");
            let described = group(name, version).expect("a group").to_string();
            assert!(described.contains(&format!("/{plural}/{{name}}")), "{plural}");
            assert!(described.contains(&format!("\"kind\":\"{kind}\"")), "{kind}");
        }
        assert_eq!(group("apps", "v2"), None);
    }
}
