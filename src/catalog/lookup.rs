//! Finds instance types and offerings by name, requirement and price.

use std::fmt;

use super::instance_type::{InstanceType, Offering};
use super::snapshot;
use super::types::{Catalog, CatalogError};
use crate::model::desired::{Pool, PoolRequirement};
use crate::model::ids::{InstanceTypeName, LabelValue, Region};
use crate::model::requirement::{LabelSet, Requirements, key};
use crate::model::similar_name::nearest;

/// The reason why a catalog has no instance type of a given name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MissingType {
    /// No such type is known.
    Unknown {
        /// Similarly named types of the catalog, nearest first.
        similar: Vec<InstanceTypeName>,
    },
    /// The type exists, but no zone of the catalog offers it.
    NotOffered {
        /// The region.
        region: Region,
    },
}

impl fmt::Display for MissingType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOffered { region } => {
                write!(f, "is not offered in the zones used of {region}")
            }
            Self::Unknown { similar } => match similar.as_slice() {
                [] => f.write_str("is not a known instance type"),
                similar => {
                    let names: Vec<String> = similar.iter().map(|n| format!("`{n}`")).collect();
                    write!(f, "is not a known instance type; did you mean {}?", names.join(" or "))
                }
            },
        }
    }
}

impl Catalog {
    /// Returns the instance type `name`, if a zone offers it.
    pub fn get(&self, name: &InstanceTypeName) -> Option<&InstanceType> {
        self.types.get(name)
    }

    /// Returns the types that the requirements of `pool` admit by labels of the type alone. Zone,
    /// capacity type and labels of the pool are not checked. A type without a label of types, such
    /// as the GPU's name, has no GPU.
    pub fn types_for_pool(&self, pool: &Pool) -> impl Iterator<Item = &InstanceType> {
        let requirement = |r: &PoolRequirement| {
            let values: Vec<&str> = r.values.iter().map(LabelValue::as_str).collect();
            // An unreadable requirement is reported elsewhere, and does not narrow the result.
            let set = LabelSet::from_operator(r.operator, &values);
            (r.key.clone(), set.unwrap_or_else(|_| LabelSet::all()))
        };
        let required: Vec<_> = pool.requirements.iter().map(requirement).collect();
        self.types.values().filter(move |kind| {
            required.iter().all(|(name, set)| {
                let value = kind.labels.get(name);
                let is_of_types = name.as_str().starts_with(key::INSTANCE_PREFIX);
                (value.is_none() && !is_of_types) || set.contains(value)
            })
        })
    }

    /// Returns the reason why [`Catalog::get`] finds no type `name`, for messages. Reads the
    /// snapshot.
    ///
    /// # Errors
    ///
    /// Fails if the snapshot cannot be read.
    pub fn explain_missing(&self, name: &InstanceTypeName) -> Result<MissingType, CatalogError> {
        let text = snapshot::types_text().map_err(CatalogError::Snapshot)?;
        let rows = snapshot::parse_types(&text).map_err(CatalogError::Snapshot)?;
        if rows.iter().any(|row| row.name == name.as_str()) {
            return Ok(MissingType::NotOffered { region: self.region.clone() });
        }
        let names = self.types.keys().map(InstanceTypeName::as_str);
        let similar = nearest(name.as_str(), names).into_iter().map(InstanceTypeName::from);
        Ok(MissingType::Unknown { similar: similar.collect() })
    }

    /// Returns the offerings whose labels meet `requirements`, by type, zone and capacity type.
    ///
    /// The labels are those of the type, with zone, zone id, region and capacity type. A key that
    /// no offering has is absent: `team` then matches nothing, and `!team` everything.
    pub fn matching<'a>(
        &'a self,
        requirements: &'a Requirements,
    ) -> impl Iterator<Item = (&'a InstanceType, &'a Offering)> {
        let region = LabelValue::from(self.region.as_str());
        self.types
            .values()
            .flat_map(|kind| kind.offerings.iter().map(move |offering| (kind, offering)))
            .filter(move |(kind, offering)| meets(requirements, kind, offering, &region))
    }

    /// Returns the result of [`Catalog::matching`], cheapest first and offerings without a price
    /// last.
    pub fn cheapest<'a>(
        &'a self,
        requirements: &'a Requirements,
    ) -> Vec<(&'a InstanceType, &'a Offering)> {
        let mut found: Vec<_> = self.matching(requirements).collect();
        // The sort is stable, so equal prices stay ordered by type, zone and capacity type.
        found.sort_by_key(|(_, offering)| (offering.price.is_none(), offering.price));
        found
    }
}

fn meets(
    requirements: &Requirements,
    kind: &InstanceType,
    offering: &Offering,
    region: &LabelValue,
) -> bool {
    requirements.iter().all(|(name, set)| {
        let own = |text: &str| set.contains(Some(&LabelValue::from(text)));
        match name.as_str() {
            key::ZONE => own(offering.zone.as_str()),
            key::ZONE_ID => own(offering.zone_id.as_str()),
            key::CAPACITY_TYPE => own(offering.capacity_type.as_str()),
            key::REGION => set.contains(Some(region)),
            _ => set.contains(kind.labels.get(name)),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::market::CapacityType;
    use crate::model::units::MicroUsd;

    fn catalog() -> Catalog {
        Catalog::load(&"us-east-1".into(), &[]).expect("known region")
    }

    fn names(catalog: &Catalog, selector: &str) -> BTreeSet<String> {
        let requirements = selector.parse().expect("valid");
        catalog.matching(&requirements).map(|(kind, _)| kind.name.to_string()).collect()
    }

    #[test]
    fn requirements_select_by_labels_of_type_and_offering() {
        let catalog = catalog();
        for (selector, expected) in [
            (
                "node.kubernetes.io/instance-type in (m5.large,c5.large)",
                &["c5.large", "m5.large"][..],
            ),
            (
                "karpenter.k8s.aws/instance-family=m5,karpenter.k8s.aws/instance-cpu<4",
                &["m5.large"],
            ),
            (
                "karpenter.k8s.aws/instance-gpu-name=l4,karpenter.k8s.aws/instance-gpu-count=8",
                &["g6.48xlarge"],
            ),
            ("karpenter.k8s.aws/instance-category=m,karpenter.k8s.aws/instance-category=c", &[]),
            ("karpenter.k8s.aws/instance-family=m5,topology.kubernetes.io/zone=us-east-9z", &[]),
            ("karpenter.k8s.aws/instance-family=m5,topology.kubernetes.io/region=eu-west-1", &[]),
            ("karpenter.k8s.aws/instance-family=m5,team", &[]),
            ("node.kubernetes.io/instance-type=m5.large,!team", &["m5.large"]),
        ] {
            let expected = expected.iter().map(ToString::to_string).collect();
            assert_eq!(names(&catalog, selector), expected, "{selector}");
        }
    }

    #[test]
    fn offerings_are_found_one_by_one() {
        let catalog = catalog();
        let selector = "node.kubernetes.io/instance-type=m5.large,karpenter.sh/capacity-type=spot,topology.k8s.aws/zone-id=use1-az1";
        let requirements = selector.parse().expect("valid");
        let found: Vec<_> = catalog.matching(&requirements).collect();
        let [(_, offering)] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(offering.zone_id.as_str(), "use1-az1");
        assert_eq!(offering.capacity_type, CapacityType::Spot);
    }

    #[test]
    fn cheapest_offerings_come_first_and_unpriced_last() {
        let catalog = catalog();
        let all = Requirements::default();
        let found = catalog.cheapest(&all);
        assert_eq!(found.len(), catalog.types.values().map(|k| k.offerings.len()).sum::<usize>());
        assert_eq!(found[0].0.name.as_str(), "t4g.nano");
        assert_eq!(found[0].1.price, Some(MicroUsd(4_200)));
        let prices: Vec<_> = found.iter().map(|(_, offering)| offering.price).collect();
        let unpriced = prices.iter().position(Option::is_none).expect("r9g has no price");
        assert!(prices[..unpriced].is_sorted() && prices[unpriced..].iter().all(Option::is_none));
    }

    #[test]
    fn a_missing_type_is_unknown_or_not_offered() {
        let catalog = Catalog::load(&"af-south-1".into(), &[]).expect("known region");
        let why = |name: &str| catalog.explain_missing(&name.into()).expect("snapshot");
        assert!(catalog.get(&"m5.large".into()).is_some());
        assert!(catalog.get(&"p5.48xlarge".into()).is_none());
        assert_eq!(why("p5.48xlarge"), MissingType::NotOffered { region: "af-south-1".into() });
        assert_eq!(why("p3.2xlarge"), MissingType::NotOffered { region: "af-south-1".into() });
        let MissingType::Unknown { similar } = why("m5.lrage") else { panic!("unknown") };
        assert_eq!(similar[0].as_str(), "m5.large");
        assert_eq!(why("nonsense"), MissingType::Unknown { similar: vec![] });
        assert_eq!(why("nonsense").to_string(), "is not a known instance type");
    }
}
