//! Approvals and maintenance windows.

use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;

use crate::model::ids::Origin;

/// Minutes per day.
const DAY_MINUTES: u32 = 24 * 60;

/// Conditions under which a plan may be applied: approvals and maintenance windows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApplyConditions {
    /// Trusted approval keys. If any are declared, plans require signed approvals.
    pub keys: Vec<TrustedKey>,
    /// Number of required approvals by different keys; at least 1 if there are keys.
    pub approvals: u32,
    /// Maintenance windows in which plans may be applied; empty means always.
    pub windows: Vec<Window>,
    /// Source file and line of the windows, if any.
    pub windows_origin: Option<Origin>,
}

/// A trusted public key for approvals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    /// Name of the key owner.
    pub name: String,
    /// Ed25519 public key.
    pub key: VerifyingKey,
}

impl TrustedKey {
    /// Returns the key of a public key in PEM, or in the base64 line within it.
    pub fn from_pem(name: &str, text: &str) -> Option<Self> {
        let text = text.trim();
        let pem = if text.starts_with("-----") {
            text.to_owned()
        } else {
            format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
        };
        // A weak key verifies forged signatures.
        let key = VerifyingKey::from_public_key_pem(&pem).ok().filter(|key| !key.is_weak())?;
        Some(Self { name: name.to_owned(), key })
    }
}

/// A weekly maintenance window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Days on which the window opens; empty means every day.
    pub days: Vec<Weekday>,
    /// Opening minute of the day.
    pub from: u32,
    /// Closing minute of the day. It is on the next day if not later than `from`.
    pub to: u32,
    /// Time zone of the days and minutes.
    pub zone: TimeZone,
}

impl ApplyConditions {
    /// Returns true if a plan may be applied at `now`.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.windows.is_empty() || self.windows.iter().any(|window| window.contains(now))
    }

    /// Returns the transitions of the windows after `from` and before `to`; `true` means opening.
    /// Windows open and close at whole minutes.
    pub fn window_transitions(&self, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, bool)> {
        let (mut found, mut open) = (Vec::new(), self.is_open(from));
        let minutes = from.as_second().div_euclid(60) + 1..=to.as_second().div_euclid(60);
        // Without windows there are no transitions.
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

    /// Returns the time of the next opening, or `None` if a window is open now.
    pub fn next_opening(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_open(now) {
            return None;
        }
        let minute = jiff::SignedDuration::from_mins(1);
        let start = Timestamp::from_second(now.as_second().div_euclid(60) * 60).ok()?;
        let mut at = start;
        // Windows repeat weekly. A change of the clock may skip one opening.
        for _ in 0..=14 * DAY_MINUTES {
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
        let local = now.to_zoned(self.zone.clone());
        let number = |n: i8| u32::try_from(n).unwrap_or(0);
        let minute = number(local.hour()) * 60 + number(local.minute());
        let is_open_day = |day: Weekday| self.days.is_empty() || self.days.contains(&day);
        let (today, yesterday) = (local.weekday(), local.weekday().previous());
        if self.from < self.to {
            return is_open_day(today) && (self.from..self.to).contains(&minute);
        }
        (is_open_day(today) && minute >= self.from) || (is_open_day(yesterday) && minute < self.to)
    }
}
