//! What a repository states that cannot work as it is meant, with file and line.
//!
//! Knows the repository, the pods it asks for and the catalogue; decides nothing. A lint never
//! changes what is planned: it says what to change in the repository.

mod architectures;
mod budgets;
mod requests;
mod scalers;
mod spread;
mod tolerations;
mod volumes;

pub use requests::requests;

use crate::catalog::Catalog;
use crate::demand::Demand;
use crate::ids::Origin;
use crate::manifest::{Desired, Problem, Severity};

/// Returns what is worth a warning in every plan.
#[must_use]
pub fn lints(desired: &Desired, demand: &Demand, catalog: &Catalog) -> Vec<Problem> {
    let mut found = budgets::budgets(desired, demand);
    found.extend(architectures::left_open(desired, demand, catalog));
    found.extend(scalers::windows(desired));
    found.extend(scalers::rivals(desired));
    found.extend(scalers::targets(desired));
    found.extend(scalers::verticals(desired));
    found.extend(scalers::proportional(desired, demand));
    found.extend(spread::zones(desired, catalog));
    found.extend(tolerations::for_a_time(desired, demand));
    found.extend(volumes::shared(desired, demand));
    found
}

fn warning(origin: &Origin, object: &str, message: String, hint: &str) -> Problem {
    Problem {
        origin: origin.clone(),
        severity: Severity::Warning,
        object: object.to_owned(),
        message,
        hint: Some(hint.to_owned()),
    }
}

#[cfg(test)]
mod tests;
