use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::cli::Exit;
use crate::cli::tests::{CommandOutput, run_command};

const BASE: [&str; 4] = ["bootstrap", "aws", "--cluster", "prod"];
const GITHUB: [&str; 4] = ["--ci", "github", "--repository", "acme/fleet"];

fn run(more: &[&str]) -> CommandOutput {
    run_command(&[&BASE[..], more].concat())
}

fn template(more: &[&str]) -> Json {
    let ran = run(more);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    serde_json::from_str(&ran.out).expect("JSON")
}

/// Calls `visit` with each key and each text of a document.
fn visit_texts(document: &Json, visit: &mut impl FnMut(&str)) {
    match document {
        Json::String(text) => visit(text),
        Json::Array(items) => items.iter().for_each(|item| visit_texts(item, visit)),
        Json::Object(entries) => {
            for (key, item) in entries {
                visit(key);
                visit_texts(item, visit);
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// Returns the placeholders `${…}` of a document.
fn placeholders(document: &Json) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    visit_texts(document, &mut |text| {
        let names = text.split("${").skip(1).filter_map(|rest| rest.split('}').next());
        found.extend(names.map(str::to_owned));
    });
    found
}

#[test]
fn template_leaves_only_values_of_the_stack_open() {
    for more in [
        &GITHUB[..],
        &["--ci", "gitlab", "--repository", "acme/platform/fleet", "--allow", "adoption"],
        &["--identity", "irsa", "--oidc-provider", "https://oidc.example/id/1"],
    ] {
        let template = template(more);
        let open = ["AWS::AccountId", "AWS::Partition", "AWS::Region"].map(str::to_owned);
        assert_eq!(placeholders(&template["Resources"]), BTreeSet::from(open), "{more:?}");
        // The reader of a key cannot replace values.
        let text = template.to_string();
        assert!(!text.contains("arn:aws:") && !text.contains("\"${"), "{more:?}");
    }
}

#[test]
fn configuration_refers_to_declared_blocks_only() {
    for more in [&GITHUB[..], &["--identity", "irsa", "--oidc-provider", "oidc.example/id/1"]] {
        let configuration = template(&[&["--format", "terraform"], more].concat());
        let expressions = placeholders(&configuration);
        assert!(expressions.len() > 10, "{expressions:?}");
        for expression in expressions {
            let is_word = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
            for address in expression.split(|c| !is_word(c)) {
                let parts: Vec<&str> = address.split('.').collect();
                let declared = match &parts[..] {
                    ["data", kind, name, ..] => &configuration["data"][kind][name],
                    ["var", name] => &configuration["variable"][name],
                    ["local", name] => &configuration["locals"][name],
                    [kind, name, ..] if kind.starts_with("aws_") => {
                        &configuration["resource"][kind][name]
                    }
                    _ => continue,
                };
                assert!(!declared.is_null(), "{address} in {expression}");
            }
        }
    }
}

/// Returns the size of a policy as IAM counts it, with an account and a long region.
fn policy_size(policy: &Json) -> usize {
    let text = policy.to_string();
    let text = text.replace("{\"Fn::Sub\":", "").replace("\"}", "\"");
    text.replace("${AWS::AccountId}", "123456789012")
        .replace("${AWS::Partition}", "aws-us-gov")
        .replace("${AWS::Region}", "ap-southeast-1")
        .len()
}

#[test]
fn policies_of_a_role_fit_the_limits_of_iam() {
    let name = "a-cluster-with-a-name-of-41-characters-xx";
    let command = ["bootstrap", "aws", "--cluster", name, "--allow", "adoption"];
    let ran = run_command(&[&command[..], &["--allow", "instance-profiles"], &GITHUB[..]].concat());
    let template: Json = serde_json::from_str(&ran.out).expect(&ran.err);
    let resources = template["Resources"].as_object().expect("resources");
    let roles = resources.values().filter(|one| one["Type"] == "AWS::IAM::Role");
    let mut count = 0;
    for properties in roles.map(|role| &role["Properties"]) {
        count += 1;
        let own = properties["Policies"].as_array().map(Vec::as_slice).unwrap_or_default();
        let size: usize = own.iter().map(|one| policy_size(&one["PolicyDocument"])).sum();
        assert!(size <= 10_240, "{}: {size}", properties["RoleName"]);
        assert!(policy_size(&properties["AssumeRolePolicyDocument"]) <= 2_048);
        let name = properties["RoleName"].as_str().expect("a name");
        assert!(name.len() <= 64, "{name}");
    }
    assert_eq!(count, 4);
}

#[test]
fn both_formats_have_the_same_resources() {
    for more in [&GITHUB[..], &["--identity", "irsa", "--oidc-provider", "oidc.example/id/1"]] {
        let template = template(more);
        let configuration = self::template(&[&["--format", "terraform"], more].concat());
        let resources = template["Resources"].as_object().expect("resources").values();
        let types = resources.filter_map(|one| one["Type"].as_str());
        // Attachments of policies are parts of a role, and targets parts of a rule.
        let counterpart = |kind: &str| match kind {
            "AWS::EKS::AccessEntry" => "aws_eks_access_entry",
            "AWS::EKS::PodIdentityAssociation" => "aws_eks_pod_identity_association",
            "AWS::Events::Rule" => "aws_cloudwatch_event_rule",
            "AWS::IAM::InstanceProfile" => "aws_iam_instance_profile",
            "AWS::IAM::OIDCProvider" => "aws_iam_openid_connect_provider",
            "AWS::IAM::Role" => "aws_iam_role",
            "AWS::IAM::ServiceLinkedRole" => "aws_iam_service_linked_role",
            "AWS::SQS::Queue" => "aws_sqs_queue",
            "AWS::SQS::QueuePolicy" => "aws_sqs_queue_policy",
            other => panic!("{other}"),
        };
        let mut wanted: Vec<&str> = types.map(counterpart).collect();
        wanted.sort_unstable();
        let declared = configuration["resource"].as_object().expect("resources");
        let parts = [
            "aws_cloudwatch_event_target",
            "aws_iam_role_policy",
            "aws_iam_role_policy_attachment",
        ];
        let parts = |kind: &str| parts.contains(&kind) || kind == "aws_ec2_tag";
        let found = declared.iter().filter(|(kind, _)| !parts(kind)).flat_map(|(kind, all)| {
            let count = all.as_object().map_or(0, serde_json::Map::len);
            std::iter::repeat_n(kind.as_str(), count)
        });
        let mut found: Vec<&str> = found.collect();
        found.sort_unstable();
        assert_eq!(found, wanted, "{more:?}");
    }
}

#[test]
fn only_the_own_rules_may_send_to_the_queue() {
    for (format, rules) in [
        ("cloudformation", ["InterruptionInstanceEventsRule", "InterruptionHealthEventsRule"]),
        (
            "terraform",
            [
                "${aws_cloudwatch_event_rule.instance_events.arn}",
                "${aws_cloudwatch_event_rule.health_events.arn}",
            ],
        ),
    ] {
        let document = template(&["--format", format]);
        let statements = if format == "terraform" {
            &document["data"]["aws_iam_policy_document"]["queue"]["statement"]
        } else {
            let policy = &document["Resources"]["InterruptionPolicy"];
            &policy["Properties"]["PolicyDocument"]["Statement"]
        };
        let texts: Vec<String> =
            statements.as_array().expect("a list").iter().map(Json::to_string).collect();
        assert!(texts[0].contains("aws:SourceArn"), "{format}: {}", texts[0]);
        for rule in rules {
            assert!(texts[0].contains(rule), "{format}: {}", texts[0]);
        }
        let denied = texts.iter().find(|text| text.contains("aws:PrincipalIsAWSService"));
        let denied = denied.expect("a statement");
        assert!(denied.contains("\"Deny\"") && denied.contains("\"false\""), "{denied}");
    }
}

#[test]
fn directory_gets_both_formats_unless_one_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("new/aws");
    let out = path.to_str().expect("UTF-8");
    let ran = run(&["--out", out]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, ""), "{}", ran.err);
    assert!(!path.join("fleetwright.rbac.yaml").exists(), "no CI jobs");
    for name in ["fleetwright.template.json", "fleetwright.tf.json"] {
        let text = std::fs::read_to_string(path.join(name)).expect("a template");
        assert!(serde_json::from_str::<Json>(&text).is_ok(), "{name}");
        assert!(ran.err.contains(name), "{}", ran.err);
    }
    for part in ["CAPABILITY_NAMED_IAM", "terraform -chdir=", "fleetwright-prod-node"] {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    std::fs::remove_dir_all(&path).expect("removed");
    let ran = run(&["--out", out, "--format", "terraform"]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    assert_eq!(std::fs::read_dir(&path).expect("listed").count(), 1);
    assert!(!ran.err.contains("cloudformation"), "{}", ran.err);
}

/// Returns the text of the resource list of each statement with an action.
fn resources_of(template: &Json, action: &str) -> Vec<String> {
    let roles = template["Resources"].as_object().expect("resources").values();
    let policies = roles.filter_map(|role| role["Properties"]["Policies"].as_array()).flatten();
    let statements = policies.filter_map(|one| one["PolicyDocument"]["Statement"].as_array());
    let found = statements.flatten().filter(|one| one["Action"] == action);
    found.map(|statement| statement["Resource"].to_string()).collect()
}

#[test]
fn more_node_roles_are_passed_and_read() {
    let roles = ["--node-role", "KarpenterNodeRole-prod", "--node-role", "other"];
    let template = template(&[&roles[..], &GITHUB[..]].concat());
    for (action, count) in [("iam:PassRole", 2), ("iam:ListInstanceProfilesForRole", 2)] {
        let found = resources_of(&template, action);
        assert_eq!(found.len(), count, "{action}");
        for name in ["fleetwright-prod-node", "KarpenterNodeRole-prod", "other"] {
            let name = format!(":role/{name}\"");
            assert!(found.iter().all(|one| one.contains(&name)), "{action}: {name}: {found:?}");
        }
    }
    let ran = run(&roles);
    assert!(ran.err.contains("fleetwright-prod-node or KarpenterNodeRole-prod or other"));
}

#[test]
fn role_that_adopts_removes_no_tags() {
    let template = template(&[&["--allow", "adoption"], &GITHUB[..]].concat());
    for (action, count) in [("ec2:CreateTags", 4), ("ec2:DeleteTags", 0)] {
        assert_eq!(resources_of(&template, action).len(), count, "{action}");
    }
}

#[test]
fn repository_of_github_may_have_ids() {
    let with_ids = "acme@123/fleet@456";
    let ran = run(&["--ci", "github", "--repository", with_ids]);
    assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
    for subject in ["pull_request", "ref:refs/heads/main", "environment:capacity"] {
        let subject = format!("\"repo:{with_ids}:{subject}\"");
        assert!(ran.out.contains(&subject), "{subject}");
    }
    assert!(!ran.err.contains("OWNER_ID"), "{}", ran.err);
    let without = run(&GITHUB);
    assert!(without.err.contains("OWNER@OWNER_ID/NAME@REPOSITORY_ID"), "{}", without.err);
}

#[test]
fn cluster_roles_of_ci_jobs_are_written_beside_the_templates() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().to_str().expect("UTF-8");
    let own = directory.path().join("rbac.yaml");
    std::fs::write(&own, "mine").expect("written");
    let ran = run(&[&["--out", out], &GITHUB[..]].concat());
    assert_eq!(std::fs::read_to_string(own).expect("read"), "mine");
    let path = directory.path().join("fleetwright.rbac.yaml");
    let text = std::fs::read_to_string(&path).expect("written");
    assert!(text.contains("name: fleetwright-apply"), "{text}");
    let command = format!("kubectl apply --filename {}\n", path.display());
    assert!(ran.err.contains(&command), "{}", ran.err);
    let on_stdout = run(&GITHUB);
    let writes = "With --out DIR, this command writes fleetwright.rbac.yaml";
    assert!(on_stdout.err.contains(writes), "{}", on_stdout.err);
}

#[test]
fn names_that_would_widen_a_policy_are_refused() {
    for (more, part) in [
        (&["--prefix", "a*"][..], "--prefix `a*` is not a name"),
        (&["--ci", "github", "--repository", "acme"], "has no owner"),
        (&["--ci", "github", "--repository", "acme/*"], "--repository `acme/*` is not a name"),
        (&["--ci", "github", "--repository", "acme/fleet@1"], "has no ID of its owner"),
        (&["--ci", "github", "--repository", "acme@1/fleet@x"], "has no ID of its owner"),
        (&["--ci", "gitlab", "--repository", "acme@1/fleet@2"], "is not a name"),
        (&["--node-role", "a*"], "--node-role `a*` is not a name"),
        (&["--ci", "github"], "--repository"),
        (&["--repository", "acme/fleet"], "--ci"),
        (&["--identity", "irsa"], "--oidc-provider"),
        (&["--identity", "irsa", "--oidc-provider", "${x}"], "is not a name"),
        (&["--prefix", &"a".repeat(54)], "AWS allows 53"),
    ] {
        let ran = run(more);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, ""), "{more:?}");
        assert!(ran.err.contains(part), "{more:?}: {}", ran.err);
    }
    let long = run_command(&["bootstrap", "aws", "--cluster", &"c".repeat(42)]);
    assert!(long.err.contains("name a shorter one with --prefix"), "{}", long.err);
    let longest = "c".repeat(68);
    let prefix = ["--prefix", "fleet"];
    let fits = run_command(&[&["bootstrap", "aws", "--cluster", &longest], &prefix[..]].concat());
    assert_eq!(fits.exit, Exit::Done, "{}", fits.err);
    let longer = run_command(&["bootstrap", "aws", "--cluster", &format!("{longest}c")]);
    assert!(longer.err.contains("has 81 characters; SQS allows 80"), "{}", longer.err);
    let placeholder = run_command(&["bootstrap", "aws", "--cluster", "${AWS::StackName}"]);
    assert!(placeholder.err.contains("--cluster"), "{}", placeholder.err);
}

#[test]
fn next_steps_name_the_switches_of_existing_resources() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().to_str().expect("UTF-8");
    for (format, expected) in [
        ("cloudformation", "  CreateSpotServiceLinkedRole, CreateCiOidcProvider\n"),
        ("terraform", "  create_spot_service_linked_role, create_ci_oidc_provider\n"),
    ] {
        let ran = run(&[&GITHUB[..], &["--format", format, "--out", out]].concat());
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        assert!(ran.err.contains(expected), "{}", ran.err);
    }
}
