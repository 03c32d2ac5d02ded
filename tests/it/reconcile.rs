//! The loop in its simulation: the incidents, and some seeds; `cargo bench --bench seeds` runs them all.

use crate::seeds::check::prove;
use crate::seeds::files::catalog;
use crate::seeds::incidents;
use crate::seeds::story::{Told, tell};

/// Incidents run side by side in so many tests.
const TESTS: usize = 3;

fn incidents(turn: usize) {
    let catalog = catalog();
    let mine = incidents::all().skip(turn).step_by(TESTS);
    let wrong: Vec<String> = mine
        .filter_map(|(name, story)| story(&catalog).err().map(|why| format!("{name}: {why}")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_went_wrong_with_others_does_not_here_1() {
    incidents(0);
}

#[test]
fn what_went_wrong_with_others_does_not_here_2() {
    incidents(1);
}

#[test]
fn what_went_wrong_with_others_does_not_here_3() {
    incidents(2);
}

/// What went wrong with others, as their trackers number it: one of each kind.
const WENT_WRONG: &[&str] = &[
    "cluster-autoscaler-9182",
    "cluster-autoscaler-10147",
    "cluster-autoscaler-4095",
    "cluster-autoscaler-6795",
    "argo-cd-18480",
    "karpenter-8707",
    "karpenter-2386",
    "karpenter-6651",
    "karpenter-1040",
    "karpenter-3331",
    "karpenter-5373",
    "karpenter-6211",
    "karpenter-4156",
    "karpenter-2821",
    "karpenter-1959",
    "karpenter-6611",
    "core-3198",
    "karpenter-1293",
    "karpenter chaos test",
    "karpenter-549",
    "karpenter-2734",
    "hetzner-53",
    "karpenter-oci-97",
    "core-3176",
    "osbuild-composer-4430",
    "packer-1367",
    "kaito-1300",
    "core-1776",
    "karpenter-1166",
    "core-3185",
    "karpenter-6591",
    "karpenter-5400",
    "karpenter-9226",
    "core-2077",
    "karpenter-9175",
    "karpenter-8923",
    "cluster-autoscaler-252",
    "core-903",
    "kubernetes-67651",
    "kubernetes-59848",
    "argo-cd-15058",
    "atlantis-5955",
    "terraform",
];

#[test]
fn whatever_went_wrong_with_others_has_a_story() {
    let is_told = |of: &&str| {
        let rest = incidents::all().filter_map(|(name, _)| name.strip_prefix(*of));
        rest.into_iter().any(|rest| rest.starts_with([':', ',']))
    };
    let untold: Vec<&str> = WENT_WRONG.iter().filter(|of| !is_told(of)).copied().collect();
    assert!(untold.is_empty(), "{untold:?}");
}

#[test]
fn every_check_complains_of_a_trace_that_violates_it_and_none_of_what_is_in_order() {
    assert_eq!(prove(), Ok(()));
}

/// Seeds in which something was wrong once, and what: they are told again for ever.
const ONCE_WRONG: &[(u64, &str)] = &[
    (4, "a message was taken off because a look that was not whole showed no node"),
    (70, "a look that was older than the one before showed what had been told to end"),
    (112, "a machine was ended because Kubernetes listed no nodes, as if that were all"),
    (191, "a message was taken off for another one about the same machine"),
    (102, "a plan was begun anew, without what was held back, over a world from before a removal"),
];

#[test]
fn whatever_breaks_the_fleet_comes_to_rest_once_it_is_mended() {
    let catalog = catalog();
    let some = (0..3).map(|seed| (seed, "any")).chain(ONCE_WRONG.iter().copied());
    for (seed, about) in some {
        let Told { lines, end, steps, launches, removals, minutes } = tell(seed, &catalog);
        let told = lines.join("\n");
        if let Err(why) = end {
            panic!(
                "seed {seed} ({about}): {why}; cargo bench --bench seeds -- --replay {seed}\n{told}"
            );
        }
        // A story in which nothing happens shows nothing.
        assert!(
            steps > 100 && launches > 0 && minutes >= 20,
            "seed {seed}: {removals} went\n{told}"
        );
    }
}
