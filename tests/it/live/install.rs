//! Applies the manifests of `deploy/kubernetes` to a real kube-apiserver.

use std::fs;

use kube::Client;
use serde_json::{Value as Json, json};

use super::cluster::{post, runtime};
use super::control_plane::ControlPlane;

fn documents(file: &str) -> Vec<Json> {
    let path = format!("{}/deploy/kubernetes/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).expect("the manifests");
    let parts = text.split("\n---\n").filter(|part| !part.trim().is_empty());
    parts.map(|part| serde_saphyr::from_str(part).expect("YAML")).collect()
}

/// Returns the collection path of an object.
fn collection(object: &Json) -> String {
    let version = object["apiVersion"].as_str().expect("a version");
    let kind = object["kind"].as_str().expect("a kind").to_ascii_lowercase();
    let api = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
    let namespace = object["metadata"]["namespace"].as_str();
    let namespace = namespace.map_or_else(String::new, |name| format!("namespaces/{name}/"));
    format!("{api}/{namespace}{kind}s")
}

#[test]
fn api_server_accepts_manifests_under_restricted_standard() {
    let Some(plane) = ControlPlane::start() else { return };
    runtime().block_on(async {
        let client = Client::try_from(plane.config("admin").await).expect("a client");
        let mut pod = Json::Null;
        for object in documents("fleetwright.yaml") {
            let path = collection(&object).replace("policys", "policies");
            let made = post(&client, &path, &object).await;
            assert_eq!(made["metadata"]["name"], object["metadata"]["name"]);
            if object["kind"] == "Deployment" {
                pod = object["spec"]["template"].clone();
            }
        }
        // No workload controller runs here, so that the test creates the pod itself.
        pod["metadata"]["name"] = json!("controller-1");
        let pods = "/api/v1/namespaces/fleetwright/pods";
        let made = post(&client, pods, &pod).await;
        assert_eq!(made["spec"]["priority"], 2_000_000_000);
        // The Pod Security Standard is enforced: a pod that violates it is refused.
        pod["metadata"]["name"] = json!("controller-2");
        pod["spec"]["containers"][0]["securityContext"]["capabilities"] = json!({});
        let request = http::Request::post(pods)
            .header("content-type", "application/json")
            .body(pod.to_string().into_bytes())
            .expect("a request");
        let refused = client.request::<Json>(request).await.expect_err("it is refused");
        assert!(refused.to_string().contains("violates PodSecurity"), "{refused}");
    });
}
