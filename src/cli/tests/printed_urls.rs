//! No output of a command has a password or a token of a URL of a manifest.

use super::run_command;

const SETTINGS: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: prod }
spec: { cluster: { name: prod, region: us-east-1 } }
";

/// Delivery objects with a secret in every part of every URL.
const DELIVERY: &str = r#"
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: { name: git }
spec:
  destination: { server: "https://kubernetes.default.svc" }
  source: { repoURL: "https://user:SECRET@git.example.com/x.git?token=SECRET#SECRET", path: a }
---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: { name: elsewhere }
spec:
  destination: { server: "https://ci:SECRET@k8s.example.com?t=SECRET" }
  source: { repoURL: "https://git.example.com/x.git", path: a }
---
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: { name: registry }
spec:
  destination: { server: "https://kubernetes.default.svc" }
  source: { repoURL: "user:SECRET@oci.example.com/x?k=SECRET", chart: c, targetRevision: "1" }
---
apiVersion: argoproj.io/v1alpha1
kind: ApplicationSet
metadata: { name: set }
spec:
  generators:
    - git: { repoURL: "https://SECRET@sets.example.com/x?t=SECRET", directories: [{ path: "*" }] }
  template:
    metadata: { name: "{{path}}" }
    spec:
      destination: { server: "https://kubernetes.default.svc" }
      source: { repoURL: "https://git.example.com/x.git", path: "{{path}}" }
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: { name: git, namespace: flux }
spec: { url: "https://user:SECRET@flux.example.com/x?t=SECRET", ref: { branch: main } }
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: { name: git, namespace: flux }
spec: { path: ./a, prune: true, sourceRef: { kind: GitRepository, name: git } }
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: { name: charts, namespace: flux }
spec: { url: "https://u:SECRET@charts.example.com/x?token=SECRET&X-Amz-Signature=SECRET" }
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: { name: chart, namespace: flux }
spec:
  chart: { spec: { chart: c, version: "1", sourceRef: { kind: HelmRepository, name: charts } } }
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: OCIRepository
metadata: { name: artifact, namespace: flux }
spec: { url: "oci://u:SECRET@artifacts.example.com/x?token=SECRET", ref: { tag: "1" } }
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: { name: artifact, namespace: flux }
spec: { chartRef: { kind: OCIRepository, name: artifact } }
"#;

/// The printed hosts.
const HOSTS: [&str; 7] = ["git", "k8s", "oci", "sets", "flux", "charts", "artifacts"];

#[test]
fn no_output_has_credentials_of_a_url() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    std::fs::write(directory.path().join("fleetwright.yaml"), SETTINGS).expect("written");
    std::fs::write(directory.path().join("delivery.yaml"), DELIVERY).expect("written");
    let shared = ["text", "json", "github", "gitlab", "junit", "sarif"];
    let validations = shared.map(|format| ("validate", format));
    let plans = shared.iter().chain(&["markdown", "html"]).map(|format| ("plan", *format));
    for (command, format) in validations.into_iter().chain(plans) {
        let ran = run_command(&[command, path, "-o", format]);
        let all = format!("{}{}", ran.out, ran.err);
        assert!(!all.contains("SECRET"), "{command} -o {format}: {all}");
        // A summary of a few lines names fewer sources.
        if ["text", "json"].contains(&format) {
            for host in HOSTS {
                assert!(all.contains(&format!("{host}.example.com")), "{command}: {host}: {all}");
            }
        }
    }
}

#[test]
fn printed_destination_is_one_that_settings_may_list() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    std::fs::write(directory.path().join("delivery.yaml"), DELIVERY).expect("written");
    for destination in ["https://k8s.example.com", "https://ci:SECRET@k8s.example.com?t=SECRET"] {
        let ran = run_command(&["init", path, "--destination", destination, "--force"]);
        assert!(!format!("{}{}", ran.out, ran.err).contains("SECRET"), "{}{}", ran.out, ran.err);
        let file = directory.path().join("fleetwright.yaml");
        let text = std::fs::read_to_string(file).expect("it is written");
        assert!(text.contains("- \"https://k8s.example.com\"\n"), "{text}");
        let ran = run_command(&["validate", path]);
        assert!(!ran.out.contains("its destination `https://k8s"), "{}", ran.out);
    }
}
