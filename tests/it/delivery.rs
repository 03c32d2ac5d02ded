//! Deployment files of `deploy/`: the chart, the plain manifests made from it, and the image.
//!
//! The chart is rendered with a real Helm, if one is installed (`.ci/tools` installs it). Without
//! Helm, only the plain manifests are checked, and stderr names the skipped checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fleetwright::controller::authorization::OperatorRequest;
use jiff::SignedDuration;
use serde_json::{Value as Json, json};

use crate::binary::Workspace;
use crate::golden;
use crate::missing_tool::not_run;

const CHART: &str = "deploy/helm/fleetwright";
const MANIFESTS: &str = "deploy/kubernetes/fleetwright.yaml";
const ROLES: &str = "deploy/kubernetes/rbac.yaml";
const ROLES_COPY: &str = "deploy/helm/fleetwright/files/roles.yaml";

const HEAD: &str = "\
# The controller as plain manifests: the chart in deploy/helm, rendered with its defaults. First
# apply deploy/kubernetes/crds.yaml. Replace ${REPOSITORY} with the URL of the Git repository, and
# ${REGION} with the AWS region. The service account needs an IAM role with the policy of
# deploy/aws/controller.json, by EKS Pod Identity or the annotation eks.amazonaws.com/role-arn.
apiVersion: v1
kind: Namespace
metadata:
  name: fleetwright
  labels:
    pod-security.kubernetes.io/enforce: restricted
    pod-security.kubernetes.io/enforce-version: latest
";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn documents(text: &str) -> Vec<Json> {
    let parts = text.split("\n---\n").filter(|part| !part.trim().is_empty());
    parts.map(|part| serde_saphyr::from_str(part).expect("YAML")).collect()
}

/// Returns the path of the real Helm.
fn helm() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join("helm"));
    found.into_iter().find(|program| program.is_file())
}

/// Renders the chart. Without Helm, returns `None` and prints the reason to stderr.
fn render(settings: &[&str]) -> Option<Output> {
    let Some(helm) = helm() else {
        not_run("helm", "there is no helm, so the chart is not rendered");
        return None;
    };
    let home = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(helm);
    command.args(["template", "fleetwright", CHART, "--namespace", "fleetwright"]);
    command.args(settings.iter().flat_map(|setting| {
        // A JSON object has the values of a whole file.
        let option = if setting.starts_with('{') { "--set-json" } else { "--set" };
        [option, *setting]
    }));
    let ran = command.current_dir(root()).env("HOME", home.path()).output();
    Some(ran.expect("helm runs"))
}

/// Returns the rendered chart, with valid settings.
fn rendered(settings: &[&str]) -> Option<String> {
    let ran = render(settings)?;
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(String::from_utf8(ran.stdout).expect("text"))
}

fn of_kind<'a>(objects: &'a [Json], kind: &str) -> Vec<&'a Json> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// Returns the rules of each role, by namespace and by the role name mapped with `name`.
fn rules(objects: &[Json], name: impl Fn(&str) -> String) -> BTreeMap<(String, String), Json> {
    let roles = of_kind(objects, "ClusterRole").into_iter().chain(of_kind(objects, "Role"));
    let row = |role: &Json| {
        let meta = &role["metadata"];
        let namespace = meta["namespace"].as_str().unwrap_or_default().to_owned();
        ((namespace, name(meta["name"].as_str().expect("a name"))), role["rules"].clone())
    };
    roles.map(row).collect()
}

#[test]
fn chart_roles_equal_plain_manifest_roles() {
    let is_role =
        |part: &&str| part.contains("\nkind: Role\n") || part.contains("\nkind: ClusterRole\n");
    let text = read(ROLES);
    let roles: Vec<&str> = text.split("\n---\n").filter(is_role).map(str::trim_end).collect();
    assert!(roles.len() > 3, "{}", roles.len());
    golden::hold(ROLES_COPY, &format!("{}\n", roles.join("\n---\n"))).expect("equal roles");
}

#[test]
fn plain_manifests_equal_chart_with_defaults() {
    let settings = ["repository.url=${REPOSITORY}", "aws.region=${REGION}"];
    let Some(text) = rendered(&settings) else { return };
    let of_helm = |line: &&str| {
        line.starts_with("# Source: ") || line.trim() == "app.kubernetes.io/managed-by: Helm"
    };
    let lines: Vec<&str> = text.lines().filter(|line| !of_helm(line)).collect();
    let text = format!("{HEAD}{}\n", lines.join("\n")).replace("\n\n---\n", "\n---\n");
    golden::hold(MANIFESTS, &text).expect("the rendered defaults of the chart");
}

#[test]
fn controller_roles_grant_exactly_its_api_calls() {
    let wanted = rules(&documents(&read(ROLES)), str::to_owned);
    let objects = documents(&read(MANIFESTS));
    let mut found = rules(&objects, |name| name.replacen("-controller-", "-", 1));
    // Roles of operators are not bound to the controller.
    for operator_role in ["fleetwright-approver", "fleetwright-break-glass", "fleetwright-viewer"] {
        assert!(
            found.remove(&(String::new(), operator_role.to_owned())).is_some(),
            "{operator_role}"
        );
    }
    assert_eq!(found, wanted);
    let bindings: Vec<&Json> = ["ClusterRoleBinding", "RoleBinding"]
        .iter()
        .flat_map(|kind| of_kind(&objects, kind))
        .collect();
    assert_eq!(bindings.len(), wanted.len());
    for binding in bindings {
        let account = json!([{ "kind": "ServiceAccount", "name": "fleetwright", "namespace": "fleetwright" }]);
        assert_eq!(binding["subjects"], account);
        assert_eq!(binding["roleRef"]["name"], binding["metadata"]["name"]);
    }
    for ((namespace, name), rules) in &wanted {
        for rule in rules.as_array().expect("rules") {
            let text = rule.to_string();
            assert!(
                !text.contains("\"*\"") && !text.contains("\"secrets\""),
                "{namespace}/{name}: {text}"
            );
        }
    }
}

#[test]
fn operator_roles_cover_every_authorized_request() {
    let wanted = [
        OperatorRequest::Approve { digest: "d".into() },
        OperatorRequest::Confirm { instance: "i-1".into() },
        OperatorRequest::Suspend { reason: String::new(), lasts: SignedDuration::ZERO },
        OperatorRequest::Resume,
        OperatorRequest::Reset { breaker: String::new(), digest: None },
        OperatorRequest::BreakGlass { reason: String::new(), lasts: SignedDuration::ZERO },
        OperatorRequest::EndBreakGlass,
    ];
    let verbs: BTreeSet<&str> = wanted.iter().map(OperatorRequest::verb).collect();
    let roles = rules(&documents(&read(MANIFESTS)), str::to_owned);
    let verbs_of = |name: &str| {
        let [rule] = &roles[&(String::new(), name.to_owned())].as_array().expect("rules")[..]
        else {
            panic!("{name} has one rule")
        };
        assert_eq!(rule["apiGroups"], json!(["fleetwright.dev"]));
        assert_eq!(rule["resources"], json!(["capacityplans"]));
        let verbs = rule["verbs"].as_array().expect("verbs").iter();
        verbs.map(|verb| verb.as_str().expect("a verb")).collect::<BTreeSet<_>>()
    };
    let (approver, break_glass) =
        (verbs_of("fleetwright-approver"), verbs_of("fleetwright-break-glass"));
    assert_eq!(break_glass, BTreeSet::from(["break-glass"]));
    assert!(approver.is_disjoint(&break_glass));
    assert_eq!(&approver | &break_glass, verbs);
}

#[test]
fn controller_pod_meets_restricted_pod_security() {
    let objects = documents(&read(MANIFESTS));
    let [deployment] = of_kind(&objects, "Deployment")[..] else { panic!("one deployment") };
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    for key in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(pod[key], Json::Null, "{key}");
    }
    let [container] = &pod["containers"].as_array().expect("containers")[..] else {
        panic!("one container")
    };
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"], json!({ "drop": ["ALL"] }));
    // The writable directories are empty volumes; the key of stored decisions is a Secret.
    let volumes = pod["volumes"].as_array().expect("volumes");
    let of = |kind: &str| volumes.iter().filter(|volume| volume[kind].is_object()).count();
    assert_eq!((of("emptyDir"), of("secret"), volumes.len()), (2, 1, 3), "{volumes:?}");
}

#[test]
fn replicas_spread_and_avoid_managed_nodes() {
    let objects = documents(&read(MANIFESTS));
    let [deployment] = of_kind(&objects, "Deployment")[..] else { panic!("one deployment") };
    assert_eq!(deployment["spec"]["replicas"], 2);
    let selector = &deployment["spec"]["selector"];
    let [budget] = of_kind(&objects, "PodDisruptionBudget")[..] else { panic!("one budget") };
    assert_eq!(budget["spec"], json!({ "maxUnavailable": 1, "selector": selector }));
    let pod = &deployment["spec"]["template"]["spec"];
    let spread = pod["topologySpreadConstraints"].as_array().expect("constraints");
    let required = |one: &&Json| one["whenUnsatisfiable"] == "DoNotSchedule";
    let required: Vec<&Json> =
        spread.iter().filter(required).map(|one| &one["topologyKey"]).collect();
    assert_eq!(required, ["kubernetes.io/hostname"]);
    let terms = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let expressions = terms["nodeSelectorTerms"][0]["matchExpressions"].as_array().expect("terms");
    let keys: Vec<&Json> = expressions.iter().map(|one| &one["key"]).collect();
    assert_eq!(
        keys,
        [
            fleetwright::model::observed::KEY_LABEL,
            "karpenter.sh/nodepool",
            "karpenter.sh/provisioner-name"
        ]
    );
    assert!(expressions.iter().all(|one| one["operator"] == "DoesNotExist"));
}

/// The required setting of every installation.
const URL: &str = "repository.url=https://example.com/fleet.git";

#[test]
fn chart_values_reach_the_pod() {
    let role = "arn:aws:iam::111122223333:role/fleet";
    let settings = [
        URL,
        "repository.secretName=git",
        &format!("aws.roleArn={role}"),
        "image.digest=sha256:0000000000000000000000000000000000000000000000000000000000000000",
        "nodeSelector.group=system",
        "serviceMonitor.enabled=true",
        "networkPolicy.from[0].podSelector.matchLabels.app=traefik",
        "networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus",
        "extraArgs[0]=--mode=observe",
        "podDisruptionBudget.enabled=false",
    ];
    let Some(text) = rendered(&settings) else { return };
    let objects = documents(&text);
    let [account] = of_kind(&objects, "ServiceAccount")[..] else { panic!("one account") };
    assert_eq!(account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"], role);
    let [deployment] = of_kind(&objects, "Deployment")[..] else { panic!("one deployment") };
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["nodeSelector"]["group"], "system");
    let container = &pod["containers"][0];
    let image = container["image"].as_str().expect("an image");
    assert!(image.contains("/fleetwright@sha256:0000"), "{image}");
    let arguments = container["args"].to_string();
    for part in ["\"run\",\"https://example.com/fleet.git\"", "--ref=main", "\"--mode=observe\""] {
        assert!(arguments.contains(part), "{part}: {arguments}");
    }
    assert!(container["env"].to_string().contains("/etc/fleetwright/git/known_hosts"));
    let secret = pod["volumes"].as_array().expect("volumes").iter().find(|v| v["name"] == "git");
    assert_eq!(secret.expect("the secret")["secret"]["secretName"], "git");
    let [monitor] = of_kind(&objects, "ServiceMonitor")[..] else { panic!("one monitor") };
    assert_eq!(monitor["spec"]["endpoints"][0]["path"], "/metrics");
    let [policy] = of_kind(&objects, "NetworkPolicy")[..] else { panic!("one policy") };
    let admitted = [("http", "traefik"), ("metrics", "prometheus")].map(|(port, app)| {
        json!({
            "ports": [{ "port": port, "protocol": "TCP" }],
            "from": [{ "podSelector": { "matchLabels": { "app": app } } }],
        })
    });
    assert_eq!(policy["spec"]["ingress"], json!(admitted));
    assert_eq!(monitor["spec"]["endpoints"][0]["port"], "metrics");
    assert_eq!(container["livenessProbe"]["httpGet"]["port"], "metrics");
    assert_arguments_accepted(container);
    assert_eq!(of_kind(&objects, "PodDisruptionBudget").len(), 0);
}

#[test]
fn network_policy_ports_match_controller_arguments() {
    let settings = [
        URL,
        "service.type=NodePort",
        "webhook.secretName=hook",
        "ingress.enabled=true",
        "ingress.className=alb",
        "networkPolicy.from[0].ipBlock.cidr=10.0.0.0/16",
        "ingress.hosts[0]=fleet.example.com",
        "ingress.paths[0]=/webhook",
        "extraVolumes[0].name=more",
        "extraVolumes[0].configMap.name=more",
        "extraVolumeMounts[0].name=more",
        "extraVolumeMounts[0].mountPath=/more",
    ];
    let Some(text) = rendered(&settings) else { return };
    let objects = documents(&text);
    let [service] = of_kind(&objects, "Service")[..] else { panic!("one service") };
    assert_eq!(service["spec"]["type"], "NodePort");
    let [ingress] = of_kind(&objects, "Ingress")[..] else { panic!("one ingress") };
    let backend =
        json!({ "service": { "name": service["metadata"]["name"], "port": { "name": "http" } } });
    let paths = json!([{ "path": "/webhook", "pathType": "Prefix", "backend": backend }]);
    let rules = json!([{ "host": "fleet.example.com", "http": { "paths": paths } }]);
    assert_eq!(ingress["spec"], json!({ "ingressClassName": "alb", "rules": rules }));
    let [deployment] = of_kind(&objects, "Deployment")[..] else { panic!("one deployment") };
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let arguments = container["args"].to_string();
    let help = Workspace::empty().run(&["run", "--help"]).out;
    for (flag, value) in [
        ("--listen-name", "fleet.example.com"),
        ("--webhook-secret", "/etc/fleetwright/webhook/secret"),
    ] {
        assert!(arguments.contains(&format!("\"{flag}={value}\"")), "{flag}: {arguments}");
        assert!(help.contains(&format!("{flag} <")), "{help}");
    }
    let find_named = |list: &Json, name: &str| {
        let found = list.as_array().expect("a list").iter().find(|one| one["name"] == name);
        found.expect(name).clone()
    };
    assert_eq!(find_named(&pod["volumes"], "webhook")["secret"]["secretName"], "hook");
    let mount = find_named(&container["volumeMounts"], "webhook");
    assert_eq!(mount["mountPath"], "/etc/fleetwright/webhook");
    assert_eq!(mount["readOnly"], true);
    assert_eq!(find_named(&pod["volumes"], "more")["configMap"]["name"], "more");
    assert_eq!(find_named(&container["volumeMounts"], "more")["mountPath"], "/more");
}

#[test]
fn network_policy_admits_metrics_of_one_namespace_by_default() {
    let objects = documents(&read(MANIFESTS));
    let [policy] = of_kind(&objects, "NetworkPolicy")[..] else { panic!("one policy") };
    let namespace = json!({ "matchLabels": { "kubernetes.io/metadata.name": "monitoring" } });
    let admitted = json!([{
        "ports": [{ "port": "metrics", "protocol": "TCP" }],
        "from": [{ "namespaceSelector": namespace }],
    }]);
    assert_eq!(policy["spec"]["ingress"], admitted);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
    let [deployment] = of_kind(&objects, "Deployment")[..] else { panic!("one deployment") };
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    for probe in ["livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], "metrics", "{probe}");
    }
}

#[test]
fn chart_alerts_and_dashboard_equal_their_sources() {
    for name in ["alerts.yaml", "dashboard.json", "clusters.json"] {
        let text = read(&format!("deploy/grafana/{name}"));
        golden::hold(&format!("{CHART}/files/{name}"), &text).expect("equal files");
    }
    let settings = [
        URL,
        "prometheusRule.enabled=true",
        "prometheusRule.labels.release=prometheus",
        "dashboard.enabled=true",
    ];
    let Some(text) = rendered(&settings) else { return };
    let objects = documents(&text);
    let [rule] = of_kind(&objects, "PrometheusRule")[..] else { panic!("one rule") };
    let alerts: Json = serde_saphyr::from_str(&read("deploy/grafana/alerts.yaml")).expect("YAML");
    assert_eq!(rule["spec"], alerts["spec"]);
    assert_eq!(rule["metadata"]["namespace"], "fleetwright");
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let [map] = of_kind(&objects, "ConfigMap")[..] else { panic!("one ConfigMap") };
    assert_eq!(map["metadata"]["labels"]["grafana_dashboard"], "1");
    let parsed = |text: &str| serde_json::from_str::<Json>(text).expect("JSON");
    for (key, name) in
        [("fleetwright.json", "dashboard.json"), ("fleetwright-clusters.json", "clusters.json")]
    {
        let shown = map["data"][key].as_str().expect("text");
        assert_eq!(parsed(shown), parsed(&read(&format!("deploy/grafana/{name}"))), "{name}");
    }
}

/// The page for many clusters has values with the placeholders of Argo CD and of Flux.
#[test]
fn values_of_many_clusters_render_the_chart() {
    let page = read("docs/src/how-to/many-clusters.md");
    let blocks = page.split("```yaml\n").skip(1).map(|block| block.split("```").next());
    let blocks: Vec<Json> =
        blocks.map(|block| serde_saphyr::from_str(block.expect("an end")).expect("YAML")).collect();
    let spec = |kind: &str| &of_kind(&blocks, kind)[0]["spec"];
    let substituted = &spec("Kustomization")["postBuild"]["substitute"];
    let (cluster, region) = (&substituted["cluster"], &substituted["region"]);
    let (cluster, region) = (cluster.as_str().expect("a name"), region.as_str().expect("a region"));
    let argo = &spec("ApplicationSet")["template"]["spec"]["source"]["helm"]["valuesObject"];
    for (values, placeholders) in [
        (argo, ["{{.name}}", "{{.metadata.annotations.region}}"]),
        (&spec("HelmRelease")["values"], ["${cluster}", "${region}"]),
    ] {
        let values = values.to_string().replace(placeholders[0], cluster);
        let values = values.replace(placeholders[1], region);
        let Some(text) = rendered(&[&values]) else { return };
        let objects = documents(&text);
        let container =
            &of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].to_string();
        assert!(args.contains("https://example.com/fleet.git//clusters/prod-eu1"), "{args}");
        assert!(container["env"].to_string().contains(region), "{container}");
        assert_eq!(of_kind(&objects, "ServiceMonitor").len(), 1);
        assert_arguments_accepted(container);
    }
}

#[test]
fn pod_status_patch_needs_nomination_setting() {
    for (settings, expected) in [(&[URL][..], true), (&[URL, "steer=false"], false)] {
        let Some(text) = rendered(settings) else { return };
        let objects = documents(&text);
        assert_eq!(text.contains("pods/status"), expected, "{settings:?}");
        let bound = of_kind(&objects, "ClusterRoleBinding").len();
        let cluster_roles = rules(&objects, str::to_owned).into_keys();
        let roles = cluster_roles
            .filter(|(namespace, name)| namespace.is_empty() && name.contains("-controller-"));
        assert_eq!(bound, roles.count(), "each role is bound");
    }
}

/// Checks that the program accepts the arguments of a container and tries to reach the cluster.
fn assert_arguments_accepted(container: &Json) {
    let workspace = Workspace::example("quickstart");
    let arguments = container["args"].as_array().expect("arguments").iter();
    // The test covers the command line and does not fetch a remote repository.
    let local =
        |text: &&str| !text.contains("://") && !text.contains("${") && !text.starts_with("--ref=");
    let arguments = arguments.map(|a| a.as_str().expect("text")).filter(local);
    // `--once` keeps the program from waiting for a cluster.
    let arguments: Vec<&str> = arguments.chain(["--once"]).collect();
    let ran = workspace.run(&arguments);
    let (code, output) = if cfg!(feature = "cluster") {
        (1, "cannot use the cluster")
    } else {
        (5, "this program was built without the live world")
    };
    assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.err);
    assert!(ran.err.contains(output), "{}", ran.err);
    let all = container["args"].to_string();
    assert!(all.contains("\"--ref=main\"") && all.contains("--world=live"), "{all}");
}

#[test]
fn manifest_arguments_are_accepted_by_the_binary() {
    let objects = documents(&read(MANIFESTS));
    let [deployment] = of_kind(&objects, "Deployment")[..] else { panic!("one deployment") };
    assert_arguments_accepted(&deployment["spec"]["template"]["spec"]["containers"][0]);
    // The check above skips `--ref`, so it is checked here.
    let help = Workspace::empty().run(&["run", "--help"]);
    assert!(help.out.contains("--ref <"), "{}", help.out);
}

#[test]
fn contradictory_chart_values_are_rejected_by_name() {
    for (settings, expected) in [
        (vec![], "repository.url is required"),
        (vec![URL, "mode=full"], "mode"),
        (vec![URL, "replicas=0"], "replicas"),
        (vec!["repository.url=https://me:secret@example.com/fleet.git"], "url"),
        (vec![URL, "aws.roleArn=fleet"], "roleArn"),
        (vec![URL, "image.digest=latest"], "digest"),
        (vec![URL, "serviceAccount.create=false"], "serviceAccount.name is required"),
        (vec![URL, "nodeselector.group=system"], "nodeselector"),
        (vec![URL, "service.type=NodePort"], "networkPolicy.from is required"),
        (vec![URL, "ingress.enabled=true"], "networkPolicy.from is required"),
        (vec![URL, "service.type=ExternalName"], "service/type"),
    ] {
        let Some(ran) = render(&settings) else { return };
        let output = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && output.contains(expected), "{settings:?}: {output}");
    }
}

#[test]
fn image_is_built_from_pinned_base_and_runs_as_non_root() {
    let text = read("deploy/Dockerfile");
    let stages: Vec<&str> = text.split("\nFROM ").skip(1).collect();
    let [_, program, controller] = &stages[..] else { panic!("three stages") };
    for line in text.lines().filter(|line| line.starts_with("FROM ") && !line.contains("scratch")) {
        assert!(line.contains("@sha256:"), "a base image is pinned by its digest: {line}");
    }
    for stage in [program, controller] {
        assert!(stage.contains("\nUSER 65532:65532\n"), "{stage}");
        assert!(stage.contains("ENTRYPOINT [\"/usr/bin/fleetwright\"]"), "{stage}");
    }
    assert!(text.contains("cargo auditable build --locked --release \\\n"));
    // Every path that the build context includes exists.
    for line in read("deploy/Dockerfile.dockerignore").lines() {
        let included = line.strip_prefix('!');
        assert!(included.is_none_or(|path| root().join(path).exists()), "{line}");
    }
}

#[test]
fn chart_notes_point_to_the_leader() {
    let notes = read(&format!("{CHART}/templates/NOTES.txt"));
    let line = notes.lines().find(|line| line.contains("port-forward")).expect("how to get there");
    let line = line.replace("{{ .Release.Namespace }}", "fleet");
    assert!(!line.contains("{{"), "{line}");
    let workspace = Workspace::empty();
    let fake_kubectl = "#!/bin/sh\n\
        [ \"$*\" = '--namespace kube-system get lease fleetwright-apply --output jsonpath={.spec.holderIdentity}' ] \\\n\
        && printf run/fleetwright-7d9-zzzzz || echo \"$*\"\n";
    workspace.write("bin/kubectl", fake_kubectl);
    let program = workspace.path("bin/kubectl");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).expect("executable");
    let path = format!("{}:/usr/bin:/bin", workspace.path("bin").display());
    let ran = Command::new("bash").args(["-euc", &line]).env("PATH", path).output();
    let output = String::from_utf8(ran.expect("bash runs").stdout).expect("text");
    let wanted = "--namespace fleet port-forward pod/fleetwright-7d9-zzzzz 8080:8080\n";
    assert_eq!(output, wanted, "{line}");
}
