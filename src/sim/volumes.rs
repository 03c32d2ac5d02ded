//! Claims and volumes: made for the pods that ask for them, bound where those go, kept when they
//! move.
//!
//! The world plays three parts here. The controller of stateful sets makes a claim for each template
//! and ordinal. The provisioner makes a volume where the first pod of a claim was placed, or at once
//! where its class says so. The EBS driver registers on each node what it can attach, in worlds that
//! have volumes at all. A volume is never deleted. A claim that a pod makes for itself goes with the
//! pod and leaves no trace, so that none is kept here.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::state::{PodKey, State};
use crate::catalog::ebs_volumes_of;
use crate::demand::{Claims, PodShape};
use crate::fleet::{Node, Pod};
use crate::ids::{InstanceTypeName, LabelValue, Namespace, NodeName};
use crate::pod::{Expression, NodeTerm, Volume, VolumeSource};
use crate::requirement::{Operator, key};
use crate::storage::{
    Claim, ClaimPhase, EBS_DRIVER, NO_PROVISIONER, PersistentVolume, Storage, StorageClass,
    attach_resource, csi_driver, is_file_system,
};
use crate::units::Resources;

impl State {
    /// Takes over the storage that a delivery declares, and binds what waits for no pod; what is bound
    /// stays bound.
    pub(super) fn deliver_storage(&mut self, declared: &Storage) {
        let Storage { classes, volumes, claims, attach_limits: _, attached: _ } = declared;
        for (name, class) in classes {
            let held = self.storage.classes.get(name).and_then(|held| held.created_at);
            let created_at = Some(held.unwrap_or(self.now));
            let class = StorageClass { created_at, ..class.clone() };
            self.storage.classes.insert(name.clone(), class);
        }
        for (name, volume) in volumes {
            self.storage.volumes.entry(name.clone()).or_insert_with(|| volume.clone());
        }
        for (namespace, claims) in claims {
            let held = self.storage.claims.entry(namespace.clone()).or_default();
            for (name, claim) in claims {
                held.entry(name.clone()).or_insert_with(|| claim.clone());
            }
        }
        // Their controller is quicker than whoever asks next where the claims are.
        self.bind_waiting_claims();
    }

    /// Makes the claims that a new pod keeps under its name, unless it had them before.
    pub(super) fn make_claims(&mut self, (namespace, pod): &PodKey, template: &str) {
        let Some(template) = self.templates.get(template).cloned() else { return };
        for Volume { name, source } in &template.spec.volumes {
            let VolumeSource::ClaimTemplate(class) = source else { continue };
            let claims = self.storage.claims.entry(namespace.clone()).or_default();
            let claim = Claim { storage_class: class.clone(), ..Claim::default() };
            claims.entry(format!("{name}-{pod}")).or_insert(claim);
        }
    }

    /// Returns what a pod asks for, with its volumes where they are now; `None` where its template
    /// is not known.
    pub(super) fn pod_shape(&mut self, pod: &Pod) -> Option<Arc<PodShape>> {
        let mut shape = self.shape(&pod.namespace, &pod.template)?;
        if let Some(owner) = pod.owner.as_ref().filter(|_| shape.default_spread.is_some()) {
            shape = Arc::new(PodShape::clone(&shape).spread_by_default(owner.kind));
        }
        Some(self.mounted(shape, &pod.template, Some(&pod.name)))
    }

    /// Returns a shape with the volumes of its template.
    pub(super) fn mounted(
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
        Arc::new(Claims::of_world(&self.storage).mounted(&shape, volumes, pod))
    }

    /// Makes the volumes of a pod that was placed, where they are not there yet.
    pub(super) fn provision_for(&mut self, pod: &PodKey, node: &NodeName) {
        let template = self.pods.get(pod).and_then(|pod| self.templates.get(&pod.template));
        let Some(template) = template.cloned() else { return };
        let zone = self.nodes.get(node).and_then(zone_of);
        for Volume { name, source } in &template.spec.volumes {
            let claim = match source {
                VolumeSource::Claim(claim) => claim.clone(),
                VolumeSource::ClaimTemplate(_) => format!("{name}-{}", pod.1),
                VolumeSource::EphemeralClaim(_)
                | VolumeSource::HostPath
                | VolumeSource::EmptyDir
                | VolumeSource::Ebs(_)
                | VolumeSource::InTree(_)
                | VolumeSource::Other => continue,
            };
            let held = self.storage.claim(&pod.0, &claim);
            if held.is_some_and(|held| is_new(held) && held.volume_name.is_none()) {
                self.provision(&pod.0, &claim, zone.as_ref());
            }
        }
    }

    /// Binds claims that wait for no pod: those that ask for a volume or that one is kept for, and
    /// those whose class makes volumes at once.
    pub(super) fn bind_waiting_claims(&mut self) {
        let Storage { claims, .. } = &self.storage;
        let of = |(namespace, claims): (&Namespace, &BTreeMap<String, Claim>)| {
            let new = claims.iter().filter(|(_, claim)| is_new(claim));
            new.map(|(name, _)| (namespace.clone(), name.clone())).collect::<Vec<_>>()
        };
        let waiting: Vec<(Namespace, String)> = claims.iter().flat_map(of).collect();
        for (namespace, name) in waiting {
            if let Some(volume) = self.made_by_hand(&namespace, &name) {
                self.bind_claim(&namespace, &name, volume);
            } else {
                self.provision_at_once(&namespace, &name);
            }
        }
    }

    /// Returns the volume that somebody made for a claim.
    fn made_by_hand(&self, namespace: &Namespace, name: &str) -> Option<String> {
        let claim = self.storage.claim(namespace, name)?;
        if let Some(asked) = &claim.volume_name {
            return self.storage.volumes.contains_key(asked).then(|| asked.clone());
        }
        let full = format!("{namespace}/{name}");
        let classless = claim.storage_class.as_deref() == Some("");
        let suits = |volume: &PersistentVolume| match &volume.claim {
            Some(kept_for) => *kept_for == full,
            None => classless && volume.storage_class.as_deref().unwrap_or_default().is_empty(),
        };
        let mut volumes = self.storage.volumes.iter();
        volumes.find(|(_, volume)| suits(volume)).map(|(name, _)| name.clone())
    }

    /// Makes the volume of a claim whose class does so without regard to pods.
    fn provision_at_once(&mut self, namespace: &Namespace, name: &str) {
        let claim = self.storage.claim(namespace, name).filter(|c| c.volume_name.is_none());
        let Some(class) = claim.and_then(|claim| self.class(claim)) else { return };
        if class.waits_for_pod || class.provisioner == NO_PROVISIONER {
            return;
        }
        let expressions = class.allowed_topologies.iter().flat_map(|term| &term.expressions);
        let mut zonal = expressions.filter(|expression| expression.key.as_str() == key::ZONE);
        let allowed = zonal.next().and_then(|zone| zone.values.first()).cloned();
        let zone = allowed.or_else(|| self.nodes.values().find_map(zone_of));
        // Without nodes there is no zone that the provisioner knows of.
        if zone.is_some() || is_file_system(csi_driver(&class.provisioner)) {
            self.provision(namespace, name, zone.as_ref());
        }
    }

    fn class(&self, claim: &Claim) -> Option<&StorageClass> {
        match &claim.storage_class {
            Some(name) => self.storage.classes.get(name),
            None => self
                .storage
                .classes
                .values()
                .filter(|class| class.is_default)
                .max_by_key(|class| class.created_at),
        }
    }

    /// Makes a volume in `zone` and binds the claim to it.
    fn provision(&mut self, namespace: &Namespace, name: &str, zone: Option<&LabelValue>) {
        let Some(claim) = self.storage.claim(namespace, name).cloned() else { return };
        let class = self.class(&claim);
        let driver = class.map_or(EBS_DRIVER, |class| csi_driver(&class.provisioner)).to_owned();
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
        if let Some(held) = self.storage.volumes.get_mut(&volume) {
            held.claim = Some(format!("{namespace}/{name}"));
        }
        let claims = self.storage.claims.get_mut(namespace);
        if let Some(claim) = claims.and_then(|claims| claims.get_mut(name)) {
            claim.volume_name = Some(volume);
            claim.phase = ClaimPhase::Bound;
        }
    }

    /// Registers the EBS driver on the nodes where it has not yet.
    pub(super) fn register_driver(&mut self) {
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
            let limit = *self.ebs_limits.entry(kind).or_insert_with_key(ebs_volumes_of);
            if let Some(limit) = limit {
                self.storage.attach_limits.insert(node, [(EBS_DRIVER.to_owned(), limit)].into());
            }
        }
    }

    /// Returns what a node may give pods, with what it attaches.
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

fn zone_of(node: &Node) -> Option<LabelValue> {
    node.labels.get(key::ZONE).cloned()
}

#[cfg(test)]
mod tests;
