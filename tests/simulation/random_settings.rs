//! Random controller settings of a seed: mode, windows, approval, CI applies, hints.
//!
//! They are drawn from chance of their own, so that what goes wrong in a seed does not depend on them.

use std::fmt;

use jiff::SignedDuration;

use super::random::Random;
use super::repository::Commit;

/// Seeds of a thousand that draw settings; the others run in mode `full` with nothing else said, so that it stays
/// well tested that all comes to rest by itself.
const DRAW: u64 = 450;
/// How long CI has for what a merge changed.
pub(crate) const PATIENCE: SignedDuration = SignedDuration::from_mins(4);
/// Minutes of the day in which there are windows: longer than any run.
const WINDOWS: std::ops::Range<u32> = 720..1380;

/// Windows: open for some minutes of every so many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Windows {
    first: u32,
    open: u32,
    every: u32,
}

/// What was drawn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RandomSettings {
    /// Another mode than `full`, and from when on.
    pub(crate) mode: Option<(&'static str, SignedDuration)>,
    /// What approves plans, where it is not their merge.
    pub(crate) approval: Option<&'static str>,
    windows: Option<Windows>,
    /// Whether CI carries out what a merge changes.
    pub(crate) ci: bool,
    /// Whether pods are steered.
    steers: bool,
    /// Whether each removal asks for a confirmation.
    confirms: bool,
    /// When somebody suspends the loop until all is mended.
    pub(crate) suspends: Option<SignedDuration>,
    /// When somebody has approval, windows and CI passed over for a few minutes.
    pub(crate) breaks_glass: Option<SignedDuration>,
}

impl RandomSettings {
    /// Returns what a seed draws.
    #[must_use]
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5E77_1465);
        if !random.chance(DRAW) {
            return Self::default();
        }
        let minute = |random: &mut Random, n: u64| {
            SignedDuration::from_mins(i64::try_from(random.below(n)).unwrap_or(0))
        };
        let mut drawn = Self::default();
        match random.below(10) {
            0 | 1 => drawn.mode = Some(("observe", minute(&mut random, 12))),
            2 | 3 => drawn.mode = Some(("additive", minute(&mut random, 12))),
            _ => {}
        }
        match random.below(10) {
            0 | 1 => drawn.approval = Some("digest"),
            2 => drawn.approval = Some("policy"),
            _ => {}
        }
        if random.chance(250) {
            let patterns = [(3, 6), (4, 10), (5, 15)];
            let (open, every) = random.pick(&patterns).copied().unwrap_or((3, 6));
            let first = u32::try_from(random.below(10)).unwrap_or(0);
            drawn.windows = Some(Windows { first, open, every });
        }
        drawn.ci = random.chance(250);
        drawn.steers = random.chance(350);
        drawn.confirms = random.chance(200);
        drawn.suspends = random.chance(150).then(|| minute(&mut random, 18));
        let passes_over = drawn.windows.is_some() || drawn.approval.is_some() || drawn.ci;
        let breaks = passes_over && random.chance(200);
        drawn.breaks_glass = breaks.then(|| minute(&mut random, 18));
        // What draws nothing is steered: a hint may change nothing.
        drawn.steers |= drawn == Self::default();
        drawn
    }

    /// Returns a commit with these settings, but for the mode.
    #[must_use]
    pub(crate) fn on(&self, commit: Commit) -> Commit {
        let mut controller = commit.controller.clone();
        let mut says = |text: &str| controller.push_str(text);
        if let Some(approval) = self.approval {
            says(&format!(", approval: {approval}"));
        }
        if self.steers {
            says(", steer: true");
        }
        if self.confirms {
            says(", confirm: [web]");
        }
        let mut apply = Vec::new();
        if self.ci {
            says(&format!(", ciPatience: {}m", PATIENCE.as_mins()));
            apply.push("by: ci".to_owned());
        }
        if let Some(Windows { first, open, every }) = self.windows {
            let every = usize::try_from(every).unwrap_or(1);
            let clock = |minute: u32| format!("'{:02}:{:02}'", minute / 60, minute % 60);
            let window =
                |from: u32| format!("{{ from: {}, to: {} }}", clock(from), clock(from + open));
            let all: Vec<String> = WINDOWS
                .skip(usize::try_from(first).unwrap_or(0))
                .step_by(every)
                .map(window)
                .collect();
            apply.push(format!("windows: [{}]", all.join(", ")));
        }
        Commit { controller, apply: apply.join(", "), ..commit }
    }
}

impl fmt::Display for RandomSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, approval, windows, ci, steers, confirms, suspends, breaks_glass } = self;
        let at = |time: &SignedDuration| format!("from minute {} on", time.as_mins());
        let mut all = Vec::new();
        all.extend(mode.iter().map(|(mode, time)| format!("mode {mode} {}", at(time))));
        all.extend(approval.iter().map(|approval| format!("approved by {approval}")));
        all.extend(windows.iter().map(|Windows { first, open, every }| {
            format!("windows of {open} minutes every {every}, from minute {first} on")
        }));
        all.extend(ci.then(|| "CI applies merges, or not".to_owned()));
        all.extend(steers.then(|| "steered".to_owned()));
        all.extend(confirms.then(|| "removals are confirmed".to_owned()));
        all.extend(suspends.iter().map(|time| format!("suspended {}", at(time))));
        all.extend(breaks_glass.iter().map(|time| format!("glass broken {}", at(time))));
        let none = "nothing but mode full".to_owned();
        f.write_str(&if all.is_empty() { none } else { all.join("; ") })
    }
}
