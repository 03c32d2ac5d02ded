//! Stories that take too long for a build without optimization.

use std::rc::Rc;

use fleetwright::catalog::Catalog;

use crate::seeds::files::Commit;
use crate::seeds::incidents::{End, Story, is, minutes, settled};
use crate::seeds::run::Run;

/// The stories, by the incident that each retells.
pub(crate) const ALL: &[(&str, Story)] =
    &[("karpenter-5505: two thousand pods at once are launched for within minutes", two_thousand)];

fn two_thousand(catalog: &Rc<Catalog>) -> End {
    const PODS: u32 = 2_089;
    let controller = "removals: { most: 100% }, launches: { most: 1000 }, massRemoval: 100%";
    let commit = Commit { controller: controller.to_owned(), cpu: 350, ..Commit::default() };
    let mut run = settled(catalog, 74, commit)?;
    run.commit(|commit| commit.with("api", PODS));
    let all = |run: &Run| {
        let observed = run.observed();
        let runs = observed.pods.iter().filter(|pod| pod.is_active() && pod.node.is_some());
        runs.count() >= usize::try_from(PODS).unwrap_or(usize::MAX)
    };
    let soon = run.until(minutes(5), all);
    run.well()?;
    is(soon, || "pods wait after five minutes".to_owned())
}
