//! Annotations that a pool sets on its nodes.
//!
//! Invariant: a pool sets no annotation of a domain whose annotations decide what Fleetwright,
//! Karpenter or Kubernetes do with a node. The author of a pool could mark a node as drained, or
//! give it the volumes of another node.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

/// Annotations of a node, by key.
pub type NodeAnnotations = BTreeMap<String, String>;

/// Annotation of a node that has the annotations of its launch. Its value is their digest.
pub const ANNOTATED: &str = "fleetwright.dev/annotations";

/// Domains whose annotations no pool sets, subdomains included.
const RESERVED_DOMAINS: [&str; 5] =
    ["fleetwright.dev", "karpenter.sh", "karpenter.k8s.aws", "kubernetes.io", "k8s.io"];

/// Returns true for a key that no pool sets on its nodes.
pub fn is_reserved_annotation(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let domain = domain.to_ascii_lowercase();
    RESERVED_DOMAINS.iter().any(|reserved| {
        domain.strip_suffix(reserved).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// Returns the SHA-256 of the annotations, in hex.
pub fn annotations_digest(annotations: &NodeAnnotations) -> String {
    hex::encode(Sha256::digest(serde_json::json!(annotations).to_string()))
}

/// Returns the annotations with [`ANNOTATED`].
pub fn marked(annotations: &NodeAnnotations) -> NodeAnnotations {
    let mut marked = annotations.clone();
    marked.insert(ANNOTATED.to_owned(), annotations_digest(annotations));
    marked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_with_a_meaning_are_reserved() {
        for key in [
            "fleetwright.dev/cordoned",
            "fleetwright.dev/grace-period-began-at",
            "Fleetwright.dev/cordoned",
            "karpenter.sh/do-not-disrupt",
            "karpenter.k8s.aws/ec2nodeclass-hash",
            "cluster-autoscaler.kubernetes.io/scale-down-disabled",
            "csi.volume.kubernetes.io/nodeid",
            "kubernetes.io/x",
            "node.alpha.kubernetes.io/ttl",
            "volumes.kubernetes.io/controller-managed-attach-detach",
            "container.apparmor.security.beta.k8s.io/x",
        ] {
            assert!(is_reserved_annotation(key), "{key}");
        }
        for key in ["team", "kubernetes.io", "example.com/kubernetes.io", "notkubernetes.io/x"] {
            assert!(!is_reserved_annotation(key), "{key}");
        }
    }

    #[test]
    fn mark_is_no_annotation_of_a_pool() {
        assert!(is_reserved_annotation(ANNOTATED));
        let annotations: NodeAnnotations = [("a".to_owned(), "b".to_owned())].into();
        let marked = marked(&annotations);
        assert_eq!(marked[ANNOTATED], annotations_digest(&annotations));
        assert_eq!((marked["a"].as_str(), marked.len()), ("b", 2));
    }

    #[test]
    fn digest_tells_annotations_apart() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            annotations_digest(&pairs.collect())
        };
        assert_eq!(of(&[("a", "b"), ("c", "d")]), of(&[("c", "d"), ("a", "b")]));
        assert_ne!(of(&[("a", "b")]), of(&[("a", "c")]));
        assert_ne!(of(&[("a", "b\",\"c\":\"d")]), of(&[("a", "b"), ("c", "d")]));
        assert!(of(&[("a", "b")]).len() <= 256, "the most that a tag holds");
    }
}
