//! Runs the incidents and some seeds of the controller simulation. `cargo test --release --test
//! simulation` runs 2,000 seeds.

use crate::simulation::incidents;
use crate::simulation::invariants::prove;
use crate::simulation::random_scenario::{ScenarioOutcome, run_seed};
use crate::simulation::repository::catalog;

/// Number of tests that share the incidents.
const TESTS: usize = 3;

fn run_incidents(part: usize) {
    let catalog = catalog();
    let selected = incidents::all().skip(part).step_by(TESTS);
    let failures: Vec<String> = selected
        .filter_map(|(name, scenario)| scenario(&catalog).err().map(|why| format!("{name}: {why}")))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn incidents_do_not_recur_part_1() {
    run_incidents(0);
}

#[test]
fn incidents_do_not_recur_part_2() {
    run_incidents(1);
}

#[test]
fn incidents_do_not_recur_part_3() {
    run_incidents(2);
}

/// Incidents of other projects, one of each kind, by issue number.
const KNOWN_INCIDENTS: &[&str] = &[
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
fn each_known_incident_has_a_scenario() {
    let is_covered = |of: &&str| {
        let rest = incidents::all().filter_map(|(name, _)| name.strip_prefix(*of));
        rest.into_iter().any(|rest| rest.starts_with([':', ',']))
    };
    let missing: Vec<&str> = KNOWN_INCIDENTS.iter().filter(|of| !is_covered(of)).copied().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn each_invariant_check_detects_its_violation() {
    assert_eq!(prove(), Ok(()));
}

/// Seeds of past failures, with the cause.
const REGRESSION_SEEDS: &[(u64, &str)] = &[
    (4, "a message was deleted because a partial observation showed no node"),
    (70, "an observation older than the last one showed a terminated instance"),
    (112, "an instance was terminated because Kubernetes listed no nodes"),
    (191, "a message was deleted for another one about the same instance"),
    (102, "a plan was restarted without blocked changes over an outdated observation"),
];

#[test]
fn fleet_converges_after_faults_end() {
    let catalog = catalog();
    let some = (0..3).map(|seed| (seed, "any")).chain(REGRESSION_SEEDS.iter().copied());
    for (seed, cause) in some {
        let ScenarioOutcome { lines, end, steps, launches, removals, minutes } =
            run_seed(seed, &catalog);
        let log = lines.join("\n");
        if let Err(why) = end {
            panic!(
                "seed {seed} ({cause}): {why}; cargo test --release --test simulation -- --replay {seed}\n{log}"
            );
        }
        // A scenario needs enough events to be a test.
        assert!(
            steps > 100 && launches > 0 && minutes >= 20,
            "seed {seed}: {removals} removals\n{log}"
        );
    }
}
