//! The algebra of label requirements: which states a label may be in.
//!
//! A label is in one of two kinds of state: absent, or present with a value. A [`LabelSet`] is a
//! set of such states, and every Kubernetes operator is one: `In` excludes absence, `NotIn` allows
//! it, `Exists` is every value, `DoesNotExist` is absence alone. [`Requirements`] is a conjunction,
//! one set for each key. A pod can run on a node of a pool if and only if the pod's set and the
//! pool's set intersect for every key.
//!
//! Invariant: sets are canonical, so `Eq` is set equality. The primitives are `intersect` and
//! `complement`; the rest follows by law. Integers are stored as intervals, so that `Gt` and `Lt`
//! have exact complements. A text that is not a canonical integer (`"05"`) is a text.

mod keys;
mod parse;
mod set;

#[cfg(doc)]
#[doc = include_str!("../adr/0003-requirements.md")]
pub mod adr_0003 {}

pub use keys::{is_restricted, is_well_known, key, known_values, normalize_key};
pub use parse::{ParseProblem, ParseRequirementsError};
pub use set::{LabelSet, Operator, RequirementError, ValueSet};

use std::collections::BTreeMap;
use std::fmt;

use crate::model::ids::{LabelKey, LabelValue, Labels};

/// A conjunction of label sets, one for each key; a key that is not listed may be in any state.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Requirements(BTreeMap<LabelKey, LabelSet>);

impl Requirements {
    /// Returns the requirement that every label of `labels` has exactly its value.
    #[must_use]
    pub fn from_labels(labels: &Labels) -> Self {
        Self(labels.iter().map(|(k, v)| (k.clone(), LabelSet::one(v))).collect())
    }

    /// Narrows `key` to the states that are also in `set`.
    pub fn add(&mut self, key: LabelKey, set: &LabelSet) {
        let narrowed = self.0.get(&key).map_or_else(|| set.clone(), |held| held.intersect(set));
        self.0.insert(key, narrowed);
    }

    /// Returns the conjunction of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for (key, set) in &other.0 {
            both.add(key.clone(), set);
        }
        both
    }

    /// Returns the states that `key` may be in.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&LabelSet> {
        self.0.get(key)
    }

    /// Returns the keys and their sets, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&LabelKey, &LabelSet)> {
        self.0.iter()
    }

    /// Returns whether nothing is required.
    #[must_use]
    pub fn is_unconstrained(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first key that no state satisfies.
    #[must_use]
    pub fn conflict(&self) -> Option<&LabelKey> {
        self.0.iter().find(|(_, set)| set.is_empty()).map(|(key, _)| key)
    }

    /// Returns whether a node with exactly these labels satisfies every requirement.
    #[must_use]
    pub fn matches_labels(&self, labels: &Labels) -> bool {
        self.unmatched(labels).is_none()
    }

    /// Returns the first key whose state in `labels` is not allowed.
    #[must_use]
    pub fn unmatched(&self, labels: &Labels) -> Option<&LabelKey> {
        let allowed = |key: &LabelKey, set: &LabelSet| set.contains(labels.get(key));
        self.0.iter().find(|(key, set)| !allowed(key, set)).map(|(key, _)| key)
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

/// Returns the label `key` with `value`, for building label maps.
#[must_use]
pub fn label(key: &str, value: &str) -> (LabelKey, LabelValue) {
    (key.into(), value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conjunction_narrows_and_names_its_conflict() {
        let mut requirements = Requirements::from_labels(&[label("team", "a")].into());
        assert!(requirements.matches_labels(&[label("team", "a"), label("x", "y")].into()));
        requirements.add("team".into(), &LabelSet::one(&"b".into()));
        assert_eq!(requirements.conflict().map(LabelKey::as_str), Some("team"));
    }

    #[test]
    fn absence_satisfies_not_in_and_not_in_alone() {
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
