//! Random controller settings of a seed: mode, windows, approval, CI applies, hints.
//!
//! They use a random generator of their own, so that the faults of a seed do not depend on them.

use std::fmt;

use jiff::SignedDuration;

use super::random::Random;
use super::repository::Commit;

/// Seeds per thousand that have settings. The others run in mode `full` without further settings,
/// which keeps unattended convergence well tested.
const SETTINGS_PERMILLE: u64 = 450;
/// CI timeout of a merge.
pub(crate) const CI_TIMEOUT: SignedDuration = SignedDuration::from_mins(4);
/// Minutes of the day with windows. The range exceeds any run.
const WINDOWS: std::ops::Range<u32> = 720..1380;

/// Windows of `open` minutes that start every `every` minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Windows {
    first: u32,
    open: u32,
    every: u32,
}

/// Settings of a seed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RandomSettings {
    /// Mode other than `full`, and the time from which it applies.
    pub(crate) mode: Option<(&'static str, SignedDuration)>,
    /// Approval rule other than the merge.
    pub(crate) approval: Option<&'static str>,
    windows: Option<Windows>,
    /// True if CI applies merges.
    pub(crate) ci: bool,
    /// True if pods are nominated to nodes.
    nominates: bool,
    /// True if each removal requires a confirmation.
    confirms_removals: bool,
    /// Time of a suspension without end.
    pub(crate) suspends_at: Option<SignedDuration>,
    /// Start of a break-glass period of a few minutes.
    pub(crate) break_glass_at: Option<SignedDuration>,
    /// Disruption settings of the pool in place of those of the commit.
    disruption: Option<&'static str>,
    /// Time from which clients cannot understand one pod, until the faults end.
    pub(crate) unread_pod_at: Option<SignedDuration>,
    /// Time from which one node reports too little memory, until the faults end.
    pub(crate) lying_node_at: Option<SignedDuration>,
    /// Time from which one instance has no tag of the cluster, until the faults end.
    pub(crate) lost_tag_at: Option<SignedDuration>,
    /// Termination grace period of the pool, in minutes.
    grace_minutes: Option<u64>,
}

impl RandomSettings {
    /// Returns the settings of a seed.
    #[must_use]
    pub(crate) fn from_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5E77_1465);
        if !random.chance(SETTINGS_PERMILLE) {
            return Self::default();
        }
        let minute = |random: &mut Random, n: u64| {
            SignedDuration::from_mins(i64::try_from(random.below(n)).unwrap_or(0))
        };
        let mut settings = Self::default();
        match random.below(10) {
            0 | 1 => settings.mode = Some(("observe", minute(&mut random, 12))),
            2 | 3 => settings.mode = Some(("additive", minute(&mut random, 12))),
            _ => {}
        }
        match random.below(10) {
            0 | 1 => settings.approval = Some("digest"),
            2 => settings.approval = Some("policy"),
            _ => {}
        }
        if random.chance(250) {
            let patterns = [(3, 6), (4, 10), (5, 15)];
            let (open, every) = random.pick(&patterns).copied().unwrap_or((3, 6));
            let first = u32::try_from(random.below(10)).unwrap_or(0);
            settings.windows = Some(Windows { first, open, every });
        }
        settings.ci = random.chance(250);
        settings.nominates = random.chance(350);
        settings.confirms_removals = random.chance(200);
        settings.suspends_at = random.chance(150).then(|| minute(&mut random, 18));
        let has_gates = settings.windows.is_some() || settings.approval.is_some() || settings.ci;
        let has_break_glass = has_gates && random.chance(200);
        settings.break_glass_at = has_break_glass.then(|| minute(&mut random, 18));
        // A seed without settings nominates pods, because nominations must not change the result.
        settings.nominates |= settings == Self::default();
        // Without budgets, Karpenter's default of 10 % applies.
        settings.disruption = random.chance(300).then_some("");
        settings.unread_pod_at = random.chance(250).then(|| minute(&mut random, 15));
        settings.lying_node_at = random.chance(250).then(|| minute(&mut random, 15));
        settings.lost_tag_at = random.chance(250).then(|| minute(&mut random, 15));
        settings.grace_minutes = random.chance(400).then(|| random.below(12));
        settings
    }

    /// Returns the commit with these settings except for the mode.
    #[must_use]
    pub(crate) fn apply_to(&self, commit: Commit) -> Commit {
        let mut controller = commit.controller.clone();
        let mut append = |text: &str| controller.push_str(text);
        if let Some(approval) = self.approval {
            append(&format!(", approval: {approval}"));
        }
        if self.nominates {
            append(", steer: true");
        }
        if self.confirms_removals {
            append(", confirm: [web]");
        }
        let mut apply = Vec::new();
        if self.ci {
            append(&format!(", ciTimeout: {}m", CI_TIMEOUT.as_mins()));
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
        let disruption =
            self.disruption.map_or_else(|| commit.disruption.clone(), ToOwned::to_owned);
        let template = self.grace_minutes.map_or_else(
            || commit.template.clone(),
            |minutes| format!("terminationGracePeriod: {minutes}m"),
        );
        Commit { controller, apply: apply.join(", "), disruption, template, ..commit }
    }
}

impl fmt::Display for RandomSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            approval,
            windows,
            ci,
            nominates,
            confirms_removals,
            suspends_at,
            break_glass_at,
            disruption,
            unread_pod_at,
            lying_node_at,
            lost_tag_at,
            grace_minutes,
        } = self;
        let at = |time: &SignedDuration| format!("from minute {}", time.as_mins());
        let mut all = Vec::new();
        all.extend(mode.iter().map(|(mode, time)| format!("mode {mode} {}", at(time))));
        all.extend(approval.iter().map(|approval| format!("approved by {approval}")));
        all.extend(windows.iter().map(|Windows { first, open, every }| {
            format!("windows of {open} minutes every {every} minutes, from minute {first}")
        }));
        all.extend(ci.then(|| "CI may apply merges".to_owned()));
        all.extend(nominates.then(|| "nominations".to_owned()));
        all.extend(confirms_removals.then(|| "removals are confirmed".to_owned()));
        all.extend(suspends_at.iter().map(|time| format!("suspended {}", at(time))));
        all.extend(break_glass_at.iter().map(|time| format!("break-glass {}", at(time))));
        all.extend(disruption.map(|text| format!("disruption settings `{text}`")));
        all.extend(unread_pod_at.iter().map(|time| format!("an unreadable pod {}", at(time))));
        all.extend(lying_node_at.iter().map(|time| format!("a lying node {}", at(time))));
        all.extend(lost_tag_at.iter().map(|time| format!("a lost tag {}", at(time))));
        all.extend(grace_minutes.iter().map(|n| format!("a grace period of {n} minutes")));
        let none = "only mode full".to_owned();
        f.write_str(&if all.is_empty() { none } else { all.join("; ") })
    }
}
