//! Merges similar classes, so that problems with many classes are priced quickly.
//!
//! For fractional pods only three properties of a class matter: the proportions of its requests,
//! the offerings that admit it, and whether a cap limits it. Classes that roughly agree in these
//! properties form one cluster. The dual prices of the clusters are good first prices for their
//! classes. They only guide the search.

use std::collections::{BTreeMap, BTreeSet};

use super::float_conversion::{floor_to_i64, to_f64};
use super::{BinPackingProblem, DemandClass, NodeOffering, PodCap, ROWS_MAX};

/// Number of steps into which a proportion is divided, from the finest to the coarsest.
const PROPORTION_STEPS: [u32; 4] = [48, 24, 12, 6];

/// A smaller problem that approximates a larger one.
pub(super) struct ClassClusters {
    pub problem: BinPackingProblem,
    /// Wanted pods of each cluster.
    pub wanted: Vec<u32>,
    /// For each class of the larger problem, its cluster.
    pub cluster_of: Vec<Option<usize>>,
}

/// Classes with the same key form one cluster.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct ClusterKey {
    /// Offerings that admit the class, or that only lack room for its pods.
    admitted: Vec<bool>,
    is_capped: bool,
    /// Share of each resource in the requests, in steps.
    proportions: Vec<i64>,
}

impl ClassClusters {
    /// Returns at most [`ROWS_MAX`] clusters of the wanted classes. If the coarsest proportions
    /// still leave more, the remaining clusters are not priced.
    pub(super) fn new(problem: &BinPackingProblem, wanted: &[u32]) -> Self {
        let mut groups = Vec::new();
        for steps in PROPORTION_STEPS {
            groups = group_alike(problem, wanted, steps);
            if groups.len() <= ROWS_MAX {
                break;
            }
        }
        groups.truncate(ROWS_MAX);
        let mut cluster_of = vec![None; wanted.len()];
        for (cluster, members) in groups.iter().enumerate() {
            for class in members {
                cluster_of[*class] = Some(cluster);
            }
        }
        let count = |members: &Vec<usize>| {
            members.iter().map(|class| wanted[*class]).fold(0, u32::saturating_add)
        };
        let offering = |offering: &NodeOffering| {
            let admits =
                groups.iter().map(|members| members.iter().any(|class| offering.admits[*class]));
            NodeOffering { admits: admits.collect(), ..offering.clone() }
        };
        let classes = groups.iter().map(|members| mean(problem, wanted, members)).collect();
        let caps = groups.iter().enumerate().filter_map(|(cluster, members)| {
            let caps: BTreeSet<usize> = members
                .iter()
                .flat_map(|class| problem.caps_of_class[*class].iter().copied())
                .collect();
            let most =
                caps.iter().map(|cap| problem.caps[*cap].max_pods).fold(0, u32::saturating_add);
            (!caps.is_empty()).then_some(PodCap { members: vec![cluster], max_pods: most })
        });
        let offerings = problem.offerings.iter().map(offering).collect();
        let clustered = BinPackingProblem::new(classes, offerings, caps.collect());
        Self { problem: clustered, wanted: groups.iter().map(count).collect(), cluster_of }
    }
}

/// Returns the mean requests of the members, weighted by their pods.
fn mean(problem: &BinPackingProblem, wanted: &[u32], members: &[usize]) -> DemandClass {
    let weigh = |class: &usize| i128::from(wanted[*class]);
    let pods: i128 = members.iter().map(weigh).sum();
    let mean = |resource: usize| {
        let request =
            |class: &usize| i128::from(problem.classes[*class].requests[resource]) * weigh(class);
        let all: i128 = members.iter().map(request).sum();
        i64::try_from(all / pods.max(1)).unwrap_or(i64::MAX)
    };
    DemandClass { requests: (0..problem.resources()).map(mean).collect() }
}

/// Groups the wanted classes by key.
fn group_alike(problem: &BinPackingProblem, wanted: &[u32], steps: u32) -> Vec<Vec<usize>> {
    let size = |resource: usize| {
        let all: f64 =
            problem.offerings.iter().map(|offering| to_f64(offering.room[resource])).sum();
        all.max(1.0)
    };
    let sizes: Vec<f64> = (0..problem.resources()).map(size).collect();
    let mut groups: BTreeMap<ClusterKey, Vec<usize>> = BTreeMap::new();
    for (class, demand) in
        problem.classes.iter().enumerate().filter(|(class, _)| wanted[*class] > 0)
    {
        let shares: Vec<f64> = demand
            .requests
            .iter()
            .zip(&sizes)
            .map(|(request, size)| to_f64(*request) / size)
            .collect();
        let all = shares.iter().sum::<f64>().max(1e-300);
        let step = |share: &f64| floor_to_i64(share / all * f64::from(steps) + 0.5);
        let key = ClusterKey {
            admitted: problem
                .offerings
                .iter()
                .map(|offering| is_admitted(demand, offering, class))
                .collect(),
            is_capped: !problem.caps_of_class[class].is_empty(),
            proportions: shares.iter().map(step).collect(),
        };
        groups.entry(key).or_default().push(class);
    }
    groups.into_values().collect()
}

/// Returns true if only the size of the node can prevent the offering from admitting the class.
pub(super) fn is_admitted(demand: &DemandClass, offering: &NodeOffering, class: usize) -> bool {
    offering.admits[class]
        || demand.requests.iter().zip(&offering.room).any(|(request, room)| request > room)
}
