//! The covering problem behind new nodes, solved by column generation. Bounds, dual prices and
//! patterns follow from it.
//!
//! This module works on amounts and prices only: it has no pools, labels or zones. Work is per
//! class of identical pods and per offering of identical nodes. Floats only guide the search. They
//! choose the dual prices (`column_generation`, `master_problem`) and the patterns to examine.
//! Every result, a bound or a pattern, is computed in integers (`dual_bound`, `knapsack`). No
//! function reads a clock. Work is counted, so the same problem has the same answer on every
//! computer.

pub(super) mod best_purchase;
mod class_clusters;
pub(super) mod column_generation;
mod diving;
pub(super) mod dual_bound;
mod dual_price_greedy;
mod empty_pattern;
pub(super) mod exact;
mod float_conversion;
mod fractional_rounding;
mod growing_best_fit;
mod knapsack;
mod knapsack_table;
mod master_problem;
pub(super) mod purchase;
mod relaxation;
mod ruin_and_recreate;
mod table_column_generation;

/// Maximum number of classes with a row each. Problems with more classes are priced in clusters.
const ROWS_MAX: usize = 64;

/// Amounts by resource. All vectors of a problem have the same length.
pub(super) type Amounts = Vec<i64>;

/// Identical pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DemandClass {
    /// Resource requests of one pod.
    pub requests: Amounts,
}

/// Identical nodes that can be bought in any number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeOffering {
    pub price: i64,
    /// Allocatable amounts of an empty node.
    pub room: Amounts,
    /// For each class, true if its pods may run on the node.
    pub admits: Vec<bool>,
}

/// A limit on the pods of some classes that share one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodCap {
    /// The classes that count against the limit.
    pub members: Vec<usize>,
    /// Maximum pods of all members together on one node.
    pub max_pods: u32,
}

/// A variable-sized bin packing problem with caps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BinPackingProblem {
    /// The pods, by class.
    pub classes: Vec<DemandClass>,
    /// Nodes that can be bought in any number.
    pub offerings: Vec<NodeOffering>,
    /// Limits that apply to every bought node.
    pub caps: Vec<PodCap>,
    /// For each class, the indices of its caps.
    pub caps_of_class: Vec<Vec<usize>>,
}

impl BinPackingProblem {
    /// Returns a problem and indexes its caps by class.
    pub(super) fn new(
        classes: Vec<DemandClass>,
        offerings: Vec<NodeOffering>,
        caps: Vec<PodCap>,
    ) -> Self {
        let mut caps_of_class = vec![Vec::new(); classes.len()];
        for (index, cap) in caps.iter().enumerate() {
            cap.members.iter().for_each(|class| caps_of_class[*class].push(index));
        }
        Self { classes, offerings, caps, caps_of_class }
    }

    fn resources(&self) -> usize {
        self.classes.first().map_or(0, |demand| demand.requests.len())
    }
}

/// Pods on one node of an offering: a column of the master problem.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pattern {
    /// Index of the offering.
    pub offering: usize,
    /// Pairs of class and pod count, ordered by class.
    pub pods: Vec<(usize, u32)>,
}
