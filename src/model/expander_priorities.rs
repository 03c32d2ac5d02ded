//! Priorities of node groups, from the ConfigMap of Cluster Autoscaler's expander `priority`.
//!
//! Source: cluster-autoscaler `expander/priority`.

use std::collections::BTreeMap;

use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::model::cluster_autoscaler::AutoscalerFlags;
use crate::model::desired::Desired;
use crate::model::observed::Observed;

/// Name of the ConfigMap, in the namespace of `--namespace`.
pub const CONFIG_MAP: &str = "cluster-autoscaler-priority-expander";
/// Name of the expander.
pub const PRIORITY_EXPANDER: &str = "priority";

/// Lowest priority that the expander takes.
const PRIORITY_MIN: i64 = -1;
/// Maximum number of expressions that are compiled.
const EXPRESSIONS_MAX: usize = 1_000;
/// Maximum size of a compiled expression, in bytes.
const COMPILED_MAX: usize = 1 << 20;

/// Content of the ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExpanderPriorities {
    /// Regular expressions of group names, by priority. The highest priority wins.
    Levels(BTreeMap<i64, Vec<String>>),
    /// Reason why it cannot be read.
    Unreadable(String),
}

/// The priorities that one Cluster Autoscaler uses.
#[derive(Debug)]
pub enum GroupPriorities {
    /// There is no ConfigMap, so every group has the same priority.
    Absent,
    /// Compiled expressions by priority.
    Levels(BTreeMap<i64, Vec<Regex>>),
    /// Reason why they are not known.
    Unknown(String),
}

impl GroupPriorities {
    /// Returns the priorities that the expander of a Cluster Autoscaler with these flags reads. Those
    /// of the cluster count before those of the repository.
    pub fn find(flags: &AutoscalerFlags, desired: &Desired, observed: &Observed) -> Self {
        let Some(namespace) = flags.namespace() else {
            return Self::Unknown("its flag --namespace cannot be read".to_owned());
        };
        let live = observed.scaling.expander_priorities.as_ref();
        let found = live.and_then(|live| live.get(namespace));
        let Some(found) = found.or_else(|| desired.expander_priorities.get(namespace)) else {
            let name = format!("ConfigMap {namespace}/{CONFIG_MAP}");
            return match live {
                Some(_) => Self::Absent,
                None => Self::Unknown(format!("{name} is not known")),
            };
        };
        found.compile().unwrap_or_else(|why| {
            Self::Unknown(format!("ConfigMap {namespace}/{CONFIG_MAP} cannot be read: {why}"))
        })
    }

    /// Returns the priority of a group, or `None` if no expression matches its name.
    pub fn of_group(&self, name: &str) -> Option<i64> {
        let Self::Levels(levels) = self else { return None };
        let matches = |of_level: &[Regex]| of_level.iter().any(|it| it.is_match(name.as_bytes()));
        let mut levels = levels.range(PRIORITY_MIN..).rev();
        levels.find(|(_, of_level)| matches(of_level)).map(|(priority, _)| *priority)
    }
}

impl ExpanderPriorities {
    /// Compiles the expressions. One that cannot be read makes all unreadable: Cluster Autoscaler
    /// then ignores the others too.
    fn compile(&self) -> Result<GroupPriorities, String> {
        let levels = match self {
            Self::Levels(levels) => levels,
            Self::Unreadable(why) => return Err(why.clone()),
        };
        if levels.values().map(Vec::len).sum::<usize>() > EXPRESSIONS_MAX {
            return Err(format!("it has more than {EXPRESSIONS_MAX} regular expressions"));
        }
        let compile = |(priority, of_level): (&i64, &Vec<String>)| {
            let one = |text: &String| {
                // As in Go, classes such as `\d` are those of ASCII. Names of groups are ASCII.
                let mut builder = RegexBuilder::new(text);
                let built = builder.unicode(false).size_limit(COMPILED_MAX).build();
                built.map_err(|_| format!("`{text}` of priority {priority} is no known expression"))
            };
            Ok((*priority, of_level.iter().map(one).collect::<Result<_, String>>()?))
        };
        levels.iter().map(compile).collect::<Result<_, String>>().map(GroupPriorities::Levels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(levels: &[(i64, &[&str])]) -> Result<GroupPriorities, String> {
        let levels = levels.iter().map(|(priority, texts)| {
            (*priority, texts.iter().map(|text| (*text).to_owned()).collect())
        });
        ExpanderPriorities::Levels(levels.collect()).compile()
    }

    #[test]
    fn highest_matching_priority_counts() {
        let levels: &[(i64, &[&str])] =
            &[(10, &[".*"]), (50, &["^eks-spot-", "^spot[[:digit:]]\\d$"]), (-2, &["below"])];
        let priorities = compiled(levels).expect("readable");
        for (name, expected) in [
            ("eks-spot-1", 50),
            ("my-eks-spot-1", 10),
            ("spot12", 50),
            ("spot1", 10),
            ("below", 10),
        ] {
            assert_eq!(priorities.of_group(name), Some(expected), "{name}");
        }
        let priorities = compiled(&[(-2, &[".*"]), (-1, &["a"])]).expect("readable");
        assert_eq!((priorities.of_group("a"), priorities.of_group("b")), (Some(-1), None));
    }

    #[test]
    fn unreadable_expressions_are_named() {
        let why = compiled(&[(10, &[".*"]), (20, &["web(", "x"])]).expect_err("unreadable");
        assert_eq!(why, "`web(` of priority 20 is no known expression");
        let huge = "((a{1000}){1000}){1000}";
        assert!(compiled(&[(1, &[huge])]).expect_err("too large").contains(huge));
        let many = vec!["a"; EXPRESSIONS_MAX + 1];
        assert!(compiled(&[(1, &many)]).expect_err("too many").contains("more than 1000"));
    }
}
