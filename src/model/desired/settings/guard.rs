//! Pricing commitments, approvals and maintenance windows.

use ed25519_dalek::VerifyingKey;
use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use crate::model::ids::{InstanceTypeName, Origin};
use crate::model::units::MicroUsd;

/// Minutes of a day.
const DAY_MINUTES: u32 = 24 * 60;

/// A pricing commitment: paid for whether or not it is used, in return for lower prices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PricingCommitment {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: CommitmentKind,
}

/// The kinds of commitment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitmentKind {
    /// An amount per hour, spent at a discount on whatever on-demand capacity runs.
    SavingsPlan {
        /// Payment per hour.
        hourly: MicroUsd,
        /// Discount from list prices, in thousandths of a percent.
        discount_milli_percent: u32,
    },
    /// Instances of one type.
    ReservedInstances {
        /// Type.
        instance_type: InstanceTypeName,
        /// How many.
        count: u32,
        /// Cost of each per hour, including upfront payments.
        hourly: MicroUsd,
    },
}

impl CommitmentKind {
    /// Returns the kind as plans write it.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::SavingsPlan { .. } => "savings-plan",
            Self::ReservedInstances { .. } => "reserved-instances",
        }
    }
}

impl PricingCommitment {
    /// Returns the hourly cost, which is due whether or not it is used.
    #[must_use]
    pub fn hourly(&self) -> MicroUsd {
        match &self.kind {
            CommitmentKind::SavingsPlan { hourly, .. } => *hourly,
            CommitmentKind::ReservedInstances { count, hourly, .. } => {
                hourly.times(i64::from(*count))
            }
        }
    }
}

/// Who may apply a plan, and when.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuardSettings {
    /// Trusted approval keys; if there are any, a plan requires signed approvals.
    pub keys: Vec<TrustedKey>,
    /// Required approvals by different keys; at least 1 if there are keys.
    pub approvals: u32,
    /// When plans may be applied; empty means always.
    pub windows: Vec<Window>,
    /// File and line of the windows, if any.
    pub windows_origin: Option<Origin>,
}

/// A trusted public key for approvals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// Name of its owner.
    pub name: String,
    /// Ed25519 public key.
    pub key: VerifyingKey,
}

/// A weekly maintenance window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Days on which it opens; empty means each.
    pub days: Vec<Weekday>,
    /// Minute of the day at which it opens.
    pub from: u32,
    /// Minute of the day at which it closes; on the next day if not later than `from`.
    pub to: u32,
    /// The time zone of its days and minutes.
    pub zone: TimeZone,
}

impl GuardSettings {
    /// Returns whether a plan may be applied at `now`.
    #[must_use]
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.windows.is_empty() || self.windows.iter().any(|window| window.contains(now))
    }

    /// Returns the times after `from` and before `to` at which windows open (`true`) or close. Windows
    /// begin and end at whole minutes.
    #[must_use]
    pub fn window_transitions(&self, (from, to): (Timestamp, Timestamp)) -> Vec<(Timestamp, bool)> {
        let (mut found, mut open) = (Vec::new(), self.is_open(from));
        let minutes = from.as_second().div_euclid(60) + 1..=to.as_second().div_euclid(60);
        // Without windows nothing changes.
        let minutes = minutes.filter(|_| !self.windows.is_empty());
        for at in minutes.filter_map(|minute| Timestamp::from_second(minute * 60).ok()) {
            let now = self.is_open(at);
            if now != open && at < to {
                found.push((at, now));
            }
            open = now;
        }
        found
    }

    /// Returns when the next window opens, if there are windows and all are closed.
    #[must_use]
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_open(now) {
            return None;
        }
        let minute = jiff::SignedDuration::from_mins(1);
        let start = Timestamp::from_second(now.as_second().div_euclid(60) * 60).ok()?;
        let mut at = start;
        // A week contains every opening.
        for _ in 0..=7 * DAY_MINUTES {
            at = at.checked_add(minute).ok()?;
            if self.is_open(at) {
                return Some(at);
            }
        }
        None
    }
}

impl Window {
    fn contains(&self, now: Timestamp) -> bool {
        let here = now.to_zoned(self.zone.clone());
        let number = |n: i8| u32::try_from(n).unwrap_or(0);
        let minute = number(here.hour()) * 60 + number(here.minute());
        let on = |day: Weekday| self.days.is_empty() || self.days.contains(&day);
        let (today, yesterday) = (here.weekday(), here.weekday().previous());
        if self.from < self.to {
            return on(today) && (self.from..self.to).contains(&minute);
        }
        (on(today) && minute >= self.from) || (on(yesterday) && minute < self.to)
    }
}
