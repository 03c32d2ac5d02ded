mod explanations;
mod row_reasons;

use super::*;
use crate::model::units::MicroUsd;
use crate::plan::wire::{
    Check, CheckStatus, Completeness, Diagnostic, FailureDomainReport, Sizing, UnresolvedRow,
};
use crate::testing::sample_plan::{hostile, hostile_at, nothing, plan};

fn view(plan: &Plan, verbosity: Verbosity) -> String {
    text(plan, &TextStyle { verbosity, width: 150, ..TextStyle::default() })
}

#[test]
fn full_view_matches_the_snapshot() {
    insta::assert_snapshot!(view(&plan(), Verbosity::Full));
}

#[test]
fn concise_view_is_header_and_table() {
    insta::assert_snapshot!(view(&plan(), Verbosity::Concise), @r#"
    Incomplete: 1 source not read, 3 pods unschedulable.
    Cluster prod-eu1 (eu-west-1)   base 4f2c9a1, with local changes   plan sha256:9b1e02c4d5f6
    world sim:world, observed 2026-09-01T10:00:00Z (2m before)   expires 2026-09-01T10:32:00Z (in 30m)

      - 3 terminate   +/- 1 replace   ~ 1 update   + 3 launch   ! 1 blocked   = 2 unchanged
      nodes 8 -> 8   vCPU 18 -> 18   memory 72 -> 72 GiB   pods 44, 41 placed   9 moved   3 unschedulable   1 source not counted
      -$78.11/mo   $859.21 -> $781.10/mo   $1.1770 -> $1.0700/h   1.90 % above the lower bound
    Incomplete: 1 Helm chart was not rendered, so its pods are not counted. [chart-not-rendered]

    Symbols:   - terminate   +/- launch, then terminate   ~ update in place   + launch   ! blocked, stays

           node                     type                   zone        capacity type  pods               $/h  why
      -    ec2_instance.batch["0"]  m5.large               eu-west-1a  on-demand         0            0.1070  its pods move to other nodes: saves $0.0070/h, moves 5 pods, pays back in 2 h
      -    ec2_instance.batch["1"]  m5.large               eu-west-1a  on-demand         0            0.1070  its pods move to other nodes; its saving is part of ec2_instance.batch["0"]
      -    ec2_instance.web["2"]    m5.large               eu-west-1a  on-demand         0            0.1070  no pods left but those of DaemonSets: saves $0.1070/h
      +/-  ec2_instance.web["1"]    m5.xlarge -> m5.large  eu-west-1a  on-demand         4  0.2140 -> 0.1070  takes the pods of more expensive nodes: saves $0.1070/h, moves 4 pods
      ~    ec2_instance.web["4"]    m5.large               eu-west-1a  on-demand         6            0.1070  needed by 6 pods; no cheaper replacement was found
      +    ec2_instance.batch["2"]  c5.xlarge              eu-west-1a  on-demand         5            0.2070  takes the pods of more expensive nodes; its saving is part of ec2_instance.batch["0"]
      +    ec2_instance.web["9"]    m5.large               eu-west-1a  on-demand         6            0.1070  6 pods have no room: web/Deployment/api x6
      +    ec2_instance.web["10"]   m5.large               eu-west-1a  on-demand         6            0.1070  6 pods have no room: web/Deployment/api x6
      !    ec2_instance.web["3"]    m5.large               eu-west-1a  on-demand         1            0.1070  annotated karpenter.sh/do-not-disrupt
      =  2 nodes unchanged (listed with -v)

    Not shown here: 1 warning, 1 unschedulable workload, 1 unresolved source.

    Prices: embedded list prices of us-east-1, 2026-05-01; standing in for eu-west-1, where prices may differ; 1 node at an estimated price.

    Plan (incomplete): 4 to add, 1 to change, 4 to destroy. 1 source not read, 3 pods unschedulable.
    "#);
}

#[test]
fn wide_table_has_names_sizes_and_ages() {
    let mut plan = plan();
    let web =
        plan.resource_changes.iter_mut().find(|row| row.address.as_str().contains("web[\"3\"]"));
    let before = web.and_then(|row| row.change.before.as_mut()).expect("a running node");
    before.launched_at = Some(plan.timestamp - jiff::SignedDuration::from_hours(5));
    let style = TextStyle { columns: NodeColumns::Wide, ..TextStyle::default() };
    let wide = text(&plan, &TextStyle { verbosity: Verbosity::Concise, ..style });
    let (head, rows) = wide.split_once("  why\n").expect("a table");
    let titles = head.lines().last().expect("a head").split_whitespace().collect::<Vec<_>>();
    let more = ["capacity", "type", "name", "instance", "vCPU", "GiB", "age", "pods", "$/h"];
    assert!(titles.ends_with(&more), "{titles:?}");
    let row = rows.lines().find(|line| line.contains("web[\"3\"]")).expect("a row");
    assert!(row.contains(" i-") && row.contains(" 5h "), "{row}");
    let usual = text(&plan, &TextStyle { verbosity: Verbosity::Concise, ..TextStyle::default() });
    assert!(!usual.contains(" age "), "{usual}");
}

#[test]
fn full_view_has_cost_parts_and_autoscaled_requests() {
    let mut plan = plan();
    plan.capacity.cost.breakdown = crate::plan::breakdown(&plan, &[]);
    plan.capacity.demand[0].sized_by = Some(Sizing {
        autoscaler: "VerticalPodAutoscaler web/api".to_owned(),
        origin: crate::model::ids::Origin::new("vpa.yaml", 1),
        because: "app: cpu 100m -> 587m".to_owned(),
        applied: true,
    });
    let full = view(&plan, Verbosity::Full);
    let (_, parts) = full.split_once("\nCost in parts:\n").expect("there are several pools");
    for part in ["pool", "batch", "web", "$0.2140 -> $0.2070/h"] {
        assert!(parts.contains(part), "{part} in {parts}");
    }
    assert!(!parts.contains("eu-west-1a"), "one zone is no part");
    let sized = full.lines().find(|line| line.contains("VerticalPodAutoscaler")).expect("said");
    assert!(sized.contains("cpu 100m -> 587m") && sized.contains("vpa.yaml:1"), "{sized}");
    assert!(!view(&plan, Verbosity::Summary).contains("Cost in parts"));
}

#[test]
fn summary_view_is_the_header() {
    insta::assert_snapshot!(view(&plan(), Verbosity::Summary), @r"
    Incomplete: 1 source not read, 3 pods unschedulable.
    Cluster prod-eu1 (eu-west-1)   base 4f2c9a1, with local changes   plan sha256:9b1e02c4d5f6
    world sim:world, observed 2026-09-01T10:00:00Z (2m before)   expires 2026-09-01T10:32:00Z (in 30m)

      - 3 terminate   +/- 1 replace   ~ 1 update   + 3 launch   ! 1 blocked   = 2 unchanged
      nodes 8 -> 8   vCPU 18 -> 18   memory 72 -> 72 GiB   pods 44, 41 placed   9 moved   3 unschedulable   1 source not counted
      -$78.11/mo   $859.21 -> $781.10/mo   $1.1770 -> $1.0700/h   1.90 % above the lower bound
    Incomplete: 1 Helm chart was not rendered, so its pods are not counted. [chart-not-rendered]

    Not shown here: 1 warning, 1 unschedulable workload, 1 unresolved source.

    Prices: embedded list prices of us-east-1, 2026-05-01; standing in for eu-west-1, where prices may differ; 1 node at an estimated price.

    Plan (incomplete): 4 to add, 1 to change, 4 to destroy. 1 source not read, 3 pods unschedulable.
    ");
}

#[test]
fn estimated_prices_are_marked_in_every_view() {
    let known = plan();
    let mut plan = plan();
    for row in &mut plan.capacity.explain {
        row.estimated = row.address.as_str() == "ec2_instance.web[\"9\"]";
    }
    let mark = |text: &str| text.matches("estimated").count();
    for verbosity in [Verbosity::Full, Verbosity::Concise] {
        let text = view(&plan, verbosity);
        assert!(mark(&text) > mark(&view(&known, verbosity)), "{text}");
    }
    assert!(view(&plan, Verbosity::Full).contains("/h (estimated)\n"));
    let markdown = |plan: &Plan| markdown(plan, MarkdownStyle::default());
    assert!(mark(&markdown(&plan)) > mark(&markdown(&known)));
    assert!(mark(&html(&plan)) > mark(&html(&known)));
}

#[test]
fn observation_after_the_plan_is_stated_as_such() {
    let mut plan = plan();
    plan.timestamp = "2026-08-31T09:00:00Z".parse().expect("a time");
    let expected = "observed 2026-09-01T10:00:00Z (25h after the time of the plan)";
    let text = view(&plan, Verbosity::Summary).replace("\n   ", " ");
    assert!(text.contains(expected), "{text}");
}

#[test]
fn fleet_without_nodes_has_no_cost_of_failure_domains() {
    let mut plan = nothing();
    let report = FailureDomainReport { hourly: MicroUsd(0), beyond: Vec::new() };
    plan.capacity.placement.failure_domains = Some(report);
    assert!(!view(&plan, Verbosity::Full).contains("for failure domain limits"));
    plan.summary.nodes.after = 1;
    assert!(view(&plan, Verbosity::Full).contains("includes $0.0000/h for failure domain limits"));
}

#[test]
fn plan_without_changes_ends_with_terraform_words() {
    insta::assert_snapshot!(view(&nothing(), Verbosity::Full), @r"
    Cluster prod-eu1 (eu-west-1)   base 4f2c9a1   plan sha256:9b1e02c4d5f6   world sim:world, observed 2026-09-01T10:00:00Z (2m before)
    expires 2026-09-01T10:32:00Z (in 30m)

      nodes 0 -> 0   vCPU 0 -> 0   memory 0 -> 0 GiB   pods 0, 0 placed
      $0.00/mo   $0.00 -> $0.00/mo   $0.0000 -> $0.0000/h

    Prices: embedded list prices of us-east-1, 2026-05-01; standing in for eu-west-1, where prices may differ.

    No changes. Your infrastructure matches the configuration.
    ");
}

#[test]
fn every_view_ends_with_the_terraform_line() {
    for verbosity in [Verbosity::Full, Verbosity::Concise, Verbosity::Summary] {
        let last = |plan: &Plan| view(plan, verbosity).lines().last().unwrap_or("").to_owned();
        assert!(
            last(&plan()).starts_with("Plan (incomplete): 4 to add, 1 to change, 4 to destroy.")
        );
        assert_eq!(last(&nothing()), "No changes. Your infrastructure matches the configuration.");
        let errored = Plan { errored: true, ..nothing() };
        assert!(last(&errored).starts_with("Plan (incomplete): 0 to add, 0 to change"));
        let partial = Plan { complete: false, ..nothing() };
        assert_eq!(last(&partial), super::summary_line::NO_CHANGES_IN_PART);
    }
}

#[test]
fn broken_plan_rules_are_not_input_errors() {
    let error = |message: &str| Diagnostic::error("", message);
    let mut broken = Plan { errored: true, ..nothing() };
    assert!(!is_errored_by_rules(&broken));
    broken.capacity.diagnostics = vec![error("the plan breaks rule money/sum: 1 is not 2")];
    assert!(is_errored_by_rules(&broken));
    let text = view(&broken, Verbosity::Full);
    assert!(text.contains("breaks rules of its own check") && !text.contains("inputs"), "{text}");
    broken.capacity.diagnostics.push(error("is not a quantity"));
    assert!(!is_errored_by_rules(&broken));
    assert!(view(&broken, Verbosity::Full).contains("The inputs have errors"));
}

#[test]
fn header_lists_the_limitations_of_a_plan() {
    let head = |plan: &Plan| view(plan, Verbosity::Summary);
    let mut partial = Plan { errored: true, complete: false, ..plan() };
    let failed = Completeness::Failed { reason: "access denied".into() };
    partial.capacity.base.world.sources.insert("ec2".into(), failed);
    let text = head(&partial);
    for line in [
        "The inputs have errors: this plan removes nothing and cannot be applied.",
        "ec2 could not be read: access denied",
        "This plan covers a part only (--target, --exclude, or the scope of the controller).",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let check = |status| Check {
        name: "no-spot".into(),
        status,
        problems: vec!["web is spot".into()],
        ..Check::default()
    };
    let denied = Plan { applyable: false, checks: vec![check(CheckStatus::Fail)], ..plan() };
    assert!(head(&denied).contains("Denied by policy: no-spot"));
    assert!(view(&denied, Verbosity::Full).contains("  fail: no-spot\n    web is spot\n"));
    let allowed = Plan { checks: vec![check(CheckStatus::Pass)], ..plan() };
    assert!(!view(&allowed, Verbosity::Full).contains("no-spot"));
    let nowhere = Plan { applyable: false, ..plan() };
    assert!(head(&nowhere).contains("cannot be applied"));
}

#[test]
fn repository_text_is_escaped_for_the_terminal() {
    let name = "\u{1b}[2J\r\nNo changes. Your infrastructure matches\u{202e}\u{9b}\u{200b}";
    let plan = hostile(name);
    for color in [false, true] {
        let style = TextStyle { color, ..TextStyle::default() };
        let mut views = vec![text(&plan, &style)];
        for row in &plan.resource_changes {
            let found = explain(&plan, None, row.address.as_str()).expect("an address");
            views.push(found.text(&style));
        }
        for demand in &plan.capacity.demand {
            let found = explain(&plan, None, &demand.workload.to_string()).expect("a workload");
            views.push(found.text(&style));
        }
        for view in views {
            let visible = anstream::adapter::strip_str(&view).to_string();
            let hidden =
                visible.chars().find(|c| *c != '\n' && escape(&c.to_string()) != c.to_string());
            assert_eq!(hidden, None, "{visible}");
            assert!(!visible.lines().any(|line| line.starts_with("No changes")), "{visible}");
            // Color codes are allowed: they end in `m`, and neither move the cursor nor clear.
            let codes = view.split("\u{1b}[").skip(1);
            assert!(codes.clone().all(|c| {
                c.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m')
            }));
            assert_eq!(codes.count() > 0, color);
        }
    }
}

#[test]
fn many_unchanged_and_blocked_rows_are_counted() {
    let mut many = plan();
    for (original, copies) in [("web[\"0\"]", 10), ("web[\"3\"]", 30)] {
        let address =
            |n: i32| format!("ec2_instance.{}", original.replace("\"]", &format!("{n:03}\"]")));
        let row = many.resource_changes.iter().find(|r| r.address.as_str().ends_with(original));
        let row = row.expect("a row").clone();
        let why = many
            .capacity
            .explain
            .iter()
            .find(|e| e.address == row.address)
            .expect("a reason")
            .clone();
        for n in 0..copies {
            many.resource_changes.push(crate::plan::wire::ResourceChange {
                address: address(n).into(),
                ..row.clone()
            });
            many.capacity
                .explain
                .push(crate::plan::wire::ExplainRow { address: address(n).into(), ..why.clone() });
        }
    }
    let text = view(&many, Verbosity::Concise);
    assert!(text.contains("  =  12 nodes unchanged (listed with -v)\n"), "{text}");
    assert!(text.contains("  !  31 nodes blocked (listed with -v)\n"), "{text}");
    assert!(!text.contains("web[\"3001\"]"));
}

#[test]
fn tables_keep_to_the_width_of_the_terminal() {
    for width in [80, 120, 200] {
        let breaks = LineBreaks::Wrap;
        let style = TextStyle { width, breaks, ..TextStyle::default() };
        let text = text(&plan(), &style);
        let widest = text.lines().map(unicode_width::UnicodeWidthStr::width).max();
        assert!(widest <= Some(width), "{width}: {text}");
        let words: Vec<&str> = text.split_whitespace().collect();
        let reason = "takes the pods of more expensive nodes: saves $0.1070/h, moves 4 pods";
        assert!(words.join(" ").contains(reason), "{width}: reasons are never cut: {text}");
    }
}

/// Most characters of a view, even with very long names.
const VIEW_MAX: usize = 1 << 20;

/// Returns every view, by name.
fn views(plan: &Plan) -> Vec<(&'static str, String)> {
    let style = |verbosity| TextStyle { verbosity, ..TextStyle::default() };
    vec![
        ("text", text(plan, &style(Verbosity::Full))),
        ("concise", text(plan, &style(Verbosity::Concise))),
        ("summary", text(plan, &style(Verbosity::Summary))),
        ("markdown", markdown(plan, MarkdownStyle::default())),
        ("html", html(plan)),
        ("github", github(plan)),
    ]
}

#[test]
fn long_names_are_cut_in_every_view() {
    let name = |length| "```@team<b>\u{202e}\u{1b}[31m|".chars().cycle().take(length).collect();
    let name: &dyn Fn(usize) -> String = &name;
    let everywhere = hostile(&name(5_000));
    // More fields with such a name would only slow the test down.
    let long = hostile_at(&["charts are not"], &name(10 << 20));
    for plan in [everywhere, long] {
        let began = std::time::Instant::now();
        for (view, text) in views(&plan) {
            let length = text.chars().count();
            assert!(length < VIEW_MAX, "{view} has {length} characters");
        }
        // A hundred times the usual time: the test detects quadratic growth.
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    }
}

#[test]
fn annotations_of_launches_are_listed_and_escaped() {
    let annotated = |annotations: Vec<(String, String)>| {
        let mut plan = plan();
        plan.capacity.node_annotations.insert("web".into(), annotations.into_iter().collect());
        views(&plan)
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let hostile = "<script>\u{1b}[31m\n::error::x";
    for (view, text) in annotated(vec![pair("team", "shop"), pair("note", hostile)]) {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_listed = words.contains("annotations.team = shop");
        assert_eq!(is_listed, ["text", "markdown", "html"].contains(&view), "{view}: {text}");
        assert!(!text.contains('\u{1b}') && !text.contains("\n::error::x"), "{view}");
        assert!(view != "html" || !text.contains("<script>\\u"), "{view}");
    }
    // A digest covers those that are not listed.
    let many = |end: &str| {
        let all = (0..40).map(|n| pair(&format!("k{n:02}"), if n == 39 { end } else { "x" }));
        let (_, text) = annotated(all.collect()).swap_remove(0);
        assert!(text.contains("annotations.k31") && !text.contains("annotations.k32"), "{text}");
        let line = text.lines().find(|line| line.contains("8 more, SHA-256 "));
        line.expect("the rest").to_owned()
    };
    assert_ne!(many("a"), many("b"));
}

#[test]
fn no_view_contains_active_outside_text() {
    let name = "```@team<script>\u{202e}\u{9b}\u{1b}[31m\r\n::error::x\u{2028}|</details>\
                ##[set-env name=A]b ##vso[task.setvariable variable=A]b";
    for (view, text) in views(&hostile(name)) {
        let obeyed = |c: &char| (c.is_control() && *c != '\n') || "\u{202e}\u{2028}".contains(*c);
        assert_eq!(text.chars().find(obeyed), None, "{view}");
        assert!(!text.lines().any(|line| line.starts_with("::error::x")), "{view}");
        assert!(view != "html" || !text.contains("@team<script>"), "{view}");
        assert!(!text.contains("##[") && !text.contains("##vso["), "{view}");
    }
}
