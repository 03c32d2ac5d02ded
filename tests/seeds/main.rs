//! Runs seeds: `cargo bench --bench seeds`, with `-- --seeds N`, `--from N`, `--replay SEED`, or
//! `--incident TEXT` for the stories whose names hold that text.

mod large;
#[path = "mod.rs"]
mod seeds;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use seeds::check::prove;
use seeds::files::catalog;
use seeds::incidents;
use seeds::story::tell;

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

fn of_seeds(from: u64, count: u64, loud: bool) -> ExitCode {
    if let Err(why) = prove() {
        say(&format!("the checks themselves are broken: {why}"));
        return ExitCode::FAILURE;
    }
    let catalog = catalog();
    let began = Instant::now();
    let (mut failed, mut steps, mut launches, mut removals, mut minutes) = (0, 0, 0, 0, 0);
    for seed in from..from.saturating_add(count) {
        let told = tell(seed, &catalog);
        (steps, launches, removals) =
            (steps + told.steps, launches + told.launches, removals + told.removals);
        minutes += told.minutes;
        if loud {
            told.lines.iter().for_each(|line| say(line));
        }
        if let Err(why) = told.end {
            failed += 1;
            say(&format!("seed {seed}: {why}"));
        }
    }
    let took = began.elapsed().as_secs_f64();
    say(&format!(
        "{count} seeds, {failed} failed; {minutes} simulated minutes, {steps} steps, {launches} launches \
         and {removals} removals in {took:.1} s"
    ));
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
