//! Warnings about pools that only the catalog can give: unknown instance types, missing Windows
//! prices and unequal node group types.
//!
//! A misspelled type would otherwise show only as a pool that offers less than its author meant.

use std::collections::BTreeSet;

use super::snapshot;
use super::types::Catalog;
use crate::model::code::Code;
use crate::model::desired::{AmiFamily, Desired, NodeGroup, Pool, Problem};
use crate::model::ids::InstanceTypeName;
use crate::model::requirement::{Operator, key};
use crate::model::similar_name::nearest;

impl Catalog {
    /// Returns a warning for each instance type that a pool requires or excludes, and that no
    /// region has.
    ///
    /// It is not an error: Karpenter accepts such a value too, and a type may be newer than the
    /// snapshot.
    pub fn unknown_type_warnings(&self, desired: &Desired) -> Vec<Problem> {
        let named = |pool: &Pool| {
            let of_type = |operator| matches!(operator, Operator::In | Operator::NotIn);
            let requirements = pool.requirements.iter();
            let requirements = requirements
                .filter(|r| r.key.as_str() == key::INSTANCE_TYPE && of_type(r.operator));
            let names = requirements.flat_map(|r| &r.values).map(|value| value.as_str().into());
            names.filter(|name| self.get(name).is_none()).collect::<BTreeSet<InstanceTypeName>>()
        };
        let absent: Vec<(&Pool, BTreeSet<InstanceTypeName>)> =
            desired.pools.values().map(|pool| (pool, named(pool))).collect();
        if absent.iter().all(|(_, names)| names.is_empty()) {
            return Vec::new();
        }
        // A type that the catalog lacks exists in another region or not at all. The full snapshot
        // distinguishes the two.
        let Ok(text) = snapshot::types_text() else { return Vec::new() };
        let Ok(rows) = snapshot::parse_types(&text) else { return Vec::new() };
        let everywhere: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        let problems = absent.iter().flat_map(|(pool, names)| {
            let unknown = names.iter().filter(|name| !everywhere.contains(name.as_str()));
            unknown.map(|name| self.unknown(pool, name))
        });
        problems.collect()
    }

    /// Returns a warning for each pool whose nodes run Windows.
    ///
    /// List prices are those of Linux, and Karpenter uses them for Windows too. They rank types
    /// with equal vCPUs correctly, but understate the cost of a node.
    pub fn windows_price_warnings(&self, desired: &Desired) -> Vec<Problem> {
        let class = |pool: &Pool| desired.node_classes.get(pool.node_class.as_ref()?);
        let is_windows =
            |pool: &&Pool| class(pool).is_some_and(|c| c.ami_family == AmiFamily::Windows);
        let warning = |pool: &Pool| {
            Problem::warning(
                pool.origin.clone(),
                format!("NodePool {}", pool.name),
                "Windows prices are unknown: Linux prices are used instead, without the license",
            )
            .hint("treat its costs as a lower bound")
            .code(Code::PriceMissing)
        };
        desired.pools.values().filter(is_windows).map(warning).collect()
    }

    /// Returns a warning for each node group whose types differ in vCPU or memory.
    pub fn unequal_type_warnings(&self, desired: &Desired) -> Vec<Problem> {
        let warning = |group: &NodeGroup| {
            let kinds = group.types.iter().filter_map(|name| self.types.get(name));
            let sizes: Vec<_> =
                kinds.map(|kind| (&kind.name, kind.vcpus, kind.memory_mib)).collect();
            let (first, rest) = sizes.split_first()?;
            let other = rest.iter().find(|other| (other.1, other.2) != (first.1, first.2))?;
            let show = |(name, vcpus, mib): &(&InstanceTypeName, i64, i64)| {
                format!("{name} ({vcpus} vCPU, {mib} MiB)")
            };
            Some(Problem::warning(group.origin.clone(), format!("node group {}", group.name), format!(
                    "its types differ: {} and {}. Cluster Autoscaler assumes the first for every node; this plan assumes the smallest",
                    show(first),
                    show(other)
                )).hint("choose types with the same vCPU and memory"))
        };
        desired.node_groups.values().filter_map(warning).collect()
    }

    fn unknown(&self, pool: &Pool, name: &InstanceTypeName) -> Problem {
        let near = nearest(name.as_str(), self.types.keys().map(InstanceTypeName::as_str));
        let near: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
        Problem::warning(
            pool.origin.clone(),
            format!("{} {}", pool.generation.pool_kind(), pool.name),
            format!("requirement `{}`: no instance type `{name}` is known", key::INSTANCE_TYPE),
        )
        .maybe_hint((!near.is_empty()).then(|| format!("did you mean {}?", near.join(" or "))))
        .code(Code::InstanceTypeUnknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::read;
    use crate::model::desired::{Fleet, Tree, TreeFile};

    fn warnings(operator: &str, values: &str) -> Vec<String> {
        let pool = format!(
            "{{apiVersion: karpenter.sh/v1alpha5, kind: Provisioner, metadata: {{name: web}}, \
             spec: {{requirements: [{{key: node.kubernetes.io/instance-type, \
             operator: {operator}, values: [{values}]}}]}}}}"
        );
        let file = TreeFile { path: "pool.yaml".into(), content: Ok(pool.as_bytes().into()) };
        let desired = read(&Tree { files: vec![file] }, &Fleet::default());
        let catalog = Catalog::load(&"af-south-1".into(), &[]).expect("known region");
        let line = |problem: Problem| {
            format!("{} {} {:?}", problem.origin, problem.message, problem.hint.unwrap_or_default())
        };
        catalog.unknown_type_warnings(&desired).into_iter().map(line).collect()
    }

    #[test]
    fn an_unknown_type_is_reported_with_suggestions() {
        let [one, other] = warnings("In", "m5.large, m5.larg, nonsense")
            .try_into()
            .expect("two of three are unknown");
        assert_eq!(
            one,
            "pool.yaml:1 requirement `node.kubernetes.io/instance-type`: no instance type \
             `m5.larg` is known \"did you mean `m5.large`?\""
        );
        assert!(other.ends_with("`nonsense` is known \"\""), "{other}");
        // A misspelled exclusion leaves the type allowed, which is also a surprise.
        assert_eq!(warnings("NotIn", "m5.larg").len(), 1);
    }

    #[test]
    fn a_windows_pool_warns_about_linux_prices() {
        let of = |family: &str| {
            let text = format!(
                "{{apiVersion: karpenter.sh/v1beta1, kind: NodePool, metadata: {{name: win}}, \
                 spec: {{template: {{spec: {{nodeClassRef: {{name: win}}, requirements: []}}}}}}}}\n\
                 ---\n\
                 {{apiVersion: karpenter.k8s.aws/v1beta1, kind: EC2NodeClass, \
                 metadata: {{name: win}}, spec: {{role: r, amiFamily: {family}}}}}"
            );
            let file = TreeFile { path: "pool.yaml".into(), content: Ok(text.as_bytes().into()) };
            let desired = read(&Tree { files: vec![file] }, &Fleet::default());
            let catalog = Catalog::load(&"af-south-1".into(), &[]).expect("known region");
            let found = catalog.windows_price_warnings(&desired);
            found.into_iter().map(|p| format!("{} {}", p.origin, p.message)).collect::<Vec<_>>()
        };
        assert_eq!(of("AL2023"), [""; 0]);
        assert_eq!(
            of("Windows2022"),
            [
                "pool.yaml:1 Windows prices are unknown: Linux prices are used instead, without the license"
            ]
        );
    }

    #[test]
    fn a_type_of_another_region_is_not_a_typo() {
        assert_eq!(warnings("In", "p5.48xlarge, m5.large"), [""; 0]);
    }
}
