//! Days of a busy cluster, measured: cost, pending pods, evictions and pointless changes.
//!
//! `cargo test --profile ci --test simulation -- --day 72` runs three days.

mod demand;
mod meter;

use std::rc::Rc;

use fleetwright::catalog::Catalog;
use fleetwright::model::ids::InstanceId;
use fleetwright::model::market::{CapacityType, ZoneSetting};
use fleetwright::model::observed::Instance;
use fleetwright::model::units::MicroUsd;
use jiff::{SignedDuration, Timestamp};

use crate::simulation::harness::Simulation;
use crate::simulation::incidents::{ScenarioFn, ScenarioResult, ensure, minutes};
use crate::simulation::random::Random;
use crate::simulation::repository::Commit;
use demand::Demand;
use meter::Meter;

/// Scenarios that need an optimized build.
pub(crate) const ALL: &[(&str, ScenarioFn)] =
    &[("busy-cluster: hours of a day have no pointless change", short_day)];

/// Time between two measurements.
pub(super) const STEP: SignedDuration = SignedDuration::from_secs(10);
/// Time for the first launches, which is not measured.
const WARM_UP: SignedDuration = SignedDuration::from_mins(20);
/// Time from the warning of EC2 to the interruption.
const WARNING: SignedDuration = SignedDuration::from_secs(120);
/// Share of the nodes that are interrupted a day, in percent; at least one node.
const INTERRUPTED_PERCENT: usize = 2;
/// Price of spot capacity, in percent of the on-demand price.
const SPOT_PERCENT: i64 = 35;
const SEED: u64 = 27;
const DAY: i64 = 24 * 60 * 60;
/// Seconds from the start of a day to its interruptions.
const INTERRUPTED_AT: i64 = 2 * 60 * 60;

/// Returns all instance types in three zones. Spot capacity has one discount for all of them.
fn catalog() -> Rc<Catalog> {
    let zones = ["us-east-1a", "us-east-1b", "us-east-1c"];
    let zones = zones.map(|name| ZoneSetting { name: name.into(), id: None });
    let mut catalog = Catalog::load(&"us-east-1".into(), &zones).expect("the region is embedded");
    for offering in catalog.types.values_mut().flat_map(|kind| &mut kind.offerings) {
        if offering.capacity_type == CapacityType::Spot {
            offering.price = offering.price.map(|price| MicroUsd(price.0 * SPOT_PERCENT / 100));
            offering.estimated = false;
        }
    }
    Rc::new(catalog)
}

/// A cluster with its demand and its interruptions.
struct Day {
    catalog: Rc<Catalog>,
    run: Simulation,
    demand: Demand,
    random: Random,
    begin: Timestamp,
    /// Instances with a warning, and the time of the interruption.
    warned: Vec<(Timestamp, InstanceId)>,
    meter: Meter,
}

impl Day {
    /// Starts with the fleet of the first commit, at rest.
    ///
    /// # Errors
    /// Returns a violated invariant.
    fn new(services: usize) -> Result<Self, String> {
        let catalog = catalog();
        let demand = Demand::new(services);
        let commit = Commit { own_files: demand.files(), ..Commit::default() };
        let mut run = Simulation::new(SEED, commit, &catalog);
        demand.apply_curve(&run);
        run.advance(WARM_UP);
        run.check()?;
        let meter = Meter::new(&run, demand.requested());
        let begin = run.now();
        Ok(Self {
            catalog,
            run,
            demand,
            random: Random::new(SEED),
            begin,
            warned: Vec::new(),
            meter,
        })
    }

    /// Runs for a time, and passes each event to `log`.
    ///
    /// # Errors
    /// Returns a violated invariant.
    fn run(&mut self, time: SignedDuration, log: &mut impl FnMut(&str)) -> Result<(), String> {
        let end = self.begin.checked_add(time).unwrap_or(Timestamp::MAX);
        while self.run.now() < end {
            let seconds = self.run.now().duration_since(self.begin).as_secs();
            for change in self.demand.changes_at(seconds, &mut self.random) {
                log(&format!("{:.0} {change:?}", self.run.now()));
                self.demand.apply(&mut self.run, &change);
                self.meter.record_demand(self.demand.requested());
            }
            self.interrupt(seconds, log);
            self.run.advance(STEP);
            self.run.check()?;
            self.meter.measure(&self.run, &self.catalog, log);
        }
        Ok(())
    }

    /// Sends the warnings of the day, and terminates the instances of earlier ones.
    fn interrupt(&mut self, seconds: i64, log: &mut impl FnMut(&str)) {
        let now = self.run.now();
        for (_, id) in self.warned.extract_if(.., |(at, _)| *at <= now) {
            self.run.shared.world.reclaim_instance(&id);
        }
        if seconds % DAY != INTERRUPTED_AT {
            return;
        }
        let is_spot = |i: &Instance| i.capacity_type == CapacityType::Spot;
        let mut spot: Vec<Instance> = self.run.instances().into_iter().filter(is_spot).collect();
        for _ in 0..(spot.len() * INTERRUPTED_PERCENT / 100).max(1).min(spot.len()) {
            let n = self.random.below(u64::try_from(spot.len()).unwrap_or(0));
            let id = spot.swap_remove(usize::try_from(n).unwrap_or(0)).id;
            log(&format!("{now:.0} EC2 warns of the interruption of {id}"));
            self.run.send_interruption_warning(&id);
            self.meter.record_interruption(&self.run, &id);
            self.warned.push((now.checked_add(WARNING).unwrap_or(now), id));
        }
    }
}

/// Runs the day for a number of hours and passes each line of the result to `print`. With `events`,
/// it includes each event.
///
/// # Errors
/// Returns a violated invariant.
pub(crate) fn run_day(hours: i64, events: bool, print: fn(&str)) -> ScenarioResult {
    let mut day = Day::new(usize::MAX)?;
    let mut log = |line: &str| {
        if events {
            print(line);
        }
    };
    let end = day.run(SignedDuration::from_hours(hours), &mut log);
    day.meter.lines().iter().for_each(|line| print(line));
    end
}

/// Runs some services through hours with waves, rollouts, a new and a deleted service, and an
/// interruption.
fn short_day(_: &Rc<Catalog>) -> ScenarioResult {
    let mut day = Day::new(40)?;
    day.run(minutes(150), &mut |_| {})?;
    let (launches, pointless, repeated) = day.meter.counts();
    ensure(launches > 0, || "nothing was launched".to_owned())?;
    ensure(repeated == 0, || format!("{repeated} plans change a fleet at rest"))?;
    ensure(pointless == 0, || format!("{pointless} launches were pointless"))
}
