//! Lints: declarations in the repository that cannot work as intended, with their source file and
//! line.
//!
//! Lints read the desired state, the demand and the catalog. They never change a plan. Each lint
//! suggests a change of the repository.

mod architectures;
mod budgets;
mod node_selectors;
mod pools;
mod requests;
mod scalers;
mod spread;
mod tolerations;
mod volumes;

pub use pools::missing_pools;
pub use requests::requests;

use crate::catalog::Catalog;
use crate::demand::Demand;
use crate::model::desired::{Desired, Problem};
use crate::model::ids::Origin;

/// Returns the lints that every plan includes as warnings.
pub fn lints(desired: &Desired, demand: &Demand, catalog: &Catalog) -> Vec<Problem> {
    let mut found = budgets::budgets(desired, demand);
    found.extend(architectures::open_architectures(desired, demand, catalog));
    found.extend(node_selectors::unknown_values(desired, demand, catalog));
    found.extend(scalers::windows(desired));
    found.extend(scalers::conflicting_autoscalers(desired));
    found.extend(scalers::targets(desired));
    found.extend(scalers::verticals(desired));
    found.extend(scalers::proportional(desired, demand));
    found.extend(spread::zones(desired, catalog));
    found.extend(tolerations::timed_tolerations(desired, demand));
    found.extend(volumes::shared_claims(desired, demand));
    found
}

fn warning(origin: &Origin, object: &str, message: String, hint: &str) -> Problem {
    Problem::warning(origin.clone(), object, message).hint(hint)
}

#[cfg(test)]
mod tests;
