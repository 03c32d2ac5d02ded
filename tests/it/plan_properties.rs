//! Properties of plans for random repositories and observations, checked by brute force.
//!
//! A random repository is a case of [`conformance`](crate::conformance). A case that violates a
//! property is shrunk and printed, and then recorded in `plan_properties/regressions.md`, whose
//! cases run first. Brute force takes single steps with the model of kube-scheduler and does not
//! use the solver:
//!
//! * *Placed* is never wrong. The planned pods can be placed one by one on their planned nodes. In
//!   any order, the scheduler leaves at most as many pods unschedulable as the plan;
//! * *Unschedulable* is never wrong. If some fleet within the limits and some sequence of single
//!   placements fit all pods, the plan places all pods. No single additional node fits an
//!   unschedulable pod;
//! * Plans converge. After an apply in the simulator, all placed pods run, and after a few more
//!   plans the plan is empty.
//!
//! `PROOF_CASES` sets the number of random repositories, `PROOF_APPLIED` the number of applied
//! ones, `PROOF_SEED` the seed, and `PROOF_FAMILY` the family of rules. `PROOF_CASE` names a file
//! with one more case, which runs with the regressions.

mod apply_in_simulator;
mod node_groups;
mod pod_orders;
mod preemption;
mod proof_case;
mod random_trees;
mod resource_requests;
mod single_placements;
mod small_fleets;
mod tree_features;
mod volumes;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::conformance::RulePage;
use pod_orders::UNSEEN_ORDER_COUNT;
use proof_case::ProofCase;
use random_trees::tree;
use tree_features::SEPARATE_FAMILIES;

/// Default number of random repositories.
const CASES: u32 = 800;

/// Number of random repositories of each family that is tested alone.
const SEPARATE_CASES: u32 = 100;

/// Default number of random repositories whose plans are applied.
const APPLIED_CASES: u32 = 120;

/// At most one in this number of unseen scheduling orders may leave a pod unschedulable.
const UNSEEN_ORDERS_PER_FAILURE: u64 = 50;

/// Number of threads that share the cases. Other tests run concurrently.
const THREADS: u32 = 2;

fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Name and check of a property.
type PlanProperty = (&'static str, fn(&ProofCase) -> Result<(), String>);

const PROPERTIES: [PlanProperty; 7] = [
    ("pods count with their requests", ProofCase::requests_match_startup),
    ("single placements reach the planned placement", ProofCase::is_reachable_by_single_steps),
    (
        "the scheduler leaves no more pods unschedulable than the plan",
        ProofCase::is_scheduled_in_simulated_orders,
    ),
    ("pods that fit some fleet are not unschedulable", ProofCase::no_fleet_fits_unschedulable_pods),
    (
        "pods that fit one more node are not unschedulable",
        ProofCase::no_extra_node_fits_unschedulable_pods,
    ),
    ("evicted pods free sufficient resources", ProofCase::evictions_are_correct),
    ("the order of documents has no effect", ProofCase::is_independent_of_document_order),
];

/// Properties of applied plans, whose checks take longer.
const APPLY_PROPERTIES: [PlanProperty; 1] =
    [("applied plans converge", ProofCase::converges_when_applied)];

/// Plans a case and checks `properties`.
fn check_case(text: &str, properties: &[PlanProperty]) -> Result<(), String> {
    let Some(case) = ProofCase::parse(text)? else { return Ok(()) };
    properties
        .iter()
        .try_for_each(|(name, check)| check(&case).map_err(|why| format!("{name}: {why}")))
}

fn run_random_cases(
    cases: u32,
    seed: u32,
    thread: u32,
    family: Option<&str>,
    properties: &[PlanProperty],
) -> Option<String> {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    bytes[4..8].copy_from_slice(&thread.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let trees = tree(family).prop_map(|tree| tree.to_string());
    let tried =
        runner.run(&trees, |text| check_case(&text, properties).map_err(TestCaseError::fail));
    match tried {
        Ok(()) => None,
        Err(TestError::Fail(why, text)) => {
            Some(format!("PROOF_SEED={seed}: {why}\n\n```case\n{text}```\n"))
        }
        Err(TestError::Abort(why)) => Some(format!("PROOF_SEED={seed}: {why}")),
    }
}

/// Returns the regression cases, with their line numbers.
fn regressions() -> Vec<(usize, String)> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/plan_properties/regressions.md");
    let text = fs::read_to_string(path).expect("the page is readable");
    let page = RulePage::read("kept.md", &text);
    let cases = page.sections.into_iter().flat_map(|section| section.cases);
    let own = std::env::var("PROOF_CASE").ok();
    let own = own.map(|path| (0, fs::read_to_string(path).expect("the case is readable")));
    own.into_iter().chain(cases.map(|case| (case.line, case.text))).collect()
}

/// Returns random cases that violate one of `properties`. The environment may select a family.
fn violations(cases: u32, properties: &[PlanProperty]) -> Vec<String> {
    let family = std::env::var("PROOF_FAMILY").ok();
    violations_of(family.as_deref(), cases, properties)
}

fn violations_of(family: Option<&str>, cases: u32, properties: &[PlanProperty]) -> Vec<String> {
    let seed = setting("PROOF_SEED", 1);
    std::thread::scope(|scope| {
        let one = |thread| {
            scope.spawn(move || run_random_cases(cases / THREADS, seed, thread, family, properties))
        };
        let threads: Vec<_> = (0..THREADS).map(one).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn regression_trees_keep_plan_properties() {
    let all: Vec<PlanProperty> = PROPERTIES.into_iter().chain(APPLY_PROPERTIES).collect();
    let violations = |(line, text): (usize, String)| {
        check_case(&text, &all)
            .err()
            .map(|why| format!("plan_properties/regressions.md:{line}: {why}"))
    };
    let violations: Vec<String> = regressions().into_iter().filter_map(violations).collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn random_trees_keep_plan_properties() {
    let cases = setting("PROOF_CASES", CASES);
    let found = violations(cases, &PROPERTIES);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (tried, left) = (total(&UNSEEN_ORDER_COUNT.tried), total(&UNSEEN_ORDER_COUNT.left));
    assert!(tried >= u64::from(cases), "{cases} cases, but only {tried} orders were tested");
    assert!(
        left * UNSEEN_ORDERS_PER_FAILURE <= tried,
        "{left} of {tried} orders leave a pod unschedulable"
    );
}

#[test]
fn random_trees_of_one_feature_keep_plan_properties() {
    for (family, _) in SEPARATE_FAMILIES {
        let found = violations_of(Some(family), SEPARATE_CASES, &PROPERTIES);
        assert!(found.is_empty(), "PROOF_FAMILY={family}: {}", found.join("\n"));
    }
}

#[test]
fn random_plans_are_applied_and_converge() {
    let found = violations(setting("PROOF_APPLIED", APPLIED_CASES), &APPLY_PROPERTIES);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
