//! What a machine is that nobody would launch any more: of an image behind `@latest` that was another, of subnets and
//! security groups that are selected otherwise by now, of a type that EC2 has withdrawn.
//!
//! Invariant: what is not known of either side is no difference; of an image only the one that a launch onto such
//! hardware would take now counts. Source: karpenter-provider-aws, `pkg/cloudprovider/drift.go`.

use std::collections::BTreeSet;
use std::fmt::Display;

use jiff::SignedDuration;

use super::drift::Moved;
use crate::catalog::{CapacityType, Catalog, InstanceType};
use crate::fleet::{Hardware, Instance, MadeWith, Observed, Part, Resolved, Unread, tag};
use crate::manifest::{Desired, NodeClass, Problem, Severity, in_words};

/// How long ago at most EC2 said what it offers: a machine that is younger may be of what it offers since.
const OFFERED_SAID_WITHIN: SignedDuration = SignedDuration::from_hours(6);

/// Most ids that a reason lists.
const LISTED_MAX: usize = 3;

/// Returns in what a machine is not what is launched for `class` now.
#[must_use]
pub(super) fn outdated(
    instance: &Instance,
    class: &NodeClass,
    (catalog, observed): (&Catalog, &Observed),
) -> Option<Moved> {
    let Instance { instance_type, zone, capacity_type, made_with, launched_at, .. } = instance;
    let Observed { resolved, taken_at, .. } = observed;
    // A reservation is kept whatever else is sold.
    if *capacity_type != CapacityType::Reserved
        && taken_at.duration_since(*launched_at) > OFFERED_SAID_WITHIN
        && catalog.is_withdrawn(instance_type, zone)
    {
        return Some(Moved {
            field: "offering".to_owned(),
            is: format!("{instance_type} in {zone}"),
            declared: "one that EC2 still has".to_owned(),
        });
    }
    // One that was taken over was launched by other words, which whoever adopted it did not promise to follow.
    instance.tags.get(tag::SPEC)?;
    if resolved.asked_at.is_some_and(|asked| asked <= *launched_at) {
        return None;
    }
    let kind = catalog.types.get(instance_type)?;
    selected_otherwise(made_with, kind, class, resolved)
}

/// Returns in what a machine of a type was made otherwise than `class` selects now.
fn selected_otherwise(
    made_with: &MadeWith,
    kind: &InstanceType,
    class: &NodeClass,
    resolved: &Resolved,
) -> Option<Moved> {
    let MadeWith { image, subnet, security_groups } = made_with;
    let moved = |field: &str, is: String, now: String| Moved {
        field: field.to_owned(),
        is,
        declared: format!("{now} by node class {}", class.name),
    };
    let now = resolved.image(&class.image, Hardware::of(&kind.labels));
    if let Some((is, now)) = image.as_ref().zip(now).filter(|(is, now)| is != now) {
        return Some(moved("image", is.to_string(), now.to_string()));
    }
    let now = resolved.subnets.get(&in_words(&class.machine.subnets));
    if let Some((is, now)) = subnet.as_ref().zip(now).filter(|(is, now)| !now.contains(*is)) {
        return Some(moved("subnet", is.to_string(), listed(now)));
    }
    let now = resolved.security_groups.get(&in_words(&class.machine.security_groups));
    // More than those somebody attached, as the load balancer controller and the VPC's own tools do.
    let groups = security_groups.as_ref().zip(now).filter(|(is, now)| !now.is_subset(is));
    groups.map(|(is, now)| moved("security groups", listed(is), listed(now)))
}

fn listed<T: Display>(ids: &BTreeSet<T>) -> String {
    let named: Vec<String> = ids.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    let named = named.join(", ");
    match ids.len().saturating_sub(LISTED_MAX) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Returns a warning for each node class of a pool of which it is not known what its words come to.
#[must_use]
pub fn unresolved(desired: &Desired, observed: &Observed) -> Vec<Problem> {
    let used: BTreeSet<_> = desired.pools.values().filter_map(|p| p.node_class.as_ref()).collect();
    let classes = used.into_iter().filter_map(|name| desired.node_classes.get(name));
    let of_class = |class: &NodeClass| {
        let concerns = |unread: &&Unread| {
            unread.words
                == match unread.part {
                    Part::Image => class.image.clone(),
                    Part::Subnets => in_words(&class.machine.subnets),
                    Part::SecurityGroups => in_words(&class.machine.security_groups),
                }
        };
        let warning = |unread: &Unread| {
            Problem {
            origin: class.origin.clone(),
            severity: Severity::Warning,
            object: format!("EC2NodeClass {}", class.name),
            message: format!(
                "which {} it means now is not known, and no node is replaced for that: {}",
                unread.part.words(),
                unread.reason
            ),
            hint: Some(
                "whoever plans needs what deploy/aws/plan.json permits; a parameter elsewhere than \
                 under /aws/service needs ssm:GetParameter on it as well"
                    .to_owned(),
            ),
        }
        };
        observed.resolved.unread.iter().filter(concerns).map(warning).collect::<Vec<_>>()
    };
    classes.flat_map(of_class).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Accelerator, ImageChoice};
    use crate::manifest::MachineSelector;
    use crate::solve::RetireReason;
    use crate::story::{Story, node_class};

    const TYPES: [&str; 2] = ["m5.large", "g4dn.xlarge"];

    /// Returns what `al2023@latest` is for machines with GPUs and for those without.
    fn images(plain: &str, nvidia: &str) -> Resolved {
        let choice = |hardware: Hardware| {
            let id = if hardware.accelerator == Accelerator::Nvidia { nvidia } else { plain };
            ImageChoice { id: id.into(), hardware }
        };
        let choices = Hardware::ALL.map(choice).to_vec();
        Resolved { images: [("al2023@latest".to_owned(), choices)].into(), ..Resolved::default() }
    }

    #[test]
    fn only_what_is_known_of_both_sides_can_differ() {
        let story = Story::new(&TYPES, 500, 512);
        let mut class = node_class();
        let tagged = |value: &str| MachineSelector {
            tags: [("net".to_owned(), value.to_owned())].into(),
            ..MachineSelector::default()
        };
        class.machine.subnets = vec![tagged("a")];
        class.machine.security_groups = vec![tagged("b")];
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect::<BTreeSet<_>>();
        let now = Resolved {
            subnets: [("tag net=a".to_owned(), ["subnet-1", "subnet-2"].map(Into::into).into())]
                .into(),
            security_groups: [("tag net=b".to_owned(), ids(&["sg-1", "sg-2"]))].into(),
            ..images("ami-1", "ami-2")
        };
        let made = |image: &str, subnet: &str, groups: &[&str]| MadeWith {
            image: Some(image.into()),
            subnet: Some(subnet.into()),
            security_groups: Some(ids(groups)),
        };
        let (plain, gpu, groups) = (TYPES[0], TYPES[1], &["sg-1", "sg-2"][..]);
        let many = ["sg-1", "sg-3", "sg-4", "sg-5", "sg-6"];
        for (made_with, kind, resolved, expected) in [
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
            (MadeWith::default(), plain, &now, None),
        ] {
            let kind = &story.catalog.types[kind];
            let found = selected_otherwise(&made_with, kind, &class, resolved);
            let found = found.map(|m| (m.field, m.is, m.declared));
            let expected = expected.map(|(field, is, now)| {
                (field.to_owned(), is.to_owned(), format!("{now} by node class default"))
            });
            assert_eq!(found, expected, "{made_with:?} {}", kind.name);
        }
        class.machine.subnets.clear();
        class.image = "al2023@v20260101".to_owned();
        let other = selected_otherwise(
            &made("ami-0", "subnet-3", groups),
            &story.catalog.types[plain],
            &class,
            &now,
        );
        assert!(other.is_none(), "nobody asked what that comes to");
    }

    #[test]
    fn a_machine_of_an_older_image_is_replaced_and_then_nothing_is_to_be_done() {
        let mut story = Story::new(&["m5.large"], 500, 512);
        story.observed.resolved = images("ami-1", "ami-1");
        story.step(3);
        let before = story.observed.instances.len();
        story.observed.resolved = images("ami-2", "ami-2");
        let solution = story.solve();
        assert_eq!(solution.target.launches.len(), before);
        for retire in solution.target.retires.values() {
            let RetireReason::Drifted { field, is, .. } = &retire.reason else {
                panic!("{:?}", retire.reason)
            };
            assert_eq!((field.as_str(), is.as_str()), ("image", "ami-1"));
        }
        story.carry_out(&solution);
        let again = story.solve();
        assert!(again.target.launches.is_empty() && again.target.retires.is_empty());
        // A read that fails later takes nothing away.
        story.observed.resolved = Resolved::default();
        assert!(story.solve().target.retires.is_empty());
    }

    #[test]
    fn a_machine_that_was_taken_over_is_not_held_to_what_a_class_comes_to() {
        let mut story = Story::new(&["m5.large"], 500, 512);
        story.observed.resolved = images("ami-1", "ami-1");
        story.step(3);
        story.observed.resolved = images("ami-2", "ami-2");
        assert!(!story.solve().target.retires.is_empty());
        for instance in story.observed.instances.values_mut() {
            instance.tags.remove(tag::SPEC);
        }
        assert!(story.solve().target.retires.is_empty());
    }

    #[test]
    fn what_was_asked_before_a_machine_was_launched_says_nothing_of_it() {
        let mut story = Story::new(&["m5.large"], 500, 512);
        story.observed.resolved = images("ami-2", "ami-2");
        story.step(1);
        let launched = story.observed.instances.values().map(|instance| instance.launched_at);
        let launched = launched.max().expect("a machine");
        for (asked, goes) in [(0, false), (1, true)] {
            let asked_at = Some(launched + SignedDuration::from_secs(asked));
            story.observed.resolved = Resolved { asked_at, ..images("ami-1", "ami-1") };
            assert_eq!(!story.solve().target.retires.is_empty(), goes, "{asked} s later");
        }
    }

    #[test]
    fn a_machine_is_launched_from_the_image_that_it_is_held_to() {
        for (kind, image) in
            [("m5.large", "ami-1"), ("g4dn.xlarge", "ami-2"), ("m6g.large", "ami-1")]
        {
            let mut story = Story::new(&[kind], 500, 512);
            story.observed.resolved = images("ami-1", "ami-2");
            // Nothing is to be done afterwards, which the step itself holds.
            story.step(2);
            let made = story.observed.instances.values().map(|i| i.made_with.image.clone());
            assert!(made.clone().all(|id| id == Some(image.into())), "{kind}: {made:?}");
        }
    }

    #[test]
    fn what_could_not_be_looked_up_is_a_warning_of_the_class_that_says_it() {
        let mut story = Story::new(&["m5.large"], 500, 512);
        assert_eq!(unresolved(&story.desired, &story.observed), []);
        let unread = |words: &str| Unread {
            part: Part::Image,
            words: words.to_owned(),
            reason: "read parameter failed: AccessDenied".to_owned(),
        };
        story.observed.resolved.unread = ["al2023@latest", "al2@latest"].map(unread).into();
        let found = unresolved(&story.desired, &story.observed);
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
        story.desired.pools.clear();
        assert_eq!(unresolved(&story.desired, &story.observed), [], "no pool uses it");
    }

    #[test]
    fn a_machine_that_ec2_offers_no_more_is_replaced_where_ec2_says_so() {
        let mut story = Story::new(&["m5.large", "m4.large"], 500, 512);
        story.step(1);
        let launched = story.observed.instances.values_mut().next().expect("launched");
        launched.launched_at -= OFFERED_SAID_WITHIN * 2;
        let instance = launched.clone();
        let Instance { instance_type: kind, zone, .. } = &instance;
        let other = TYPES.iter().chain(&["m4.large"]).find(|name| **name != kind.as_str());
        let other: crate::ids::InstanceTypeName = (*other.expect("another type")).into();
        let offered = |types: &[&crate::ids::InstanceTypeName], zone: &str| {
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
            story.catalog.offered.clone_from(&of_ec2);
            let retires = story.solve().target.retires;
            let because = |r: &crate::solve::Retire| matches!(&r.reason, RetireReason::Drifted { field, .. } if field == "offering");
            assert_eq!(retires.values().any(because), is_withdrawn, "{of_ec2:?}");
        }
        story.catalog.offered = offered(&[&other], here);
        let reserved = Instance { capacity_type: CapacityType::Reserved, ..instance.clone() };
        let young = Instance { launched_at: story.observed.taken_at, ..instance };
        for stays in [reserved, young] {
            let found = outdated(&stays, &node_class(), (&story.catalog, &story.observed));
            assert!(found.is_none(), "{found:?}");
        }
    }
}
