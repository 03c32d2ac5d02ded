//! Artifacts of Flux's `ArtifactGenerator`, and the repository from which Flux delivers itself.

use super::*;

/// Returns a generator with one artifact `apps`, copied by `rules`.
fn generator(rules: &[(&str, &str)]) -> String {
    let rule = |(from, to): &(&str, &str)| format!("        - {{from: '{from}', to: '{to}'}}\n");
    let rules = rules.iter().map(rule).collect::<Vec<_>>().concat();
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

#[test]
fn delivered_objects_are_substituted_before_they_are_followed() {
    let outer = "  path: ./apps/outer\n  postBuild: {substitute: {APP: shop, SIZE: '3'}}\n";
    let inner = flux("${APP}", "  path: ./apps/${APP}\n");
    let other =
        flux("${APP}", "  path: ./apps/${APP}\n").replace("name: ${APP}", "name: ${APP}-${SIZE}");
    let inner = format!("{inner}---\n{other}");
    let scenario = DeliveryScenario::new(&[
        ("apps/outer/apps.yaml", &inner),
        ("apps/shop/kustomization.yaml", "resources: []"),
        ("clusters/flux.yaml", &flux("outer", outer)),
    ]);
    assert_eq!(scenario.pending_requests(), ["kustomize apps/shop"]);
    assert_eq!(unresolved(&scenario.read()).len(), 2, "both wait for the rendering");
}

#[test]
fn objects_of_one_template_have_the_names_of_their_values() {
    let scaler = "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: '${APP}'}\n\
                  spec:\n  maxReplicas: 3\n  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: '${APP}'}\n";
    let of = |app: &str| {
        flux(
            app,
            &format!(
                "  path: ./scaler\n  targetNamespace: web\n  postBuild: {{substitute: {{APP: {app}}}}}\n"
            ),
        )
    };
    let scenario = DeliveryScenario::new(&[
        ("scaler/scaler.yaml", scaler),
        ("clusters/flux.yaml", &format!("{}---\n{}", of("a"), of("b"))),
    ]);
    let desired = scenario.read();
    let scalers: Vec<&str> = desired.scalers.iter().map(|scaler| scaler.object.as_str()).collect();
    let name = |app| format!("HorizontalPodAutoscaler web/{app}");
    assert_eq!(scalers, [name("a"), name("b")], "{:?}", lines(&desired));
}
