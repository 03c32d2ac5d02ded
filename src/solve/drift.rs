//! What makes a node differ from what its pool declares.

use sha2::{Digest as _, Sha256};

use crate::ids::hex;
use crate::manifest::{NodeClass, Pool};

/// Version of the projection below. A release that projects differently raises it; digests of
/// another version say nothing, so that an upgrade replaces no node.
const VERSION: &str = "v1";

/// Bytes of the hash that are kept: enough to tell specifications apart, short enough for a tag.
const DIGEST_BYTES: usize = 16;

/// Returns a digest of everything in pool and node class that a running node cannot take over.
///
/// Requirements are left out: a node stays as long as its labels satisfy them. Limits, weight and
/// disruption settings never concern a running node.
#[must_use]
pub(super) fn spec_digest(pool: &Pool, class: &NodeClass) -> String {
    let taints = |list: &[crate::pod::Taint]| {
        let mut sorted: Vec<String> =
            list.iter().map(|t| format!("{}={}:{:?}", t.key, t.value, t.effect)).collect();
        sorted.sort();
        sorted
    };
    let parts = serde_json::json!({
        "labels": pool.labels,
        "annotations": pool.annotations,
        "taints": taints(&pool.taints),
        "startup_taints": taints(&pool.startup_taints),
        "node_class": class.name,
        "class_spec": class.spec_digest,
    });
    let digest = Sha256::digest(parts.to_string().as_bytes());
    format!("{VERSION}:{}", hex(&digest[..DIGEST_BYTES]))
}

/// Returns whether two digests say that the specification changed.
#[must_use]
pub(super) fn changed(running: &str, declared: &str) -> bool {
    let version = |text: &str| text.split_once(':').map(|(version, _)| version.to_owned());
    version(running) == version(declared) && running != declared
}
