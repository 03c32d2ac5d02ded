//! Settings that affect a node's allocatable.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::desired::{AmiFamily, EfaInterfaces, KubeletSettings, NodeClass, Pool};

/// Settings of a pool and its node class that affect a node's allocatable.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeSettings {
    /// AMI family.
    pub family: AmiFamily,
    /// Kubelet settings.
    pub kubelet: KubeletSettings,
    /// Size in bytes of the volume that holds the kubelet's data; `None` means the family's
    /// default.
    pub ephemeral_storage: Option<i64>,
    /// Instance-store disks hold the kubelet's data.
    pub instance_store_raid0: bool,
    /// Pods get addresses from prefixes of 16.
    pub prefix_delegation: bool,
    /// EKS caps the pods of a node.
    pub eks_caps_pods: bool,
    /// Elastic fabric adapters of the instances.
    pub efa: EfaInterfaces,
    /// Digests of the class' specification. Measurements of nodes with another image or other user
    /// data do not apply.
    pub class_digests: Arc<BTreeMap<String, Arc<str>>>,
}

impl NodeSettings {
    /// Returns the settings of `pool` with `class`; the pool's kubelet settings win if present.
    pub fn new(pool: &Pool, class: &NodeClass) -> Self {
        Self {
            family: class.ami_family,
            kubelet: pool.kubelet.clone().unwrap_or_else(|| class.kubelet.clone()),
            ephemeral_storage: class.ephemeral_storage,
            instance_store_raid0: class.instance_store_raid0,
            prefix_delegation: class.prefix_delegation,
            eks_caps_pods: class.eks_caps_pods,
            efa: class.efa,
            class_digests: class.spec_digests.clone(),
        }
    }
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            family: AmiFamily::Al2023,
            kubelet: KubeletSettings::default(),
            ephemeral_storage: None,
            instance_store_raid0: false,
            prefix_delegation: false,
            eks_caps_pods: false,
            efa: EfaInterfaces::All,
            class_digests: Arc::default(),
        }
    }
}
