use proptest::prelude::*;

use super::*;
use crate::model::code::Code;
use crate::model::desired::{Desired, Fleet, SPARSE_REASON, Scale, Tree, TreeFile};
use crate::model::ids::Origin;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n";

#[test]
fn documents_that_are_no_input_are_skipped_with_a_reason() {
    for (text, expected) in [
        ("", &[][..]),
        ("---\n---\n", &["a.yaml:2: empty document", "a.yaml:3: empty document"]),
        ("a: 1", &["a.yaml:1: no kind"]),
        ("kind: Kustomization\na: 1", &["a.yaml:1: no apiVersion"]),
        // Helm values.
        ("kind: Deployment\nreplicas: 2", &["a.yaml:1: no apiVersion"]),
        ("\0GITCRYPT\0abc", &["a.yaml: encrypted with git-crypt"]),
        ("- a", &["a.yaml:1: list at top level"]),
        ("just text", &["a.yaml:1: text at top level"]),
        ("!Sub x", &["a.yaml:1: tagged value at top level"]),
        ("apiVersion: v1\nkind: ConfigMap", &["a.yaml:1: kind ConfigMap"]),
        (
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition",
            &["a.yaml:1: kind CustomResourceDefinition"],
        ),
        ("apiVersion: release-notes/v2\nkind: feature", &["a.yaml:1: apiVersion release-notes/v2"]),
        ("apiVersion: v1\nkind: Secret\nsops: {mac: x}", &["a.yaml:1: encrypted with SOPS"]),
        ("{{- if .Values.x }}\na: 1\n{{- end }}", &["a.yaml:1: templated"]),
        ("apiVersion: v1\nkind: '{{ kind }}'", &["a.yaml:1: templated"]),
        ("a:\n  kind: x\n  b: ${c ? \"d\" : \"e\"}\n", &["a.yaml:3: templated"]),
        (
            "apiVersion: fleetwright.dev/v1\nkind: Fleet",
            &["a.yaml:1: settings of another directory"],
        ),
        ("Resources: {X: {Type: !Ref Y}}", &["a.yaml:1: no kind"]),
        ("a: 1\na: 2\nb: =\n", &["a.yaml:1: no kind"]),
    ] {
        let desired = clean(text);
        assert_eq!(reasons(&desired), expected, "{text}");
        assert!(desired.workloads.is_empty() && desired.unresolved.is_empty(), "{text}");
    }
}

#[test]
fn hint_of_a_template_fits_its_placeholders() {
    let object = |value: &str| {
        problem(&format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\nb: {value}\n"))
    };
    let (expression, name) = (object("${c ? \"d\" : \"e\"}"), object("[${c}, }"));
    assert!(expression.contains("; render the template, and plan its output"), "{expression}");
    assert!(name.contains("; quote a ${…} inside [ ] or { }"), "{name}");
    for value in ["${c}\n%{ if d ~}", "\n  %{ if d ~}"] {
        let directive = object(value);
        assert!(directive.contains("; `%{` is of a template of Terraform"), "{directive}");
    }
}

#[test]
fn unknown_kind_of_a_known_group_is_unresolved() {
    let desired = read_text("apiVersion: karpenter.sh/v2\nkind: Gizmo\nmetadata: {name: x}\n");
    let [unresolved] = &desired.unresolved[..] else { panic!("{:?}", desired.unresolved) };
    assert_eq!(unresolved.reason, "kind Gizmo of karpenter.sh is not known to this version");
    assert_eq!(reasons(&desired), [""; 0]);
}

#[test]
fn mistyped_kind_or_group_of_a_known_group_is_an_error() {
    for (version, kind, expected) in [
        (
            "karpenter.sh/v1",
            "Nodepool",
            "has kind `Nodepool`, which karpenter.sh does not have; did you mean `NodePool`?",
        ),
        (
            "karpenter.k8s.aws/v1",
            "EC2Nodeclass",
            "has kind `EC2Nodeclass`, which karpenter.k8s.aws does not have; did you mean `EC2NodeClass`?",
        ),
        (
            "fleetwright.dev/v1",
            "Flete",
            "has kind `Flete`, which fleetwright.dev does not have; did you mean `Fleet`?",
        ),
        (
            "kapenter.sh/v1",
            "NodePool",
            "has the API group `kapenter.sh`, which no API server serves; did you mean `karpenter.sh`?",
        ),
        (
            "app/v1",
            "Deployment",
            "has apiVersion `app/v1`, in which kind Deployment is not served; write apiVersion: apps/v1",
        ),
    ] {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n");
        let found = problem(&text);
        assert!(found.starts_with("error a.yaml:1: ") && found.ends_with(expected), "{found}");
    }
    for (version, kind) in [
        ("karpenter.sh/v1", "NodeClaim"),
        ("karpenter.sh/v1", "NodeClaimList"),
        ("karpenter.sh/v1", "NodePoolList"),
        ("fleetwright.dev/v1", "CapacityPlan"),
        ("karpenter.azure.com/v1beta1", "AKSNodeClass"),
        ("app/v1", "Project"),
    ] {
        clean(&format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\nitems: []\n"));
    }
}

#[test]
fn objects_with_unknown_pods_are_unresolved() {
    let pods = "spec: {selector: {}, template: {spec: {containers: [{name: c}]}}}";
    for (version, kind, rest) in [
        ("argoproj.io/v1alpha1", "Application", ""),
        ("argoproj.io/v1alpha1", "ApplicationSet", ""),
        ("helm.toolkit.fluxcd.io/v2", "HelmRelease", ""),
        ("kustomize.toolkit.fluxcd.io/v1", "Kustomization", ""),
        ("apps.kruise.io/v1alpha1", "CloneSet", pods),
        ("apps.kruise.io/v1alpha1", "StatefulSet", pods),
        ("apps/v1", "Deployment", "sops: {mac: x}"),
    ] {
        let text = format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x, namespace: n}}\n{rest}"
        );
        let desired = clean(&text);
        let found = unresolved(&desired);
        assert_eq!(found.len(), 1, "{text}");
        assert!(found[0].starts_with(&format!("a.yaml:1: {kind} n/x: ")), "{}", found[0]);
        assert!(desired.workloads.is_empty());
    }
}

#[test]
fn a_template_of_an_object_is_unresolved() {
    for (text, line) in [
        (
            "{{- if true }}\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n{{- end }}",
            1,
        ),
        ("kind: ApplicationSet\nspec:\n  name: '{{env}}'\n   source: {}\n", 4),
        ("kind: Application\nmetadata:\n  name: {{ app }}\n", 3),
        ("- kind: HelmRelease\n  spec: {{ x }}\n", 2),
        ("apiVersion: v1\nkind: {{ .Values.kind }}", 2),
    ] {
        let desired = clean(text);
        assert_eq!(reasons(&desired), [format!("a.yaml:{line}: templated")]);
        let expected = format!("a.yaml:{line}: template a.yaml: it cannot be parsed (");
        assert!(unresolved(&desired)[0].starts_with(&expected), "{:?}", unresolved(&desired));
    }
    assert_eq!(unresolved(&clean("{{- if .x }}\na: 1\n{{- end }}")), [""; 0], "it has no kind");
}

#[test]
fn a_broken_file_is_an_error_with_its_line() {
    for (path, text, expected) in [
        ("a.yaml", "a: 1\nb: 'x", "error a.yaml:2: is not YAML: "),
        ("a.yaml", "a:\n\tb: 1", "error a.yaml:2: is not YAML: "),
        ("a.json", "{\"apiVersion\": 1,", "error a.json:2: is not JSON: "),
        ("a.yaml", "a: \0", "error a.yaml:1: contains a NUL byte"),
        ("a.yaml", "kind: x\na: [${B}]", "error a.yaml:2: is not YAML: "),
    ] {
        let found = lines(&read_files(&[(path, text)]));
        assert_eq!(found.len(), 1, "{text}");
        assert!(found[0].starts_with(expected), "{}", found[0]);
    }
    let desired = read_text(&format!("{POD}---\na: 'x"));
    assert_eq!((desired.workloads.len(), desired.problems.len()), (1, 1), "what is before is read");
}

#[test]
fn objects_without_a_separator_between_them_are_an_error() {
    let text = format!("{POD}apiVersion: v1\nkind: Service\nmetadata: {{name: s}}\n");
    assert_eq!(
        lines(&read_text(&text)),
        ["error a.yaml:6: key `kind` is given twice, at lines 2 and 6; write `---` between two \
          objects, or remove one of the two"]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_an_error() {
    let content = Err("permission denied".to_owned());
    let tree = Tree { files: vec![TreeFile { path: "a.yaml".into(), content }] };
    let desired = read(&tree, &Fleet::default());
    assert_eq!(lines(&desired), ["error a.yaml: cannot be read: permission denied"]);
}

#[test]
fn sparse_file_is_skipped_where_its_path_excludes_it() {
    let missing =
        ["a.yaml", "c/d/kustomization.yaml", "c/x.yaml", "patch.yaml", "shop/templates/p.yaml"];
    let errors = |reason: &str| {
        let file = |path: &str| TreeFile { path: path.into(), content: Err(reason.to_owned()) };
        let mut tree = tree(&[
            ("c/kustomization.yaml", "kind: Component"),
            ("prod/kustomization.yaml", "patches: [{path: ../patch.yaml}]"),
            ("shop/Chart.yaml", "name: shop"),
        ]);
        tree.files.extend(missing.map(file));
        let desired = read(&tree, &Fleet::default());
        assert_eq!(unresolved(&desired).len(), 2, "neither source is rendered");
        desired.problems.iter().map(|problem| problem.origin.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(errors(SPARSE_REASON), missing[..2]);
    // Each may be a directory, and a renderer does not see that it is unread.
    assert_eq!(errors("the directory cannot be listed"), missing);
}

#[test]
fn encodings_and_line_ends_do_not_matter() {
    let utf16: Vec<u8> =
        [0xFF, 0xFE].into_iter().chain(POD.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    for bytes in
        [POD.replace('\n', "\r\n").into_bytes(), [b"\xEF\xBB\xBF", POD.as_bytes()].concat(), utf16]
    {
        let file = TreeFile { path: "a.yml".into(), content: Ok(bytes.into()) };
        let desired = read(&Tree { files: vec![file] }, &Fleet::default());
        assert_eq!((desired.workloads.len(), lines(&desired).len()), (1, 0));
    }
}

#[test]
fn json_is_read_and_other_files_are_not() {
    let json = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j", "labels": {}},
        "spec": {"containers": [{"name": "c", "image": "\ud83d\ude00 \u00e9"}]}}"#;
    let desired = read_files(&[
        ("package.json", "{\"name\": \"x\", // comment\n}"),
        ("pod.json", json),
        ("README.md", POD),
        ("pod.YAML", POD),
        ("yaml.json", &POD.replace("name: p", "name: q")),
    ]);
    assert_eq!(lines(&desired), [""; 0]);
    let names: Vec<String> = desired.workloads.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["default/j", "default/p", "default/q"]);
    assert_eq!(reasons(&desired), ["package.json: JSON without apiVersion"]);
}

#[test]
fn key_given_twice_in_an_object_without_capacity_is_a_warning() {
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n";
    let desired = read_text(&format!("{map}data:\n  a: '1'\n  a: '2'\n"));
    assert_eq!(
        lines(&desired),
        ["warning a.yaml:6: key `a` is given twice, at lines 5 and 6; remove one of the two"]
    );
    let pod = POD.replace("{containers", "{priority: 1, priority: 2, containers");
    assert!(lines(&read_text(&pod))[0].starts_with("error "), "{pod}");
}

#[test]
fn sources_of_tests_are_skipped_unless_they_are_named() {
    let files = [
        ("tests/a/kustomization.yaml", "namePrefix: x\nresources: [a.yaml]\n"),
        ("tests/a/a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"),
        ("tests/b/Chart.yaml", "apiVersion: v2\nname: b\nversion: 1.0.0\n"),
        ("pod.yaml", POD),
    ];
    let desired = read_files(&files);
    assert_eq!(unresolved(&desired), [""; 0]);
    let skipped = reasons(&desired);
    for path in ["tests/a/kustomization.yaml", "tests/b/Chart.yaml"] {
        let expected = format!("{path}: in a directory for tests");
        assert!(skipped.contains(&expected), "{skipped:?}");
    }
    let named = with_sources("[{path: tests/a}]", &files);
    assert_eq!(unresolved(&named).len(), 1, "{:?}", unresolved(&named));
}

#[test]
fn anchors_and_merge_keys_work_across_an_object() {
    let desired = clean(
        "apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec:
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      containers:
      - &base {name: a, resources: &r {requests: {cpu: 1}}}
      - {<<: *base, name: b}
      - {name: c, resources: *r}",
    );
    let cpu: Vec<i64> =
        pod_spec(&desired).containers.iter().map(|c| c.resources.requests["cpu"]).collect();
    assert_eq!(cpu, [1_000, 1_000, 1_000]);
}

#[test]
fn helm_charts_are_not_read_as_plain_files() {
    let desired = read_files(&[
        ("shop/Chart.yaml", "apiVersion: v2\nname: shop"),
        ("shop/templates/pod.yaml", POD),
        ("shop/values.yaml", "replicas: 3"),
        ("shop-extra/templates/pod.yaml", POD),
    ]);
    assert_eq!(
        reasons(&desired),
        [
            "shop/Chart.yaml:1: no kind",
            "shop/templates/pod.yaml: template of a Helm chart",
            "shop/values.yaml:1: no kind",
        ]
    );
    assert_eq!(desired.workloads.len(), 1);
}

#[test]
fn an_unrendered_kustomization_is_unresolved_without_patches() {
    let overlay = "apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../base]
patches: [{path: ./more.yaml, target: {kind: Pod}}]
patchesStrategicMerge: [patch.yaml, 'kind: Pod']
";
    let patch = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {priority: 3}";
    let files = [
        ("base/kustomization.yaml", "resources: [pod.yaml]\nnamePrefix: x-"),
        ("base/pod.yaml", POD),
        ("prod/kustomization.yaml", overlay),
        ("prod/more.yaml", "- {op: add}"),
        ("prod/patch.yaml", patch),
    ];
    let desired = read_files(&files);
    assert_eq!(lines(&desired), [""; 0]);
    assert_eq!(
        unresolved(&desired),
        [
            "prod/kustomization.yaml: Kustomization prod: no source renders it; add `- { path: prod, \
          render: kustomize }` to `spec.sources` in fleetwright.yaml, next to the paths of plain manifests"
        ],
        "a base is part of what is built on it"
    );
    assert_eq!(
        reasons(&desired),
        [
            "base/kustomization.yaml:1: kustomization",
            "prod/kustomization.yaml:1: kustomization",
            "prod/more.yaml: patch of prod/kustomization.yaml",
            "prod/patch.yaml: patch of prod/kustomization.yaml",
        ]
    );
    assert_eq!(desired.workloads.len(), 1, "files that may be plain are read as such");
    let plain = read_files(&[("kustomization.yaml", "resources: [pod.yaml]"), ("pod.yaml", POD)]);
    assert_eq!((unresolved(&plain).len(), plain.workloads.len()), (0, 1), "nothing is changed");
    let remote = read_files(&[("kustomization.yaml", "resources: ['https://example.com/a.yaml']")]);
    assert_eq!(unresolved(&remote).len(), 1);
    let paths =
        ["kustomization.yaml", "a/kustomization.yaml", "b/c/Kustomization", "d/kustomization.yml"];
    let many = read_files(&paths.map(|path| (path, "namePrefix: x-")));
    assert_eq!(unresolved(&many).len(), 4);
}

#[test]
fn a_chart_with_objects_is_unresolved_once() {
    let chart = "apiVersion: v2\nname: shop\n";
    let desired = read_files(&[
        ("charts/shop/Chart.yaml", chart),
        ("charts/shop/charts/db/Chart.yaml", chart),
        ("lib/Chart.yaml", "apiVersion: v2\nname: lib\ntype: library"),
    ]);
    let reason = |path: &str| {
        format!(
            "no source renders it; add `- {{ path: {path}, render: helm }}` to `spec.sources` in \
             fleetwright.yaml, next to the paths of plain manifests"
        )
    };
    assert_eq!(
        unresolved(&desired),
        [format!("charts/shop/Chart.yaml: Helm chart charts/shop: {}", reason("charts/shop"))]
    );
    let root = read_files(&[("Chart.yaml", chart), ("charts/db/Chart.yaml", chart)]);
    assert_eq!(unresolved(&root), [format!("Chart.yaml: Helm chart .: {}", reason("."))]);
    let rendered = with_sources("[{path: ., render: helm}]", &[("Chart.yaml", chart)]);
    assert_eq!(unresolved(&rendered), ["fleetwright.yaml:5: source .: helm was not run on it"]);
}

/// Reads files with these sources in the settings, which must be valid.
fn with_sources(sources: &str, files: &[(&str, &str)]) -> Desired {
    let fleet = format!(
        "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec:\n  cluster: {{name: prod, region: \
         eu-west-1}}\n  sources: {sources}\n"
    );
    let files = [&[("fleetwright.yaml", fleet.as_str())], files].concat();
    let tree = tree(&files);
    let (fleet, problems) = read_fleet(&tree);
    assert_eq!(problems, []);
    read(&tree, &fleet)
}

#[test]
fn an_oversized_embedded_world_is_not_a_manifest() {
    let problem_count = |world: &str| {
        let fleet = format!(
            "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{name: a}}\nspec:\n  \
             cluster: {{name: a, region: r, zones: [ra]}}\n  world: {world}\n"
        );
        let mut tree = tree(&[("fleetwright.yaml", &fleet), ("pod.yaml", POD)]);
        let path = "sim/world.json".into();
        tree.files.push(TreeFile { path, content: Err("it is too large".to_owned()) });
        let path = "sim/web.yaml".into();
        tree.files.push(TreeFile { path, content: Err("it cannot be read".to_owned()) });
        let (fleet, problems) = read_fleet(&tree);
        assert_eq!(problems, []);
        lines(&read(&tree, &fleet)).len()
    };
    assert_eq!(problem_count("sim:./sim"), 1);
    assert_eq!((problem_count("sim:other"), problem_count("live")), (2, 2));
}

#[test]
fn only_what_is_below_a_source_is_read() {
    let desired = with_sources(
        "[{path: apps}, {path: charts/shop, render: helm}]",
        &[
            ("apps/a.yaml", POD),
            ("apps2/broken.yaml", "a: 'x"),
            ("charts/shop/values.yaml", "a: 1"),
            ("pod.yaml", "a: 'x"),
        ],
    );
    assert_eq!((desired.workloads.len(), lines(&desired).len()), (1, 0));
    assert_eq!(
        unresolved(&desired),
        ["fleetwright.yaml:5: source charts/shop: helm was not run on it"]
    );
    assert_eq!(reasons(&desired), ["charts/shop/values.yaml: part of a source that is rendered"]);
}

#[test]
fn placeholders_use_variables_of_source_and_cluster() {
    let deployment = |replicas: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: '${{CLUSTER_NAME}}-x'}}\nspec:\n  \
             replicas: {replicas}\n  selector: {{matchLabels: {{app: x}}}}\n  template: {{metadata: \
             {{labels: {{app: x}}}}, spec: {{containers: [{{name: c, image: '${{NOWHERE}}'}}]}}}}\n"
        )
    };
    let read = |replicas: &str| {
        with_sources("[{path: a, vars: {NUM: 4}}]", &[("a/b.yaml", &deployment(replicas))])
    };
    for (replicas, expected) in [
        ("${NUM}", 4),
        ("${NUM:-9}", 4),
        ("${M:-9}", 9),
        ("${M:=9}", 9),
        ("1${NUM}", 14),
        ("3${NUM%4}", 3),
    ] {
        let desired = read(replicas);
        assert_eq!(lines(&desired), [""; 0], "{replicas}");
        let workload = desired.workloads.values().next().expect("one");
        assert_eq!(workload.scale, Scale::Replicas(expected), "{replicas}");
        assert_eq!(&*workload.id.name, "prod-x");
    }
    assert_eq!(
        lines(&read("${M}")),
        ["error a/b.yaml:5: Deployment default/prod-x: `spec.replicas` needs `M`, which has \
          no value; give `M` a value under `vars` of the source in fleetwright.yaml"]
    );
    assert_eq!(
        lines(&read("${NUM%[4]}")),
        ["error a/b.yaml:5: Deployment default/prod-x: `spec.replicas` has `${NUM%[4]}`, which \
          cannot be replaced; write its result instead, or `$${` for a literal `${`"]
    );
    assert!(lines(&read("'{{ n }}'"))[0].contains("contains the template expression `{{ n }}`"));
    let in_flow = "apiVersion: v1\nkind: Pod\nmetadata: {name: ${CLUSTER_NAME}}\n\
                   spec: {containers: [{name: c}]}";
    let desired = with_sources("[{path: a}]", &[("a/b.yaml", in_flow)]);
    assert_eq!((desired.workloads.len(), lines(&desired).len()), (1, 0));
}

#[test]
fn the_result_does_not_depend_on_the_order_of_files() {
    let other = POD.replace("name: p", "name: q");
    let clash = POD.replace("containers", "priority: 1, containers");
    let files = [
        ("a.yaml", POD),
        ("b.yaml", &other),
        ("c.yaml", &clash),
        ("d.yaml", "x: ["),
        ("e.yaml", "- a"),
    ];
    let debug = |desired: Desired| format!("{desired:?}");
    let forward = debug(read_files(&files));
    let mut backward = files;
    backward.reverse();
    assert_eq!(forward, debug(read_files(&backward)));
    assert!(forward.contains("is defined differently at a.yaml:1"));
}

#[test]
fn every_object_has_its_origin() {
    let desired = clean(&format!("# comment\n---\n{POD}"));
    let workload = desired.workloads.values().next().expect("one");
    assert_eq!(workload.origin, Origin::new("a.yaml", 3));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let file = TreeFile { path: "a.yaml".into(), content: Ok(bytes.into()) };
        let _ = read(&Tree { files: vec![file] }, &Fleet::default());
    }

    #[test]
    fn objects_with_random_values_never_panic(
        edit_distance in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(vec![
            "null", "-1", "[]", "{}", "'x'", "1e999", "${A}", "{{ x }}", "!Ref y", "*a", "&a 1",
            "99999999999999999999", "true", "\"\\u0000\"", "5%", "Never", "- a",
        ])), 0..6),
        text in prop::sample::select(vec![
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata:\n  name: x\nspec:\n  replicas: 2\n  template:\n    spec:\n      containers:\n      - name: c\n        resources:\n          requests:\n            cpu: 1\n      affinity:\n        nodeAffinity: {}\n  volumeClaimTemplates:\n  - metadata:\n      name: d\n",
            "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata:\n  name: x\nspec:\n  weight: 2\n  limits:\n    cpu: 1\n  disruption:\n    consolidateAfter: 1s\n    budgets:\n    - nodes: 5%\n  template:\n    spec:\n      expireAfter: 1h\n      requirements:\n      - key: a\n        operator: In\n        values: [b]\n",
            "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata:\n  name: x\nspec:\n  role: r\n  amiFamily: AL2\n  amiSelectorTerms:\n  - alias: al2@latest\n  kubelet:\n    maxPods: 3\n    evictionHard:\n      memory.available: 5%\n",
        ]),
    ) {
        let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
        for (index, value) in edit_distance {
            let at = index.index(lines.len());
            if let Some((key, _)) = lines[at].split_once(": ") {
                lines[at] = format!("{key}: {value}");
            }
        }
        let _ = read_text(&lines.join("\n"));
    }
}

#[test]
fn pod_template_of_a_custom_resource_is_no_workload() {
    let object = |spec: &str| {
        let template = "template: {spec: {containers: [{name: c}]}}";
        let text = format!(
            "apiVersion: x.io/v1\nkind: Thing\nmetadata: {{name: t}}\nspec: {{{spec}{template}}}\n"
        );
        read_text(&text).unresolved.len()
    };
    assert_eq!(object(""), 0, "another object uses the template");
    assert_eq!(object("replicas: 3, "), 1, "its controller makes pods");
}

#[test]
fn name_without_braces_is_a_placeholder_if_known() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: $CLUSTER_NAME-web}\nspec:\n  \
               containers: [{name: c, args: ['${x}', $y], env: [{name: A, value: '${z}'}]}]\n";
    let desired = read_text(pod);
    assert_eq!(desired.problems, [], "a shell variable is no placeholder");
    let names: Vec<String> = desired.workloads.keys().map(ToString::to_string).collect();
    assert_eq!(names, ["default/default-web"]);
}

#[test]
fn common_problems_have_codes() {
    let pod = |spec: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n  - {spec}\n"
        )
    };
    let container = |resources: &str| pod(&format!("{{name: c, resources: {{{resources}}}}}"));
    for (text, code) in [
        ("kind: [Pod\n".to_owned(), Code::InvalidYaml),
        (container("requests: {cpu: 1}, requests: {cpu: 2}"), Code::DuplicateKey),
        (container("requests: {cpu: 1x}"), Code::InvalidQuantity),
        (container("requests: {cpu: '${CPU}'}"), Code::PlaceholderUnresolved),
        (container("request: {cpu: 1}"), Code::UnknownField),
        (container("requests: [cpu]"), Code::WrongType),
    ] {
        let found = read_text(&text).problems;
        let codes: Vec<_> = found.iter().map(|problem| problem.code).collect();
        assert_eq!(codes, [Some(code)], "{text}{found:?}");
    }
}

#[test]
fn components_are_only_parts_of_kustomizations() {
    let component = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources: [x.yaml]\n\
                     patches: [{path: p.yaml}]\n";
    let files = [("parts/kustomization.yaml", component), ("parts/x.yaml", &pod("")[..])];
    let desired = read(&tree(&files), &Fleet::default());
    assert_eq!((desired.workloads.len(), unresolved(&desired)), (0, vec![]));
    let reasons: Vec<&str> =
        desired.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert_eq!(reasons, ["part of a kustomize component"; 2]);
}

#[test]
fn source_that_is_a_component_is_unresolved() {
    let component =
        "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\nresources: [x.yaml]\n";
    let settings = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {name: a}\nspec:\n  sources: \
                    [{path: parts}]\n";
    let tree = tree(&[
        ("fleetwright.yaml", settings),
        ("parts/kustomization.yaml", component),
        ("parts/x.yaml", &pod("")),
    ]);
    let found = unresolved(&read(&tree, &read_fleet(&tree).0));
    assert!(found.len() == 1 && found[0].contains("source parts: it is a component"), "{found:?}");
}
