//! What EC2 offers now, as far as a repository may use it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::kept::{Answers, Given, Shelf, Terms};
use super::{Wall, block_on};
use crate::aws::Aws;
use crate::catalog::{CapacityType, Catalog, InstanceType, Listed, Market, unfamiliar};
use crate::cli::repository::Repository;
use crate::ids::InstanceTypeName;
use crate::manifest::{Pool, PoolRequirement};
use crate::port::{Clock as _, PortError};
use crate::requirement::{Operator, key};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// How long answers count between commands: zones and list prices change by the month, what is offered
/// by the week, quotas when somebody asks for more, spot prices a few times a day. What a type is like
/// never changes. Where none can be had, what was known for sure a while ago is nearer to the truth than
/// what is embedded, which is that of another account, region and day.
const TYPES: Terms = Terms { counts_for: DAY.saturating_mul(7), stands_in_for: YEAR };
const ZONES: Terms = Terms { counts_for: DAY, stands_in_for: MONTH };
const PRICES: Terms = Terms { counts_for: DAY, stands_in_for: MONTH.saturating_mul(3) };
const OFFERED: Terms = Terms { counts_for: HOUR.saturating_mul(6), stands_in_for: MONTH };
const QUOTAS: Terms = Terms { counts_for: Duration::from_mins(10), stands_in_for: DAY };
const SPOT: Terms = Terms { counts_for: Duration::from_mins(10), stands_in_for: DAY };
const MONTH: Duration = DAY.saturating_mul(30);
const YEAR: Duration = DAY.saturating_mul(365);

/// Most types whose prices are asked for one by one; the whole list of a region is a dozen pages.
const ONE_BY_ONE_MAX: usize = 8;

/// Returns what EC2 offers `account` now, or offered it lately: spot prices too where a pool may use
/// spot.
pub(in crate::cli) fn market(repository: &Repository, account: &str) -> Result<Market, String> {
    let fleet = &repository.fleet;
    let asked = block_on(async {
        let aws = Aws::connect(&fleet.cluster, fleet.region.as_str()).await;
        Ok(market_for(&aws, repository, account).await)
    });
    asked.unwrap_or_else(|_| Err("the runtime cannot be started".to_owned()))
}

/// Returns the same of an `account` that is reached already.
pub(super) async fn market_for(
    aws: &Aws,
    repository: &Repository,
    account: &str,
) -> Result<Market, String> {
    let region = repository.fleet.region.as_str();
    Asking::at(Shelf::of(account, region, Wall.now())).market(aws, repository).await
}

/// Returns the same by what a process keeps of its `answers`.
pub(in crate::cli) async fn market_of(
    aws: &Aws,
    repository: &Repository,
    answers: &Answers,
) -> Result<Market, String> {
    Asking::at(Shelf::in_memory(answers, Wall.now())).market(aws, repository).await
}

/// What is asked, and what of it was not answered.
struct Asking<'m> {
    shelf: Shelf<'m>,
    unread: Vec<String>,
}

impl<'m> Asking<'m> {
    fn at(shelf: Shelf<'m>) -> Self {
        Self { shelf, unread: Vec::new() }
    }

    async fn market(mut self, aws: &Aws, repository: &Repository) -> Result<Market, String> {
        let Repository { fleet, desired, .. } = repository;
        let said = |error: PortError| error.to_string();
        let zones = self.shelf.or((json!("zones"), ZONES), aws.zones()).await.map_err(said)?;
        let offered = self.shelf.or((json!("offered"), OFFERED), aws.offered()).await;
        let offered = offered.map_err(said)?;
        let mut market = Market {
            offered_is_old: offered.lapsed.is_some(),
            read_at: Wall.now(),
            types: BTreeMap::new(),
            spot: BTreeMap::new(),
            listed: Listed::default(),
            quotas: None,
            zones: self.used(zones).1,
            offered: self.used(offered).1,
            unread: Vec::new(),
        };
        let strangers = unfamiliar(market.offered.keys());
        if !strangers.is_empty() {
            let described = (json!(["types", strangers]), TYPES);
            let described = self.shelf.or(described, aws.described_types(&strangers)).await;
            market.types = match described {
                Ok(types) => self.used(types).1,
                Err(why) => {
                    self.without(&why, "types that this version does not know stay unknown")
                }
            };
        }
        let zones = market.zone_settings(&fleet.zones);
        let catalog = Catalog::load(&fleet.region, &zones).map_err(|error| error.to_string())?;
        let catalog = catalog.traded(&market, &fleet.zones);
        let admitted =
            |pools: &dyn Fn(&&Pool) -> bool| -> BTreeMap<InstanceTypeName, &InstanceType> {
                let pools = desired.pools.values().filter(pools);
                let kinds = pools.flat_map(|pool| catalog.of_pool(pool));
                kinds.map(|kind| (kind.name.clone(), kind)).collect()
            };
        let wanted = unlisted(&catalog, admitted(&|_| true).into_values());
        market.listed = self.listed(aws, (fleet.region.as_str(), wanted)).await;
        let on_spot: BTreeSet<_> = admitted(&|pool| may_be_spot(pool)).into_keys().collect();
        if !on_spot.is_empty() {
            let spot = (json!(["spot", on_spot]), SPOT);
            let spot = self.shelf.or(spot, aws.spot_prices(&on_spot, market.read_at)).await;
            match spot {
                Ok(spot) => (market.read_at, market.spot) = self.used(spot),
                Err(why) => market.spot = self.without(&why, "prices on demand stand in"),
            }
        }
        market.quotas = match self.shelf.or((json!("quotas"), QUOTAS), aws.quotas()).await {
            Ok(quotas) => Some(quotas.answer),
            // They make a warning at most.
            Err(error) => {
                tracing::warn!(%error, "what the account may run at once is not known");
                None
            }
        };
        market.unread = self.unread;
        Ok(market)
    }

    /// Reads list prices where the embedded ones tell too little; where they cannot be had at all, what is
    /// embedded stands in.
    async fn listed(&mut self, aws: &Aws, (region, wanted): (&str, Wanted)) -> Listed {
        match wanted {
            Wanted::Some(names) if names.len() <= ONE_BY_ONE_MAX => {
                self.listed_one_by_one(aws, (region, names)).await
            }
            Wanted::Some(_) | Wanted::All => {
                let listed =
                    self.shelf.or((json!("listed"), PRICES), aws.list_prices(region)).await;
                match listed.map(|listed| self.used(listed)) {
                    Ok((read_at, listed)) => Listed { read_at: Some(read_at), ..listed },
                    Err(why) => self.without(&why, "embedded prices stand in"),
                }
            }
        }
    }

    /// Reads the prices of a few types; what keeps one from being read keeps all the others, and is waited
    /// for once.
    async fn listed_one_by_one(
        &mut self,
        aws: &Aws,
        (region, names): (&str, BTreeSet<InstanceTypeName>),
    ) -> Listed {
        let (mut listed, mut failed) = (Listed::default(), None::<PortError>);
        let mut unknown = Vec::new();
        for name in names {
            let ask = async {
                match &failed {
                    Some(why) => Err(why.clone()),
                    None => aws.list_price(region, &name).await,
                }
            };
            match self.shelf.or((json!(["listed", name]), PRICES), ask).await {
                Ok(price) => {
                    failed = failed.or_else(|| price.lapsed.clone());
                    let (read_at, price) = self.used(price);
                    listed.read_at =
                        Some(listed.read_at.map_or(read_at, |before| before.min(read_at)));
                    listed.hourly.extend(price.map(|price| (name, price)));
                }
                Err(why) => {
                    failed = Some(why);
                    unknown.push(name.to_string());
                }
            }
        }
        if let Some(why) = failed.filter(|_| !unknown.is_empty()) {
            self.note(format!("{why}; {} have no known price", unknown.join(", ")));
        }
        listed
    }

    /// Takes an answer, and says so where it merely stands in.
    fn used<T>(&mut self, given: Given<T, PortError>) -> (Timestamp, T) {
        let Given { read_at, answer, lapsed } = given;
        if let Some(why) = lapsed {
            let at = read_at.strftime("%Y-%m-%dT%H:%M:%SZ");
            let age = age(Wall.now().duration_since(read_at));
            self.note(format!("{why}; what was read at {at}, {age} ago, stands in"));
        }
        (read_at, answer)
    }

    /// Goes on with nothing of what cannot be had, and says what `stands_in`.
    fn without<T: Default>(&mut self, why: &PortError, stands_in: &str) -> T {
        self.note(format!("{why}; {stands_in}"));
        T::default()
    }

    fn note(&mut self, unread: String) {
        // Types whose prices are asked for one by one say the same.
        if !self.unread.contains(&unread) {
            self.unread.push(unread);
        }
    }
}
/// Returns an age in words, in the largest unit that is full.
fn age(age: SignedDuration) -> String {
    let (count, unit) = match (age.as_hours(), age.as_mins()) {
        (hours @ 48.., _) => (hours / 24, "days"),
        (hours @ 2.., _) => (hours, "hours"),
        (_, minutes) => (minutes, "minutes"),
    };
    format!("{count} {unit}")
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

/// Returns whether a pool may use spot: it says so, or leaves it open.
fn may_be_spot(pool: &Pool) -> bool {
    let of_capacity = |r: &&PoolRequirement| r.key.as_str() == key::CAPACITY_TYPE;
    let mut stated = pool.requirements.iter().filter(of_capacity).peekable();
    stated.peek().is_none()
        || stated
            .any(|r| r.operator != Operator::In || r.values.iter().any(|v| v.as_str() == "spot"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_the_largest_unit_that_is_full() {
        for (minutes, expected) in [
            (0, "0 minutes"),
            (119, "119 minutes"),
            (120, "2 hours"),
            (48 * 60 - 1, "47 hours"),
            (48 * 60, "2 days"),
            (90 * 24 * 60, "90 days"),
        ] {
            assert_eq!(age(SignedDuration::from_mins(minutes)), expected);
        }
    }
}
