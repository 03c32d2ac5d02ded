//! The desired state: pools and node classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::desired::{
    AmiFamily, Consolidation, EfaInterfaces, Expiry, Generation, InstanceSettings, KubeletSettings,
    NodeClass, Pool, PoolLimits, PoolRequirement,
};
use crate::model::ids::Origin;
use crate::model::requirement::{Operator, label};

pub(crate) fn requirement(key: &str, values: &[&str]) -> PoolRequirement {
    let values = values.iter().map(|value| (*value).into()).collect();
    PoolRequirement { key: key.into(), operator: Operator::In, values, min_values: None }
}

pub(crate) fn pool() -> Pool {
    Pool {
        name: "default".into(),
        origin: Origin::new("pool.yaml", 1),
        generation: Generation::V1beta1,
        node_class: Some("default".into()),
        labels: [label("type", "karpenter")].into(),
        annotations: BTreeMap::new(),
        do_not_disrupt: false,
        requirements: Vec::new(),
        taints: Vec::new(),
        startup_taints: Vec::new(),
        kubelet: None,
        limits: PoolLimits::default(),
        weight: 0,
        replicas: None,
        consolidation: Consolidation::WhenEmptyOrUnderutilized,
        consolidate_after: Some(jiff::SignedDuration::ZERO),
        budgets: Vec::new(),
        expire_after: Expiry::Never,
        termination_grace_period: None,
        unreadable: None,
    }
}

pub(crate) fn node_class() -> NodeClass {
    NodeClass {
        name: "default".into(),
        origin: Origin::new("pool.yaml", 20),
        generation: Generation::V1beta1,
        ami_family: AmiFamily::Al2023,
        windows_build: None,
        image: "al2023@latest".into(),
        kubelet: KubeletSettings::default(),
        ephemeral_storage: None,
        instance_store_raid0: false,
        reservations: Vec::new(),
        prefix_delegation: false,
        eks_caps_pods: false,
        efa: EfaInterfaces::Absent,
        user_data_digest: None,
        tags: BTreeMap::new(),
        instance_settings: InstanceSettings::default(),
        spec_digests: Arc::new([("userData".to_owned(), "x".into())].into()),
        unreadable: None,
    }
}
