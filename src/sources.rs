//! Reads a repository with everything that tools make of it.
//!
//! Drives the port of tools in rounds, because what one tool makes may name more to render (an
//! application of applications). It knows neither tools nor manifests; the rounds are bounded, and
//! what is not rendered when they end is unresolved, by the reading itself.

use crate::manifest::{Desired, Fleet, Home, Renderings, Tree, orders, read_rendered};
use crate::port::{Repo, Tools};

/// How often what tools make may lead to more.
const ROUNDS_MAX: usize = 8;

/// Reads `tree` as `fleet` says, and returns what tools made of its parts beside it.
#[must_use]
pub fn read(
    tree: &Tree,
    fleet: &Fleet,
    home: Home,
    repo: &(dyn Repo + Sync),
    tools: &dyn Tools,
) -> (Desired, Renderings) {
    let mut renderings = Renderings { home, ..Renderings::default() };
    for _ in 0..ROUNDS_MAX {
        let wanted = orders(tree, fleet, &renderings);
        if wanted.is_empty() {
            break;
        }
        let made = tools.render(repo, &wanted);
        renderings.done.extend(wanted.into_iter().zip(made));
    }
    (read_rendered(tree, fleet, &renderings), renderings)
}
