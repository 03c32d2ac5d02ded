//! Drift of an instance from the current resolution of its node class in EC2: another `@latest`
//! image, other selected subnets or security groups, or a withdrawn instance type.
//!
//! Invariants: an unknown value on either side is not a difference. Only the image that a launch on
//! the same hardware would use now counts. Source: karpenter-provider-aws,
//! `pkg/cloudprovider/drift.go`.

use std::collections::BTreeSet;
use std::fmt::Display;

use jiff::SignedDuration;

use crate::catalog::{Catalog, InstanceType};
use crate::model::desired::{Desired, InstanceSettings, NodeClass, Problem, describe_selectors};
use crate::model::market::CapacityType;
use crate::model::observed::{
    Hardware, Instance, LaunchedWith, NodeClassField, Observed, Resolved, UnresolvedTerm, tag,
};
use crate::model::reason::DriftedField;

/// Maximum age of the list of EC2 offerings. A younger instance may have an offering that is newer
/// than the list.
const OFFERINGS_AGE_MAX: SignedDuration = SignedDuration::from_hours(6);

/// Maximum number of ids in a reason.
const LISTED_MAX: usize = 3;

/// Returns the difference between an instance and a new launch for `class`.
pub(super) fn detect_cloud_drift(
    instance: &Instance,
    class: &NodeClass,
    catalog: &Catalog,
    observed: &Observed,
) -> Option<DriftedField> {
    let Instance { instance_type, zone, capacity_type, launched_with, launched_at, .. } = instance;
    let Observed { resolved, taken_at, .. } = observed;
    // Reserved capacity stays available even if the type is withdrawn.
    if *capacity_type != CapacityType::Reserved
        && taken_at.duration_since(*launched_at) > OFFERINGS_AGE_MAX
        && catalog.is_withdrawn(instance_type, zone)
    {
        return Some(DriftedField {
            field: "offering".to_owned(),
            is: format!("{instance_type} in {zone}"),
            declared: "an offering that EC2 still has".to_owned(),
        });
    }
    // An adopted instance has no digest, and adoption does not promise that it follows the class.
    instance.tags.get(tag::SPEC)?;
    if resolved.resolved_at.is_some_and(|asked| asked <= *launched_at) {
        return None;
    }
    let kind = catalog.types.get(instance_type)?;
    selector_drift(launched_with, kind, class, resolved)
}

/// Returns the selectors of `class` whose text does not count: their result is known and compared by
/// [`detect_cloud_drift`], or they could not be resolved yet.
pub(super) fn resolved_selectors(
    instance: &Instance,
    class: &NodeClass,
    catalog: &Catalog,
    resolved: &Resolved,
) -> Vec<&'static str> {
    let LaunchedWith { image, subnet, security_groups } = &instance.launched_with;
    let InstanceSettings { subnets: subnet_terms, security_groups: group_terms, .. } =
        &class.instance_settings;
    let (subnet_terms, group_terms) =
        (describe_selectors(subnet_terms), describe_selectors(group_terms));
    let kind = catalog.types.get(&instance.instance_type);
    let hardware = kind.map(|kind| Hardware::from_labels(&kind.labels));
    let image = image.as_ref().zip(hardware.and_then(|of| resolved.image(&class.image, of)));
    let subnet = subnet.as_ref().zip(resolved.subnets.get(&subnet_terms));
    // More groups than selected are no difference, so that a group that the class no longer
    // selects would stay.
    let groups = security_groups.as_ref().zip(resolved.security_groups.get(&group_terms));
    // A result from before the launch may be out of date, so that a difference from it does not count.
    let is_older = resolved.resolved_at.is_some_and(|asked| asked <= instance.launched_at);
    let image = image.is_some_and(|(is, now)| is == now || !is_older);
    let subnet = subnet.is_some_and(|(is, now)| now.contains(is) || !is_older);
    let groups = groups.is_some_and(|(is, now)| is == now);
    let is_unread = |part: NodeClassField, words: &str| {
        resolved.unread.iter().any(|term| term.part == part && term.words == words)
    };
    let fields = [
        ("amiSelectorTerms", image || is_unread(NodeClassField::Image, &class.image)),
        ("subnetSelectorTerms", subnet || is_unread(NodeClassField::Subnets, &subnet_terms)),
        (
            "securityGroupSelectorTerms",
            groups || is_unread(NodeClassField::SecurityGroups, &group_terms),
        ),
    ];
    fields.into_iter().filter_map(|(field, is_known)| is_known.then_some(field)).collect()
}

/// Returns the difference between an instance and the image, subnets and security groups that
/// `class` selects now.
fn selector_drift(
    launched_with: &LaunchedWith,
    kind: &InstanceType,
    class: &NodeClass,
    resolved: &Resolved,
) -> Option<DriftedField> {
    let LaunchedWith { image, subnet, security_groups } = launched_with;
    let moved = |field: &str, is: String, now: String| DriftedField {
        field: field.to_owned(),
        is,
        declared: format!("{now} by node class {}", class.name),
    };
    let now = resolved.image(&class.image, Hardware::from_labels(&kind.labels));
    if let Some((is, now)) = image.as_ref().zip(now).filter(|(is, now)| is != now) {
        return Some(moved("image", is.to_string(), now.to_string()));
    }
    let now = resolved.subnets.get(&describe_selectors(&class.instance_settings.subnets));
    if let Some((is, now)) = subnet.as_ref().zip(now).filter(|(is, now)| !now.contains(*is)) {
        return Some(moved("subnet", is.to_string(), truncated_list(now)));
    }
    let now =
        resolved.security_groups.get(&describe_selectors(&class.instance_settings.security_groups));
    // Additional security groups are allowed: the load balancer controller and VPC tools attach
    // some.
    let groups = security_groups.as_ref().zip(now).filter(|(is, now)| !now.is_subset(is));
    groups.map(|(is, now)| moved("security groups", truncated_list(is), truncated_list(now)))
}

fn truncated_list<T: Display>(ids: &BTreeSet<T>) -> String {
    let named: Vec<String> = ids.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    let named = named.join(", ");
    match ids.len().saturating_sub(LISTED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Returns a warning for each used node class whose selectors could not be resolved.
pub fn unresolved_selectors(desired: &Desired, observed: &Observed) -> Vec<Problem> {
    let used: BTreeSet<_> = desired.pools.values().filter_map(|p| p.node_class.as_ref()).collect();
    let classes = used.into_iter().filter_map(|name| desired.node_classes.get(name));
    let of_class = |class: &NodeClass| {
        let concerns = |unread: &&UnresolvedTerm| {
            unread.words
                == match unread.part {
                    NodeClassField::Image => class.image.clone(),
                    NodeClassField::Subnets => describe_selectors(&class.instance_settings.subnets),
                    NodeClassField::SecurityGroups => {
                        describe_selectors(&class.instance_settings.security_groups)
                    }
                }
        };
        let warning = |unread: &UnresolvedTerm| {
            Problem::warning(
                class.origin.clone(),
                format!("EC2NodeClass {}", class.name),
                format!(
                    "the current {} is unknown, and no node is replaced for that: {}",
                    unread.part.words(),
                    unread.reason
                ),
            )
            .hint(
                "planning needs the permissions in deploy/aws/plan.json; a parameter outside \
                 /aws/service also needs ssm:GetParameter",
            )
        };
        observed.resolved.unread.iter().filter(concerns).map(warning).collect::<Vec<_>>()
    };
    classes.flat_map(of_class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::{Ec2Selector, Severity};
    use crate::model::observed::{Accelerator, ImageChoice};
    use crate::model::reason::RetireReason;
    use crate::testing::{Scenario, node_class};

    const TYPES: [&str; 2] = ["m5.large", "g4dn.xlarge"];

    /// Returns the resolution of `al2023@latest` for hardware with and without NVIDIA GPUs.
    fn images(plain: &str, nvidia: &str) -> Resolved {
        let choice = |hardware: Hardware| {
            let id = if hardware.accelerator == Accelerator::Nvidia { nvidia } else { plain };
            ImageChoice { id: id.into(), hardware }
        };
        let choices = Hardware::ALL.map(choice).to_vec();
        Resolved { images: [("al2023@latest".to_owned(), choices)].into(), ..Resolved::default() }
    }

    #[test]
    fn only_values_known_on_both_sides_can_differ() {
        let scenario = Scenario::new(&TYPES, 500, 512);
        let mut class = node_class();
        let tagged = |value: &str| Ec2Selector {
            tags: [("net".to_owned(), value.to_owned())].into(),
            ..Ec2Selector::default()
        };
        class.instance_settings.subnets = vec![tagged("a")];
        class.instance_settings.security_groups = vec![tagged("b")];
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect::<BTreeSet<_>>();
        let now = Resolved {
            subnets: [("tag net=a".to_owned(), ["subnet-1", "subnet-2"].map(Into::into).into())]
                .into(),
            security_groups: [("tag net=b".to_owned(), ids(&["sg-1", "sg-2"]))].into(),
            ..images("ami-1", "ami-2")
        };
        let made = |image: &str, subnet: &str, groups: &[&str]| LaunchedWith {
            image: Some(image.into()),
            subnet: Some(subnet.into()),
            security_groups: Some(ids(groups)),
        };
        let (plain, gpu, groups) = (TYPES[0], TYPES[1], &["sg-1", "sg-2"][..]);
        let many = ["sg-1", "sg-3", "sg-4", "sg-5", "sg-6"];
        for (launched_with, kind, resolved, expected) in [
            (made("ami-1", "subnet-2", groups), plain, &now, None),
            (made("ami-2", "subnet-1", groups), gpu, &now, None),
            (made("ami-2", "subnet-1", groups), plain, &now, Some(("image", "ami-2", "ami-1"))),
            (made("ami-1", "subnet-1", groups), gpu, &now, Some(("image", "ami-1", "ami-2"))),
            (
                made("ami-1", "subnet-3", &["sg-1"]),
                plain,
                &now,
                Some(("subnet", "subnet-3", "subnet-1, subnet-2")),
            ),
            (made("ami-1", "subnet-1", &["sg-1", "sg-2", "sg-9"]), plain, &now, None),
            (
                made("ami-1", "subnet-1", &many),
                plain,
                &now,
                Some(("security groups", "sg-1, sg-3, sg-4 and 2 more", "sg-1, sg-2")),
            ),
            (made("ami-0", "subnet-3", &["sg-1"]), plain, &Resolved::default(), None),
            (LaunchedWith::default(), plain, &now, None),
        ] {
            let kind = &scenario.catalog.types[kind];
            let found = selector_drift(&launched_with, kind, &class, resolved);
            let found = found.map(|m| (m.field, m.is, m.declared));
            let expected = expected.map(|(field, is, now)| {
                (field.to_owned(), is.to_owned(), format!("{now} by node class default"))
            });
            assert_eq!(found, expected, "{launched_with:?} {}", kind.name);
        }
        class.instance_settings.subnets.clear();
        class.image = "al2023@v20260101".to_owned();
        let other = selector_drift(
            &made("ami-0", "subnet-3", groups),
            &scenario.catalog.types[plain],
            &class,
            &now,
        );
        assert!(other.is_none(), "the selector was not resolved");
    }

    #[test]
    fn other_image_selector_with_the_same_image_is_no_drift() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        let declare = |scenario: &mut Scenario, image: &str| {
            let class = scenario.node_class();
            class.image = image.to_owned();
            let mut digests = (*class.spec_digests).clone();
            digests.insert("amiSelectorTerms".to_owned(), image.into());
            class.spec_digests = std::sync::Arc::new(digests);
        };
        let (old, new) = ("al2023@latest", "al2023@v20260101");
        declare(&mut scenario, old);
        scenario.observed.resolved = images("ami-1", "ami-1");
        scenario.step(3);
        scenario.age();
        declare(&mut scenario, new);
        let fields = |scenario: &Scenario| -> BTreeSet<String> {
            let retires = scenario.solve().target.retires.into_values();
            let field = |reason| {
                let RetireReason::Drifted { field, .. } = reason else { panic!("{reason:?}") };
                field
            };
            retires.map(|retire| field(retire.reason)).collect()
        };
        let by_text: BTreeSet<String> =
            ["amiSelectorTerms of node class default".to_owned()].into();
        assert_eq!(fields(&scenario), by_text, "nothing is known of the new text");
        let resolves_to = |scenario: &mut Scenario, image: &str| {
            let choices = images(image, image).images.remove(old).expect("the images");
            scenario.observed.resolved.images.insert(new.to_owned(), choices);
        };
        resolves_to(&mut scenario, "ami-1");
        assert_eq!(fields(&scenario), BTreeSet::new());
        // Also if an answer of the lookups is older than the nodes.
        let launched_at = scenario.instance().launched_at;
        scenario.observed.resolved.resolved_at = Some(launched_at);
        assert_eq!(fields(&scenario), BTreeSet::new());
        resolves_to(&mut scenario, "ami-2");
        assert_eq!(fields(&scenario), by_text, "the text changed, and the image with it");
        scenario.observed.resolved.resolved_at = None;
        assert_eq!(fields(&scenario), ["image".to_owned()].into());
        let unread = UnresolvedTerm {
            part: NodeClassField::Image,
            words: new.to_owned(),
            reason: "it is not resolved yet".to_owned(),
        };
        scenario.observed.resolved = Resolved { unread: [unread].into(), ..Resolved::default() };
        assert_eq!(fields(&scenario), BTreeSet::new(), "it is not resolved yet");
    }

    #[test]
    fn outdated_image_is_replaced_and_the_next_plan_is_empty() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.observed.resolved = images("ami-1", "ami-1");
        scenario.step(3);
        let before = scenario.observed.instances.len();
        scenario.observed.resolved = images("ami-2", "ami-2");
        let solution = scenario.solve();
        assert_eq!(solution.target.launches.len(), before);
        for retire in solution.target.retires.values() {
            let RetireReason::Drifted { field, is, .. } = &retire.reason else {
                panic!("{:?}", retire.reason)
            };
            assert_eq!((field.as_str(), is.as_str()), ("image", "ami-1"));
        }
        scenario.carry_out(&solution);
        let again = scenario.solve();
        assert!(again.target.launches.is_empty() && again.target.retires.is_empty());
        // A later failed read causes no change.
        scenario.observed.resolved = Resolved::default();
        assert!(scenario.solve().target.retires.is_empty());
    }

    #[test]
    fn other_text_with_the_same_result_is_no_drift() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        let selects = |value: &str| Ec2Selector {
            tags: [("net".to_owned(), value.to_owned())].into(),
            ..Ec2Selector::default()
        };
        let declare = |scenario: &mut Scenario, value: &str| {
            let class = scenario.node_class();
            class.instance_settings.subnets = vec![selects(value)];
            let mut digests = (*class.spec_digests).clone();
            digests.insert("subnetSelectorTerms".to_owned(), value.into());
            class.spec_digests = std::sync::Arc::new(digests);
        };
        declare(&mut scenario, "a");
        scenario.step(3);
        for instance in scenario.observed.instances.values_mut() {
            instance.launched_with.subnet = Some("subnet-1".into());
        }
        declare(&mut scenario, "b");
        let fields = |scenario: &Scenario| -> BTreeSet<String> {
            let retires = scenario.solve().target.retires.into_values();
            let field = |reason| {
                let RetireReason::Drifted { field, .. } = reason else { panic!("{reason:?}") };
                field
            };
            retires.map(|retire| field(retire.reason)).collect()
        };
        let by_text = "subnetSelectorTerms of node class default".to_owned();
        assert_eq!(fields(&scenario), [by_text].into(), "the result is unknown");
        let resolves_to = |scenario: &mut Scenario, subnet: &str| {
            let subnets = &mut scenario.observed.resolved.subnets;
            subnets.insert("tag net=b".to_owned(), [subnet.into()].into());
        };
        resolves_to(&mut scenario, "subnet-1");
        assert_eq!(fields(&scenario), BTreeSet::new());
        resolves_to(&mut scenario, "subnet-2");
        assert_eq!(fields(&scenario), ["subnet".to_owned()].into());
    }

    #[test]
    fn group_that_a_class_no_longer_selects_is_drift() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.step(2);
        let ids = |ids: &[&str]| -> BTreeSet<_> { ids.iter().map(|id| (*id).into()).collect() };
        for instance in scenario.observed.instances.values_mut() {
            instance.launched_with.security_groups = Some(ids(&["sg-a", "sg-b"]));
        }
        let class = scenario.node_class();
        let selector = Ec2Selector { id: Some("sg-a".to_owned()), ..Ec2Selector::default() };
        class.instance_settings.security_groups = vec![selector];
        let terms = describe_selectors(&class.instance_settings.security_groups);
        let mut digests = (*class.spec_digests).clone();
        digests.insert("securityGroupSelectorTerms".to_owned(), "changed".into());
        class.spec_digests = std::sync::Arc::new(digests);
        scenario.observed.resolved.security_groups.insert(terms.clone(), ids(&["sg-a"]));
        assert!(!scenario.solve().target.retires.is_empty());
        scenario.observed.resolved.security_groups.insert(terms, ids(&["sg-a", "sg-b"]));
        assert!(scenario.solve().target.retires.is_empty());
    }

    #[test]
    fn adopted_instance_does_not_drift_from_class_resolution() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.observed.resolved = images("ami-1", "ami-1");
        scenario.step(3);
        scenario.observed.resolved = images("ami-2", "ami-2");
        assert!(!scenario.solve().target.retires.is_empty());
        for instance in scenario.observed.instances.values_mut() {
            instance.tags.remove(tag::SPEC);
        }
        assert!(scenario.solve().target.retires.is_empty());
    }

    #[test]
    fn resolution_older_than_the_instance_is_ignored() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.observed.resolved = images("ami-2", "ami-2");
        scenario.step(1);
        let launched = scenario.observed.instances.values().map(|instance| instance.launched_at);
        let launched = launched.max().expect("an instance");
        for (asked, retires) in [(0, false), (1, true)] {
            let asked_at = Some(launched + SignedDuration::from_secs(asked));
            scenario.observed.resolved =
                Resolved { resolved_at: asked_at, ..images("ami-1", "ami-1") };
            assert_eq!(!scenario.solve().target.retires.is_empty(), retires, "{asked} s later");
        }
    }

    #[test]
    fn launched_image_is_the_image_that_drift_compares() {
        for (kind, image) in
            [("m5.large", "ami-1"), ("g4dn.xlarge", "ami-2"), ("m6g.large", "ami-1")]
        {
            let mut scenario = Scenario::new(&[kind], 500, 512);
            scenario.observed.resolved = images("ami-1", "ami-2");
            // The step itself checks that the next plan is empty.
            scenario.step(2);
            let made = scenario.observed.instances.values().map(|i| i.launched_with.image.clone());
            assert!(made.clone().all(|id| id == Some(image.into())), "{kind}: {made:?}");
        }
    }

    #[test]
    fn unresolved_selector_is_a_warning_of_its_node_class() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        assert_eq!(unresolved_selectors(&scenario.desired, &scenario.observed), []);
        let unread = |words: &str| UnresolvedTerm {
            part: NodeClassField::Image,
            words: words.to_owned(),
            reason: "read parameter failed: AccessDenied".to_owned(),
        };
        scenario.observed.resolved.unread = ["al2023@latest", "al2@latest"].map(unread).into();
        let found = unresolved_selectors(&scenario.desired, &scenario.observed);
        let [warning] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (warning.object.as_str(), warning.severity),
            ("EC2NodeClass default", Severity::Warning)
        );
        assert!(
            warning.message.ends_with("read parameter failed: AccessDenied"),
            "{}",
            warning.message
        );
        scenario.desired.pools.clear();
        assert_eq!(
            unresolved_selectors(&scenario.desired, &scenario.observed),
            [],
            "no pool uses it"
        );
    }

    #[test]
    fn withdrawn_offering_is_replaced_if_ec2_lists_offerings() {
        let mut scenario = Scenario::new(&["m5.large", "m4.large"], 500, 512);
        scenario.step(1);
        let launched = scenario.instance();
        launched.launched_at -= OFFERINGS_AGE_MAX * 2;
        let instance = launched.clone();
        let Instance { instance_type: kind, zone, .. } = &instance;
        let other = TYPES.iter().chain(&["m4.large"]).find(|name| **name != kind.as_str());
        let other: crate::model::ids::InstanceTypeName = (*other.expect("another type")).into();
        let offered = |types: &[&crate::model::ids::InstanceTypeName], zone: &str| {
            let zones: BTreeSet<_> = [zone.into()].into();
            let offered = types.iter().map(|kind| ((*kind).clone(), zones.clone()));
            Some(std::sync::Arc::new(offered.collect()))
        };
        let here = zone.as_str();
        for (of_ec2, is_withdrawn) in [
            (None, false),
            (offered(&[kind, &other], here), false),
            (offered(&[&other], here), true),
            (offered(&[kind, &other], "us-east-1z"), false),
        ] {
            scenario.catalog.offered.clone_from(&of_ec2);
            let retires = scenario.solve().target.retires;
            let because = |r: &crate::solver::Retire| matches!(&r.reason, RetireReason::Drifted { field, .. } if field == "offering");
            assert_eq!(retires.values().any(because), is_withdrawn, "{of_ec2:?}");
        }
        scenario.catalog.offered = offered(&[&other], here);
        let reserved = Instance { capacity_type: CapacityType::Reserved, ..instance.clone() };
        let young = Instance { launched_at: scenario.observed.taken_at, ..instance };
        for stays in [reserved, young] {
            let found =
                detect_cloud_drift(&stays, &node_class(), &scenario.catalog, &scenario.observed);
            assert!(found.is_none(), "{found:?}");
        }
    }
}
