//! What a sample keeps of the whole.

use proptest::prelude::*;

use crate::schedule::Sample;

#[test]
fn what_is_played_quickly_is_played_whole() {
    for (pods, nodes, every) in
        [(0, 0, 1), (1, 0, 1), (10_000, 2_000, 1), (50_000, 10_000, 1), (100_000, 100_000, 4)]
    {
        assert_eq!(Sample::of(pods, nodes).every(), every, "{pods} pods on {nodes} nodes");
    }
}

#[test]
fn a_kind_gives_its_share_and_hands_the_rest_to_the_next() {
    let kinds = ["a", "b", "a", "a", "b", "a", "a", "c"];
    // By kind: 0 2 3 5 6, 1 4, 7. Every third: 3, 1 (the rest of a and the first of b).
    assert_eq!(Sample::one_in(3).nodes(&kinds), [1, 3]);
    assert_eq!(Sample::one_in(1).nodes(&kinds), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(Sample::one_in(3).pods(&[1, 1, 1, 0, 7, 2]), [1, 0, 0, 0, 3, 0]);
}

proptest! {
    #[test]
    fn nodes_are_rounded_down_and_pods_up_once(
        kinds in prop::collection::vec(0_u32..5, 0..60),
        counts in prop::collection::vec(0_usize..20, 0..30),
        every in 1_usize..9,
    ) {
        let sample = Sample::one_in(every);
        let nodes = sample.nodes(&kinds);
        prop_assert_eq!(nodes.len(), kinds.len() / every);
        prop_assert!(nodes.is_sorted());
        for kind in 0..5 {
            let all = kinds.iter().filter(|k| **k == kind).count();
            let chosen = nodes.iter().filter(|node| kinds[**node] == kind).count();
            prop_assert!(chosen * every < all + every && all < (chosen + 1) * every + every);
        }
        let pods = sample.pods(&counts);
        prop_assert_eq!(pods.iter().sum::<usize>(), counts.iter().sum::<usize>().div_ceil(every));
        for (part, count) in pods.iter().zip(&counts) {
            prop_assert!(part * every < count + every && *count < (part + 1) * every);
        }
    }
}
