//! Compares the zones that a repository names with the zones of the account.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{AvailabilityZone, AvailabilityZoneOptInStatus, AvailabilityZoneState};

use super::client::Aws;
use super::errors::port_error;
use super::rate_limiter::ApiBucket;
use crate::apply::ports::{PortError, Prerequisite};
use crate::model::desired::{Desired, Generation, Pool};
use crate::model::ids::{LabelValue, PoolName, ZoneId, ZoneName};
use crate::model::market::ZoneSetting;
use crate::model::requirement::{Operator, key};

const CLUSTER_ZONES: &str = "zones of the cluster";
const POLICY_REMEDY: &str = "attach deploy/aws/plan.json to the role that plans";

/// Zones of a region as the account sees them, by name.
type AccountZones = BTreeMap<ZoneName, AccountZone>;

/// A zone of the account.
#[derive(Debug, Clone, PartialEq, Eq)]
struct AccountZone {
    id: ZoneId,
    /// Reason why no node is launched there; `None` if nodes are launched.
    closed: Option<String>,
}

impl AccountZone {
    fn new(zone: &AvailabilityZone) -> Option<(ZoneName, Self)> {
        let name = zone.zone_name()?;
        let edge = match zone.zone_type() {
            None | Some("availability-zone") => None,
            Some("local-zone") => Some("a Local Zone"),
            Some("wavelength-zone") => Some("a Wavelength Zone"),
            Some(_) => Some("no availability zone"),
        };
        let closed = if let Some(kind) = edge {
            Some(format!("it is {kind}, and Fleetwright launches no nodes there"))
        } else if zone.opt_in_status() == Some(&AvailabilityZoneOptInStatus::NotOptedIn) {
            Some("the account has not opted in to it".to_owned())
        } else {
            let state = zone.state().map(AvailabilityZoneState::as_str);
            state.filter(|state| *state != "available").map(|state| format!("its state is {state}"))
        };
        Some((name.into(), Self { id: zone.zone_id()?.into(), closed }))
    }
}

impl Aws {
    /// Returns whether the account has the zones that the settings and the pools name.
    pub(super) async fn check_zones(
        &self,
        desired: &Desired,
        declared: &[ZoneSetting],
    ) -> Vec<Prerequisite> {
        let account = match self.account_zones().await {
            Ok(account) => account,
            Err(error) => {
                let why = Err(error.to_string());
                return vec![Prerequisite::from_result(CLUSTER_ZONES, why, POLICY_REMEDY)];
            }
        };
        // eksctl groups may name Local Zones, and EC2 Auto Scaling launches their members.
        let pools = desired.pools.iter().filter(|(_, pool)| pool.generation != Generation::Eksctl);
        let pools = pools.flat_map(|(name, pool)| check_pool(name, pool, &account));
        std::iter::once(check_declared(declared, &account)).chain(pools).collect()
    }

    /// Reads all zones of the region, also those without an opt-in.
    async fn account_zones(&self) -> Result<AccountZones, PortError> {
        self.limiter.acquire(ApiBucket::Describe).await;
        let call = self.ec2.describe_availability_zones().all_availability_zones(true);
        let found = call.send().await.map_err(|error| port_error("list zones", &error))?;
        let zones = found.availability_zones.unwrap_or_default();
        Ok(zones.iter().filter_map(AccountZone::new).collect())
    }
}

/// Returns whether the account has the zones of `spec.cluster.zones`.
fn check_declared(declared: &[ZoneSetting], account: &AccountZones) -> Prerequisite {
    let pair = |(name, zone): (&ZoneName, &AccountZone)| format!("{name}: {}", zone.id);
    if declared.is_empty() {
        let all: Vec<String> = usable(account).map(pair).collect();
        let text = format!("all of the account, {}", all.join(", "));
        return Prerequisite::from_result(CLUSTER_ZONES, Ok(text), "");
    }
    let check = |zone: &ZoneSetting| {
        let found = account.get(&zone.name);
        problem(zone.name.as_str(), found).or_else(|| {
            let (stated, real) = (zone.id.as_ref()?, &found?.id);
            (stated != real)
                .then(|| format!("{} is {real} in this account, not {stated}", zone.name))
        })
    };
    let problems: Vec<String> = declared.iter().filter_map(check).collect();
    let is_declared = |name: &ZoneName| declared.iter().any(|zone| zone.name == *name);
    let valid: Vec<String> =
        usable(account).filter(|(name, _)| is_declared(name)).map(pair).collect();
    if problems.is_empty() {
        return Prerequisite::from_result(CLUSTER_ZONES, Ok(valid.join(", ")), "");
    }
    let proposed = if valid.is_empty() { usable(account).map(pair).collect() } else { valid };
    let remedy = format!(
        "in fleetwright.yaml, write `zones: {{ {} }}` below spec.cluster",
        proposed.join(", ")
    );
    Prerequisite::from_result(CLUSTER_ZONES, Err(problems.join("; ")), &remedy)
}

/// Returns whether the account has the zones that `pool` requires, for each of its zone
/// requirements.
fn check_pool<'a>(
    name: &'a PoolName,
    pool: &'a Pool,
    account: &'a AccountZones,
) -> impl Iterator<Item = Prerequisite> + 'a {
    let required = pool.requirements.iter().filter(|one| one.operator == Operator::In);
    required.filter_map(move |requirement| {
        let named = |known: Vec<String>, problem: &dyn Fn(&str) -> Option<String>| {
            let values = requirement.values.iter().map(LabelValue::as_str);
            let problems: Vec<String> = values.clone().filter_map(problem).collect();
            // A pool may serve several regions: one usable zone is enough.
            let found = if values.clone().any(|value| problem(value).is_none()) {
                let usable = values.filter(|value| problem(value).is_none());
                Ok(usable.map(str::to_owned).chain(problems).collect::<Vec<_>>().join(", "))
            } else {
                Err(problems.join("; "))
            };
            let remedy = format!(
                "in {}, change the values of {} to zones of the account: {}",
                pool.origin,
                requirement.key,
                known.join(", ")
            );
            Prerequisite::from_result(&format!("pool {name}: {}", requirement.key), found, &remedy)
        };
        let zones = || usable(account);
        match requirement.key.as_str() {
            key::ZONE => {
                let known = zones().map(|(name, _)| name.to_string()).collect();
                Some(named(known, &|name| problem(name, account.get(name))))
            }
            key::ZONE_ID => {
                let known = zones().map(|(_, zone)| zone.id.to_string()).collect();
                let by_id = |id: &str| account.values().find(|zone| zone.id.as_str() == id);
                Some(named(known, &|id| problem(id, by_id(id))))
            }
            _ => None,
        }
    })
}

fn usable(account: &AccountZones) -> impl Iterator<Item = (&ZoneName, &AccountZone)> {
    account.iter().filter(|(_, zone)| zone.closed.is_none())
}

/// Returns why no node is launched in `zone`, which is called `label`.
fn problem(label: &str, zone: Option<&AccountZone>) -> Option<String> {
    match zone {
        None => Some(format!("{label}: the account has no such zone")),
        Some(zone) => zone.closed.as_ref().map(|why| format!("{label}: {why}")),
    }
}
