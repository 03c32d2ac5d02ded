//! What EC2 offers now, as far as a repository may use it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;

use super::kept::{Answers, Shelf};
use super::{Wall, block_on};
use crate::aws::Aws;
use crate::catalog::{CapacityType, Catalog, InstanceType, Listed, Market, unfamiliar};
use crate::cli::repository::Repository;
use crate::ids::InstanceTypeName;
use crate::manifest::{Pool, PoolRequirement};
use crate::port::Clock as _;
use crate::requirement::{Operator, key};

/// How long answers count between commands: zones and list prices change by the month, what is offered
/// by the week, quotas when somebody asks for more, spot prices a few times a day. What a type is like
/// never changes.
const DAY: Duration = Duration::from_hours(24);
const TYPES_COUNT_FOR: Duration = Duration::from_hours(24 * 7);
const ZONES_COUNT_FOR: Duration = DAY;
const PRICES_COUNT_FOR: Duration = DAY;
const OFFERED_COUNTS_FOR: Duration = Duration::from_hours(6);
const QUOTAS_COUNT_FOR: Duration = Duration::from_mins(10);
const SPOT_COUNTS_FOR: Duration = Duration::from_mins(10);

/// Returns what EC2 offers `account` now, or offered it lately: spot prices too where a pool may use
/// spot.
pub(in crate::cli) fn market(repository: &Repository, account: &str) -> Result<Market, String> {
    let fleet = &repository.fleet;
    let asked = block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        let shelf = Shelf::of(account, fleet.region.as_str(), Wall.now());
        Ok(of(&aws, repository, &shelf).await)
    });
    asked.unwrap_or_else(|_| Err("the runtime cannot be started".to_owned()))
}

/// Returns the same of an account that is reached already, by what a process keeps of its `answers`.
pub(in crate::cli) async fn market_of(
    aws: &Aws,
    repository: &Repository,
    answers: &Answers,
) -> Result<Market, String> {
    of(aws, repository, &Shelf::in_memory(answers, Wall.now())).await
}

async fn of(aws: &Aws, repository: &Repository, shelf: &Shelf<'_>) -> Result<Market, String> {
    let Repository { fleet, desired, .. } = repository;
    let now = Wall.now();
    let said = |error: crate::port::PortError| error.to_string();
    let zones = (json!("zones"), ZONES_COUNT_FOR);
    let (_, zones) = shelf.or(zones, aws.zones()).await.map_err(said)?;
    let offered = (json!("offered"), OFFERED_COUNTS_FOR);
    let (_, offered) = shelf.or(offered, aws.offered()).await.map_err(said)?;
    let mut market = Market {
        read_at: now,
        types: BTreeMap::new(),
        spot: BTreeMap::new(),
        listed: Listed::default(),
        quotas: None,
        zones,
        offered,
    };
    let strangers = unfamiliar(market.offered.keys());
    if !strangers.is_empty() {
        let described = (json!(["types", strangers]), TYPES_COUNT_FOR);
        let described = shelf.or(described, aws.described_types(&strangers)).await;
        market.types = described.map_err(said)?.1;
    }
    let zones = market.zone_settings(&fleet.zones);
    let catalog = Catalog::load(&fleet.region, &zones).map_err(|error| error.to_string())?;
    let catalog = catalog.traded(&market, &fleet.zones);
    let admitted = |pools: &dyn Fn(&&Pool) -> bool| -> BTreeMap<InstanceTypeName, &InstanceType> {
        let pools = desired.pools.values().filter(pools);
        let kinds = pools.flat_map(|pool| catalog.of_pool(pool));
        kinds.map(|kind| (kind.name.clone(), kind)).collect()
    };
    let wanted = unlisted(&catalog, admitted(&|_| true).into_values());
    market.listed = listed(aws, repository, (shelf, wanted)).await;
    let on_spot: BTreeSet<_> = admitted(&|pool| may_be_spot(pool)).into_keys().collect();
    if !on_spot.is_empty() {
        let spot = (json!(["spot", on_spot]), SPOT_COUNTS_FOR);
        let spot = shelf.or(spot, aws.spot_prices(&on_spot, now)).await;
        (market.read_at, market.spot) = spot.map_err(said)?;
    }
    let quotas = (json!("quotas"), QUOTAS_COUNT_FOR);
    market.quotas = match shelf.or(quotas, aws.quotas()).await {
        Ok((_, quotas)) => Some(quotas),
        // They make a warning at most.
        Err(error) => {
            tracing::warn!(%error, "what the account may run at once is not known");
            None
        }
    };
    Ok(market)
}

/// What list prices are wanted of.
enum Wanted {
    /// Every type: the embedded list is another region's.
    All,
    /// These alone: the embedded list is of this region, and does not have them.
    Some(BTreeSet<InstanceTypeName>),
}

fn unlisted<'c>(catalog: &Catalog, admitted: impl Iterator<Item = &'c InstanceType>) -> Wanted {
    if catalog.prices.stand_in {
        return Wanted::All;
    }
    let without_price = |kind: &&InstanceType| {
        let mut ways = kind.offerings.iter();
        ways.any(|way| way.capacity_type == CapacityType::OnDemand && way.price.is_none())
    };
    Wanted::Some(admitted.filter(without_price).map(|kind| kind.name.clone()).collect())
}

/// Reads list prices where the embedded ones tell too little; what cannot be read is said, and what is
/// embedded stands in.
async fn listed(
    aws: &Aws,
    repository: &Repository,
    (shelf, wanted): (&Shelf<'_>, Wanted),
) -> Listed {
    let names = match &wanted {
        Wanted::All => None,
        Wanted::Some(names) if names.is_empty() => return Listed::default(),
        Wanted::Some(names) => Some(names),
    };
    let region = repository.fleet.region.as_str();
    let asked = (json!(["listed", names]), PRICES_COUNT_FOR);
    match shelf.or(asked, aws.list_prices(region, names)).await {
        Ok((read_at, listed)) => Listed { read_at: Some(read_at), ..listed },
        Err(error) => Listed { unread: Some(error.to_string()), ..Listed::default() },
    }
}

/// Returns whether a pool may use spot: it says so, or leaves it open.
fn may_be_spot(pool: &Pool) -> bool {
    let of_capacity = |r: &&PoolRequirement| r.key.as_str() == key::CAPACITY_TYPE;
    let mut stated = pool.requirements.iter().filter(of_capacity).peekable();
    stated.peek().is_none()
        || stated
            .any(|r| r.operator != Operator::In || r.values.iter().any(|v| v.as_str() == "spot"))
}
