//! Sets of label values and label states, canonical and closed under complement.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::model::ids::LabelValue;

/// Operator of a requirement, as in Kubernetes and Karpenter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operator {
    /// The value is one of the listed values.
    In,
    /// The label is absent, or its value is not listed.
    NotIn,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The value is an integer greater than the bound.
    Gt,
    /// The value is an integer less than the bound.
    Lt,
    /// The value is an integer greater than or equal to the bound (Karpenter).
    Gte,
    /// The value is an integer less than or equal to the bound (Karpenter).
    Lte,
}

impl Operator {
    /// All operators with their names in manifests.
    pub const ALL: [(&'static str, Self); 8] = [
        ("In", Self::In),
        ("NotIn", Self::NotIn),
        ("Exists", Self::Exists),
        ("DoesNotExist", Self::DoesNotExist),
        ("Gt", Self::Gt),
        ("Lt", Self::Lt),
        ("Gte", Self::Gte),
        ("Lte", Self::Lte),
    ];

    /// Returns the operator with this name in manifests.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, operator)| *operator)
    }
}

/// Invalid combination of an operator and values.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RequirementError {
    /// `In` or `NotIn` without values.
    #[error("operator {0:?} needs at least one value")]
    NoValues(Operator),
    /// `Exists` or `DoesNotExist` with values.
    #[error("operator {0:?} takes no values")]
    UnwantedValues(Operator),
    /// A bound operator without exactly one integer.
    #[error("operator {0:?} takes exactly one integer")]
    NotOneInteger(Operator),
}

/// Disjoint, ascending, non-adjacent intervals of integers, with inclusive ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Intervals(Vec<(i64, i64)>);

impl Intervals {
    fn all() -> Self {
        Self(vec![(i64::MIN, i64::MAX)])
    }

    fn points(integers: impl IntoIterator<Item = i64>) -> Self {
        let sorted: BTreeSet<i64> = integers.into_iter().collect();
        let mut intervals: Vec<(i64, i64)> = Vec::new();
        for n in sorted {
            match intervals.last_mut() {
                Some((_, end)) if end.checked_add(1) == Some(n) => *end = n,
                _ => intervals.push((n, n)),
            }
        }
        Self(intervals)
    }

    fn intersect(&self, other: &Self) -> Self {
        let (mut i, mut j, mut both) = (0, 0, Vec::new());
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            let (start, end) = (a.0.max(b.0), a.1.min(b.1));
            if start <= end {
                both.push((start, end));
            }
            if a.1 < b.1 {
                i += 1;
            } else {
                j += 1;
            }
        }
        Self(both)
    }

    fn complement(&self) -> Self {
        let mut gaps = Vec::new();
        let mut next = Some(i64::MIN);
        for (start, end) in &self.0 {
            if let Some(from) = next.filter(|from| from < start) {
                gaps.push((from, start - 1));
            }
            next = end.checked_add(1);
        }
        gaps.extend(next.map(|from| (from, i64::MAX)));
        Self(gaps)
    }

    fn contains(&self, n: i64) -> bool {
        self.0.iter().any(|(start, end)| (*start..=*end).contains(&n))
    }

    /// Returns the number of integers in the set, saturating.
    fn count(&self) -> u64 {
        let width = |(start, end): &(i64, i64)| end.abs_diff(*start).saturating_add(1);
        self.0.iter().map(width).fold(0, u64::saturating_add)
    }
}

/// A set of texts that are not integers: the listed texts, or all others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct TextSet {
    complement: bool,
    listed: BTreeSet<LabelValue>,
}

impl TextSet {
    fn intersect(&self, other: &Self) -> Self {
        let set = |complement, listed: BTreeSet<LabelValue>| Self { complement, listed };
        let only =
            |a: &Self, b: &Self| a.listed.iter().filter(|v| b.contains(v)).cloned().collect();
        match (self.complement, other.complement) {
            (false, _) => set(false, only(self, other)),
            (true, false) => set(false, only(other, self)),
            (true, true) => set(true, self.listed.union(&other.listed).cloned().collect()),
        }
    }

    fn contains(&self, value: &LabelValue) -> bool {
        self.listed.contains(value) != self.complement
    }
}

/// A set of label values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueSet {
    integers: Intervals,
    texts: TextSet,
}

/// Returns the integer if `value` is its canonical spelling.
fn integer(value: &str) -> Option<i64> {
    value.parse::<i64>().ok().filter(|n| n.to_string() == value)
}

impl ValueSet {
    /// Returns the set of all values.
    pub fn all() -> Self {
        Self {
            integers: Intervals::all(),
            texts: TextSet { complement: true, listed: BTreeSet::new() },
        }
    }

    /// Returns the empty set.
    pub fn none() -> Self {
        Self::all().complement()
    }

    /// Returns the set of these values.
    pub fn from_values<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut integers, mut listed) = (Vec::new(), BTreeSet::new());
        for value in values {
            match integer(value) {
                Some(n) => integers.push(n),
                None => {
                    listed.insert(LabelValue::from(value));
                }
            }
        }
        Self { integers: Intervals::points(integers), texts: TextSet { complement: false, listed } }
    }

    /// Returns the integers from `start` to `end` (inclusive); the empty set if `start > end`.
    pub fn between(start: i64, end: i64) -> Self {
        let integers = if start <= end { vec![(start, end)] } else { Vec::new() };
        Self { integers: Intervals(integers), ..Self::none() }
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self {
            integers: self.integers.intersect(&other.integers),
            texts: self.texts.intersect(&other.texts),
        }
    }

    /// Returns the values outside the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        let TextSet { complement, listed } = self.texts.clone();
        Self {
            integers: self.integers.complement(),
            texts: TextSet { complement: !complement, listed },
        }
    }

    /// Returns true if the set contains `value`.
    pub fn contains(&self, value: &LabelValue) -> bool {
        match integer(value.as_str()) {
            Some(n) => self.integers.contains(n),
            None => self.texts.contains(value),
        }
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.integers.0.is_empty() && !self.texts.complement && self.texts.listed.is_empty()
    }

    /// Returns a deterministic value of the set, or `None` if it is empty. Preference: the first
    /// listed text, the smallest non-negative integer, another integer, a generated text.
    pub fn any(&self) -> Option<LabelValue> {
        let first = self.texts.listed.first();
        if let Some(first) = first.filter(|_| !self.texts.complement) {
            return Some(first.clone());
        }
        let natural = self.integers.0.iter().find(|(_, end)| *end >= 0);
        if let Some((start, _)) = natural {
            return Some(start.max(&0).to_string().into());
        }
        if let Some((start, _)) = self.integers.0.first() {
            return Some(start.to_string().into());
        }
        let made_up = |n: usize| LabelValue::from(format!("any-{n}"));
        // One more name than the number of excluded texts: at least one is not excluded.
        let names = 0..=self.texts.listed.len();
        self.texts.complement.then(|| names.map(made_up).find(|v| self.texts.contains(v)))?
    }

    /// Returns all values if the set is finite and has at most `limit` integers.
    pub fn finite(&self, limit: u64) -> Option<Vec<LabelValue>> {
        if self.texts.complement || self.integers.count() > limit {
            return None;
        }
        let integers = self.integers.0.iter().flat_map(|(start, end)| *start..=*end);
        Some(
            integers
                .map(|n| n.to_string().into())
                .chain(self.texts.listed.iter().cloned())
                .collect(),
        )
    }
}

/// A set of permitted states of a label: absent, or present with a value of a set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelSet {
    absent: bool,
    values: ValueSet,
}

impl LabelSet {
    /// Returns the states permitted by `operator` with `values`.
    ///
    /// # Errors
    /// When the number or type of the values is invalid for the operator.
    pub fn from_operator(operator: Operator, values: &[&str]) -> Result<Self, RequirementError> {
        let listed = || match values {
            [] => Err(RequirementError::NoValues(operator)),
            _ => Ok(ValueSet::from_values(values.iter().copied())),
        };
        let bare = |set| {
            if values.is_empty() {
                Ok(set)
            } else {
                Err(RequirementError::UnwantedValues(operator))
            }
        };
        let bound = || match values {
            [one] => one.parse::<i64>().map_err(|_| RequirementError::NotOneInteger(operator)),
            _ => Err(RequirementError::NotOneInteger(operator)),
        };
        let from = |start: Option<i64>| {
            start.map_or_else(ValueSet::none, |n| ValueSet::between(n, i64::MAX))
        };
        let to =
            |end: Option<i64>| end.map_or_else(ValueSet::none, |n| ValueSet::between(i64::MIN, n));
        Ok(match operator {
            Operator::In => Self { absent: false, values: listed()? },
            Operator::NotIn => Self { absent: true, values: listed()?.complement() },
            Operator::Exists => Self { absent: false, values: bare(ValueSet::all())? },
            Operator::DoesNotExist => Self { absent: true, values: bare(ValueSet::none())? },
            Operator::Gt => Self { absent: false, values: from(bound()?.checked_add(1)) },
            Operator::Gte => Self { absent: false, values: from(Some(bound()?)) },
            Operator::Lt => Self { absent: false, values: to(bound()?.checked_sub(1)) },
            Operator::Lte => Self { absent: false, values: to(Some(bound()?)) },
        })
    }

    /// Returns the set of the state "present with this value".
    pub fn one(value: &LabelValue) -> Self {
        Self::present(ValueSet::from_values([value.as_str()]))
    }

    /// Returns the set of the states "present with one of these values".
    pub fn present(values: ValueSet) -> Self {
        Self { absent: false, values }
    }

    /// Returns the set of the state "absent".
    pub fn absent() -> Self {
        Self { absent: true, values: ValueSet::none() }
    }

    /// Returns the set of all states.
    pub fn all() -> Self {
        Self { absent: true, values: ValueSet::all() }
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        Self { absent: self.absent && other.absent, values: self.values.intersect(&other.values) }
    }

    /// Returns the states outside the set.
    #[must_use]
    pub fn complement(&self) -> Self {
        Self { absent: !self.absent, values: self.values.complement() }
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.complement().intersect(&other.complement()).complement()
    }

    /// Returns true if `self` is a subset of `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        &self.intersect(other) == self
    }

    /// Returns true if the set permits no state.
    pub fn is_empty(&self) -> bool {
        !self.absent && self.values.is_empty()
    }

    /// Returns true if the label may be absent.
    pub fn allows_absence(&self) -> bool {
        self.absent
    }

    /// Returns the permitted values of a present label.
    pub fn values(&self) -> &ValueSet {
        &self.values
    }

    /// Returns true if the set contains the state; `None` is the state "absent".
    pub fn contains(&self, state: Option<&LabelValue>) -> bool {
        state.map_or(self.absent, |value| self.values.contains(value))
    }
}

impl fmt::Display for LabelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.absent, self.values.is_empty(), self.values == ValueSet::all()) {
            (true, true, _) => f.write_str("absent"),
            (true, _, true) => f.write_str("any"),
            (false, true, _) => f.write_str("impossible"),
            (false, _, true) => f.write_str("present"),
            (true, ..) => write!(f, "absent or {}", self.values),
            (false, ..) => write!(f, "{}", self.values),
        }
    }
}

impl fmt::Display for ValueSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interval = |(start, end): &(i64, i64)| match (*start, *end) {
            (a, b) if a == b => a.to_string(),
            (i64::MIN, b) => format!("≤{b}"),
            (a, i64::MAX) => format!("≥{a}"),
            (a, b) => format!("{a}–{b}"),
        };
        let list = |values: &BTreeSet<LabelValue>| {
            values.iter().map(LabelValue::to_string).collect::<Vec<_>>().join("|")
        };
        if self.texts.complement {
            let excluded = self.complement();
            return write!(f, "not {excluded}");
        }
        let integers: Vec<String> = self.integers.0.iter().map(interval).collect();
        let texts = (!self.texts.listed.is_empty()).then(|| list(&self.texts.listed));
        f.write_str(&integers.into_iter().chain(texts).collect::<Vec<_>>().join("|"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Small set of states for brute-force checks: absence, integers and texts.
    const STATES: [Option<&str>; 9] = [
        None,
        Some("-1"),
        Some("0"),
        Some("1"),
        Some("2"),
        Some("3"),
        Some("05"),
        Some("a"),
        Some("b"),
    ];

    fn member(set: &LabelSet, state: Option<&str>) -> bool {
        set.contains(state.map(LabelValue::from).as_ref())
    }

    fn any_set() -> impl Strategy<Value = LabelSet> {
        let values =
            proptest::sample::subsequence(vec!["-1", "0", "1", "2", "3", "05", "a", "b"], 1..4);
        let listed = (prop_oneof![Just(Operator::In), Just(Operator::NotIn)], values)
            .prop_map(|(op, values)| LabelSet::from_operator(op, &values));
        let bare = prop_oneof![Just(Operator::Exists), Just(Operator::DoesNotExist)]
            .prop_map(|op| LabelSet::from_operator(op, &[]));
        let ops = vec![Operator::Gt, Operator::Lt, Operator::Gte, Operator::Lte];
        let bound = (proptest::sample::select(ops), -2_i64..4)
            .prop_map(|(op, n)| LabelSet::from_operator(op, &[&n.to_string()]));
        let leaf = prop_oneof![listed, bare, bound].prop_map(|set| set.expect("valid"));
        leaf.prop_recursive(3, 8, 2, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| a.intersect(&b)),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| a.union(&b)),
                inner.prop_map(|a| a.complement()),
            ]
        })
    }

    proptest! {
        #[test]
        fn operations_agree_with_brute_force(a in any_set(), b in any_set()) {
            for state in STATES {
                let (in_a, in_b) = (member(&a, state), member(&b, state));
                prop_assert_eq!(member(&a.intersect(&b), state), in_a && in_b);
                prop_assert_eq!(member(&a.union(&b), state), in_a || in_b);
                prop_assert_eq!(member(&a.complement(), state), !in_a);
            }
        }

        #[test]
        fn set_laws_hold(a in any_set(), b in any_set(), c in any_set()) {
            prop_assert_eq!(a.intersect(&b), b.intersect(&a));
            prop_assert_eq!(a.intersect(&b).intersect(&c), a.intersect(&b.intersect(&c)));
            prop_assert_eq!(a.intersect(&a), a.clone());
            prop_assert_eq!(a.complement().complement(), a.clone());
            prop_assert_eq!(a.union(&a.intersect(&b)), a.clone());
            prop_assert!(a.intersect(&a.complement()).is_empty());
            prop_assert_eq!(a.union(&a.complement()), LabelSet::all());
            prop_assert_eq!(a.is_subset(&b) && b.is_subset(&a), a == b);
        }

        #[test]
        fn any_value_is_a_member(a in any_set()) {
            prop_assert_eq!(a.values().any().is_none(), a.values().is_empty());
            if let Some(value) = a.values().any() {
                prop_assert!(a.values().contains(&value));
            }
        }
    }

    #[test]
    fn bounds_beyond_integer_limits_are_empty() {
        let set =
            |op, bound: i64| LabelSet::from_operator(op, &[&bound.to_string()]).expect("valid");
        assert!(set(Operator::Gt, i64::MAX).is_empty());
        assert!(set(Operator::Lt, i64::MIN).is_empty());
        assert_eq!(set(Operator::Gt, 4), set(Operator::Gte, 5));
    }

    #[test]
    fn invalid_values_for_operator_are_errors() {
        assert_eq!(
            LabelSet::from_operator(Operator::In, &[]),
            Err(RequirementError::NoValues(Operator::In))
        );
        assert!(LabelSet::from_operator(Operator::Exists, &["x"]).is_err());
        assert!(LabelSet::from_operator(Operator::Gt, &["a"]).is_err());
        assert!(LabelSet::from_operator(Operator::Gt, &["1", "2"]).is_err());
    }

    #[test]
    fn sets_are_displayed_in_short_form() {
        let set =
            |op, values: &[&str]| LabelSet::from_operator(op, values).expect("valid").to_string();
        assert_eq!(set(Operator::In, &["b", "a"]), "a|b");
        assert_eq!(set(Operator::NotIn, &["a"]), "absent or not a");
        assert_eq!(set(Operator::Gt, &["4"]), "≥5");
        assert_eq!(set(Operator::DoesNotExist, &[]), "absent");
    }
}
