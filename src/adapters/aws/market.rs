//! Current EC2 offerings, as far as a repository may use them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::client::Aws;
use super::market_cache::{Freshness, MarketAnswer, MarketAnswers, MarketCache};
use crate::apply::ports::PortError;
use crate::catalog::{Catalog, InstanceType, types_missing_from_snapshot};
use crate::model::desired::{Pool, PoolRequirement};
use crate::model::ids::InstanceTypeName;
use crate::model::market::{CapacityType, ListPrices, Market, MarketQuery};
use crate::model::requirement::{Operator, key};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// Validity of cached answers between commands. Zones and list prices change by the month,
/// offerings by the week, quotas on request, and spot prices a few times a day. The data of a type
/// never changes. An expired answer is closer to the truth than the embedded data of another
/// account, region and day.
const TYPES: Freshness = Freshness { fresh_for: DAY.saturating_mul(7), usable_for: YEAR };
const ZONES: Freshness = Freshness { fresh_for: DAY, usable_for: MONTH };
const PRICES: Freshness = Freshness { fresh_for: DAY, usable_for: MONTH.saturating_mul(3) };
const OFFERED: Freshness = Freshness { fresh_for: HOUR.saturating_mul(6), usable_for: MONTH };
const QUOTAS: Freshness = Freshness { fresh_for: Duration::from_mins(10), usable_for: DAY };
const SPOT: Freshness = Freshness { fresh_for: Duration::from_mins(10), usable_for: DAY };
const MONTH: Duration = DAY.saturating_mul(30);
const YEAR: Duration = DAY.saturating_mul(365);

/// Maximum number of types whose prices are requested individually. The price list of a region has
/// a dozen pages.
const SINGLE_PRICES_MAX: usize = 8;

impl MarketQuery<'_> {
    /// Returns the current or recently cached offerings of `account`, with spot prices if a pool
    /// allows spot.
    ///
    /// # Errors
    /// Returns the reason if zones or offerings are unknown.
    pub async fn read(&self, aws: &Aws, account: &str) -> Result<Market, String> {
        let cache = MarketCache::for_account(account, self.region.as_str(), Timestamp::now());
        MarketReader::new(cache).market(aws, self).await
    }

    /// Returns the offerings with the answers that are cached in memory.
    ///
    /// # Errors
    /// Returns the reason if zones or offerings are unknown.
    pub async fn read_cached(&self, aws: &Aws, answers: &MarketAnswers) -> Result<Market, String> {
        MarketReader::new(MarketCache::in_memory(answers, Timestamp::now())).market(aws, self).await
    }
}

/// Reads EC2 offerings, and collects the answers that are missing.
struct MarketReader<'m> {
    cache: MarketCache<'m>,
    unread: Vec<String>,
}

impl<'m> MarketReader<'m> {
    fn new(cache: MarketCache<'m>) -> Self {
        Self { cache, unread: Vec::new() }
    }

    async fn market(mut self, aws: &Aws, query: &MarketQuery<'_>) -> Result<Market, String> {
        let MarketQuery { region, zones: declared, pools, has_prices } = *query;
        let message = |error: PortError| error.to_string();
        let zones =
            self.cache.get_or_ask(json!("zones"), ZONES, aws.zones()).await.map_err(message)?;
        let offered = self.cache.get_or_ask(json!("offered"), OFFERED, aws.offerings()).await;
        let offered = offered.map_err(message)?;
        let mut market = Market {
            offered_is_old: offered.stale_because.is_some(),
            read_at: Timestamp::now(),
            types: BTreeMap::new(),
            spot: BTreeMap::new(),
            listed: ListPrices::default(),
            quotas: None,
            zones: self.accept(zones).1,
            offered: self.accept(offered).1,
            unread: Vec::new(),
        };
        let unknown_types = types_missing_from_snapshot(market.offered.keys());
        if !unknown_types.is_empty() {
            // Answers that earlier versions saved do not state network cards.
            let asked = json!(["types with network cards", unknown_types]);
            let described = self
                .cache
                .get_or_ask(asked, TYPES, aws.describe_instance_types(&unknown_types))
                .await;
            market.types = match described {
                Ok(types) => self.accept(types).1,
                Err(why) => self.missing(&why, "types unknown to this version are left out"),
            };
        }
        let zones = market.resolve_zones(declared);
        let catalog = Catalog::load(region, &zones).map_err(|error| error.to_string())?;
        let catalog = catalog.with_market(&market, declared);
        let admitted =
            |admits: &dyn Fn(&&Pool) -> bool| -> BTreeMap<InstanceTypeName, &InstanceType> {
                let pools = pools.values().filter(admits);
                let kinds = pools.flat_map(|pool| catalog.types_for_pool(pool));
                kinds.map(|kind| (kind.name.clone(), kind)).collect()
            };
        let scope = if has_prices || catalog.prices.is_other_region {
            PriceScope::All
        } else {
            types_without_price(admitted(&|_| true).into_values())
        };
        market.listed = self.list_prices(aws, region.as_str(), scope).await;
        let on_spot: BTreeSet<_> = admitted(&|pool| allows_spot(pool)).into_keys().collect();
        if !on_spot.is_empty() {
            let asked = json!(["spot", on_spot]);
            let spot =
                self.cache.get_or_ask(asked, SPOT, aws.spot_prices(&on_spot, market.read_at)).await;
            match spot {
                Ok(spot) => (market.read_at, market.spot) = self.accept(spot),
                Err(why) => market.spot = self.missing(&why, "on-demand prices stand in"),
            }
        }
        market.quotas = match self.cache.get_or_ask(json!("quotas"), QUOTAS, aws.quotas()).await {
            Ok(quotas) => Some(quotas.answer),
            // Quotas only lead to warnings.
            Err(error) => {
                tracing::warn!(%error, "cannot read service quotas");
                None
            }
        };
        market.unread = self.unread;
        Ok(market)
    }

    /// Reads the list prices that the embedded list lacks. Falls back to embedded prices if none
    /// can be read.
    async fn list_prices(&mut self, aws: &Aws, region: &str, scope: PriceScope) -> ListPrices {
        match scope {
            PriceScope::Types(names) if names.len() <= SINGLE_PRICES_MAX => {
                self.single_prices(aws, region, names).await
            }
            PriceScope::Types(_) | PriceScope::All => {
                let listed =
                    self.cache.get_or_ask(json!("listed"), PRICES, aws.list_prices(region)).await;
                match listed.map(|listed| self.accept(listed)) {
                    Ok((read_at, listed)) => ListPrices { read_at: Some(read_at), ..listed },
                    Err(why) => {
                        self.missing(&why, "prices of the repository or embedded ones stand in")
                    }
                }
            }
        }
    }

    /// Reads the prices of a few types. After a failure it requests no further prices, so that it
    /// awaits at most one timeout.
    async fn single_prices(
        &mut self,
        aws: &Aws,
        region: &str,
        names: BTreeSet<InstanceTypeName>,
    ) -> ListPrices {
        let (mut listed, mut failed) = (ListPrices::default(), None::<PortError>);
        let mut unknown = Vec::new();
        for name in names {
            let ask = async {
                match &failed {
                    Some(why) => Err(why.clone()),
                    None => aws.list_price(region, &name).await,
                }
            };
            match self.cache.get_or_ask(json!(["listed", name]), PRICES, ask).await {
                Ok(price) => {
                    failed = failed.or_else(|| price.stale_because.clone());
                    let (read_at, price) = self.accept(price);
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
            self.note_unread(format!("{why}; {} have no known price", unknown.join(", ")));
        }
        listed
    }

    /// Returns an answer with the time of its request, and records an expired one.
    fn accept<T>(&mut self, given: MarketAnswer<T, PortError>) -> (Timestamp, T) {
        let MarketAnswer { read_at, answer, stale_because } = given;
        if let Some(why) = stale_because {
            let at = read_at.strftime("%Y-%m-%dT%H:%M:%SZ");
            let age = age(Timestamp::now().duration_since(read_at));
            self.note_unread(format!("{why}; the answer of {at}, {age} ago, stands in"));
        }
        (read_at, answer)
    }

    /// Returns an empty answer, and records the data that is used instead.
    fn missing<T: Default>(&mut self, why: &PortError, stands_in: &str) -> T {
        self.note_unread(format!("{why}; {stands_in}"));
        T::default()
    }

    fn note_unread(&mut self, unread: String) {
        // Several types may fail for the same reason.
        if !self.unread.contains(&unread) {
            self.unread.push(unread);
        }
    }
}

/// Returns an age in words, in the largest full unit.
fn age(age: SignedDuration) -> String {
    let (count, unit) = match (age.as_hours(), age.as_mins()) {
        (hours @ 48.., _) => (hours / 24, "days"),
        (hours @ 2.., _) => (hours, "hours"),
        (_, minutes) => (minutes, "minutes"),
    };
    format!("{count} {unit}")
}

/// The types whose list prices are needed.
enum PriceScope {
    /// All types: the embedded list is of another region, or the repository has a list.
    All,
    /// These types: the embedded list of this region lacks them.
    Types(BTreeSet<InstanceTypeName>),
}

fn types_without_price<'c>(admitted: impl Iterator<Item = &'c InstanceType>) -> PriceScope {
    let without_price = |kind: &&InstanceType| {
        let mut ways = kind.offerings.iter();
        ways.any(|way| way.capacity_type == CapacityType::OnDemand && way.price.is_none())
    };
    PriceScope::Types(admitted.filter(without_price).map(|kind| kind.name.clone()).collect())
}

/// Returns whether a pool may use spot: it names spot, or does not restrict the capacity type.
fn allows_spot(pool: &Pool) -> bool {
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
    fn age_uses_the_largest_full_unit() {
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
