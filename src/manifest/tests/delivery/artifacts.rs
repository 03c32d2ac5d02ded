//! Artifacts of Flux's `ArtifactGenerator`, and the repository from which Flux delivers itself.

use super::*;

/// Returns a generator with one artifact `apps`, copied by `rules`.
fn generator(rules: &[(&str, &str)]) -> String {
    let rules: String = rules
        .iter()
        .map(|(from, to)| format!("        - {{from: '{from}', to: '{to}'}}\n"))
        .collect();
    format!(
        "apiVersion: source.extensions.fluxcd.io/v1beta1\nkind: ArtifactGenerator\nmetadata: {{name: \
         flux-system, namespace: flux-system}}\nspec:\n  sources:\n    - {{alias: repo, kind: \
         GitRepository, name: flux-system}}\n  artifacts:\n    - name: apps\n      copy:\n{rules}"
    )
}

/// Returns the tree of a kustomization that takes `path` of the artifact `apps`.
fn scenario(rules: &[(&str, &str)], path: &str) -> DeliveryScenario {
    let kustomization = flux("apps", &format!("  path: {path}\n"))
        .replace("GitRepository, name: flux-system}", "ExternalArtifact, name: apps}");
    DeliveryScenario::new(&[
        ("apps/base/kustomization.yaml", "resources: []"),
        ("apps/prod/kustomization.yaml", "resources: [../base]"),
        ("clusters/flux.yaml", &format!("{}---\n{kustomization}", generator(rules))),
    ])
}

#[test]
fn artifact_is_read_at_the_directory_with_its_layout() {
    let both =
        [("@repo/apps/base/**", "@artifact/base/"), ("@repo/apps/prod/**", "@artifact/prod/")];
    for (rules, path) in [
        (&both[..], "./prod"),
        (&[("@repo/apps/**", "@artifact/")], "prod"),
        (&[("@repo/apps/prod/**", "@artifact/")], "./"),
        (&[("@repo/**", "@artifact/")], "apps/prod"),
    ] {
        let scenario = scenario(rules, path);
        assert_eq!(scenario.pending_requests(), ["kustomize apps/prod"], "{rules:?} {path}");
    }
}

#[test]
fn artifact_with_another_layout_is_unresolved() {
    for (rules, path, expected) in [
        (&[("@repo/apps/prod/**", "@artifact/live/")][..], "live", "moves"),
        (&[("@repo/apps/prod/*.yaml", "@artifact/prod/")], "prod", "not supported"),
        (&[("@other/apps/**", "@artifact/")], "prod", "has no source `other`"),
        (&[("@repo/apps/base/**", "@artifact/base/")], "prod", "is not part of its artifact"),
        (&[("@repo/apps/**", "@artifact/")], "../clusters", "is not part of its artifact"),
        (
            &[("@repo/apps/**", "@artifact/"), ("@repo/clusters/**", "@artifact/")],
            "prod",
            "from several directories",
        ),
    ] {
        let found = unresolved(&scenario(rules, path).read());
        let names = |line: &String| line.contains("Kustomization flux-system/apps");
        let found: Vec<String> = found.into_iter().filter(names).collect();
        assert!(found.len() == 1 && found[0].contains(expected), "{expected}: {found:?}");
    }
}

#[test]
fn undeclared_bootstrap_repository_is_this_one() {
    let scenario = DeliveryScenario::new(&[
        ("apps/kustomization.yaml", "resources: []"),
        ("clusters/flux.yaml", &flux("apps", "  path: ./apps\n")),
    ]);
    assert_eq!(scenario.pending_requests(), ["kustomize apps"]);
}
