//! Finds the requirement of a pool that no offering of the region can satisfy.

use std::collections::BTreeSet;

use super::instance_type::InstanceType;
use super::loader::zones_of_region;
use super::lookup::MissingType;
use super::types::Catalog;
use crate::model::desired::{FAMILY_WITHOUT_AL2023, NodeClass, Pool, PoolRequirement};
use crate::model::ids::{LabelKey, LabelValue, ZoneName};
use crate::model::requirement::{LabelSet, Operator, key};
use crate::model::similar_name::nearest;

/// Most listed values of a requirement.
const VALUES_MAX: usize = 6;

/// Names of architectures elsewhere, with their names in Kubernetes.
const ARCHITECTURES: [(&str, &str); 4] =
    [("x86_64", "amd64"), ("x86-64", "amd64"), ("x64", "amd64"), ("aarch64", "arm64")];

impl Catalog {
    /// Returns why no offering satisfies the requirements of `pool`, as a clause with the
    /// requirement; `None` if each requirement alone can be satisfied. `class` is its node class.
    pub fn unmet_requirement(&self, pool: &Pool, class: Option<&NodeClass>) -> Option<String> {
        let values = || pool.requirements.iter().find_map(|one| self.unknown_values(one));
        let image = || self.excluded_family(pool, class?);
        let refused = || self.refused_types(pool, class?);
        contradiction(pool).or_else(values).or_else(image).or_else(refused)
    }

    /// Returns a clause if EC2 launches no type of the pool with the settings of its class.
    fn refused_types(&self, pool: &Pool, class: &NodeClass) -> Option<String> {
        let settings = &class.instance_settings;
        let (usable, lacking): (Vec<&InstanceType>, Vec<&InstanceType>) =
            self.types_for_pool(pool).partition(|kind| kind.has_interfaces(settings));
        if usable.is_empty() {
            return without_interfaces(&lacking, class);
        }
        let accepted = settings.placement_requirements();
        if usable.iter().any(|kind| accepted.matches_labels(&kind.labels)) {
            return None;
        }
        let name = &class.name;
        Some(if lacking.is_empty() {
            format!(
                "none of its instance types can be in each kind of placement group, and node class \
                 {name} has `placementGroupSelector`"
            )
        } else {
            format!(
                "none of its instance types has the `networkInterfaces` and the `ipPrefixCount` of \
                 node class {name} and can be in each kind of placement group"
            )
        })
    }

    /// Returns the family of all types of the pool, if the images of its class do not run on it.
    fn excluded_family(&self, pool: &Pool, class: &NodeClass) -> Option<String> {
        let is_excluded = |kind: &InstanceType| {
            let family = kind.labels.get(key::INSTANCE_FAMILY);
            family.is_some_and(|family| family.as_str() == FAMILY_WITHOUT_AL2023)
        };
        let mut kinds = self.types_for_pool(pool).peekable();
        let is_unusable = class.excludes_a1() && kinds.peek().is_some() && kinds.all(is_excluded);
        is_unusable.then(|| {
            format!(
                "it has instance types of family {FAMILY_WITHOUT_AL2023} alone, on which Amazon \
                 Linux 2023 does not run"
            )
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
            key::TENANCY if first == "dedicated" => {
                "it requires dedicated tenancy, and every node is launched with shared tenancy"
                    .to_owned()
            }
            key::ZONE if self.has_zone_of(values) => {
                format!("zone {listed} is not in spec.cluster.zones")
            }
            key::ZONE => format!("zone {listed} is not in {}{suggestion}", self.region),
            key::INSTANCE_TYPE if self.is_not_offered(first) => {
                format!("{first} is not offered in the zones used of {}", self.region)
            }
            _ => format!("`{listed}` is not a value of {key}{suggestion}"),
        })
    }

    /// Returns whether a type exists that no zone of the catalog offers.
    fn is_not_offered(&self, name: &str) -> bool {
        matches!(self.explain_missing(&name.into()), Ok(MissingType::NotOffered { .. }))
    }

    /// Returns whether the region has one of the zones `names`, declared or not.
    fn has_zone_of(&self, names: &[LabelValue]) -> bool {
        let known = zones_of_region(&self.region);
        let mut offered = self.offered.iter().flat_map(|offered| offered.values().flatten());
        let is_name = |zone: &ZoneName| names.iter().any(|name| name.as_str() == zone.as_str());
        known.iter().any(is_name) || offered.any(is_name)
    }

    /// Returns the values of a label that nodes of the region can have; empty if any value is
    /// possible.
    pub fn known_values(&self, key: &str) -> BTreeSet<&str> {
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

/// Returns a clause for types without the interfaces of the class; `None` if there are no types.
fn without_interfaces(kinds: &[&InstanceType], class: &NodeClass) -> Option<String> {
    if kinds.is_empty() {
        return None;
    }
    let (name, settings) = (&class.name, &class.instance_settings);
    let has_further_card = settings.network_interfaces.iter().any(|interface| interface.card > 0);
    Some(match kinds.iter().find(|kind| has_further_card && kind.cards == 0) {
        Some(unknown) => format!(
            "none of its instance types is known to have the `networkInterfaces` and the \
             `ipPrefixCount` of node class {name}: the network cards of {} are unknown",
            unknown.name
        ),
        None => format!(
            "none of its instance types has the `networkInterfaces` or the `ipPrefixCount` of node \
             class {name}"
        ),
    })
}

/// Returns the requirements on one label that exclude each other, or exclude a label of the pool.
fn contradiction(pool: &Pool) -> Option<String> {
    pool.requirements.iter().find_map(|requirement| contradiction_of(&requirement.key, pool))
}

fn contradiction_of(key: &LabelKey, pool: &Pool) -> Option<String> {
    let same: Vec<&PoolRequirement> =
        pool.requirements.iter().filter(|requirement| requirement.key == *key).collect();
    let mut set = LabelSet::all();
    for requirement in &same {
        let values: Vec<&str> = requirement.values.iter().map(LabelValue::as_str).collect();
        set = set.intersect(&LabelSet::from_operator(requirement.operator, &values).ok()?);
    }
    let terms = same.iter().map(|requirement| {
        format!("`{key} {:?} [{}]`", requirement.operator, list(&requirement.values))
    });
    let terms = terms.collect::<Vec<_>>().join(" and ");
    if set.is_empty() {
        let text = format!("its requirements {terms} contradict each other");
        return (same.len() > 1).then_some(text);
    }
    let label = pool.labels.get(key)?;
    let noun = if same.len() == 1 { "requirement" } else { "requirements" };
    let is_excluded = set.intersect(&LabelSet::one(label)).is_empty();
    is_excluded.then(|| format!("its label `{key}: {label}` contradicts its {noun} {terms}"))
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
    use crate::model::desired::{Desired, Fleet, Tree, TreeFile};
    use crate::model::market::ZoneSetting;

    fn cause(requirements: &str) -> Option<String> {
        cause_in(requirements, "", &[])
    }

    /// Returns the cause for a pool with `labels`, where `zones` are declared.
    fn cause_in(requirements: &str, labels: &str, zones: &[&str]) -> Option<String> {
        cause_with("al2@latest", requirements, labels, zones)
    }

    /// Returns the cause for a pool whose node class has the images `alias`.
    fn cause_with(alias: &str, requirements: &str, labels: &str, zones: &[&str]) -> Option<String> {
        let desired = desired(&format!("[{{alias: {alias}}}]"), requirements, labels);
        let zones = zones.iter().map(|name| ZoneSetting { name: (*name).into(), id: None });
        let zones: Vec<ZoneSetting> = zones.collect();
        let catalog = Catalog::load(&"us-east-1".into(), &zones).expect("known region");
        cause_of(&desired, &catalog)
    }

    fn cause_of(desired: &Desired, catalog: &Catalog) -> Option<String> {
        let class = desired.node_classes.values().next();
        catalog.unmet_requirement(desired.pools.values().next().expect("one pool"), class)
    }

    /// Returns a pool, and its node class with these image terms and the fields after them.
    fn desired(images: &str, requirements: &str, labels: &str) -> Desired {
        let class = format!(
            "{{apiVersion: karpenter.k8s.aws/v1, kind: EC2NodeClass, metadata: {{name: default}}, \
             spec: {{role: r, subnetSelectorTerms: [{{id: subnet-1}}], \
             securityGroupSelectorTerms: [{{id: sg-1}}], amiSelectorTerms: {images}}}}}"
        );
        let pool = format!(
            "{{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {{name: web}}, \
             spec: {{template: {{metadata: {{labels: {{{labels}}}}}, \
             spec: {{nodeClassRef: {{group: karpenter.k8s.aws, \
             kind: EC2NodeClass, name: default}}, requirements: [{requirements}]}}}}}}}}\n\
             ---\n{class}"
        );
        let file = TreeFile { path: "pool.yaml".into(), content: Ok(pool.as_bytes().into()) };
        read(&Tree { files: vec![file] }, &Fleet::default())
    }

    /// Returns a pool of `types`, and its node class with these fields beside its images.
    fn pool_of(types: &str, fields: &str) -> Desired {
        let required =
            format!("{{key: node.kubernetes.io/instance-type, operator: In, values: [{types}]}}");
        desired(&format!("[{{alias: al2@latest}}], {fields}"), &required, "")
    }

    #[test]
    fn settings_that_refuse_all_types_are_named() {
        const GROUP: &str = "placementGroupSelector: {name: web}";
        const NESTED: &str = "cpuOptions: {nestedVirtualization: enabled}";
        let catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let in_no_group = "none of its instance types can be in each kind of placement group, and \
                           node class default has `placementGroupSelector`";
        let without_prefixes = "none of its instance types has the `networkInterfaces` or the \
                                `ipPrefixCount` of node class default";
        let one_each = "none of its instance types has the `networkInterfaces` and the \
                        `ipPrefixCount` of node class default and can be in each kind of placement \
                        group";
        for (types, fields, expected) in [
            ("t3.large", GROUP.to_owned(), Some(in_no_group)),
            ("t3.large, m5.large", GROUP.to_owned(), None),
            ("m5.large", format!("{GROUP}, {NESTED}"), None),
            ("m5.large", "ipPrefixCount: 11".to_owned(), Some(without_prefixes)),
            ("t3.large, m5.large", format!("{GROUP}, ipPrefixCount: 11"), Some(one_each)),
            ("t3.large, m5.2xlarge", format!("{GROUP}, ipPrefixCount: 11"), None),
        ] {
            let found = cause_of(&pool_of(types, &fields), &catalog);
            assert_eq!(found.as_deref(), expected, "{types} with {fields}");
        }
    }

    #[test]
    fn unknown_network_cards_are_no_fact() {
        let card = |card: u8| {
            format!("{{networkCardIndex: {card}, deviceIndex: 0, interfaceType: interface}}")
        };
        let on_further_card = format!("networkInterfaces: [{}, {}]", card(0), card(1));
        let mut catalog = Catalog::load(&"us-east-1".into(), &[]).expect("known region");
        let mut cause = |cards: i64, fields: &str| {
            catalog.types.get_mut("m5.large").expect("offered").cards = cards;
            cause_of(&pool_of("m5.large", fields), &catalog).unwrap_or_default()
        };
        let unknown = "none of its instance types is known to have the `networkInterfaces` and the \
                       `ipPrefixCount` of node class default: the network cards of m5.large are \
                       unknown";
        assert_eq!(cause(0, &on_further_card), unknown);
        let known = "none of its instance types has the";
        assert!(cause(1, &on_further_card).starts_with(known));
        assert!(cause(0, "ipPrefixCount: 11").starts_with(known), "the card makes no difference");
    }

    #[test]
    fn undeclared_zone_of_the_region_is_named_as_such() {
        let zone = |name: &str| {
            format!("{{key: topology.kubernetes.io/zone, operator: In, values: [{name}]}}")
        };
        let declared = ["us-east-1a", "us-east-1b"];
        assert_eq!(
            cause_in(&zone("us-east-1c"), "", &declared).as_deref(),
            Some("zone us-east-1c is not in spec.cluster.zones")
        );
        let other = cause_in(&zone("us-west-2a"), "", &declared).unwrap_or_default();
        assert!(other.starts_with("zone us-west-2a is not in us-east-1"), "{other}");
        assert_eq!(cause_in(&zone("us-east-1a"), "", &declared), None);
    }

    #[test]
    fn a1_types_do_not_run_amazon_linux_2023() {
        let a1 = "{key: karpenter.k8s.aws/instance-family, operator: In, values: [a1]}";
        let both = "{key: karpenter.k8s.aws/instance-family, operator: In, values: [a1, m6g]}";
        let text =
            "it has instance types of family a1 alone, on which Amazon Linux 2023 does not run";
        assert_eq!(cause_with("al2023@latest", a1, "", &[]).as_deref(), Some(text));
        assert_eq!(cause_with("al2023@latest", both, "", &[]), None);
        assert_eq!(cause_with("bottlerocket@latest", a1, "", &[]), None);
    }

    #[test]
    fn contradicting_label_is_named() {
        let team = "{key: team, operator: In, values: [a]}";
        let found = cause_in(team, "team: b", &[]);
        let text = "its label `team: b` contradicts its requirement `team In [a]`";
        assert_eq!(found.as_deref(), Some(text));
        assert_eq!(cause_in(team, "team: a", &[]), None);
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
                term("node.kubernetes.io/instance-type", "dl1.24xlarge"),
                "dl1.24xlarge is not offered in the zones used of us-east-1",
            ),
            (
                term("topology.kubernetes.io/zone", "us-west-2a"),
                "zone us-west-2a is not in us-east-1",
            ),
            (both, "contradict each other"),
            (term("karpenter.sh/capacity-type", "ondemand"), "did you mean `on-demand`?"),
            (term("karpenter.k8s.aws/instance-tenancy", "dedicated"), "requires dedicated tenancy"),
        ] {
            let found = cause(&requirements).unwrap_or_default();
            assert!(found.contains(part), "{requirements}: {found}");
        }
        assert_eq!(cause(&term("team", "a")), None, "custom labels have any value");
        let either = term("karpenter.k8s.aws/instance-tenancy", "dedicated, default");
        assert_eq!(cause(&either), None, "shared tenancy is used");
        assert_eq!(cause(&term(category, "c")), None);
    }
}
