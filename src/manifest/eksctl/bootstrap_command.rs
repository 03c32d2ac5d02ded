//! `overrideBootstrapCommand`: a `NodeConfig` of nodeadm, or a script. Only its instance store is
//! read.

use super::super::decode::{FieldMap, shorten};
use super::super::yaml::{YamlNode, load};
use crate::model::desired::AmiFamily;

/// Settings of the kubelet that change what a node leaves for pods, as in files and as flags.
const KUBELET_SIZES: [&str; 10] = [
    "maxPods",
    "max-pods",
    "podsPerCore",
    "pods-per-core",
    "kubeReserved",
    "kube-reserved",
    "systemReserved",
    "system-reserved",
    "evictionHard",
    "eviction-hard",
];

/// Reads the bootstrap command of a group. Returns true if the instance store holds the kubelet's
/// data. Reports settings that change what a node leaves for pods, because they are not read.
pub(super) fn uses_instance_store(map: &FieldMap<'_>, family: AmiFamily) -> bool {
    let Some(field) = map.get("overrideBootstrapCommand") else { return false };
    let Some(text) = field.script() else { return false };
    if let Some(name) = KUBELET_SIZES.iter().find(|name| text.contains(**name)) {
        field.warn(
            format_args!(
                "sets `{name}` and is not read: new nodes may have less room than this plan counts"
            ),
            "set it in `maxPodsPerNode` or `kubeletExtraConfig`, which are read".to_owned(),
        );
    }
    // Only nodeadm, of Amazon Linux 2023, has the setting.
    let strategy = local_storage(&text).filter(|_| family == AmiFamily::Al2023);
    match strategy.as_deref() {
        Some("RAID0") => true,
        // The disks of `Mount` hold no data of the kubelet.
        None | Some("Mount") => false,
        Some(other) => {
            field.warn(
                format_args!(
                    "has the local storage strategy `{}`, which is not read: pods get the disk of \
                     the root volume in this plan",
                    shorten(other)
                ),
                "use RAID0, which is read".to_owned(),
            );
            false
        }
    }
}

/// Returns the strategy for local storage of a `NodeConfig`.
fn local_storage(text: &str) -> Option<String> {
    let strategy = |root: &YamlNode<'_>| {
        let storage = root.get("spec")?.get("instance")?.get("localStorage")?;
        Some(storage.get("strategy")?.text()?.to_owned())
    };
    load(text).documents.iter().find_map(|document| strategy(&document.root))
}
