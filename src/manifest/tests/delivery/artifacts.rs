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

#[test]
fn bootstrap_repository_is_not_assumed_if_a_file_declares_one() {
    let declared = "apiVersion: source.toolkit.fluxcd.io/v1\nkind: GitRepository\nmetadata: {name: \
                    flux-system, namespace: flux-system}\nspec: {url: 'https://h/o/elsewhere'}\n";
    let instance = "apiVersion: fluxcd.controlplane.io/v1\nkind: FluxInstance\nmetadata: {name: flux, \
                    namespace: flux-system}\nspec: {sync: {kind: GitRepository, url: \
                    'https://h/o/elsewhere', ref: refs/heads/main, path: x}}\n";
    for declaration in [declared, instance] {
        for settings in [
            "",
            "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {name: a}\nspec: \
                         {cluster: {region: us-east-1}, sources: [{path: clusters}]}",
        ] {
            let mut files = vec![
                ("apps/pod.yaml", pod("a", "")),
                ("clusters/flux.yaml", flux("apps", "  path: ./apps\n")),
                ("bootstrap/sync.yaml", declaration.to_owned()),
            ];
            if !settings.is_empty() {
                files.push(("fleetwright.yaml", settings.to_owned()));
            }
            let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (*p, t.as_str())).collect();
            let found = unresolved(&DeliveryScenario::new(&files).read());
            let is_named = |line: &String| line.contains("Kustomization flux-system/apps");
            assert!(found.iter().any(is_named), "{declaration}{settings}: {found:?}");
        }
    }
}

#[test]
fn flux_instance_of_this_repository_is_its_source() {
    let instance = "apiVersion: fluxcd.controlplane.io/v1\nkind: FluxInstance\nmetadata: {name: flux, \
                    namespace: flux-system}\nspec: {sync: {kind: GitRepository, url: \
                    'https://github.com/acme/infra', ref: refs/heads/main, path: clusters}}\n";
    let scenario = DeliveryScenario::new(&[
        ("apps/kustomization.yaml", "resources: []"),
        ("clusters/flux.yaml", &format!("{instance}---\n{}", flux("apps", "  path: ./apps\n"))),
    ]);
    assert_eq!(scenario.pending_requests(), ["kustomize apps"]);
}

#[test]
fn text_that_substitution_breaks_is_followed_as_it_is() {
    let outer = "  path: ./apps/outer\n  postBuild: {substitute: {NOTE: 'see: here'}}\n";
    let inner = flux("shop", "  path: ./apps/shop\n")
        .replace("spec:\n", "  annotations:\n    note: ${NOTE}\nspec:\n")
        .replace(
            "metadata: {name: shop, namespace: flux-system}",
            "metadata:\n  name: shop\n  namespace: flux-system",
        );
    let scenario = DeliveryScenario::new(&[
        ("apps/outer/apps.yaml", &inner),
        ("apps/shop/kustomization.yaml", "resources: []"),
        ("clusters/flux.yaml", &flux("outer", outer)),
    ]);
    assert_eq!(scenario.pending_requests(), ["kustomize apps/shop"]);
}

#[test]
fn objects_that_disable_substitution_stay_as_they_are() {
    let outer = "  path: ./apps/outer\n  postBuild: {substitute: {APP: shop}}\n";
    let plain = flux("a", "  path: ./apps/${APP}\n");
    let disabled = flux("b", "  path: ./apps/${APP}\n").replace(
        "metadata: {name: b,",
        "metadata: {annotations: {kustomize.toolkit.fluxcd.io/substitute: disabled}, name: b,",
    );
    let scenario = DeliveryScenario::new(&[
        ("apps/outer/apps.yaml", &format!("{plain}---\n{disabled}")),
        ("apps/shop/kustomization.yaml", "resources: []"),
        ("clusters/flux.yaml", &flux("outer", outer)),
    ]);
    assert_eq!(scenario.pending_requests(), ["kustomize apps/shop"]);
    let found = unresolved(&scenario.read());
    let names = |line: &&String| line.contains("Kustomization flux-system/b");
    assert!(found.iter().find(names).is_some_and(|line| line.contains("${APP}")), "{found:?}");
}
