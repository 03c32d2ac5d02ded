use super::*;
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
        let without = page.replace(SCRIPT, "");
        for bad in ["http://", "https://", "src=", "@import", "url(", "onclick", " style="] {
            assert!(!without.contains(bad), "{bad}");
        }
        assert!(page.contains(&last_line(&plan)) && page.ends_with("</html>\n"));
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
    assert!(page.matches("<rect").count() < 10_000);
}

#[test]
fn node_groups_are_not_drawn_as_nodes() {
    let plan = Plan::from_json(include_str!("../../../plans/nodegroups.json")).expect("a plan");
    let page = html(&plan);
    let nodes = plan.summary.nodes;
    assert_eq!((nodes.before, nodes.after), (2, 6));
    assert!(page.contains("<h3>Before: 2 nodes</h3>") && page.contains("<h3>After: 6 nodes</h3>"));
    assert!(!page.contains("no zone"), "groups are in no zone, and no nodes");
}

#[test]
fn hostile_names_are_escaped() {
    let clean = html(&hostile(""));
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
