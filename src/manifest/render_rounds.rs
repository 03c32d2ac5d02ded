//! Reads a repository together with the output of its rendering tools.
//!
//! Runs the tools in rounds, because the output of one may request further renderings (an
//! application of applications). The number of rounds is limited; requests that remain after the
//! last round are unresolved. This module knows neither tools nor manifests.

use std::sync::Arc;

use crate::manifest::ports::{ManifestRenderer, RepositoryFiles};
use crate::manifest::{read_with_renderings, render_requests};
use crate::model::desired::{
    Desired, ExternalSources, Fleet, RenderResults, RepositoryLocation, Tree,
};
use crate::model::observed::ClusterPools;

/// Maximum number of rendering rounds.
const ROUNDS_MAX: usize = 8;

/// Reads `tree` with the settings of `fleet`, and returns the renderings that were used. `pools` are
/// those of the cluster, if they were read.
pub fn read(
    tree: &Tree,
    fleet: &Fleet,
    home: RepositoryLocation,
    external: ExternalSources,
    pools: Option<Arc<ClusterPools>>,
    repo: &(dyn RepositoryFiles + Sync),
    tools: &dyn ManifestRenderer,
) -> (Desired, RenderResults) {
    let mut renderings =
        RenderResults { location: home, external, pools, ..RenderResults::default() };
    for _ in 0..ROUNDS_MAX {
        let requests = render_requests(tree, fleet, &renderings);
        if requests.is_empty() {
            break;
        }
        let results = tools.render(repo, &requests);
        renderings.results.extend(requests.into_iter().zip(results));
    }
    (read_with_renderings(tree, fleet, &renderings), renderings)
}
