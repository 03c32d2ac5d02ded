//! Tests of the catalog commands.

use crate::cli::Exit;
use crate::cli::tests::{CommandOutput, run_command};

#[test]
fn catalog_list_filters_sorts_and_limits() {
    let list = |more: &[&str]| {
        let arguments = [&["catalog", "list", "--format", "json"], more].concat();
        let json: serde_json::Value =
            serde_json::from_str(&run_command(&arguments).out).expect("JSON");
        let types = json["types"].as_array().expect("types").clone();
        types
            .iter()
            .map(|kind| kind["name"].as_str().expect("a name").to_owned())
            .collect::<Vec<_>>()
    };
    let m5 = "karpenter.k8s.aws/instance-family=m5";
    assert_eq!(list(&["-l", m5, "--limit", "2"]), ["m5.large", "m5.xlarge"]);
    assert_eq!(list(&["-l", m5, "--sort", "name", "--limit", "1"]), ["m5.12xlarge"]);
    assert_eq!(list(&["-l", m5, "-l", "karpenter.k8s.aws/instance-cpu<2"]), Vec::<String>::new());
    let none = run_command(&["catalog", "list", "-l", "team"]);
    assert!(none.out.starts_with("No instance type"), "{}", none.out);
    let text = run_command(&["catalog", "list", "-l", m5, "--limit", "1"]);
    assert!(text.out.contains("m5.large") && text.err.starts_with("warning: "));
}

#[test]
fn catalog_errors_suggest_similar_names() {
    for (arguments, expected) in [
        (&["catalog", "explain", "m5.lage"][..], "did you mean `m5.large`"),
        (&["catalog", "explain", "m5.large", "--region", "eu-wst-1"], "did you mean `eu-west-1`"),
        (&["catalog", "list", "-l", "cpu ~ 4"], "hint:  write KEY=VALUE"),
    ] {
        let CommandOutput { exit, err, .. } = run_command(arguments);
        assert_eq!(exit, Exit::Failed);
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn catalog_explain_shows_the_source_of_each_number() {
    let text = run_command(&["catalog", "explain", "m5.large"]).out;
    assert!(text.starts_with("m5.large  amd64, 2 vCPU, 8 GiB\n"));
    assert!(text.contains("  allocatable "), "{text}");
    let json = run_command(&["catalog", "explain", "m5.large", "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(json["allocatable"]["cpu_milli"], 1930);
    assert!(json["steps"].as_array().is_some_and(|steps| steps.len() > 5));
}

#[test]
fn catalog_list_of_a_pool_has_only_types_that_it_launches() {
    let pool = "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: web}\nspec: {template: \
                {metadata: {labels: {team: a}}, spec: {nodeClassRef: {group: karpenter.k8s.aws, kind: \
                EC2NodeClass, name: d}, requirements: [{key: node.kubernetes.io/instance-type, \
                operator: In, values: [m5.xlarge, m5.large]}, {key: karpenter.sh/capacity-type, \
                operator: In, values: [on-demand]}, {key: topology.kubernetes.io/zone, operator: In, \
                values: [us-east-1a]}]}}}\n---\napiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\n\
                metadata: {name: d}\nspec: {amiSelectorTerms: [{alias: al2023@latest}], role: r, \
                subnetSelectorTerms: [{tags: {a: b}}], securityGroupSelectorTerms: [{tags: {a: b}}]}\n";
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("pool.yaml"), pool).expect("written");
    let path = directory.path().to_str().expect("UTF-8");
    let arguments =
        ["catalog", "list", "--pool", "web", "--path", path, "--world", "empty", "-o", "json"];
    let ran = run_command(&arguments);
    let json: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let offerings = json["types"].as_array().expect("types").iter().flat_map(|kind| {
        let all = kind["offerings"].as_array().expect("offerings").iter();
        all.map(|one| format!("{} {} {}", kind["name"], one["zone"], one["capacity_type"]))
    });
    let offered = r#""us-east-1a" "on-demand""#;
    assert_eq!(
        offerings.collect::<Vec<_>>(),
        [format!("\"m5.large\" {offered}"), format!("\"m5.xlarge\" {offered}")]
    );
    let none = run_command(&["catalog", "list", "-l", "karpenter.k8s.aws/instance-famly=m5"]);
    let expected = "did you mean `karpenter.k8s.aws/instance-family`?";
    assert!(none.err.contains(expected), "{}", none.err);
}
