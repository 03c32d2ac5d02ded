//! Searches with and without the bound of trial packings.

use super::*;
use crate::model::desired::WorstCase;
use crate::solver::initial_fleet::initial_fleet;
use crate::solver::problem::Placements;
use crate::testing::Scenario;

/// Sets of nodes with what their removal saves beyond the needed saving.
type AcceptedSets = Vec<(Vec<usize>, MicroUsd)>;

/// What a search accepts and finds.
#[derive(Debug, PartialEq, Eq)]
struct SearchResult {
    /// Sets that are worth it as they are packed, before and after the search.
    accepted: [AcceptedSets; 2],
    retained: Vec<bool>,
    offers: Vec<usize>,
    placements: Placements,
    unplaced: BTreeMap<usize, u32>,
    price: MicroUsd,
    /// Nodes whose removal is not worth it, each with the saving and the moved pods.
    declined: Vec<(NodeName, MicroUsd, u32)>,
    budget_blocked: BTreeSet<NodeName>,
}

fn accepted_sets(search: &mut ConsolidationSearch, fleet: &VerifiedFleet) -> AcceptedSets {
    let sets = search.removal_sets(&fleet.layout, Scope::WithinBudgets).into_iter();
    let trials = sets.filter_map(|set| search.pack_without(fleet, set, Scope::WithinBudgets));
    let trials: Vec<ConsolidationTrial> = trials.collect();
    for trial in &trials {
        assert_packing_is_that_of_its_layout(search, fleet, trial);
    }
    trials.into_iter().map(|trial| (trial.nodes, trial.surplus)).collect()
}

fn assert_packing_is_that_of_its_layout(
    search: &ConsolidationSearch,
    fleet: &VerifiedFleet,
    trial: &ConsolidationTrial,
) {
    let retained = || fleet.layout.without(&trial.nodes);
    let known = search.problem.layout_packed(retained(), trial.packing.clone());
    let packed = search.problem.trial_layout(retained());
    assert_eq!(known.retained, packed.retained);
    assert_eq!((known.pods_on, known.staying), (packed.pods_on, packed.staying));
    assert_eq!(known.packing.new_nodes, packed.packing.new_nodes);
    assert_eq!((known.packing.left, known.price), (packed.packing.left, packed.price));
}

/// Returns the result of a search, and the number of sets that it never packed.
fn search(problem: &Problem, has_bound: bool) -> (SearchResult, usize) {
    let mut simulation = Simulation::new(problem);
    let start = initial_fleet(&mut simulation);
    let mut search = ConsolidationSearch::new(&mut simulation);
    if !has_bound {
        search.packings = TrialPackings::without_bound(problem);
    }
    let before = accepted_sets(&mut search, &start);
    let solved = search.consolidate(SolvedFleet::new(start));
    let after = accepted_sets(&mut search, &solved.fleet);
    // A set that is not packed saves nothing, however dear its packing is.
    let declined = solved.declined.into_iter();
    let declined =
        declined.map(|(name, change)| (name, change.saves.max(MicroUsd::ZERO), change.moves));
    let result = SearchResult {
        accepted: [before, after],
        retained: solved.fleet.layout.retained,
        offers: solved.fleet.offers,
        placements: solved.fleet.placements,
        unplaced: solved.fleet.unplaced,
        price: solved.fleet.layout.price,
        declined: declined.collect(),
        budget_blocked: solved.budget_blocked,
    };
    (result, search.packings.unpacked())
}

#[test]
fn bound_of_trial_packings_does_not_change_a_search() {
    let (mut unpacked, mut removed) = (0, 0);
    // The pods fill all nodes of the first and of the second fleet after the search.
    for (cpu, pods, fewer_pods) in [(480, 16, 16), (480, 24, 16), (600, 18, 10), (350, 30, 17)] {
        let mut scenario = Scenario::new(&["c5.large", "m5.large", "m5.xlarge"], cpu, 64);
        scenario.settings.worst_case = WorstCase::Contingency;
        scenario.settings.minimum_fleet_saving_milli_percent = 0;
        scenario.scale(pods);
        let first = scenario.solve();
        scenario.carry_out(&first);
        scenario.scale(fewer_pods);
        let search = |has_bound| scenario.with_problem(|problem| search(problem, has_bound));
        let ((expected, _), (found, excluded)) = (search(false), search(true));
        assert_eq!(found, expected, "{pods} to {fewer_pods} pods of {cpu}m");
        unpacked += excluded;
        removed += expected.retained.iter().filter(|retained| !**retained).count();
    }
    assert!(unpacked > 0 && removed > 0, "{unpacked} sets never packed, {removed} nodes removed");
}
