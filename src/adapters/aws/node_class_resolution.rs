//! Resolves the selectors of node classes ahead of time. Launches and observations use the cached
//! results, so observations never wait for a lookup.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::client::Aws;
use super::errors::AwsError;
use super::launch_context::LaunchContext;
use super::resolution_cache::{
    FRESH_FOR, NOT_RESOLVED_YET, ResolutionKey, ResolutionTime, ResolvedSelector, Subnets,
};
use crate::model::desired::{Generation, NodeClass, describe_selectors};
use crate::model::observed::{Hardware, NodeClassField, Observed, UnresolvedTerm};

/// Time limit of one resolution. The next resolution handles the remaining lookups, which are
/// reported as unknown until then.
const RESOLVE_TIME_MAX: Duration = Duration::from_mins(1);

/// Returns the lookups of a class for a Kubernetes version.
fn resolution_keys(class: &NodeClass, kubernetes: &str) -> [ResolutionKey; 3] {
    let settings = &class.instance_settings;
    let new_key = |part, words, kubernetes: &str| {
        let kubernetes = kubernetes.to_owned();
        ResolutionKey { part, words, kubernetes }
    };
    [
        new_key(NodeClassField::Image, class.image.clone(), kubernetes),
        new_key(NodeClassField::Subnets, describe_selectors(&settings.subnets), ""),
        new_key(NodeClassField::SecurityGroups, describe_selectors(&settings.security_groups), ""),
    ]
}

/// Returns whether a class has selectors for a kind of resource.
fn has_selectors(class: &NodeClass, part: NodeClassField) -> bool {
    let settings = &class.instance_settings;
    match part {
        NodeClassField::Image => !settings.images.is_empty(),
        NodeClassField::Subnets => !settings.subnets.is_empty(),
        NodeClassField::SecurityGroups => !settings.security_groups.is_empty(),
    }
}

/// Returns the observation with the selectors of `context` that it does not know marked as unresolved.
/// It may be older than the commit that states them, and their text alone is no drift.
pub fn mark_unresolved(world: &Arc<Observed>, context: &LaunchContext) -> Arc<Observed> {
    let Observed { resolved, .. } = &**world;
    let is_known = |part: NodeClassField, words: &str| {
        resolved.unread.iter().any(|term| term.part == part && term.words == words)
            || match part {
                NodeClassField::Image => resolved.images.contains_key(words),
                NodeClassField::Subnets => resolved.subnets.contains_key(words),
                NodeClassField::SecurityGroups => resolved.security_groups.contains_key(words),
            }
    };
    let ours = context.node_classes().filter(|class| class.generation != Generation::Eksctl);
    let keys = ours.flat_map(|class| {
        let keys = resolution_keys(class, &context.kubernetes_version).into_iter();
        keys.filter(move |key| has_selectors(class, key.part))
    });
    let unread: BTreeSet<UnresolvedTerm> = keys
        .filter(|key| !is_known(key.part, &key.words))
        .map(|ResolutionKey { part, words, .. }| UnresolvedTerm {
            part,
            words,
            reason: NOT_RESOLVED_YET.to_owned(),
        })
        .collect();
    if unread.is_empty() {
        return Arc::clone(world);
    }
    let mut marked = Observed::clone(world);
    marked.resolved.unread.extend(unread);
    Arc::new(marked)
}

impl Aws {
    /// Resolves the selectors of classes whose results are not fresh. `kubernetes` is the version,
    /// or the reason that it is unknown. Failures are reported in
    /// [`crate::apply::ports::CloudInventory::resolved`]. If another resolution is running, this
    /// call does nothing.
    pub async fn resolve_node_classes(
        &self,
        classes: &[&NodeClass],
        kubernetes: Result<&str, &str>,
    ) {
        // The creator of a node group determines its image and network.
        let ours = classes.iter().filter(|class| class.generation != Generation::Eksctl);
        let version = kubernetes.unwrap_or_default();
        let entry =
            ours.flat_map(|class| resolution_keys(class, version).map(|entry| (class, entry)));
        let entry: Vec<_> = entry.filter(|(class, key)| has_selectors(class, key.part)).collect();
        for (_, key) in &entry {
            self.resolution.mark_pending(key, ResolutionTime::now());
        }
        let Ok(_guard) = self.resolution.resolve_lock.try_lock() else { return };
        let started = Instant::now();
        for (class, key) in entry {
            if !self.resolution.is_due(&key, Instant::now()) {
                continue;
            }
            let when = ResolutionTime::now();
            let result = if started.elapsed() < RESOLVE_TIME_MAX {
                self.resolve_part(key.part, class, kubernetes).await
            } else {
                Err(AwsError::Missing("resolving other node classes took too long".to_owned()))
            };
            self.resolution.record(key, when, result);
        }
    }

    async fn resolve_part(
        &self,
        part: NodeClassField,
        class: &NodeClass,
        kubernetes: Result<&str, &str>,
    ) -> Result<ResolvedSelector, AwsError> {
        let settings = &class.instance_settings;
        match part {
            NodeClassField::Image => self
                .resolve_images(&settings.images, kubernetes)
                .await
                .map(ResolvedSelector::Images),
            NodeClassField::Subnets => {
                self.subnets(&settings.subnets).await.map(ResolvedSelector::Subnets)
            }
            NodeClassField::SecurityGroups => self
                .security_groups(&settings.security_groups)
                .await
                .map(ResolvedSelector::SecurityGroups),
        }
    }

    /// Resolves the classes of `context`. Launches use these results, and drift detection compares
    /// with them.
    pub async fn resolve_launch_context(&self, context: &LaunchContext) {
        let classes: Vec<&NodeClass> = context.node_classes().collect();
        self.resolve_node_classes(&classes, Ok(&context.kubernetes_version)).await;
    }

    /// Returns the image for launches on the hardware.
    pub(super) async fn launch_image(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
        hardware: Hardware,
    ) -> Result<String, AwsError> {
        let [key, _, _] = resolution_keys(class, &context.kubernetes_version);
        if let Some(ResolvedSelector::Images(known)) = self.resolution.resolved_selector(&key)
            && let Some(choice) = known.iter().find(|choice| choice.hardware == hardware)
        {
            return Ok(choice.id.to_string());
        }
        // Only this hardware: the pending pod needs no other, and later launches use the cached
        // image.
        let key = (class.name.clone(), hardware);
        let now = Instant::now();
        let known = context.read_lookups(|known| known.images.get(&key).cloned());
        if let Some((_, known)) = known.filter(|(at, _)| now.duration_since(*at) < FRESH_FOR) {
            return Ok(known);
        }
        let image = self
            .resolve_image(&class.instance_settings.images, hardware, &context.kubernetes_version)
            .await?;
        context.update_lookups(|known| {
            known.images.insert(key, (now, image.clone()));
        });
        Ok(image)
    }

    pub(super) async fn launch_subnets(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
    ) -> Result<Subnets, AwsError> {
        let [_, key, _] = resolution_keys(class, &context.kubernetes_version);
        if let Some(ResolvedSelector::Subnets(known)) = self.resolution.resolved_selector(&key) {
            return Ok(known);
        }
        let when = ResolutionTime::now();
        let found = self.subnets(&class.instance_settings.subnets).await?;
        self.resolution.record(key, when, Ok(ResolvedSelector::Subnets(found.clone())));
        Ok(found)
    }

    pub(super) async fn launch_security_groups(
        &self,
        context: &LaunchContext,
        class: &NodeClass,
    ) -> Result<Vec<String>, AwsError> {
        let [_, _, key] = resolution_keys(class, &context.kubernetes_version);
        if let Some(ResolvedSelector::SecurityGroups(known)) =
            self.resolution.resolved_selector(&key)
        {
            return Ok(known);
        }
        let when = ResolutionTime::now();
        let found = self.security_groups(&class.instance_settings.security_groups).await?;
        self.resolution.record(key, when, Ok(ResolvedSelector::SecurityGroups(found.clone())));
        Ok(found)
    }

    /// Runs the lookups of all pools, so that the first launch of each pool need not wait. A failed
    /// lookup is repeated by the launch, which reports the error.
    pub async fn prefetch(&self, context: &LaunchContext) {
        self.resolve_launch_context(context).await;
        if let Err(error) = self.find_templates(context).await {
            tracing::debug!(%error, "launch templates not listed ahead");
        }
        for class in context.node_classes() {
            let _guard = context.lookup_lock.lock().await;
            if let Err(error) = self.instance_profile(context, class).await {
                tracing::debug!(%error, class = %class.name, "node class not resolved ahead");
            }
        }
    }
}
