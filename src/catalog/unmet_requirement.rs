//! Finds the requirement of a pool that no offering of the region can satisfy.

use std::collections::BTreeSet;

use super::suggestions::nearest;
use super::types::Catalog;
use crate::model::desired::{Pool, PoolRequirement};
use crate::model::ids::{LabelKey, LabelValue};
use crate::model::requirement::{LabelSet, Operator, key};

/// Most listed values of a requirement.
const VALUES_MAX: usize = 6;

/// Names of architectures elsewhere, with their names in Kubernetes.
const ARCHITECTURES: [(&str, &str); 4] =
    [("x86_64", "amd64"), ("x86-64", "amd64"), ("x64", "amd64"), ("aarch64", "arm64")];

impl Catalog {
    /// Returns why no offering satisfies the requirements of `pool`, as a clause with the
    /// requirement; `None` if each requirement alone can be satisfied.
    #[must_use]
    pub fn unmet_requirement(&self, pool: &Pool) -> Option<String> {
        contradiction(pool).or_else(|| {
            pool.requirements.iter().find_map(|requirement| self.unknown_values(requirement))
        })
    }

    fn unknown_values(&self, requirement: &PoolRequirement) -> Option<String> {
        let PoolRequirement { key, operator, values, .. } = requirement;
        let known = self.known_values(key.as_str());
        let is_unknown = |value: &LabelValue| !known.contains(value.as_str());
        if *operator != Operator::In || known.is_empty() || !values.iter().all(is_unknown) {
            return None;
        }
        let first = values.first()?.as_str();
        let suggestion = suggestion(key, first, &known)
            .map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
        let listed = list(values);
        Some(match key.as_str() {
            key::ZONE => format!("zone {listed} is not in {}{suggestion}", self.region),
            _ => format!("`{listed}` is not a value of {key}{suggestion}"),
        })
    }

    /// Returns the values of a label that nodes of the region can have; empty if any value is
    /// possible.
    fn known_values(&self, key: &str) -> BTreeSet<&str> {
        match key {
            key::ZONE => self.zones.iter().map(|zone| zone.name.as_str()).collect(),
            key::CAPACITY_TYPE => ["on-demand", "reserved", "spot"].into(),
            _ => {
                let labels = self.types.values().map(|kind| &kind.labels);
                labels.filter_map(|labels| labels.get(key)).map(LabelValue::as_str).collect()
            }
        }
    }
}

fn suggestion(key: &LabelKey, value: &str, known: &BTreeSet<&str>) -> Option<String> {
    let alias = ARCHITECTURES.iter().filter(|_| key.as_str() == key::ARCH);
    let alias = alias.copied().find(|(other, _)| *other == value).map(|(_, name)| name);
    let near = || nearest(value, known.iter().copied()).into_iter().next();
    alias.or_else(near).map(str::to_owned)
}

/// Returns the requirements on one label that exclude each other.
fn contradiction(pool: &Pool) -> Option<String> {
    for requirement in &pool.requirements {
        let same: Vec<&PoolRequirement> =
            pool.requirements.iter().filter(|other| other.key == requirement.key).collect();
        let mut set = pool.labels.get(&requirement.key).map_or_else(LabelSet::all, LabelSet::one);
        for other in &same {
            let values: Vec<&str> = other.values.iter().map(LabelValue::as_str).collect();
            set = set.intersect(&LabelSet::from_operator(other.operator, &values).ok()?);
        }
        if set.is_empty() && same.len() > 1 {
            let terms = same.iter().map(|other| {
                format!("`{} {:?} [{}]`", other.key, other.operator, list(&other.values))
            });
            let terms: Vec<String> = terms.collect();
            return Some(format!("its requirements {} contradict each other", terms.join(" and ")));
        }
    }
    None
}

fn list(values: &[LabelValue]) -> String {
    let shown = values.iter().take(VALUES_MAX).map(LabelValue::as_str);
    let more = if values.len() > VALUES_MAX { ", …" } else { "" };
    format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::read;
    use crate::model::desired::{Fleet, Tree, TreeFile};

    fn cause(requirements: &str) -> Option<String> {
        let pool = format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: web}}, \
             spec: {{template: {{spec: {{nodeClassRef: {{group: karpenter.k8s.aws, \
             kind: EC2NodeClass, name: default}}, requirements: [{requirements}]}}}}}}}}"
        );
        let file = TreeFile { path: "pool.yaml".into(), content: Ok(pool.as_bytes().into()) };
        let desired = read(&Tree { files: vec![file] }, &Fleet::default());
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        catalog.unmet_requirement(desired.pools.values().next().expect("one pool"))
    }

    #[test]
    fn impossible_requirement_is_found() {
        let term =
            |key: &str, value: &str| format!("{{key: {key}, operator: In, values: [{value}]}}");
        let category = "karpenter.k8s.aws/instance-category";
        let both = format!("{}, {}", term(category, "c, m"), term(category, "p"));
        for (requirements, part) in [
            (term("kubernetes.io/arch", "x86_64"), "did you mean `amd64`?"),
            (
                term("topology.kubernetes.io/zone", "us-west-2a"),
                "zone us-west-2a is not in us-east-1",
            ),
            (both, "contradict each other"),
            (term("karpenter.sh/capacity-type", "ondemand"), "did you mean `on-demand`?"),
        ] {
            let found = cause(&requirements).unwrap_or_default();
            assert!(found.contains(part), "{requirements}: {found}");
        }
        assert_eq!(cause(&term("team", "a")), None, "custom labels have any value");
        assert_eq!(cause(&term(category, "c")), None);
    }
}
