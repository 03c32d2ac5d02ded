//! What EC2 offers now, as far as a repository may use it.

use std::collections::BTreeSet;

use super::{Wall, block_on};
use crate::aws::Aws;
use crate::catalog::{Catalog, Market};
use crate::cli::repository::Repository;
use crate::ids::InstanceTypeName;
use crate::manifest::{Pool, PoolRequirement};
use crate::port::Clock as _;
use crate::requirement::{Operator, key};

/// Returns what EC2 offers now: spot prices too where a pool may use spot.
pub(in crate::cli) fn market(repository: &Repository) -> Result<Market, String> {
    let fleet = &repository.fleet;
    let asked = block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        Ok(market_of(&aws, repository).await)
    });
    asked.unwrap_or_else(|_| Err("the runtime cannot be started".to_owned()))
}

/// Returns the same, asked of an account that is reached already.
pub(in crate::cli) async fn market_of(
    aws: &Aws,
    repository: &Repository,
) -> Result<Market, String> {
    let fleet = &repository.fleet;
    let catalog = Catalog::load(&fleet.region, &fleet.zones).map_err(|error| error.to_string())?;
    let spot = repository.desired.pools.values().any(may_be_spot);
    let types: BTreeSet<InstanceTypeName> = if spot { named_types(repository) } else { [].into() };
    // Where pools name no types, those of the catalogue may be launched.
    let all = || catalog.types.keys().cloned().collect();
    let types = spot.then(|| if types.is_empty() { all() } else { types });
    aws.market(types.as_ref(), Wall.now()).await.map_err(|error| error.to_string())
}

/// Returns whether a pool may use spot: it says so, or leaves it open.
fn may_be_spot(pool: &Pool) -> bool {
    let of_capacity = |r: &&PoolRequirement| r.key.as_str() == key::CAPACITY_TYPE;
    let mut stated = pool.requirements.iter().filter(of_capacity).peekable();
    stated.peek().is_none()
        || stated
            .any(|r| r.operator != Operator::In || r.values.iter().any(|v| v.as_str() == "spot"))
}

/// Returns the instance types that pools name, if each of them names some.
fn named_types(repository: &Repository) -> BTreeSet<InstanceTypeName> {
    let of_pool = |pool: &Pool| {
        let named = |r: &&PoolRequirement| {
            r.key.as_str() == key::INSTANCE_TYPE && r.operator == Operator::In
        };
        let found = pool.requirements.iter().find(named)?;
        Some(found.values.iter().map(|v| v.as_str().into()).collect::<Vec<_>>())
    };
    let all: Option<Vec<_>> = repository.desired.pools.values().map(of_pool).collect();
    all.unwrap_or_default().into_iter().flatten().collect()
}
