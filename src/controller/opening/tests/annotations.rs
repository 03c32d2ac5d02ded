//! Annotations of nodes that open, and of nodes that are open without them.

use super::*;
use crate::apply::OpeningAnnotations;
use crate::model::node_annotations::{NodeAnnotations, annotations_digest, marked};

fn annotations() -> NodeAnnotations {
    [("team".to_owned(), "shop".to_owned())].into()
}

/// Returns the observation of two closed nodes. The first one was launched with the annotations of
/// the plan, the second one with those of another commit.
fn annotated(seconds: i64) -> Observed {
    let mut world = seen(seconds, &PENDING);
    let digests = [annotations_digest(&annotations()), "of another commit".to_owned()];
    for (id, digest) in ["i-1", "i-2"].into_iter().zip(digests) {
        let instance = world.instances.get_mut(id).expect("it is there");
        instance.tags.insert(tag::ANNOTATIONS.to_owned(), digest);
    }
    world
}

/// Returns a leader whose plan has annotations for the nodes.
fn leads_with_annotations(mode: Mode) -> ControllerHarness {
    let mut plan = plan_for(3);
    plan.capacity.node_annotations.insert("web".into(), annotations());
    leads(mode, Some(plan))
}

/// Returns the number of nodes and the annotations of each opening of a step.
fn openings(
    harness: &mut ControllerHarness,
    seconds: i64,
    event: Event,
) -> Vec<(usize, OpeningAnnotations)> {
    let mut found = Vec::new();
    harness.modify(|state| {
        let (next, effects) = crate::controller::step(state.clone(), event, at(seconds));
        *state = next;
        for effect in effects {
            if let Effect::OpenNodes { nodes, annotations, .. } = effect {
                found.push((nodes.len(), annotations));
            }
        }
    });
    found
}

fn of_first_node() -> OpeningAnnotations {
    [("uid-of-i-1".into(), Arc::new(marked(&annotations())))].into()
}

#[test]
fn opening_sets_the_annotations_of_the_launch() {
    for mode in [Mode::Observe, Mode::Full] {
        let mut harness = leads_with_annotations(mode);
        let found = openings(&mut harness, 1, Event::Observed(Arc::new(annotated(1))));
        assert_eq!(found, [(2, of_first_node())], "{mode:?}");
    }
}

/// Returns the same observation after another client opened the nodes.
fn opened_by_another(seconds: i64) -> Observed {
    let mut world = annotated(seconds);
    world.nodes.values_mut().for_each(|node| node.taints.clear());
    world
}

/// Returns the answer to the openings of these instances.
fn answers(ids: &[&str], answer: &Result<(), PortError>) -> Event {
    let nodes = ids.iter().map(|id| {
        let node = format!("node-of-{id}");
        (format!("uid-of-{id}").as_str().into(), node.as_str().into(), answer.clone())
    });
    Event::NodesOpened(OpenedBatch { nominations: vec![], nodes: nodes.collect() })
}

fn opened_nodes(harness: &ControllerHarness) -> u64 {
    harness.state().counters.get(&Counter::NodesOpened)
}

#[test]
fn node_that_is_closed_after_it_was_annotated_opens() {
    let mut harness = leads_with_annotations(Mode::Full);
    let open = Event::Observed(Arc::new(opened_by_another(1)));
    assert_eq!(openings(&mut harness, 1, open), [(1, of_first_node())]);
    openings(&mut harness, 2, answers(&["i-1"], &Ok(())));
    assert_eq!(opened_nodes(&harness), 0, "it was open");
    let closed = Event::Observed(Arc::new(annotated(10)));
    assert_eq!(openings(&mut harness, 10, closed), [(2, of_first_node())]);
    assert!(harness.state().opening.has_closed_nodes());
    openings(&mut harness, 11, answers(&["i-1", "i-2"], &Ok(())));
    assert_eq!(opened_nodes(&harness), 2);
    assert!(!harness.state().opening.has_closed_nodes(), "the next batch opens");
}

#[test]
fn late_answer_of_an_annotation_is_no_opening() {
    let mut harness = leads_with_annotations(Mode::Full);
    let open = Event::Observed(Arc::new(opened_by_another(1)));
    assert_eq!(openings(&mut harness, 1, open), [(1, of_first_node())]);
    harness.modify(|state| state.opening.clear());
    openings(&mut harness, 2, answers(&["i-1"], &Ok(())));
    assert_eq!(opened_nodes(&harness), 0);
}

#[test]
fn node_that_another_client_opened_is_annotated() {
    let open = opened_by_another;
    let observe = |harness: &mut ControllerHarness, world: Observed, seconds: i64| {
        openings(harness, seconds, Event::Observed(Arc::new(world)))
    };
    let mut harness = leads_with_annotations(Mode::Full);
    assert_eq!(observe(&mut harness, open(1), 1), [(1, of_first_node())]);
    // Whatever the answers, the intervals are 5, 10, 20, 40 and 60 minutes, and then one hour each.
    let refused = Err(PortError {
        verb: "annotate node".to_owned(),
        reason: "forbidden".to_owned(),
        effect: CallEffect::Refused,
    });
    let mut tried = 1;
    for minutes in [5, 10, 20, 40, 60, 60] {
        assert_eq!(openings(&mut harness, tried + 1, answers(&["i-1"], &refused)), []);
        let next = tried + minutes * 60;
        assert_eq!(observe(&mut harness, open(next - 1), next - 1), [], "{minutes} minutes");
        let found = observe(&mut harness, open(next), next);
        assert_eq!(found, [(1, of_first_node())], "{minutes} minutes");
        tried = next;
    }
    // Its annotations are there.
    let mut harness = leads_with_annotations(Mode::Full);
    let mut marked_world = open(1);
    let first = node(&mut marked_world, "node-of-i-1");
    first.annotations = marked(&annotations());
    assert_eq!(observe(&mut harness, marked_world, 1), []);
    let mut harness = leads_with_annotations(Mode::Observe);
    assert_eq!(observe(&mut harness, open(1), 1), [], "nothing is written");
}
