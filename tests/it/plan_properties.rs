//! Plans of trees and worlds drawn by lot, held against brute force.
//!
//! What is drawn is a case of [`conformance`](crate::conformance): a tree that breaks a rule is shrunk
//! and printed as one, to be read, and kept in `plan_properties/regressions.md`, whose cases are tried first. Brute
//! force takes single steps with the scheduler's model, which `schedule` holds to its own oracle, and
//! knows nothing of how plans are found:
//!
//! * never a false *placed*: the planned pods can be placed one by one where the plan has them, and
//!   the scheduler, left to itself in any order that it might see, leaves no more pods over than
//!   the plan does;
//! * never a false *unschedulable*: where some fleet within the limits and some sequence of single
//!   placements hold everything, the plan leaves nothing out; and where it does leave pods out, no
//!   one more node would take any of them;
//! * a plan is an end: applied in the simulated world, everything that it places runs, and plan after
//!   plan there is soon nothing left to plan.
//!
//! `PROOF_CASES` sets how many trees are drawn, `PROOF_APPLIED` how many of them are applied,
//! `PROOF_SEED` which ones, and `PROOF_FAMILY` of which family of rules. `PROOF_CASE` names a file with
//! one case, which is then tried among the kept ones.

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
use pod_orders::SEEN;
use proof_case::ProofCase;
use random_trees::tree;
use tree_features::ALONE;

/// Trees drawn unless the environment says otherwise.
const CASES: u32 = 800;

/// Trees of each family that is drawn alone.
const ALONE_CASES: u32 = 100;

/// Trees whose plans are applied as well, unless the environment says otherwise.
const APPLIED: u32 = 120;

/// Of so many ways to come that no rehearsal tried, at most one leaves a pod over.
const UNSEEN_LEFT_MIN: u64 = 50;

/// Threads that share them: some tests run beside this one.
const THREADS: u32 = 2;

fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A law that plans keep, and its name.
type PlanProperty = (&'static str, fn(&ProofCase) -> Result<(), String>);

const LAWS: [PlanProperty; 7] = [
    ("a pod counts with what it takes", ProofCase::counts_what_pods_take),
    ("single placements lead where the plan has the pods", ProofCase::is_reached_by_single_steps),
    ("the scheduler leaves no more than the plan", ProofCase::holds_in_rehearsed_orders),
    ("what some fleet holds is not left out", ProofCase::leaves_nothing_that_some_fleet_holds),
    (
        "what one more node holds is not left out",
        ProofCase::leaves_nothing_that_one_more_node_holds,
    ),
    ("who is evicted makes room", ProofCase::says_who_is_evicted),
    ("the order of documents decides nothing", ProofCase::does_not_depend_on_order),
];

/// What holds once plans are applied, which takes longer to try.
const LAWS_OF_APPLYING: [PlanProperty; 1] =
    [("applied, plan after plan comes to rest", ProofCase::applied_comes_to_rest)];

/// Plans a case and holds the plan to `laws`.
fn judge(text: &str, laws: &[PlanProperty]) -> Result<(), String> {
    let Some(stage) = ProofCase::of(text)? else { return Ok(()) };
    laws.iter().try_for_each(|(name, law)| law(&stage).map_err(|why| format!("{name}: {why}")))
}

fn draw_some(
    cases: u32,
    (seed, thread): (u32, u32),
    family: Option<&str>,
    laws: &[PlanProperty],
) -> Option<String> {
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&seed.to_le_bytes());
    bytes[4..8].copy_from_slice(&thread.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let trees = tree(family).prop_map(|tree| tree.to_string());
    let tried = runner.run(&trees, |text| judge(&text, laws).map_err(TestCaseError::fail));
    match tried {
        Ok(()) => None,
        Err(TestError::Fail(why, text)) => {
            Some(format!("PROOF_SEED={seed}: {why}\n\n```case\n{text}```\n"))
        }
        Err(TestError::Abort(why)) => Some(format!("PROOF_SEED={seed}: {why}")),
    }
}

/// Returns the kept cases, with their lines.
fn kept() -> Vec<(usize, String)> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/plan_properties/regressions.md");
    let text = fs::read_to_string(path).expect("the page is readable");
    let page = RulePage::read("kept.md", &text);
    let cases = page.sections.into_iter().flat_map(|section| section.cases);
    let own = std::env::var("PROOF_CASE").ok();
    let own = own.map(|path| (0, fs::read_to_string(path).expect("the case is readable")));
    own.into_iter().chain(cases.map(|case| (case.line, case.text))).collect()
}

/// Returns the trees, of so many drawn of the family that the environment names or of those that are drawn
/// together, that break one of `laws`.
fn broken(cases: u32, laws: &[PlanProperty]) -> Vec<String> {
    let family = std::env::var("PROOF_FAMILY").ok();
    broken_of(family.as_deref(), cases, laws)
}

fn broken_of(family: Option<&str>, cases: u32, laws: &[PlanProperty]) -> Vec<String> {
    let seed = setting("PROOF_SEED", 1);
    std::thread::scope(|scope| {
        let one =
            |thread| scope.spawn(move || draw_some(cases / THREADS, (seed, thread), family, laws));
        let threads: Vec<_> = (0..THREADS).map(one).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn regression_trees_keep_plan_properties() {
    let all: Vec<PlanProperty> = LAWS.into_iter().chain(LAWS_OF_APPLYING).collect();
    let broken = |(line, text): (usize, String)| {
        judge(&text, &all).err().map(|why| format!("plan_properties/regressions.md:{line}: {why}"))
    };
    let broken: Vec<String> = kept().into_iter().filter_map(broken).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn random_trees_keep_plan_properties() {
    let cases = setting("PROOF_CASES", CASES);
    let found = broken(cases, &LAWS);
    assert!(found.is_empty(), "{}", found.join("\n"));
    let total = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (tried, left) = (total(&SEEN.tried), total(&SEEN.left));
    assert!(tried >= u64::from(cases), "of {cases} trees too few were judged, {tried} times");
    assert!(left * UNSEEN_LEFT_MIN <= tried, "of {tried} ways to come {left} leave a pod over");
}

#[test]
fn random_trees_of_one_feature_keep_plan_properties() {
    for (family, _) in ALONE {
        let found = broken_of(Some(family), ALONE_CASES, &LAWS);
        assert!(found.is_empty(), "PROOF_FAMILY={family}: {}", found.join("\n"));
    }
}

#[test]
fn random_plans_are_applied_and_converge() {
    let found = broken(setting("PROOF_APPLIED", APPLIED), &LAWS_OF_APPLYING);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
