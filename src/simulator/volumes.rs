//! Claims and volumes: created and bound for pods, and retained when pods move.
//!
//! The world simulates three components. The StatefulSet controller creates a claim for each
//! template and ordinal. The provisioner creates a volume when the first pod of a claim is
//! scheduled, or immediately if the storage class says so. The EBS driver registers attach limits
//! on nodes, in worlds with volumes. Volumes are never deleted. Generic ephemeral claims leave no
//! trace and are not stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::state::{PodKey, WorldState};
use crate::catalog::ebs_volumes_by_name;
use crate::demand::{Claims, PodShape};
use crate::model::ids::{InstanceTypeName, LabelValue, Labels, Namespace, NodeName};
use crate::model::observed::{Node, Pod};
use crate::model::pod::{Expression, NodeTerm, Volume, VolumeSource};
use crate::model::requirement::{Operator, key};
use crate::model::storage::{
    Claim, ClaimPhase, EBS_DRIVER, NO_PROVISIONER, PersistentVolume, Storage, StorageClass,
    attach_resource, csi_driver, is_file_system,
};
use crate::model::units::Resources;

impl WorldState {
    /// Adds delivered storage objects and binds claims that wait for no pod. Existing bindings
    /// stay.
    pub(super) fn deliver_storage(&mut self, declared: &Storage) {
        let Storage { classes, volumes, claims, attach_limits: _, attached: _ } = declared;
        for (name, class) in classes {
            let current = self.storage.classes.get(name).and_then(|current| current.created_at);
            let created_at = Some(current.unwrap_or(self.now));
            let class = StorageClass { created_at, ..class.clone() };
            self.storage.classes.insert(name.clone(), class);
        }
        for (name, volume) in volumes {
            self.storage.volumes.entry(name.clone()).or_insert_with(|| volume.clone());
        }
        for (namespace, claims) in claims {
            let current = self.storage.claims.entry(namespace.clone()).or_default();
            for (name, claim) in claims {
                current.entry(name.clone()).or_insert_with(|| claim.clone());
            }
        }
        // The volume controller is faster than the next reader of the claims.
        self.bind_pending_claims();
    }

    /// Creates the claims of a new pod, unless they exist.
    pub(super) fn create_claims(&mut self, (namespace, pod): &PodKey, template: &str) {
        let Some(template) = self.templates.get(template).cloned() else { return };
        for Volume { name, source } in &template.spec.volumes {
            let VolumeSource::ClaimTemplate(class) = source else { continue };
            let claims = self.storage.claims.entry(namespace.clone()).or_default();
            let claim = Claim { storage_class: class.clone(), ..Claim::default() };
            claims.entry(format!("{name}-{pod}")).or_insert(claim);
        }
    }

    /// Returns the shape of a pod with its current volumes, or `None` if its template is unknown.
    pub(super) fn pod_shape(&mut self, pod: &Pod) -> Option<Arc<PodShape>> {
        let mut shape = self.shape(&pod.namespace, &pod.template)?;
        if let Some(owner) = pod.owner.as_ref().filter(|_| shape.default_spread.is_some()) {
            shape = Arc::new(PodShape::clone(&shape).spread_by_default(owner.kind));
        }
        Some(self.with_volumes(shape, &pod.template, Some(&pod.name)))
    }

    pub(super) fn with_volumes(
        &self,
        shape: Arc<PodShape>,
        template: &str,
        pod: Option<&str>,
    ) -> Arc<PodShape> {
        let template = self.templates.get(template);
        let volumes = template.map_or(&[][..], |template| &template.spec.volumes);
        if volumes.is_empty() {
            return shape;
        }
        Arc::new(Claims::from_observed(&self.storage).with_volumes(&shape, volumes, pod))
    }

    /// Provisions the missing volumes of a scheduled pod.
    pub(super) fn provision_pod_volumes(&mut self, pod: &PodKey, node: &NodeName) {
        let template = self.pods.get(pod).and_then(|pod| self.templates.get(&*pod.template));
        let Some(template) = template.cloned() else { return };
        let zone = self.nodes.get(node).and_then(node_zone);
        for Volume { name, source } in &template.spec.volumes {
            let claim = match source {
                VolumeSource::Claim(claim) => claim.clone(),
                VolumeSource::ClaimTemplate(_) => format!("{name}-{}", pod.1),
                VolumeSource::EphemeralClaim(_)
                | VolumeSource::HostPath
                | VolumeSource::EmptyDir
                | VolumeSource::Ebs(_)
                | VolumeSource::NetworkDisk(_)
                | VolumeSource::InTree(_)
                | VolumeSource::Other => continue,
            };
            let current = self.storage.claim(&pod.0, &claim);
            if current.is_some_and(|current| is_new(current) && current.volume_name.is_none()) {
                self.provision(&pod.0, &claim, zone.as_ref());
            }
        }
    }

    /// Binds claims that wait for no pod: claims with a named or reserved volume, and claims of
    /// classes with immediate binding.
    pub(super) fn bind_pending_claims(&mut self) {
        let Storage { claims, .. } = &self.storage;
        let of = |(namespace, claims): (&Namespace, &BTreeMap<String, Claim>)| {
            let new = claims.iter().filter(|(_, claim)| is_new(claim));
            new.map(|(name, _)| (namespace.clone(), name.clone())).collect::<Vec<_>>()
        };
        let pending: Vec<(Namespace, String)> = claims.iter().flat_map(of).collect();
        for (namespace, name) in pending {
            if let Some(volume) = self.existing_volume(&namespace, &name) {
                self.bind_claim(&namespace, &name, volume);
            } else {
                self.provision_immediately(&namespace, &name);
            }
        }
    }

    /// Returns an existing volume for a claim.
    fn existing_volume(&self, namespace: &Namespace, name: &str) -> Option<String> {
        let claim = self.storage.claim(namespace, name)?;
        if let Some(requested) = &claim.volume_name {
            return self.storage.volumes.contains_key(requested).then(|| requested.clone());
        }
        let full = format!("{namespace}/{name}");
        let volumes = &self.storage.volumes;
        let mut reserved = volumes.iter().filter(|(_, v)| v.claim.as_deref() == Some(&full));
        let (class, is_provisioned) = match self.storage_class(claim) {
            Some((name, class)) => {
                (name, class.wait_for_first_consumer && class.provisioner != NO_PROVISIONER)
            }
            None => (claim.storage_class.as_deref().unwrap_or_default(), false),
        };
        let free = volumes.iter().filter(|(_, v)| !is_provisioned && v.suits(claim, class));
        let chosen = reserved.next().or_else(|| free.min_by_key(|(_, v)| v.choice_order()));
        chosen.map(|(name, _)| name.clone())
    }

    /// Provisions a volume for a claim with immediate binding.
    fn provision_immediately(&mut self, namespace: &Namespace, name: &str) {
        let claim = self.storage.claim(namespace, name).filter(|c| c.volume_name.is_none());
        let class = claim.and_then(|claim| self.storage_class(claim));
        let Some((_, class)) = class else { return };
        if class.wait_for_first_consumer || class.provisioner == NO_PROVISIONER {
            return;
        }
        let expressions = class.allowed_topologies.iter().flat_map(|term| &term.expressions);
        let mut zonal = expressions.filter(|expression| expression.key.as_str() == key::ZONE);
        let allowed = zonal.next().and_then(|zone| zone.values.first()).cloned();
        let zone = allowed.or_else(|| self.nodes.values().find_map(node_zone));
        // Without nodes, the provisioner knows no zone.
        if zone.is_some() || is_file_system(csi_driver(&class.provisioner)) {
            self.provision(namespace, name, zone.as_ref());
        }
    }

    /// Returns the class of a claim with its name.
    fn storage_class(&self, claim: &Claim) -> Option<(&str, &StorageClass)> {
        let classes = &self.storage.classes;
        let found = match &claim.storage_class {
            Some(name) => classes.get_key_value(name),
            None => classes
                .iter()
                .filter(|(_, class)| class.is_default)
                .max_by_key(|(_, class)| class.created_at),
        };
        found.map(|(name, class)| (name.as_str(), class))
    }

    /// Creates a volume in `zone` and binds the claim to it.
    fn provision(&mut self, namespace: &Namespace, name: &str, zone: Option<&LabelValue>) {
        let Some(claim) = self.storage.claim(namespace, name).cloned() else { return };
        let class = self.storage_class(&claim);
        let driver =
            class.map_or(EBS_DRIVER, |(_, class)| csi_driver(&class.provisioner)).to_owned();
        let zone = zone.filter(|_| !is_file_system(&driver));
        let term = |zone: &LabelValue| NodeTerm {
            expressions: vec![Expression {
                key: key::ZONE.into(),
                operator: Operator::In,
                values: vec![zone.clone()],
            }],
            fields: Vec::new(),
        };
        let volume = PersistentVolume {
            labels: Labels::default(),
            node_terms: zone.map(term).into_iter().collect(),
            driver: Some(driver),
            storage_class: claim.storage_class,
            claim: None,
            capacity: claim.request,
            access_modes: claim.access_modes,
        };
        let id = format!("pvc-{}", self.next_uid());
        self.storage.volumes.insert(id.clone(), volume);
        self.bind_claim(namespace, name, id);
    }

    fn bind_claim(&mut self, namespace: &Namespace, name: &str, volume: String) {
        if let Some(current) = self.storage.volumes.get_mut(&volume) {
            current.claim = Some(format!("{namespace}/{name}"));
        }
        let claims = self.storage.claims.get_mut(namespace);
        if let Some(claim) = claims.and_then(|claims| claims.get_mut(name)) {
            claim.volume_name = Some(volume);
            claim.phase = ClaimPhase::Bound;
        }
    }

    /// Registers the EBS driver on nodes without it.
    pub(super) fn register_ebs_driver(&mut self) {
        if self.storage.classes.is_empty() && self.storage.claims.is_empty() {
            return;
        }
        let fresh =
            |node: &&Node| node.ready && !self.storage.attach_limits.contains_key(&node.name);
        let of_type = |node: &Node| {
            let kind = node.labels.get(key::INSTANCE_TYPE)?.as_str();
            Some((node.name.clone(), InstanceTypeName::from(kind)))
        };
        let fresh: Vec<_> = self.nodes.values().filter(fresh).filter_map(of_type).collect();
        for (node, kind) in fresh {
            let limit = *self.ebs_limits.entry(kind).or_insert_with_key(ebs_volumes_by_name);
            if let Some(limit) = limit {
                self.storage.attach_limits.insert(node, [(EBS_DRIVER.to_owned(), limit)].into());
            }
        }
    }

    /// Returns the allocatable resources of a node, including attach limits.
    pub(super) fn allocatable_with_volumes(&self, node: &Node) -> Resources {
        let mut allocatable = node.allocatable.clone();
        for (driver, limit) in self.storage.attach_limits.get(&node.name).into_iter().flatten() {
            allocatable.extended.insert(attach_resource(driver), i64::from(*limit));
        }
        allocatable
    }
}

fn is_new(claim: &Claim) -> bool {
    claim.phase == ClaimPhase::Pending && !claim.deleting
}

fn node_zone(node: &Node) -> Option<LabelValue> {
    node.labels.get(key::ZONE).cloned()
}

#[cfg(test)]
mod tests;
