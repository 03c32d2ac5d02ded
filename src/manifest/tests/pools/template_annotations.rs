//! Annotations in the template of a pool.

use super::*;
use crate::model::node_annotations::NodeAnnotations;

fn annotated(annotations: &str) -> String {
    v1(&format!("    metadata: {{annotations: {{{annotations}}}}}\n"), "")
}

#[test]
fn template_annotations_are_read() {
    let plain = pool(&annotated("x: z, Example.com/Owner: ''"));
    let expected = [("Example.com/Owner", ""), ("x", "z")];
    let expected: NodeAnnotations =
        expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    assert_eq!((plain.annotations, plain.do_not_disrupt), (expected, false));
    assert!(pool(&annotated("")).annotations.is_empty());
    let old = pool(&provisioner("  annotations: {x: z}\n"));
    assert_eq!(old.annotations["x"], "z");
}

#[test]
fn reserved_template_annotations_are_set_on_no_node() {
    let protected = pool(&annotated("karpenter.sh/do-not-disrupt: 'true', x: z"));
    assert!(protected.do_not_disrupt);
    assert_eq!(protected.annotations.into_keys().collect::<Vec<_>>(), ["x"]);
    for key in [
        "cluster-autoscaler.kubernetes.io/scale-down-disabled",
        "csi.volume.kubernetes.io/nodeid",
        "fleetwright.dev/cordoned",
        "fleetwright.dev/grace-period-began-at",
        "karpenter.sh/do-not-disrupt",
        "node.alpha.kubernetes.io/ttl",
        "volumes.kubernetes.io/controller-managed-attach-detach",
    ] {
        let file = annotated(&format!("{key}: 60h, x: z"));
        let path = "spec.template.metadata.annotations";
        assert_eq!(
            problem(&file),
            format!("warning a.yaml:9: NodePool web: `{path}` is set on no node: {key}")
        );
        let pool = read_text(&file).pools.remove("web").expect("the pool");
        assert!(!pool.do_not_disrupt, "{key}");
        assert_eq!(pool.annotations.into_keys().collect::<Vec<_>>(), ["x"], "{key}");
    }
}

#[test]
fn template_annotations_that_the_api_server_refuses_are_errors() {
    let long = format!("x: {}", "z".repeat(64 << 10));
    for (annotations, expected) in [
        ("'a b': z", "has the annotation key `a b`, which is not valid"),
        ("a/b/c: z", "has the annotation key `a/b/c`, which is not valid"),
        ("-x: z", "has the annotation key `-x`, which is not valid"),
        ("_.com/x: z", "has the annotation key `_.com/x`, which is not valid"),
        ("x: 1", "a string"),
        (long.as_str(), "has 65537 bytes, more than 65536; shorten the values"),
    ] {
        let desired = read_text(&annotated(annotations));
        let is_expected = |line: &String| {
            line.starts_with("error a.yaml:9: NodePool web: ") && line.contains(expected)
        };
        assert!(lines(&desired).iter().any(is_expected), "{:?}", lines(&desired));
        assert!(desired.pools["web"].unreadable.is_some(), "it launches no nodes");
    }
}
