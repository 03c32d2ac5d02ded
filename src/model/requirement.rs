//! Algebra of label requirements, as sets of permitted label states.
//!
//! A label is either absent, or present with a value. A [`LabelSet`] is a set of such states, and
//! every Kubernetes operator denotes one. `In` excludes absence, `NotIn` permits it, `Exists`
//! permits every value, and `DoesNotExist` permits only absence. [`Requirements`] is a conjunction
//! with one set per key. A pod can run on a node of a pool if and only if the sets of pod and pool
//! intersect for every key.
//!
//! Invariant: sets are canonical, so `Eq` is set equality. The primitives are `intersect` and
//! `complement`; other operations derive from them. Integers are stored as intervals, so that `Gt`
//! and `Lt` have exact complements. Non-canonical integers (`"05"`) are treated as text.

mod keys;
mod parse;
mod set;

#[cfg(doc)]
#[doc = include_str!("../adr/0003-requirements.md")]
pub mod adr_0003 {}

pub use keys::{is_restricted, is_well_known, key, known_values, normalize_key, similar_keys};
pub use parse::{ParseProblem, ParseRequirementsError};
pub use set::{LabelSet, Operator, RequirementError, ValueSet};

use std::collections::BTreeMap;
use std::fmt;

use crate::model::ids::{LabelKey, LabelValue, Labels};

/// A conjunction of label sets, one per key. An absent key permits every state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Requirements(BTreeMap<LabelKey, LabelSet>);

impl Requirements {
    /// Returns requirements for exactly the values of `labels`.
    pub fn from_labels(labels: &Labels) -> Self {
        Self(labels.iter().map(|(k, v)| (k.clone(), LabelSet::one(v))).collect())
    }

    /// Restricts `key` to the states in `set`.
    pub fn add(&mut self, key: LabelKey, set: &LabelSet) {
        let narrowed =
            self.0.get(&key).map_or_else(|| set.clone(), |current| current.intersect(set));
        self.0.insert(key, narrowed);
    }

    /// Returns the conjunction of both requirements.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for (key, set) in &other.0 {
            both.add(key.clone(), set);
        }
        both
    }

    /// Returns the permitted states of `key`; `None` if unconstrained.
    pub fn get(&self, key: &str) -> Option<&LabelSet> {
        self.0.get(key)
    }

    /// Returns the keys with their sets, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&LabelKey, &LabelSet)> {
        self.0.iter()
    }

    /// Returns true if there are no requirements.
    pub fn is_unconstrained(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first key without a permitted state.
    pub fn conflict(&self) -> Option<&LabelKey> {
        self.0.iter().find(|(_, set)| set.is_empty()).map(|(key, _)| key)
    }

    /// Returns true if a node with exactly these labels satisfies all requirements.
    pub fn matches_labels(&self, labels: &Labels) -> bool {
        self.unmatched(labels).next().is_none()
    }

    /// Returns the keys with a forbidden state in `labels`.
    pub fn unmatched(&self, labels: &Labels) -> impl Iterator<Item = &LabelKey> {
        let allowed = |key: &LabelKey, set: &LabelSet| set.contains(labels.get(key));
        self.0.iter().filter(move |(key, set)| !allowed(key, set)).map(|(key, _)| key)
    }
}

impl FromIterator<(LabelKey, LabelSet)> for Requirements {
    fn from_iter<I: IntoIterator<Item = (LabelKey, LabelSet)>>(pairs: I) -> Self {
        let mut requirements = Self::default();
        for (key, set) in pairs {
            requirements.add(key, &set);
        }
        requirements
    }
}

impl fmt::Display for Requirements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, set)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{key} {set}")?;
        }
        Ok(())
    }
}

/// Returns a label as an entry of a label map.
pub fn label(key: &str, value: &str) -> (LabelKey, LabelValue) {
    (key.into(), value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conjunction_narrows_and_reports_conflicts() {
        let mut requirements = Requirements::from_labels(&[label("team", "a")].into());
        assert!(requirements.matches_labels(&[label("team", "a"), label("x", "y")].into()));
        requirements.add("team".into(), &LabelSet::one(&"b".into()));
        assert_eq!(requirements.conflict().map(LabelKey::as_str), Some("team"));
    }

    #[test]
    fn absent_label_satisfies_not_in_and_does_not_exist() {
        let labels = Labels::default();
        for (operator, values, expected) in [
            (Operator::In, &["a"][..], false),
            (Operator::NotIn, &["a"], true),
            (Operator::Exists, &[], false),
            (Operator::DoesNotExist, &[], true),
            (Operator::Gt, &["1"], false),
        ] {
            let set = LabelSet::from_operator(operator, values).expect("valid");
            let requirements: Requirements = [("k".into(), set)].into_iter().collect();
            assert_eq!(requirements.matches_labels(&labels), expected, "{operator:?}");
        }
    }
}
