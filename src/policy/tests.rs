use super::rules::FINDINGS_MAX;
use super::*;
use crate::model::ids::Origin;
use crate::plan::wire::{CheckSeverity, CheckStatus, NodeState, ResourceChange};
use crate::testing::sample_plan::{nothing, plan};

fn bundle(texts: &[&str]) -> Bundle {
    let file = |(n, text): (usize, &&str)| PolicyFile {
        path: format!("p{n}.rego"),
        text: (*text).to_owned(),
    };
    Bundle { files: texts.iter().enumerate().map(file).collect(), data: Vec::new() }
}

fn checks_of(text: &str) -> Vec<Check> {
    evaluate(&input(&plan()), &bundle(&[text]), PolicyLimits::default())
}

fn single_check(text: &str) -> Check {
    let mut checks = checks_of(text);
    assert_eq!(checks.len(), 1, "{checks:?}");
    checks.remove(0)
}

#[test]
fn terraform_rego_works_unchanged_in_both_versions() {
    let old = "package main\n\ndeny[msg] {\n  r := input.resource_changes[_]\n  r.change.actions[_] == \"delete\"\n  \
               msg := sprintf(\"%v is deleted\", [r.address])\n}\n";
    let new = "package main\n\nimport rego.v1\n\ndeny contains msg if {\n  some r in input.resource_changes\n  \
               \"delete\" in r.change.actions\n  msg := sprintf(\"%v is deleted\", [r.address])\n}\n";
    for text in [old, new] {
        let check = single_check(text);
        assert_eq!((check.status.as_str(), check.problems.len()), ("fail", 4), "{check:?}");
        assert_eq!(check.problems[0], "ec2_instance.batch[\"0\"] is deleted");
    }
}

/// A policy in the style of those for Terraform: it counts removals of managed resources, and
/// compares the instance types before and after.
const TERRAFORM_STYLE: &str = r#"package main

most_removed := 3

removed := [r.address |
  r := input.resource_changes[_]
  r.mode == "managed"
  r.provider_name == "fleetwright.dev/fleetwright/fleetwright"
  r.change.actions[_] == "delete"
]

deny_blast_radius[msg] {
  count(removed) > most_removed
  msg := sprintf("%d resources are removed, at most %d are allowed", [count(removed), most_removed])
}

types(resources) := concat(" ", [r.values.instance_type | r := resources[_]; r.mode == "managed"])

warn_types[msg] {
  before := types(input.prior_state.values.root_module.resources)
  after := types(input.planned_values.root_module.resources)
  before != after
  msg := sprintf("instance types change from %s to %s", [before, after])
}
"#;

#[test]
fn terraform_sections_of_the_input_agree_with_the_rows() {
    let checks = checks_of(TERRAFORM_STYLE);
    let problem = |name: &str| {
        let check = checks.iter().find(|check| check.name == name).expect("a check");
        check.problems.join("; ")
    };
    assert_eq!(
        problem("main.deny_blast_radius"),
        "4 resources are removed, at most 3 are allowed",
        "{checks:?}"
    );
    let plan = plan();
    let types = |state: fn(&ResourceChange) -> Option<&NodeState>| {
        let states = plan.resource_changes.iter().filter_map(state);
        let types =
            states.filter_map(|state| state.instance_type.as_ref()).map(ToString::to_string);
        types.collect::<Vec<_>>().join(" ")
    };
    let (before, after) =
        (types(|row| row.change.before.as_ref()), types(|row| row.change.after.as_ref()));
    assert_eq!(
        problem("main.warn_types"),
        format!("instance types change from {before} to {after}")
    );
}

#[test]
fn severity_and_finding_come_from_name_and_object() {
    let check = single_check(
        "package a.b\nimport rego.v1\nwarn_place contains {\"msg\": \"m\", \"address\": \"x.y\", \
         \"_loc\": {\"file\": \"a.yaml\", \"line\": 7}, \"owner\": \"web\"} if { true }\n",
    );
    assert_eq!((check.name.as_str(), check.status.as_str()), ("a.b.warn_place", "warn"));
    let finding = &check.findings[0];
    assert_eq!(finding.origin, Some(Origin::new("a.yaml", 7)));
    assert_eq!(finding.address.as_ref().map(crate::model::ids::Address::as_str), Some("x.y"));
    assert_eq!(finding.metadata.get("owner").map(String::as_str), Some("web"));
    let violation = single_check(
        "package m\nimport rego.v1\nviolation contains {\"msg\": \"v\"} if { true }\n",
    );
    assert_eq!(
        (violation.status.as_str(), violation.severity.as_ref().map(CheckSeverity::as_str)),
        ("fail", Some("violation"))
    );
    assert_eq!(
        single_check("package m\nimport rego.v1\ndeny contains \"x\" if { false }\n").status,
        CheckStatus::Pass
    );
}

#[test]
fn exception_by_suffix_is_applied_and_reported() {
    let check = single_check(
        "package main\ndeny_spot[msg] {\n  msg := \"spot\"\n}\nexception[rules] {\n  rules := [\"spot\"]\n}\n",
    );
    assert_eq!(
        (check.status.as_str(), check.exceptions.as_slice()),
        ("pass", &["spot".to_owned()][..])
    );
}

#[test]
fn policy_that_cannot_be_evaluated_denies() {
    for (text, expected) in [
        ("package main\ndeny[msg] {", "p0.rego"),
        (
            "package main\nimport rego.v1\ndeny contains msg if { msg := http.send({\"url\": \"x\"}).body }\n",
            "http",
        ),
        (
            "package main\nimport rego.v1\ndeny contains msg if { msg := sprintf(\"%d\", [time.now_ns()]) }\n",
            "time",
        ),
    ] {
        let mut denied = plan();
        attach_checks(&mut denied, checks_of(text));
        assert!(is_denied(&denied) && !denied.applyable, "{text}: {:?}", denied.checks);
        let output = format!("{:?}", denied.checks);
        assert!(output.contains(expected), "{output}");
    }
}

#[test]
fn every_spelling_of_a_rule_is_evaluated() {
    for text in [
        "package main\nimport rego.v1\ndeny  contains \"x\" if { true }\n",
        "package main\nimport rego.v1\ndeny:=\"x\"\n",
        "package main\nimport rego.v1\ndeny\n\tcontains \"x\" if { true }\n",
        "package main\nimport rego.v1\n   deny contains \"x\" if { true }\n",
        "package\tmain\nimport rego.v1\ndeny contains \"x\" if { true }\n",
        "# package other\npackage main\nimport rego.v1\ndefault deny := \"x\"\n",
        "package main\nimport rego.v1\ndeny[\"a\"] := \"x\" if { true }\n",
        "package main\nimport rego.v1\ndeny.a contains \"x\" if { true }\n",
        "package main; deny[\"x\"] { true }\n",
    ] {
        let mut denied = plan();
        attach_checks(&mut denied, checks_of(text));
        assert!(is_denied(&denied), "{text}: {:?}", denied.checks);
    }
}

#[test]
fn unused_file_is_an_error_unless_imported() {
    let rule =
        "package main\nimport rego.v1\nimport data.lib\ndeny contains \"x\" if { lib.never }\n";
    for idle in ["package main2\ndenies[msg] { msg := \"x\" }\n", "package empty\n"] {
        let checks = evaluate(&input(&plan()), &bundle(&[rule, idle]), PolicyLimits::default());
        assert!(
            checks.iter().any(|c| c.status == CheckStatus::Error && c.name == "p1.rego"),
            "{checks:?}"
        );
    }
    for used in ["package lib\nnever { false }\n", "package main\nhelps { true }\n"] {
        let checks = evaluate(&input(&plan()), &bundle(&[rule, used]), PolicyLimits::default());
        assert_eq!((checks.len(), checks[0].status.as_str()), (1, "pass"), "{checks:?}");
    }
}

#[test]
fn policy_over_memory_limit_is_stopped() {
    let text = "package main\nimport rego.v1\ndeny contains msg if {\n  \
                all := [s | some i in numbers.range(1, 2000000); s := sprintf(\"%d-%d\", [i, i])]\n  \
                count(all) == 1\n  msg := \"x\"\n}\n";
    // The limit applies to the process, and parallel tests set it too: run in a separate process.
    if std::env::var_os("FLEETWRIGHT_TEST_ALONE").is_none() {
        let name = "policy::tests::policy_over_memory_limit_is_stopped";
        let program = std::env::current_exe().expect("path of the test executable");
        let result = std::process::Command::new(program)
            .args(["--exact", name])
            .env("FLEETWRIGHT_TEST_ALONE", "1")
            .output();
        let result = result.expect("the test process runs");
        let output = String::from_utf8_lossy(&result.stdout).into_owned();
        assert!(result.status.success() && output.contains("1 passed"), "{output}");
        return;
    }
    // A long time limit, so that only the memory limit can stop it on a busy host.
    let limits = PolicyLimits { memory: 64 << 20, time: Duration::from_mins(5) };
    let checks = evaluate(&input(&nothing()), &bundle(&[text]), limits);
    assert_eq!(checks[0].status, CheckStatus::Error, "{checks:?}");
    assert!(checks[0].problems[0].contains("memory"), "{checks:?}");
}

#[test]
fn policy_over_time_limit_is_stopped() {
    let text = "package main\nimport rego.v1\ndeny contains msg if {\n  some a in numbers.range(1, 3000)\n  \
                some b in numbers.range(1, 3000)\n  some c in numbers.range(1, 3000)\n  a + b + c == -1\n  msg := \"x\"\n}\n";
    let limits = PolicyLimits { time: Duration::from_millis(50), ..PolicyLimits::default() };
    let checks = evaluate(&input(&nothing()), &bundle(&[text]), limits);
    assert_eq!(checks[0].status, CheckStatus::Error, "{checks:?}");
    assert!(checks[0].problems[0].contains("time limit"), "{checks:?}");
}

#[test]
fn findings_are_limited_and_the_rest_counted() {
    let check = single_check(
        "package main\nimport rego.v1\ndeny contains n if { some i in numbers.range(1, 5000); n := sprintf(\"%d\", [i]) }\n",
    );
    assert_eq!(check.findings.len(), FINDINGS_MAX + 1);
    assert_eq!(check.findings[FINDINGS_MAX].message, "4900 more findings of this rule");
}

#[test]
fn policies_read_data_files() {
    let text = "package main\nimport rego.v1\ndeny contains \"over\" if { data.limits.nodes < count(input.resource_changes) }\n";
    let with = |json: &str| {
        let data = vec![PolicyFile { path: "data.json".into(), text: json.into() }];
        evaluate(&input(&plan()), &Bundle { data, ..bundle(&[text]) }, PolicyLimits::default())
            .remove(0)
            .status
    };
    assert_eq!(with("{\"limits\": {\"nodes\": 2}}"), CheckStatus::Fail);
    assert_eq!(with("{\"limits\": {\"nodes\": 200}}"), CheckStatus::Pass);
    assert_eq!(with("{"), CheckStatus::Error);
    assert_eq!(with("[]"), CheckStatus::Error);
}

#[test]
fn later_data_overrides_earlier_data_by_key() {
    let text = "package main\nimport rego.v1\ndeny contains \"x\" if { not \"b\" in data.f.labels }\ndeny contains \"y\" if { data.f.most < 3 }\n";
    let file = |text: &str| PolicyFile { path: "d.json".to_owned(), text: text.to_owned() };
    let data = vec![
        file("{\"f\": {\"labels\": [\"a\"], \"most\": 5}}"),
        file("{\"f\": {\"labels\": [\"b\"]}}"),
    ];
    let checks =
        evaluate(&input(&plan()), &Bundle { data, ..bundle(&[text]) }, PolicyLimits::default());
    assert_eq!(checks[0].status, CheckStatus::Pass, "{checks:?}");
}

#[test]
fn member_that_is_neither_text_nor_object_denies() {
    for rule in [
        "deny contains [\"too dear\", 1]",
        "deny contains 5",
        "deny := 5",
        "deny contains {\"a\"}",
        "deny contains true",
        "deny := [\"x\", [\"y\"]]",
    ] {
        let check = single_check(&format!("package main\nimport rego.v1\n{rule}\n"));
        assert_eq!(check.status, CheckStatus::Error, "{rule}: {check:?}");
        assert!(check.problems[0].contains("neither a message nor an object"), "{check:?}");
    }
    for (rule, status) in
        [("deny := false", CheckStatus::Pass), ("deny := true", CheckStatus::Fail)]
    {
        let check = single_check(&format!("package main\nimport rego.v1\n{rule}\n"));
        assert_eq!(check.status, status, "{rule}: {check:?}");
    }
}

#[test]
fn recursive_policies_are_refused_when_loaded() {
    let main = |rules: &str| format!("package main\nimport rego.v1\n{rules}\n");
    let recursive = [
        main("f(x) := f(x)\ndeny contains \"x\" if f(1)"),
        main("a if b\nb if a\ndeny contains \"x\" if a"),
        main("f(x) := data.main.f(x)\ndeny contains \"x\" if f(1)"),
        main("f(x) := data[\"main\"].f(x)\ndeny contains \"x\" if f(1)"),
        main("f(x) := data[\"m\\u0061in\"].f(x)\ndeny contains \"x\" if f(1)"),
        main("f(f) := f(f)\ndeny contains \"x\" if f(1)"),
        main("f(x) := y if { _ := [f | f := 1]; y := f(x) }\ndeny contains \"x\" if f(1)"),
        main("deny contains \"x\" if { some name; data.main[name] }"),
        main("import data.main as own\nf(x) := own.f(x)\ndeny contains \"x\" if f(1)"),
        main("h(x) := x\ng(x) := y(x)\ny(x) := h(x)\ndeny contains \"x\" if y(1) with h as g"),
    ];
    for text in recursive {
        let found = load_errors(&bundle(&[&text]), PolicyLimits::default());
        assert!(found.iter().any(|(_, why)| why.contains("call themselves")), "{text}: {found:?}");
        let check = single_check(&text);
        assert_eq!(check.status, CheckStatus::Error, "{text}");
    }
    let chain: Vec<String> = (0..200).map(|at| format!("f{at}(x) := f{}(x)", at + 1)).collect();
    let long = main(&format!("{}\nf200(x) := x\ndeny contains \"x\" if f0(1)", chain.join("\n")));
    let found = load_errors(&bundle(&[&long]), PolicyLimits::default());
    assert!(found.iter().any(|(_, why)| why.contains("in a row")), "{found:?}");
    // A variable, a field, a comment or a message is no call.
    for text in [
        "deny contains \"deny is deny\" if { input.deny.deny } # deny",
        "total := count(input.resource_changes)\nmost(total) := total\n\
         deny contains \"x\" if { most(total) < 0 }",
        "f(x) := g(x)\ng(x) := x\ndeny contains f if { f := \"x\"; g(false) }",
        "f(x) := 1 if { x < 0 } else := 2\ndeny contains \"x\" if f(1) < 0",
    ] {
        let found = load_errors(&bundle(&[&main(text)]), PolicyLimits::default());
        assert_eq!(found, [], "{text}");
    }
}
