//! Runs the simulation: `cargo test --profile ci --test simulation -- [--from N] [--seeds N]`,
//! `--replay SEED` for one seed with its events, `--incident TEXT` for incidents by name, or `--day HOURS` for the
//! measurements of a busy cluster (`--day-events HOURS` with its events).

mod day;
mod large_fleet;
#[path = "mod.rs"]
mod simulation;

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use simulation::incidents;
use simulation::invariants::prove;
use simulation::random_scenario::{ScenarioOutcome, run_seed};
use simulation::repository::catalog;

/// Number of seeds without `--seeds`.
const DEFAULT_SEEDS: u64 = 2_000;

/// Usage of the program.
const USAGE: &str = "usage: --seeds N --from N | --replay SEED | --incident TEXT | --day HOURS | --day-events HOURS | --list";

/// What to run.
enum Task {
    /// Random seeds from a first one on.
    Seeds { from: u64, count: u64 },
    /// One seed, with its events.
    Replay(u64),
    /// The incidents with this text in their names.
    Incidents(String),
    /// Hours of a busy cluster, and whether their events are printed.
    Day { hours: i64, events: bool },
    /// Nothing: the incidents are listed.
    List,
}

impl Task {
    /// Reads the arguments; `None` if one is unknown or has no valid value.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let (mut from, mut count) = (0, DEFAULT_SEEDS);
        while let Some(option) = arguments.next() {
            let mut number = || arguments.next()?.parse().ok();
            match option.as_str() {
                "--from" => from = number()?,
                "--seeds" => count = number()?,
                "--replay" => return Some(Self::Replay(number()?)),
                "--incident" => return Some(Self::Incidents(arguments.next()?)),
                "--day" | "--day-events" => {
                    let hours = i64::try_from(number()?).ok()?;
                    return Some(Self::Day { hours, events: option == "--day-events" });
                }
                "--list" => return Some(Self::List),
                _ => return None,
            }
        }
        Some(Self::Seeds { from, count })
    }
}

fn main() -> ExitCode {
    match Task::parse(std::env::args().skip(1)) {
        Some(Task::Seeds { from, count }) => run_seeds(from, count, false),
        Some(Task::Replay(seed)) => run_seeds(seed, 1, true),
        Some(Task::Incidents(text)) => run_incidents(&text),
        Some(Task::Day { hours, events }) => run_day(hours, events),
        Some(Task::List) => {
            incidents::all()
                .chain(large_fleet::ALL)
                .chain(day::ALL)
                .for_each(|(name, _)| print(name));
            ExitCode::SUCCESS
        }
        None => {
            print(USAGE);
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) {
    // A closed stdout does not fail the simulation.
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn run_incidents(text: &str) -> ExitCode {
    let catalog = catalog();
    let (mut ran, mut failed) = (0, 0);
    let all = incidents::all().chain(large_fleet::ALL).chain(day::ALL);
    for (name, scenario) in all.filter(|(name, _)| name.contains(text)) {
        let began = Instant::now();
        let end = scenario(&catalog);
        let took = began.elapsed().as_millis();
        ran += 1;
        failed += u32::from(end.is_err());
        match end {
            Ok(()) => print(&format!("ok    {took:>6} ms  {name}")),
            Err(why) => print(&format!("FAIL  {took:>6} ms  {name}: {why}")),
        }
    }
    if ran == 0 {
        print(&format!("no incident has `{text}` in its name"));
    }
    if ran > 0 && failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_day(hours: i64, events: bool) -> ExitCode {
    let began = Instant::now();
    let end = day::run_day(hours, events, print);
    print(&format!("{hours} hours in {:.0} s", began.elapsed().as_secs_f64()));
    match end {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print(&why);
            ExitCode::FAILURE
        }
    }
}

/// Totals over all seeds.
#[derive(Default)]
struct RunTotals {
    failed: u64,
    steps: u64,
    launches: usize,
    removals: usize,
    minutes: i64,
}

impl RunTotals {
    fn add(&mut self, seed: u64, outcome: &ScenarioOutcome, verbose: bool) {
        self.steps += outcome.steps;
        self.launches += outcome.launches;
        self.removals += outcome.removals;
        self.minutes += outcome.minutes;
        if verbose {
            outcome.lines.iter().for_each(|line| print(line));
        }
        if let Err(why) = &outcome.end {
            self.failed += 1;
            print(&format!("seed {seed}: {why}"));
        }
    }
}

fn run_seeds(from: u64, count: u64, verbose: bool) -> ExitCode {
    if let Err(why) = prove() {
        print(&format!("the invariant checks failed their self-test: {why}"));
        return ExitCode::FAILURE;
    }
    let began = Instant::now();
    let RunTotals { failed, steps, launches, removals, minutes } =
        run_parallel(from, count, verbose);
    let took = began.elapsed().as_secs_f64();
    print(&format!(
        "{count} seeds, {failed} failed; {minutes} simulated minutes, {steps} steps, {launches} launches \
         and {removals} removals in {took:.1} s"
    ));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs independent seeds on all cores.
fn run_parallel(from: u64, count: u64, verbose: bool) -> RunTotals {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (next, end) = (AtomicU64::new(from), from.saturating_add(count));
    let (sender, outcomes) = mpsc::channel();
    let mut sum = RunTotals::default();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            let (next, sender) = (&next, sender.clone());
            scope.spawn(move || {
                let catalog = catalog();
                let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                for seed in seeds.take_while(|seed| *seed < end) {
                    // A panic drops the state of the seed.
                    let outcome = catch_unwind(AssertUnwindSafe(|| run_seed(seed, &catalog)));
                    // The receiver outlives the workers.
                    let _ = sender.send((seed, outcome));
                }
            });
        }
        drop(sender);
        for (seed, outcome) in outcomes {
            if let Ok(outcome) = outcome {
                sum.add(seed, &outcome, verbose);
            } else {
                sum.failed += 1;
                print(&format!("seed {seed}: panicked"));
            }
        }
    });
    sum
}
