//! The catalog of a region, and its warnings.

use super::*;

fn setting(text: &str) -> ZoneSetting {
    let (name, id) = text.split_once('=').map_or((text, None), |(name, id)| (name, Some(id)));
    ZoneSetting { name: name.into(), id: id.map(ZoneId::from) }
}

fn load(region: &str, zones: &[&str]) -> Result<Catalog, CatalogError> {
    let zones: Vec<ZoneSetting> = zones.iter().map(|text| setting(text)).collect();
    Catalog::load(&region.into(), &zones)
}

fn loaded(region: &str, zones: &[&str]) -> Catalog {
    load(region, zones).unwrap_or_else(|error| panic!("{region}: {error}"))
}

fn zones(catalog: &Catalog) -> Vec<String> {
    let line = |z: &Zone| format!("{}={}{}", z.name, z.id, if z.assumed { "?" } else { "" });
    catalog.zones.iter().map(line).collect()
}

#[test]
fn every_region_has_types_zones_and_ordered_offerings() {
    for region in snapshot::regions() {
        let catalog = loaded(region, &[]);
        assert!(catalog.types.len() > 250, "{region}");
        assert!(catalog.zones.len() >= 2 && catalog.zones.is_sorted(), "{region}");
        for kind in catalog.types.values() {
            assert!(!kind.offerings.is_empty(), "{} in {region}", kind.name);
            let order: Vec<_> = kind.offerings.iter().map(|o| (&o.zone, o.capacity_type)).collect();
            assert!(order.is_sorted() && order.windows(2).all(|w| w[0] != w[1]), "{}", kind.name);
        }
    }
}

#[test]
fn zones_default_to_all_of_the_region() {
    for (region, stated, expected) in [
        ("us-west-1", &[][..], &["us-west-1a=usw1-az1?", "us-west-1b=usw1-az3?"][..]),
        ("us-west-1", &["us-west-1b"], &["us-west-1b=usw1-az3?"]),
        (
            "us-west-1",
            &["us-west-1b=usw1-az1", "us-west-1a=usw1-az3"],
            &["us-west-1a=usw1-az3", "us-west-1b=usw1-az1"],
        ),
        ("us-west-1", &["us-west-1b", "us-west-1b"], &["us-west-1b=usw1-az3?"]),
        ("us-west-1", &["us-west-1b", "us-west-1b=usw1-az1"], &["us-west-1b=usw1-az1"]),
        ("us-west-1", &["us-west-1b=usw1-az3", "us-west-1b"], &["us-west-1b=usw1-az3"]),
        ("ap-northeast-1", &["ap-northeast-1b=apne1-az1"], &["ap-northeast-1b=apne1-az1"]),
        (
            "il-central-1",
            &[],
            &["il-central-1a=ilc1-az1?", "il-central-1b=ilc1-az2?", "il-central-1c=ilc1-az3?"],
        ),
    ] {
        assert_eq!(zones(&loaded(region, stated)), expected, "{region} {stated:?}");
    }
}

#[test]
fn zones_with_unknown_names_offer_the_same_types() {
    let catalog = loaded("il-central-1", &[]);
    for kind in catalog.types.values() {
        let has = |id: &str| kind.offerings.iter().any(|o| o.zone_id.as_str() == id);
        assert_eq!(has("ilc1-az1"), has("ilc1-az3"), "{}", kind.name);
    }
}

#[test]
fn a_declared_zone_id_determines_the_offerings() {
    // use1-az3 is an old zone with few types.
    for (stated, sold) in [("us-east-1a=use1-az3", false), ("us-east-1a=use1-az2", true)] {
        let catalog = loaded("us-east-1", &[stated]);
        assert_eq!(catalog.types.contains_key("c7g.large"), sold, "{stated}");
    }
}

#[test]
fn wrong_settings_are_errors_with_a_hint() {
    for (region, stated, message, hint) in [
        (
            "eu-wets-1",
            &[][..],
            "region `eu-wets-1` is not in the embedded catalog",
            "did you mean `eu-west-1`?",
        ),
        (
            "moon",
            &[],
            "region `moon` is not in the embedded catalog",
            "write a region's name, such as `eu-west-1`",
        ),
        (
            "cn-north-1",
            &[],
            "region `cn-north-1` is not in the embedded catalog",
            "regions of China are not supported",
        ),
        (
            "us-gov-west-1",
            &[],
            "region `us-gov-west-1` is not in the embedded catalog",
            "GovCloud is not supported",
        ),
        (
            "us-west-1",
            &["us-east-1a", "us-east-1b"],
            "zone `us-east-1a` is not a zone of region `us-west-1`; zone `us-east-1b` is not a zone of \
             region `us-west-1`",
            "its zones are `us-west-1a`, `us-west-1b`",
        ),
        (
            "us-west-1",
            &["us-west-1c"],
            "zone `us-west-1c` is not a zone of region `us-west-1`",
            "its zones are `us-west-1a`, `us-west-1b`",
        ),
        (
            "us-west-1",
            &["eu-west-1a=usw1-az1"],
            "zone `eu-west-1a` is not a zone of region `us-west-1`",
            "its zones are `us-west-1a`, `us-west-1b`",
        ),
        (
            "us-west-1",
            &["us-west-1a=usw1-az2"],
            "zone `us-west-1a`: `usw1-az2` is not a zone id of region `us-west-1`",
            "its zone ids are `usw1-az1`, `usw1-az3`",
        ),
        (
            "us-west-1",
            &["us-west-1a=usw1-az1", "us-west-1a=usw1-az3"],
            "zone `us-west-1a` is stated twice, as `usw1-az1` and as `usw1-az3`",
            "keep the right one",
        ),
        (
            "us-west-1",
            &["us-west-1a=usw1-az3", "us-west-1b"],
            "zones `us-west-1a` and `us-west-1b` are both `usw1-az3`",
            "state the id of each zone, as `aws ec2 describe-availability-zones` shows it",
        ),
    ] {
        let error = load(region, stated).expect_err(message);
        assert_eq!(error.to_string(), message);
        assert_eq!(error.hint().as_deref(), Some(hint));
    }
}

#[test]
fn all_zones_in_error_are_reported() {
    let error = load("us-west-1", &["us-west-1x", "us-west-1a", "us-west-1y"]).expect_err("two");
    let CatalogError::Several(problems) = &error else { panic!("{error}") };
    assert_eq!(problems.len(), 2);
    assert!(error.to_string().contains("us-west-1x") && error.to_string().contains("us-west-1y"));
}

#[test]
fn prices_are_of_the_region_or_marked_as_of_another() {
    for (region, is_other_region) in [("us-east-1", false), ("eu-west-1", true)] {
        let catalog = loaded(region, &[]);
        assert_eq!(catalog.prices.is_other_region, is_other_region);
        assert_eq!(catalog.prices.region.as_str(), "us-east-1");
        assert_eq!(catalog.prices.date, "2026-07-20");
        for offering in &catalog.types["m5.large"].offerings {
            assert_eq!(
                offering.price,
                Some(MicroUsd(96_000)),
                "{region} {}",
                offering.capacity_type
            );
            assert_eq!(offering.estimated, offering.capacity_type == CapacityType::Spot);
        }
        let warned = catalog.warnings.iter().any(|warning| warning.contains("are used instead"));
        assert_eq!(warned, is_other_region, "{:?}", catalog.warnings);
    }
}

#[test]
fn warnings_list_assumptions_and_missing_prices() {
    let all: Vec<String> = (1..=6)
        .map(|n| {
            let letter = char::from(b'a' + u8::try_from(n).expect("small") - 1);
            format!("us-east-1{letter}=use1-az{n}")
        })
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let catalog = loaded("us-east-1", &all);
    let [unpriced] = catalog.warnings.as_slice() else { panic!("{:?}", catalog.warnings) };
    assert!(
        unpriced.starts_with("26 instance types of us-east-1 have no known price"),
        "{unpriced}"
    );
    assert!(unpriced.ends_with("and 21 more"), "{unpriced}");
    let assumed = loaded("us-west-1", &["us-west-1a", "us-west-1b=usw1-az3"]);
    assert_eq!(
        assumed.warnings[1],
        "zone ids are assumed, and may differ in your account: us-west-1a = usw1-az1; state them in spec.cluster.zones"
    );
}

#[test]
fn a_type_without_price_is_listed() {
    let catalog = loaded("us-east-1", &[]);
    let kind = &catalog.types["r9g.large"];
    assert!(kind.offerings.iter().all(|offering| offering.price.is_none()));
}

#[test]
fn a_type_is_sold_in_its_usage_classes() {
    let ways = |region: &str, name: &str| {
        let catalog = loaded(region, &[]);
        let mut ways: Vec<_> =
            catalog.types[name].offerings.iter().map(|o| o.capacity_type).collect();
        ways.sort_unstable();
        ways.dedup();
        ways
    };
    assert_eq!(ways("us-east-1", "m5.large"), [CapacityType::OnDemand, CapacityType::Spot]);
    assert_eq!(ways("us-east-1", "p5.48xlarge"), [CapacityType::OnDemand, CapacityType::Spot]);
    assert_eq!(ways("us-east-2", "hpc6a.48xlarge"), [CapacityType::OnDemand]);
}

#[test]
fn retired_types_and_macs_are_never_offered() {
    let text = snapshot::types_text().expect("inflates");
    let rows = snapshot::parse_types(&text).expect("parses");
    let never: Vec<&str> =
        rows.iter().filter(|r| r.partial || r.family.starts_with("mac")).map(|r| r.name).collect();
    assert_eq!(never.len(), 26 + 9);
    for region in snapshot::regions() {
        let catalog = loaded(region, &[]);
        for name in &never {
            assert!(!catalog.types.contains_key(*name), "{name} in {region}");
        }
    }
}

#[test]
fn the_order_of_settings_does_not_matter() {
    let there = loaded("us-east-1", &["us-east-1a", "us-east-1b", "us-east-1c"]);
    let back = loaded("us-east-1", &["us-east-1c", "us-east-1b", "us-east-1a"]);
    assert_eq!(there.zones, back.zones);
    assert_eq!(there.types, back.types);
    assert_eq!(there.warnings, back.warnings);
}
