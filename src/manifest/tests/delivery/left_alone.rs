//! Values that are not in the tree, and what a delivery tool does not apply or remove.

use super::*;
use crate::model::desired::LiveReplicas;

/// Returns a Deployment with these annotations and replicas.
fn deployment(name: &str, annotations: &str, replicas: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, annotations: \
         {{{annotations}}}}}\nspec: {{replicas: {replicas}, selector: {{matchLabels: {{a: b}}}}, \
         template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: c, env: \
         [{{name: X, value: '${{UNUSED:=1}}'}}]}}]}}}}}}\n"
    )
}

/// Reads `apps` as a `Kustomization` with this specification delivers it.
fn delivered_by_flux(spec: &str, apps: &str) -> Desired {
    let vars = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: vars, namespace: flux-system}\n\
                data: {KNOWN: '3'}\n";
    let flux = flux("apps", &format!("  path: ./apps\n{spec}"));
    let text = format!("{REPOSITORY}---\n{flux}---\n{vars}");
    DeliveryScenario::new(&[("apps/a.yaml", apps), ("flux.yaml", &text)]).read()
}

/// Reads `apps` as an `Application` with this specification delivers it.
fn delivered_by_argo(annotations: &str, spec: &str, apps: &str) -> Desired {
    let source = format!("source: {{repoURL: '{OWN_URL}', path: apps}}\n  {spec}");
    let application = application(&source, "{name: in-cluster, namespace: web}")
        .replace("metadata: {", &format!("metadata: {{annotations: {{{annotations}}}, "));
    DeliveryScenario::new(&[("apps/a.yaml", apps), ("argo.yaml", &application)]).read()
}

#[test]
fn a_default_that_a_secret_may_replace_is_unresolved_where_it_matters() {
    for from in [
        "{kind: ConfigMap, name: vars}, {kind: Secret, name: s}",
        "{kind: Secret, name: s, optional: true}",
        "{kind: ConfigMap, name: elsewhere, optional: true}",
    ] {
        let spec = format!("  postBuild: {{substitute: {{OWN: '2'}}, substituteFrom: [{from}]}}\n");
        let desired = delivered_by_flux(&spec, &deployment("a", "", "${N:=1}"));
        let found = unresolved(&desired);
        assert!(found.len() == 1 && desired.workloads.is_empty(), "{from}: {found:?}");
        assert!(found[0].contains("may give a value to its `spec.replicas`"), "{}", found[0]);
        let known = delivered_by_flux(&spec, &deployment("a", "", "${OWN:=1}"));
        assert_eq!((unresolved(&known), known.workloads.len()), (vec![], 1), "{from}");
        let named = delivered_by_flux(&spec, &deployment("'${N:=x}'", "", "1"));
        assert!(unresolved(&named)[0].contains("it needs `N`"), "{:?}", unresolved(&named));
        let inner = flux("inner", "  path: ./apps/${N:=x}\n");
        let inner = unresolved(&delivered_by_flux(&spec, &inner));
        assert!(inner.concat().contains("it needs `N`"), "{inner:?}");
        let pool = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\nspec: \
                    {minAvailable: '${N:=1}', selector: {matchLabels: {a: b}}}\n";
        let pool = lines(&delivered_by_flux(&spec, pool));
        assert!(pool.concat().contains("it needs `N`"), "{pool:?}");
    }
    let spec = "  postBuild: {substituteFrom: [{kind: ConfigMap, name: vars}]}\n";
    let desired = delivered_by_flux(spec, &deployment("a", "", "${N:=1}"));
    assert_eq!((unresolved(&desired), desired.workloads.len()), (vec![], 1), "all is read");
}

#[test]
fn optional_values_of_a_release_are_unresolved_if_they_are_not_in_the_tree() {
    for kind in ["Secret", "ConfigMap"] {
        let release = format!(
            "{REPOSITORY}---\napiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: \
             {{name: shop, namespace: flux-system}}\nspec:\n  chart: {{spec: {{chart: charts/shop, \
             sourceRef: {{kind: GitRepository, name: flux-system}}}}}}\n  valuesFrom: [{{kind: \
             {kind}, name: v, optional: true}}]\n"
        );
        let files = [("charts/shop/Chart.yaml", "name: shop"), ("flux.yaml", release.as_str())];
        let found = unresolved(&DeliveryScenario::new(&files).read());
        let expected = format!("values of {kind} flux-system/v are not in this tree");
        assert!(found.concat().contains(&expected), "{found:?}");
    }
}

#[test]
fn a_source_that_is_not_read_may_replace_known_values() {
    let (config, secret) =
        ("{kind: ConfigMap, name: vars}", "{kind: Secret, name: s, optional: true}");
    let spec = |from: String| format!("  postBuild: {{substituteFrom: [{from}]}}\n");
    let later = spec(format!("{config}, {secret}"));
    let desired = delivered_by_flux(&later, &deployment("a", "", "'${KNOWN}'"));
    let found = lines(&desired).concat();
    assert!(found.contains("needs `KNOWN`"), "{found}");
    let earlier = spec(format!("{secret}, {config}"));
    let desired = delivered_by_flux(&earlier, &deployment("a", "", "${KNOWN}"));
    assert_eq!((desired.workloads.len(), unresolved(&desired)), (1, vec![]), "the last one counts");
}

#[test]
fn a_config_map_whose_values_are_not_known_is_not_read() {
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: cv, namespace: flux-system}\n\
                  data: {N: '${X:-3}', KNOWN: '4'}\n";
    let of = |path: &str, from: &str| {
        flux(path, &format!("  path: ./{path}\n  postBuild: {{substituteFrom: [{from}]}}\n"))
    };
    let inner = of("cm", "{kind: Secret, name: s, optional: true}");
    let outer = of("apps", "{kind: ConfigMap, name: cv}");
    let objects = format!("{REPOSITORY}---\n{inner}---\n{outer}");
    let read = |replicas: &str| {
        let apps = deployment("a", "", replicas);
        let files = [("apps/a.yaml", &*apps), ("cm/cm.yaml", config), ("flux.yaml", &*objects)];
        DeliveryScenario::new(&files).read()
    };
    let found = unresolved(&read("${N:=1}")).concat();
    assert!(found.contains("may give a value to its `spec.replicas`"), "{found}");
    let found = lines(&read("'${N}'")).concat();
    assert!(found.contains("needs `N`"), "{found}");
    assert_eq!(read("${KNOWN}").workloads.len(), 1, "its other values are known");
}

#[test]
fn flux_runs_jobs_with_hooks_of_other_tools() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, annotations: \
               {argocd.argoproj.io/hook: Skip, helm.sh/hook: test}}\nspec: {template: {spec: \
               {restartPolicy: Never, containers: [{name: c}]}}}\n";
    let (by_flux, by_argo) = (delivered_by_flux("", job), delivered_by_argo("", "", job));
    assert_eq!((by_flux.workloads.len(), by_flux.hooks.len()), (1, 0));
    assert_eq!((by_argo.workloads.len(), by_argo.hooks.len()), (1, 1));
}

#[test]
fn hooks_of_a_chart_stay_unless_their_policy_or_phase_removes_them() {
    let fleet = fleet("  sources: [{path: charts/shop, render: helm, namespace: web}]\n");
    let files = [("charts/shop/Chart.yaml", "name: shop"), ("fleetwright.yaml", fleet.as_str())];
    for (annotations, is_there) in [
        ("helm.sh/hook: 'pre-install,pre-upgrade'", true),
        ("helm.sh/hook: 'post-install,test'", true),
        ("helm.sh/hook: test", false),
        ("helm.sh/hook: post-delete", false),
        ("helm.sh/hook: pre-install, helm.sh/hook-delete-policy: hook-succeeded", false),
        ("helm.sh/hook: pre-install, helm.sh/hook-delete-policy: before-hook-creation", true),
    ] {
        let output = deployment("a", annotations, "1");
        let desired = DeliveryScenario::new(&files).rendered("charts/shop", &output, &[]).read();
        assert_eq!(desired.workloads.len(), usize::from(is_there), "{annotations}");
    }
}

#[test]
fn argo_applies_no_object_that_it_skips_or_keeps_for_a_deletion() {
    for (annotations, is_there) in [
        ("argocd.argoproj.io/hook: Skip", false),
        ("argocd.argoproj.io/hook: PostDelete", false),
        ("argocd.argoproj.io/hook: SyncFail", false),
        ("argocd.argoproj.io/hook: 'PostSync,SyncFail'", true),
        ("argocd.argoproj.io/hook: Sync", true),
        (
            "argocd.argoproj.io/hook: PreSync, argocd.argoproj.io/hook-delete-policy: HookSucceeded",
            false,
        ),
        ("helm.sh/hook: post-delete", false),
    ] {
        let desired = delivered_by_argo("", "", &deployment("a", annotations, "1"));
        assert_eq!(desired.workloads.len(), usize::from(is_there), "{annotations}");
    }
    let skip = deployment("a", "argocd.argoproj.io/hook: Skip", "1");
    assert_eq!(delivered_by_flux("", &skip).workloads.len(), 1, "Flux applies it");
}

#[test]
fn a_tool_that_does_not_prune_retains_its_workloads() {
    let automated = |text: &str| format!("syncPolicy: {{automated: {{{text}}}}}\n");
    for (spec, annotations, is_retained) in [
        (String::new(), "", true),
        (automated(""), "", true),
        (automated("prune: false"), "", true),
        (automated("prune: true, enabled: false"), "", true),
        (automated("prune: true"), "", false),
        (automated("prune: true"), "argocd.argoproj.io/sync-options: 'A=b,Prune=false'", true),
        (automated("prune: true"), "helm.sh/resource-policy: keep", true),
    ] {
        let desired = delivered_by_argo("", &spec, &deployment("a", annotations, "1"));
        assert_eq!(desired.retained.len(), usize::from(is_retained), "{spec}{annotations}");
        let namespaces = usize::from(is_retained && annotations.is_empty());
        assert_eq!(desired.retaining_namespaces.len(), namespaces, "{spec}{annotations}");
    }
    for (spec, annotations, is_retained) in [
        ("  prune: true\n", "", false),
        ("  prune: false\n", "", true),
        ("  prune: true\n", "kustomize.toolkit.fluxcd.io/prune: Disabled", true),
    ] {
        let desired = delivered_by_flux(spec, &deployment("a", annotations, "1"));
        assert_eq!(desired.retained.len(), usize::from(is_retained), "{spec}{annotations}");
    }
}

#[test]
fn replicas_that_argo_ignores_are_the_live_ones() {
    let rule =
        |fields: &str| format!("ignoreDifferences: [{{group: apps, kind: Deployment, {fields}}}]");
    let respected = "\n  syncPolicy: {syncOptions: [RespectIgnoreDifferences=true]}\n";
    let pointer = "jsonPointers: [/spec/replicas]";
    for (spec, expected) in [
        (format!("{}{respected}", rule(pointer)), Some(LiveReplicas::Stay)),
        (rule(pointer), Some(LiveReplicas::MayStay)),
        (rule("jqPathExpressions: [.spec.replicas]"), Some(LiveReplicas::MayStay)),
        (
            format!("{}{respected}", rule("managedFieldsManagers: [keda]")),
            Some(LiveReplicas::MayStay),
        ),
        (rule(&format!("name: a, {pointer}")), Some(LiveReplicas::MayStay)),
        (rule(&format!("name: b, {pointer}")), None),
        (rule("jsonPointers: [/metadata/labels]"), None),
        (rule(pointer).replace("kind: Deployment", "kind: StatefulSet"), None),
    ] {
        let desired = delivered_by_argo("", &spec, &deployment("a", "", "1"));
        assert_eq!(desired.live_replicas.values().next().copied(), expected, "{spec}");
    }
}

#[test]
fn an_application_that_is_not_reconciled_is_unresolved() {
    let mark = "argocd.argoproj.io/skip-reconcile: 'true'";
    let desired = delivered_by_argo(mark, "", &deployment("a", "", "1"));
    assert!(unresolved(&desired)[0].contains("may differ from Git"), "{:?}", unresolved(&desired));
    assert!(desired.workloads.is_empty(), "its files are no workloads of their own");
    let suspended = delivered_by_flux("  suspend: true\n", &deployment("a", "", "1"));
    assert_eq!((unresolved(&suspended).len(), suspended.workloads.len()), (1, 0));
    let reasons = reasons(&suspended).concat();
    assert!(reasons.contains("an object that is suspended or skipped"), "{reasons}");
}

#[test]
fn what_flux_does_not_reconcile_stays_as_it_runs() {
    for annotations in [
        "kustomize.toolkit.fluxcd.io/reconcile: disabled",
        "kustomize.toolkit.fluxcd.io/ssa: Ignore",
    ] {
        let desired = delivered_by_flux("  prune: true\n", &deployment("a", annotations, "1"));
        assert_eq!((desired.workloads.len(), desired.retained.len()), (0, 1), "{annotations}");
        let by_argo = delivered_by_argo("", "", &deployment("a", annotations, "1"));
        assert_eq!(by_argo.workloads.len(), 1, "it has no effect for Argo CD");
    }
    let once = deployment("a", "kustomize.toolkit.fluxcd.io/ssa: IfNotPresent", "1");
    let live = delivered_by_flux("", &once).live_replicas;
    assert_eq!(live.values().collect::<Vec<_>>(), [&LiveReplicas::Stay]);
}

#[test]
fn objects_of_flux_operator_are_unresolved_unless_they_sync_this_repository() {
    let instance = |sync: &str| {
        format!(
            "apiVersion: fluxcd.controlplane.io/v1\nkind: FluxInstance\nmetadata: {{name: flux, \
             namespace: flux-system}}\nspec: {{{sync}}}\n"
        )
    };
    let set = |spec: &str| {
        format!(
            "apiVersion: fluxcd.controlplane.io/v1\nkind: ResourceSet\nmetadata: {{name: apps, \
             namespace: flux-system}}\nspec: {{{spec}}}\n"
        )
    };
    let own = "sync: {kind: GitRepository, url: 'https://github.com/acme/infra', path: .}";
    for (text, is_open) in [
        (instance(""), false),
        (instance(own), false),
        (instance("sync: {kind: OCIRepository, url: 'oci://ghcr.io/acme/apps', path: .}"), true),
        (instance(&own.replace("path: .", "path: elsewhere")), true),
        (set("resources: [{kind: A}]"), true),
        (set("resourcesTemplate: 'kind: A'"), true),
        (set("resources: []"), false),
    ] {
        let found = unresolved(&DeliveryScenario::new(&[("a.yaml", &text)]).read());
        assert_eq!(found.len(), usize::from(is_open), "{text}: {found:?}");
    }
}
