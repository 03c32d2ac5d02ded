//! Runs seeds: `cargo bench --bench seeds`, with `-- --seeds N`, `--from N`, `--replay SEED`, or
//! `--incident TEXT` for the stories whose names hold that text.

mod large;
#[path = "mod.rs"]
mod seeds;

use std::io::Write as _;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use seeds::check::prove;
use seeds::files::catalog;
use seeds::incidents;
use seeds::story::{Told, tell};

/// Seeds of a run that says nothing else.
const SEEDS: u64 = 2_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let number = |name: &str| after(name).and_then(|text| text.parse::<u64>().ok());
    if let Some(text) = after("--incident") {
        return of_incidents(&text);
    }
    match number("--replay") {
        Some(seed) => of_seeds(seed, 1, true),
        None => of_seeds(number("--from").unwrap_or(0), number("--seeds").unwrap_or(SEEDS), false),
    }
}

fn say(text: &str) {
    // Where nobody listens, nothing is lost but the text.
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn of_incidents(text: &str) -> ExitCode {
    let catalog = catalog();
    let mut failed = 0;
    let all = incidents::all().chain(large::ALL);
    for (name, story) in all.filter(|(name, _)| name.contains(text)) {
        let began = Instant::now();
        let end = story(&catalog);
        let took = began.elapsed().as_millis();
        failed += u32::from(end.is_err());
        match end {
            Ok(()) => say(&format!("ok    {took:>6} ms  {name}")),
            Err(why) => say(&format!("FAIL  {took:>6} ms  {name}: {why}")),
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What came of seeds.
#[derive(Default)]
struct Sum {
    failed: u64,
    steps: u64,
    launches: usize,
    removals: usize,
    minutes: i64,
}

impl Sum {
    fn add(&mut self, seed: u64, told: &Told, loud: bool) {
        self.steps += told.steps;
        self.launches += told.launches;
        self.removals += told.removals;
        self.minutes += told.minutes;
        if loud {
            told.lines.iter().for_each(|line| say(line));
        }
        if let Err(why) = &told.end {
            self.failed += 1;
            say(&format!("seed {seed}: {why}"));
        }
    }
}

fn of_seeds(from: u64, count: u64, loud: bool) -> ExitCode {
    if let Err(why) = prove() {
        say(&format!("the checks themselves are broken: {why}"));
        return ExitCode::FAILURE;
    }
    let began = Instant::now();
    let Sum { failed, steps, launches, removals, minutes } = all_of(from, count, loud);
    let took = began.elapsed().as_secs_f64();
    say(&format!(
        "{count} seeds, {failed} failed; {minutes} simulated minutes, {steps} steps, {launches} launches \
         and {removals} removals in {took:.1} s"
    ));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs seeds on every core: each is a run of its own, and the same whoever runs it.
fn all_of(from: u64, count: u64, loud: bool) -> Sum {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let (next, end) = (AtomicU64::new(from), from.saturating_add(count));
    let (tell_it, told) = mpsc::channel();
    let mut sum = Sum::default();
    std::thread::scope(|scope| {
        for _ in 0..cores {
            let (next, tell_it) = (&next, tell_it.clone());
            scope.spawn(move || {
                let catalog = catalog();
                let seeds = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                for seed in seeds.take_while(|seed| *seed < end) {
                    // Nothing of it is used again where it panics.
                    let told = catch_unwind(AssertUnwindSafe(|| tell(seed, &catalog)));
                    // Whoever counts lives until all have ended.
                    let _ = tell_it.send((seed, told));
                }
            });
        }
        drop(tell_it);
        for (seed, told) in told {
            if let Ok(told) = told {
                sum.add(seed, &told, loud);
            } else {
                sum.failed += 1;
                say(&format!("seed {seed}: it panicked"));
            }
        }
    });
    sum
}
