//! Pods that nobody is asked to place: kube-scheduler does not, or not yet, or not with what a plan
//! can foresee. They are counted and named, with what would have to change.

use super::Input;
use super::target::Rejection;
use crate::demand::{Mount, PodGroup, Unsupported};
use crate::pod::PodSpec;

/// Returns why pods of `group` are set aside, and what would let them be planned.
pub(super) fn aside(
    feature: Unsupported,
    group: &PodGroup,
    input: &Input,
    offerings: u32,
) -> (Rejection, Option<String>) {
    let nothing = PodSpec::default();
    let workload = input.desired.workloads.get(&group.workload);
    let spec = workload.map_or(&nothing, |workload| &workload.template.spec);
    let (reason, detail, nearest) = match feature {
        Unsupported::Volumes => {
            let waits = group.shape.volumes.iter().find_map(Mount::wait_text);
            let why = || "where its volumes are is not known".to_owned();
            ("volume-not-ready", waits.unwrap_or_else(why), None)
        }
        Unsupported::OtherScheduler => (
            "other-scheduler",
            format!(
                "{} places the pod, and only what default-scheduler does is foreseen",
                spec.scheduler_name.as_deref().unwrap_or("another scheduler")
            ),
            Some("leave schedulerName out, or let its nodes be declared by a pool of their own"),
        ),
        Unsupported::SchedulingGates => (
            "gated",
            format!("the pod waits for its scheduling gates: {}", list(&spec.scheduling_gates)),
            Some("remove the gates: until they are gone the pod needs no node"),
        ),
        Unsupported::ResourceClaims => (
            "resource-claims",
            format!(
                "the pod claims devices ({}), and which nodes have them is not foreseen",
                list(&spec.resource_claims)
            ),
            Some("ask for the devices as an extended resource, such as nvidia.com/gpu"),
        ),
        Unsupported::NodeName => {
            let name = group.shape.nodes.name.as_deref().unwrap_or_default();
            let why = if input.observed.nodes.contains_key(name) {
                "which has no room for it"
            } else {
                "which is not there, and a node to come has a name of its own"
            };
            (
                "names-its-node",
                format!("the pod names node {name}, {why}"),
                Some("leave nodeName out, and say by labels which nodes suit"),
            )
        }
    };
    let rejection = Rejection { reason: reason.to_owned(), detail, count: offerings };
    (rejection, nearest.map(str::to_owned))
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "unnamed".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::pod::PodSpec;
    use crate::story::{Story, workload_id};

    /// Why two pods with `spec` changed have no place, and what is said to help.
    fn told(change: impl Fn(&mut PodSpec)) -> (u32, String, String, Option<String>) {
        let mut story = Story::new(&["m5.large"], 500, 1);
        story.scale(2);
        let workload = story.desired.workloads.get_mut(&workload_id()).expect("declared");
        change(&mut Arc::make_mut(&mut workload.template).spec);
        let target = story.solve().target;
        assert!(target.launches.is_empty() && target.placements.is_empty());
        let [unplaced] = target.unplaced.try_into().expect("one workload");
        let rejection = unplaced.rejections.into_iter().next().expect("a reason");
        (unplaced.pods, rejection.reason, rejection.detail, unplaced.nearest)
    }

    #[test]
    fn pods_that_are_set_aside_are_counted_with_a_reason_of_their_own() {
        type Case = (&'static str, fn(&mut PodSpec), &'static str);
        let cases: [Case; 4] = [
            (
                "other-scheduler",
                |spec| spec.scheduler_name = Some("volcano".to_owned()),
                "volcano places the pod, and only what default-scheduler does is foreseen",
            ),
            (
                "gated",
                |spec| spec.scheduling_gates = vec!["quota".to_owned(), "net".to_owned()],
                "the pod waits for its scheduling gates: quota, net",
            ),
            (
                "resource-claims",
                |spec| spec.resource_claims = vec!["gpu".to_owned()],
                "the pod claims devices (gpu), and which nodes have them is not foreseen",
            ),
            (
                "names-its-node",
                |spec| spec.node_name = Some("n7".to_owned()),
                "the pod names node n7, which is not there, and a node to come has a name of its own",
            ),
        ];
        for (reason, change, detail) in cases {
            let (pods, found, said, nearest) = told(change);
            assert_eq!((pods, found.as_str(), said.as_str()), (2, reason, detail));
            assert!(nearest.is_some(), "{reason}: something would help");
        }
    }
}
