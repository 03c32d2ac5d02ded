//! Nominations before nodes open, and those that kube-scheduler clears.

use super::*;

#[test]
fn pods_are_nominated_once_and_again_after_a_clear() {
    let starting = |seconds, nominated: &[(usize, u32)]| {
        let mut world = seen(seconds, &PENDING);
        node(&mut world, "node-of-i-2").ready = false;
        for (pod, node) in nominated {
            let node = format!("node-of-i-{node}").as_str().into();
            Arc::make_mut(&mut world.pods[*pod]).nominated = Some(node);
        }
        world
    };
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    let all = opened(&[("a", 2), ("b", 1), ("c", 2)], &[]);
    assert_eq!(observe(&mut harness, 1, starting(1, &[])), all);
    let answers = [("a", 2), ("b", 1), ("c", 2)].map(|(pod, node)| {
        let node = format!("node-of-i-{node}").as_str().into();
        (format!("uid-of-{pod}").as_str().into(), node, Ok(()))
    });
    assert_eq!(step(&mut harness, 2, Event::PodsNominated(answers.to_vec())), []);
    // kube-scheduler cleared one: the controller waits with it.
    assert_eq!(observe(&mut harness, 3, starting(3, &[(1, 1), (2, 2)])), []);
    let mut world = starting(4, &[(1, 1), (2, 2)]);
    node(&mut world, "node-of-i-2").ready = true;
    assert_eq!(observe(&mut harness, 4, world), opened(&[("a", 2)], &[1, 2]));
}

#[test]
fn cleared_early_nominations_are_repeated_at_growing_intervals() {
    let starting = |seconds, lacks_node: bool| {
        let mut world = seen(seconds, &PENDING[..1]);
        world.nodes.values_mut().for_each(|node| node.ready = false);
        if lacks_node {
            world.nodes.remove("node-of-i-2");
        }
        world
    };
    let accept = |harness: &mut ControllerHarness, seconds, node: u32| {
        let node = format!("node-of-i-{node}").as_str().into();
        let answer = vec![("uid-of-a".into(), node, Ok(()))];
        assert_eq!(step(harness, seconds, Event::PodsNominated(answer)), []);
    };
    for (lacks_node, target) in [(false, 2), (true, 1)] {
        let nominated = || opened(&[("a", target)], &[]);
        let mut harness = leads(Mode::Full, Some(plan_for(2)));
        assert_eq!(observe(&mut harness, 1, starting(1, lacks_node)), nominated());
        accept(&mut harness, 2, target);
        for (seconds, is_repeated) in [(6, false), (7, true), (16, false), (17, true), (36, false)]
        {
            let wakes_at = harness.state().wakes_at;
            let is_in_time = wakes_at.is_some_and(|wakes_at| wakes_at <= at(seconds));
            assert!(is_in_time || lacks_node || !is_repeated, "{seconds} s");
            let expected = if is_repeated && !lacks_node { nominated() } else { vec![] };
            let found = observe(&mut harness, seconds, starting(seconds, lacks_node));
            assert_eq!(found, expected, "{seconds} s, {lacks_node}");
            if !expected.is_empty() {
                accept(&mut harness, seconds, target);
            }
        }
    }
}

#[test]
fn nominations_that_are_cleared_during_an_opening_are_restored() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    observe(&mut harness, 1, seen(1, &PENDING));
    let accepted = [("a", 2), ("b", 1), ("c", 2)].map(|(pod, node)| {
        let node = format!("node-of-i-{node}").as_str().into();
        (format!("uid-of-{pod}").as_str().into(), node, Ok(()))
    });
    let nodes = [1, 2].map(|id| {
        let (uid, name) = (format!("uid-of-i-{id}"), format!("node-of-i-{id}"));
        (uid.as_str().into(), name.as_str().into(), Ok(()))
    });
    let batch = OpenedBatch { nominations: accepted.to_vec(), nodes: nodes.to_vec() };
    let open = |seconds, pods: &[(&str, Option<&str>)]| {
        let mut world = seen(seconds, pods);
        world.nodes.values_mut().for_each(|node| node.taints.clear());
        world
    };
    // The observation from before the opening says nothing about it.
    assert_eq!(step(&mut harness, 2, Event::NodesOpened(batch)), []);
    let mut world = open(3, &[("a", None), ("b", Some("node-of-i-1")), ("c", None)]);
    Arc::make_mut(&mut world.pods[2]).nominated = Some("node-of-i-2".into());
    let restored = opened(&[("a", 2)], &[]);
    assert_eq!(observe(&mut harness, 3, world.clone()), restored, "one was cleared, one is bound");
    assert_eq!(observe(&mut harness, 4, open(4, &PENDING)), [], "an answer is awaited");
    let answer = vec![("uid-of-a".into(), "node-of-i-2".into(), Ok(()))];
    // The last observation does not show the answer yet.
    assert_eq!(step(&mut harness, 5, Event::PodsNominated(answer)), []);
    assert_eq!(step(&mut harness, 6, Event::Timer), []);
    let cleared = opened(&[("a", 2), ("c", 2)], &[]);
    assert_eq!(observe(&mut harness, 7, open(7, &PENDING)), cleared);
    let error = PortError {
        verb: "nominate pod".to_owned(),
        reason: "forbidden".to_owned(),
        effect: CallEffect::NotApplied,
    };
    let refused =
        ["uid-of-a", "uid-of-c"].map(|pod| (pod.into(), "node-of-i-2".into(), Err(error.clone())));
    assert_eq!(step(&mut harness, 8, Event::PodsNominated(refused.to_vec())), []);
    assert_eq!(observe(&mut harness, 9, open(9, &PENDING)), [], "they were refused");
}

#[test]
fn nominations_are_restored_for_a_minute() {
    let mut harness = leads(Mode::Full, Some(plan_for(3)));
    observe(&mut harness, 1, seen(1, &PENDING));
    let accepted = vec![("uid-of-a".into(), "node-of-i-2".into(), Ok(()))];
    let nodes = vec![("uid-of-i-2".into(), "node-of-i-2".into(), Ok(()))];
    let batch = OpenedBatch { nominations: accepted, nodes };
    step(&mut harness, 2, Event::NodesOpened(batch));
    let mut world = seen(62, &PENDING[..1]);
    world.nodes.values_mut().for_each(|node| node.taints.clear());
    assert_eq!(observe(&mut harness, 62, world), []);
}

#[test]
fn refused_early_nomination_is_repeated_when_the_nodes_open() {
    let starting = |seconds| {
        let mut world = seen(seconds, &PENDING[..1]);
        node(&mut world, "node-of-i-2").ready = false;
        world
    };
    let mut harness = leads(Mode::Full, Some(plan_for(2)));
    assert_eq!(observe(&mut harness, 1, starting(1)), opened(&[("a", 2)], &[]));
    let error = PortError {
        verb: "nominate pod".to_owned(),
        reason: "forbidden".to_owned(),
        effect: CallEffect::NotApplied,
    };
    let answer = vec![("uid-of-a".into(), "node-of-i-2".into(), Err(error))];
    assert_eq!(step(&mut harness, 2, Event::PodsNominated(answer)), []);
    assert_eq!(harness.state().status().failing_actions.len(), 1);
    assert_eq!(observe(&mut harness, 10, starting(10)), []);
    assert_eq!(observe(&mut harness, 21, starting(21)), opened(&[("a", 2)], &[1]));
}

#[test]
fn early_nominations_begin_with_the_highest_priority() {
    // Each pool has a batch. The pods of the first are as many as are nominated at once.
    let usual = u32::try_from(EARLY_NOMINATIONS_MAX).expect("small");
    let urgent = WorkloadId { name: "urgent".into(), ..owner() };
    let mut plan = plan_for(usual + 1);
    plan.capacity.placements[0].workload = urgent.clone();
    plan.capacity.explain[0].pods = [(workload_key(&urgent).as_str().into(), 1)].into();
    let names: Vec<String> = (0..usual).map(|pod| format!("pod-{pod}")).collect();
    let names = names.iter().map(|name| (name.as_str(), None));
    let pods: Vec<(&str, Option<&str>)> = names.chain([("urgent", None)]).collect();
    let mut world = seen(1, &pods);
    node(&mut world, "node-of-i-1").ready = false;
    move_second_node(&mut plan, &mut world);
    let mut template = PodTemplate::default();
    template.spec.priority = Some(1);
    world.templates.insert("urgent".to_owned(), Arc::new(template));
    let pod = Arc::make_mut(world.pods.last_mut().expect("one"));
    (pod.owner, pod.template) = (Some(urgent), "urgent".into());
    let mut harness = leads(Mode::Full, Some(plan));
    let steps = observe(&mut harness, 1, world);
    let [(nominated, nodes)] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((nominated.len(), nodes.len()), (EARLY_NOMINATIONS_MAX, 0));
    assert_eq!(nominated[0], ("urgent".to_owned(), "node-of-i-1".to_owned()));
    assert_eq!(nominated[1].1, "node-of-i-2");
}
