use jiff::SignedDuration;

use super::*;
use crate::render::Verbosity;
use crate::testing::top::{node, view};

fn style(width: usize) -> TextStyle {
    TextStyle { color: false, width, verbosity: Verbosity::Full }
}

/// Returns a view with a node in every state.
fn every_state() -> TopView {
    let mut view = view(0);
    for (n, state) in (0..).zip(TopState::ALL) {
        view.nodes.push(TopNode { state, ..node(n) });
    }
    let launched = &mut view.nodes[4];
    (launched.name, launched.age) = (None, None);
    let foreign = TopNode {
        address: "foreign[\"i-0abc0000000000001\"]".to_owned(),
        pool: None,
        instance_type: Some("c6a.12xlarge".to_owned()),
        capacity_type: Some("spot".to_owned()),
        hourly: None,
        age: Some(SignedDuration::from_hours(24 * 90)),
        ..node(8)
    };
    view.nodes.push(foreign);
    view.pending = 3;
    view.notes.push("kubernetes could not be read: timeout".to_owned());
    view.sort(TopSort::Name);
    view
}

#[test]
fn frame_of_80_columns_has_two_lines_a_node() {
    let text = top(&every_state(), &style(80)).to_text();
    insta::assert_snapshot!("top_80", text);
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert_eq!(widest.map(|widest| widest <= 80), Some(true), "{widest:?}");
}

#[test]
fn frame_of_160_columns_has_one_line_a_node() {
    let frame = top(&every_state(), &style(160));
    assert_eq!((frame.nodes.len(), frame.node_height), (11, 1));
    let text = frame.to_text();
    insta::assert_snapshot!("top_160", text);
    let widest = text.lines().map(|line| line.chars().count()).max();
    assert_eq!(widest.map(|widest| widest <= 160), Some(true), "{widest:?}");
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for width in 74..240 {
        let frame = top(&every_state(), &style(width));
        for line in frame.head.iter().chain(&frame.nodes) {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
}

#[test]
fn view_without_nodes_says_so() {
    let mut empty = view(0);
    assert!(top(&empty, &style(80)).to_text().ends_with("\nNo nodes.\n"));
    empty.pools = vec!["web".to_owned()];
    assert!(top(&empty, &style(80)).to_text().ends_with("\nNo nodes of web.\n"));
}

#[test]
fn orders_are_stable() {
    let first = |order: TopSort| {
        let mut view = every_state();
        view.sort(order);
        view.nodes[0].address.clone()
    };
    assert_eq!(first(TopSort::Name), "foreign[\"i-0abc0000000000001\"]");
    assert_eq!(first(TopSort::Cpu), "web[\"9\"]");
    assert_eq!(first(TopSort::Memory), "web[\"9\"]");
    assert_eq!(first(TopSort::Pods), "web[\"9\"]");
    assert_eq!(first(TopSort::Price), "web[\"0\"]");
    assert_eq!(first(TopSort::Age), "foreign[\"i-0abc0000000000001\"]");
    assert_eq!(first(TopSort::State), "web[\"0\"]");
    let mut many = view(12);
    many.sort(TopSort::Name);
    assert_eq!(many.nodes[11].address, "web[\"11\"]");
    let mut order = TopSort::Name;
    for _ in 0..7 {
        order = order.next();
    }
    assert_eq!(order, TopSort::Name);
}

#[test]
fn bars_show_the_requested_share() {
    let bar = |requested, allocatable| Usage { requested, allocatable }.bar(4);
    assert_eq!(bar(0, 1000), "░░░░   0%");
    assert_eq!(bar(500, 1000), "██░░  50%");
    assert_eq!(bar(1000, 1000), "████ 100%");
    assert_eq!(bar(3000, 1000), "████ 300%");
    assert_eq!(bar(100, 0), "░░░░   0%");
    assert_eq!(bar(i64::MAX, 1), bar(i64::MAX, 1));
}

#[test]
fn hostile_names_are_escaped() {
    let mut view = view(1);
    view.nodes[0].address = "web\u{1b}[2J".to_owned();
    view.nodes[0].zone = Some("a\nb".to_owned());
    for width in [80, 160] {
        let text = top(&view, &style(width)).to_text();
        assert!(text.contains("web\\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
        assert!(text.contains("a\\nb"), "{text}");
    }
}
