use super::*;
use crate::plan::wire::{
    Contingency, DomainKind, ExceededLimit, FailureDomainReport, PoolContingency, Unsteered,
};
use crate::testing::sample_plan::{hostile, large, nothing, plan};

#[test]
fn html_page_matches_the_snapshot() {
    // Style and script are long, and have files of their own.
    let page = html(&plan()).replace(STYLE, "…").replace(SCRIPT, "…");
    insta::assert_snapshot!(page);
}

#[test]
fn html_page_is_self_contained_and_works_without_script() {
    for plan in [plan(), nothing(), large(300, 20)] {
        let page = html(&plan);
        // Links to commits load nothing.
        let without = page.replace(SCRIPT, "").replace("href=\"https://github.com/acme/", "");
        for bad in ["http://", "https://", "src=", "@import", "url(", "onclick", " style="] {
            assert!(!without.contains(bad), "{bad}");
        }
        assert!(page.contains("id=\"verdict\"") && page.ends_with("</html>\n"));
        assert!(page.contains("default-src 'none'"));
    }
}

#[test]
fn html_page_of_5000_nodes_is_small() {
    let page = html(&large(5_000, 1_000));
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
    assert_eq!(
        page.matches("<tr data-text").count(),
        1_000 + 3,
        "each removal, and three workloads"
    );
    assert!(page.contains("nodes have no line of their own"));
    assert!(page.matches("<details class=\"node ").count() < 1_000);
    // The search matches each node, also without a line of its own.
    for n in [1_500, 3_333, 4_999] {
        assert!(page.contains(&format!(" node-p-{n} i-p{n} ")), "{n}");
    }
}

#[test]
fn node_groups_are_not_drawn_as_nodes() {
    let plan = Plan::from_json(include_str!("../../../plans/nodegroups.json")).expect("a plan");
    let page = html(&plan);
    let nodes = plan.summary.nodes;
    assert_eq!((nodes.before, nodes.after), (2, 6));
    assert!(page.contains("<b>2 → 6</b> nodes"), "{page}");
    assert_eq!(page.matches("<details class=\"node ").count(), 6);
    assert!(!page.contains("no zone"), "groups are in no zone, and no nodes");
}

#[test]
fn hostile_names_are_escaped() {
    // A commit with another character than hex digits has no link.
    let clean = html(&hostile("x"));
    let tags = |page: &str| page.matches('<').count();
    for name in [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=y>",
        "</title></style>",
        "&lt;",
        "\u{202e}x",
    ] {
        let page = html(&hostile(name));
        assert_eq!(tags(&page), tags(&clean), "{name:?}");
        assert!(!page.contains('\u{202e}'));
    }
    assert!(html(&hostile(&"x".repeat(1 << 20))).len() < 1 << 20);
}

#[test]
fn nodes_are_marked_by_word_and_class() {
    let page = html(&plan());
    for line in [
        "<details class=\"node gone\"",
        "<details class=\"node new\"",
        "<details class=\"node blocked\"",
        "<details class=\"node chg\"",
        "<b class=\"mark\">remove</b>",
        "<b class=\"mark\">new</b>",
        "<b class=\"mark\">blocked</b>",
    ] {
        assert!(page.contains(line), "{line}");
    }
}

#[test]
fn unread_sources_are_grouped_by_kind_and_reason() {
    let mut plan = plan();
    let row = &plan.capacity.unresolved[0];
    let rows = (0..25).map(|n| crate::plan::wire::UnresolvedRow {
        running: 0,
        reason: format!("chart shop-{n} is not in this repository"),
        ..row.clone()
    });
    plan.capacity.unresolved = rows.collect();
    let page = html(&plan);
    assert!(page.contains("<strong>Incomplete: 25 Helm charts not read</strong>"), "{page}");
    assert_eq!(
        page.matches("<summary><strong>25 Helm charts</strong>: chart … is not in this repository")
            .count(),
        1
    );
    assert!(page.contains("<li class=\"dim\">and 5 more</li>"));
}

#[test]
fn page_in_sync_has_no_section_for_an_operator() {
    let page = html(&nothing());
    assert!(page.contains("<strong>In sync: no changes</strong>"), "{page}");
    for absent in ["class=\"todo\"", "class=\"alert\"", "id=\"unread\"", "0 → 0"] {
        assert!(!page.contains(absent), "{absent}");
    }
}

#[test]
fn pods_on_removed_nodes_agree_between_the_parts_of_the_page() {
    let plan = Plan::from_json(include_str!("../../../plans/quickstart.json")).expect("a plan");
    let page = html(&plan);
    for part in [
        "<strong>Removes 1 node</strong>; 2 running pods are no longer needed.</p>",
        "<td class=\"n\">2 → 0</td>",
        "<span class=\"n\">2 pods</span>",
        "<p>Fix: add x to karpenter.k8s.aws/instance-category",
        " %</b> above the lower bound</li>",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    let comment = crate::render::markdown(&plan, crate::render::MarkdownStyle::default());
    assert!(comment.contains("; 2 running pods are no longer needed.\n"), "{comment}");
}

#[test]
fn shortage_of_more_nodes_than_pods_states_no_price() {
    let mut plan = nothing();
    let hourly = crate::model::units::MicroUsd(2_000_000);
    plan.capacity.placement.unsteered = Some(Unsteered { pending: 2, nodes: 3, hourly });
    let view = crate::render::text(&plan, &crate::render::TextStyle::default());
    let words: Vec<&str> = view.split_whitespace().collect();
    let expected = "up to 2 pods would stay pending, and a plan without --steer would have room for \
                    them.";
    assert!(words.join(" ").contains(expected), "{view}");
}

#[test]
fn page_has_the_limitations_of_the_plan() {
    let mut plan = nothing();
    let hourly = crate::model::units::MicroUsd(100_000);
    plan.capacity.placement.unsteered = Some(Unsteered { pending: 2, nodes: 1, hourly });
    let pool = PoolContingency {
        pool: "web".into(),
        nodes: 2,
        hourly,
        node_hourly: hourly,
        instance_types: vec!["c6a.large".into(), "m6a.large".into()],
    };
    let contingency = Contingency { nodes: 2, hourly, pods: 3, pools: vec![pool] };
    plan.capacity.placement.contingency = Some(contingency);
    let exceeded = ExceededLimit {
        pool: "web".into(),
        workload: None,
        domain: DomainKind::Zone,
        holds: 5,
        of: 6,
        most: 3,
    };
    plan.capacity.placement.failure_domains =
        Some(FailureDomainReport { hourly, beyond: vec![exceeded] });
    let page = html(&plan);
    let further = "Contingency: at most 2 further nodes (c6a.large, m6a.large or a cheaper type), \
                   at most $0.1000/h, for pods that stay pending. Approving the plan also \
                   approves these nodes.";
    let steered = "Steered, at $0.0000/h: the plan relies on nominated nodes. If \
                   kube-scheduler ignored them, up to 2 pods would stay pending, and 1 more node \
                   for $0.1000/h would hold them.";
    let exceeded = "Exceeds spec.failureDomains: one zone of";
    let markdown = crate::render::markdown(&plan, crate::render::MarkdownStyle::default());
    let views = [page, crate::render::text(&plan, &crate::render::TextStyle::default()), markdown];
    for line in [further, steered, exceeded] {
        for view in &views {
            let words: Vec<&str> = view.split_whitespace().collect();
            assert_eq!(words.join(" ").matches(line).count(), 1, "{line}\n{view}");
        }
    }
}

#[test]
fn replacement_in_another_zone_has_both_zones() {
    let mut plan = plan();
    for row in &mut plan.resource_changes {
        if let (Some(_), Some(after)) = (&row.change.before, &mut row.change.after)
            && after.instance_id.is_none()
        {
            after.zone = Some("eu-west-1b".into());
        }
    }
    let page = html(&plan);
    assert!(page.contains("data-zone=\"eu-west-1a eu-west-1b\""), "{page}");
}

#[test]
fn page_shows_facts_of_the_repository() {
    let limits = PoolLimits { resources: [("cpu".into(), 64_000)].into(), nodes: Some(9) };
    let facts = RepositoryFacts {
        origin: Some(CommitOrigin { author: "Ann <b>".to_owned(), pull_request: Some(12) }),
        pool_limits: [("web".into(), limits)].into(),
    };
    let page = html_with_facts(&plan(), &facts);
    let author = "</dd></div>\n<div><dt>Author</dt><dd>Ann &lt;b&gt;</dd></div>\n<div><dt>Pull request</dt><dd>";
    let (before, after) = page.split_once(author).expect("an author");
    assert!(before.contains("<dt>Commit</dt>") && !after.contains("<dt>Commit</dt>"), "{before}");
    assert!(page.contains("<span>limits: 6 of 9 nodes, 12 of 64 vCPU"), "{page}");
    assert!(!html(&plan()).contains("limits: ") && !html(&plan()).contains("Author"));
}
