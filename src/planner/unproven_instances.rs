//! Instances with our tags that nothing proves to be ours.

use jiff::SignedDuration;

use crate::model::observed::{Instance, Observed, tag};
use crate::plan::wire::Diagnostic;

/// A node joins within this time after the launch of its instance.
const JOINS_WITHIN: SignedDuration = SignedDuration::from_mins(30);

/// Returns a warning for each instance that has our tags, has no node, and was not launched by a
/// fleet request, or by that of another launcher. Its tags may be from anyone with
/// `ec2:CreateTags`.
pub(super) fn warnings(observed: &Observed) -> Vec<Diagnostic> {
    let nodes = observed.nodes_by_instance();
    let is_unproven = |instance: &&Instance| {
        instance.is_active()
            && instance.is_managed_by(&observed.cluster.name)
            && !instance.is_launched_by_fleet()
            && !nodes.contains_key(&instance.id)
            && observed.taken_at.duration_since(instance.launched_at) > JOINS_WITHIN
    };
    let warning = |instance: &Instance| {
        let why = match instance.other_launcher() {
            Some(key) => format!("carries the tag {key} of another launcher"),
            None => format!("lacks the tag {} of a launch", tag::FLEET),
        };
        let message = format!(
            "has the tags of this cluster and no node, and {why}: the controller does not \
             terminate it"
        );
        let hint = format!(
            "if it belongs to another owner, remove its tags {} and {}; otherwise terminate it",
            tag::CLUSTER,
            tag::POOL
        );
        Diagnostic::warning(format!("instance {}", instance.id), message).hint(hint)
    };
    observed.instances.values().filter(is_unproven).map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::world::managed_instance;

    #[test]
    fn instance_with_our_tags_only_is_named() {
        let found = |tags: &[(&str, &str)]| {
            let taken_at = "2026-11-21T10:00:00Z".parse().expect("a time");
            let world = Observed::of_cluster("c", taken_at);
            warnings(&world.with_instance(managed_instance("i-1", "c").with_tags(tags))).len()
        };
        assert_eq!(found(&[]), 1);
        assert_eq!(found(&[(tag::FLEET, "fleet-1")]), 0);
        for key in tag::OTHER_LAUNCHERS {
            assert_eq!(found(&[(tag::FLEET, "fleet-1"), (key, "x")]), 1, "{key}");
        }
        assert_eq!(found(&[(tag::CLUSTER, "other")]), 0);
    }
}
