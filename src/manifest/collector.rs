//! Collects the objects that were read. Each object is defined once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::autoscaling::{ProportionalParameters, ProportionalScaler, UnresolvedBuffer};
use super::decode::{FieldMap, ObjectContext};
use super::delivery::DeliveryObject;
use crate::model::code::Code;
use crate::model::desired::{
    Desired, DisruptionBudget, LimitRangeItem, ResourceQuota, Scaler, Severity, Skipped,
    Unresolved, VerticalScaler,
};
use crate::model::ids::{Namespace, Origin};
use crate::model::pod::PodTemplate;

/// Custom resources that are not read, before `assume` decides about them.
#[derive(Debug, Default)]
pub(super) struct CustomObjects {
    /// Objects whose controllers make pods.
    pub(super) with_pods: Vec<Unresolved>,
    /// Objects whose controllers may make pods, each with its kind as the reason.
    pub(super) of_unknown_kinds: Vec<Skipped>,
}

/// The objects read so far, with the place of each definition.
#[derive(Debug, Default)]
pub(super) struct Collector {
    pub(super) desired: Desired,
    /// Items of limit ranges, by namespace and name of the range.
    pub(super) limit_ranges: BTreeMap<(Namespace, String), Vec<LimitRangeItem>>,
    /// Quotas, by namespace and name.
    pub(super) quotas: BTreeMap<(Namespace, String), ResourceQuota>,
    /// Disruption budgets, by namespace and name.
    pub(super) budgets: BTreeMap<(Namespace, String), DisruptionBudget>,
    /// The cluster that the fleet names; without one, objects of any cluster are accepted.
    cluster: Option<String>,
    /// Cluster-proportional autoscalers, before their parameters are resolved.
    pub(super) proportional: Vec<ProportionalScaler>,
    /// Parameters of those autoscalers, by namespace and name of their ConfigMap.
    pub(super) parameters: BTreeMap<(Namespace, String), ProportionalParameters>,
    /// Buffers by namespace and name, before their templates are resolved.
    pub(super) buffers: BTreeMap<(Namespace, String), UnresolvedBuffer>,
    /// `PodTemplate` objects, by namespace and name.
    pub(super) templates: BTreeMap<(Namespace, String), Arc<PodTemplate>>,
    /// Custom resources that are not read.
    pub(super) custom: CustomObjects,
    /// Scalers by object name.
    scalers: BTreeMap<String, Scaler>,
    /// Vertical scalers by object name.
    verticals: BTreeMap<String, VerticalScaler>,
    /// Place and delivery object of each definition, by kind and name.
    definitions: BTreeMap<&'static str, BTreeMap<String, (Origin, String)>>,
}

/// The place where an object is defined.
pub(super) struct Definition<'a> {
    /// Objects of one kind share a name space.
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) scope: &'a ObjectContext<'a>,
    pub(super) origin: Origin,
}

impl Collector {
    /// Returns a collector for the objects of `cluster`; without one, for those of any cluster.
    pub(super) fn new(cluster: Option<&str>) -> Self {
        Self { cluster: cluster.map(str::to_owned), ..Self::default() }
    }

    /// Returns whether objects of the cluster `name` are accepted.
    pub(super) fn accepts_cluster(&self, name: &str) -> bool {
        self.cluster.as_deref().is_none_or(|cluster| cluster == name)
    }

    /// Inserts an object into the map that `select` returns. The first definition stays; a
    /// different second one is an error.
    pub(super) fn insert<K: Ord, V>(
        &mut self,
        named: Definition<'_>,
        select: impl FnOnce(&mut Self) -> &mut BTreeMap<K, V>,
        key: K,
        value: V,
        same: impl FnOnce(&V, &V) -> bool,
    ) {
        let Definition { kind, name, scope, origin } = named;
        let definitions = self.definitions.entry(kind).or_default();
        let Some((first, first_by)) = definitions.get(&name).cloned() else {
            let by = scope.delivered_by.map(|by| format!(", by {by}")).unwrap_or_default();
            definitions.insert(name, (origin.clone(), by));
            match select(self).entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert(value);
                }
                // Another kind: a node group brings a pool and a node class of its own name.
                Entry::Occupied(_) => scope.report_problem(
                    Severity::Error,
                    origin.line,
                    "has the name of a pool or node class that is defined elsewhere".to_owned(),
                    Some("give the node group, or the other, another name".to_owned()),
                ),
            }
            return;
        };
        let known = select(self);
        if !known.get(&key).is_some_and(|existing| same(existing, &value)) {
            let by_name = scope.delivered_by.map(|by| format!(", by {by}"));
            if scope.delivered_by.is_some_and(DeliveryObject::takes_last_definition)
                && by_name.as_ref() == Some(&first_by)
            {
                known.insert(key, value);
                let message = format!("replaces the definition at {first}, as Argo CD does");
                let problem = scope.problem(Severity::Warning, origin.line, message);
                let problem = problem.hint("remove one of the two definitions");
                scope.report.add(problem.code(Code::DuplicateObject).other(first));
                self.definitions.entry(kind).or_default().insert(name, (origin, first_by));
                return;
            }
            let hint = "two clusters? list the directories of this cluster under `spec.sources`; \
                        otherwise remove one of the two";
            let by = scope.delivered_by.map(|by| format!("as delivered by {by}, "));
            let message =
                format!("{}is defined differently at {first}{first_by}", by.unwrap_or_default());
            let problem = scope.problem(Severity::Error, origin.line, message);
            scope.report.add(problem.hint(hint).code(Code::DuplicateObject).other(first));
        }
    }

    /// Adds a scaler.
    pub(super) fn add_scaler(&mut self, scaler: Scaler, root: &FieldMap<'_>) {
        let (object, origin) = (scaler.object.clone(), scaler.origin.clone());
        let scope = root.field.scope;
        let named = Definition { kind: "scaler", name: object.clone(), scope, origin };
        let same = |a: &Scaler, b: &Scaler| a.rule == b.rule && a.targets == b.targets;
        self.insert(named, |all| &mut all.scalers, object, scaler, same);
    }

    /// Adds a vertical scaler.
    pub(super) fn add_vertical_scaler(&mut self, scaler: VerticalScaler, root: &FieldMap<'_>) {
        let (object, origin) = (scaler.object.clone(), scaler.origin.clone());
        let scope = root.field.scope;
        let named = Definition { kind: "vertical scaler", name: object.clone(), scope, origin };
        let same = |a: &VerticalScaler, b: &VerticalScaler| {
            a.target == b.target && a.mode == b.mode && a.policies == b.policies
        };
        self.insert(named, |all| &mut all.verticals, object, scaler, same);
    }

    /// Returns the collected objects in their final order.
    pub(super) fn into_desired(self) -> Desired {
        let Self { mut desired, limit_ranges, quotas, budgets, scalers, verticals, .. } = self;
        for ((namespace, _), items) in limit_ranges {
            desired.limit_ranges.entry(namespace).or_default().extend(items);
        }
        desired.quotas = quotas.into_values().collect();
        desired.disruption_budgets = budgets.into_values().collect();
        desired.scalers.extend(scalers.into_values());
        desired.scalers.sort_by(|a, b| (&a.object, &a.origin).cmp(&(&b.object, &b.origin)));
        desired.vertical_scalers = verticals.into_values().collect();
        desired.unresolved.sort();
        desired.skipped.sort();
        desired
    }

    /// Records a file or document that is not an input.
    pub(super) fn skip(&mut self, origin: Origin, reason: impl Into<String>) {
        self.desired.skipped.push(Skipped { origin, reason: reason.into() });
    }

    /// Records a source of workloads of unknown size.
    pub(super) fn add_unresolved(
        &mut self,
        origin: Origin,
        object: String,
        reason: impl Into<String>,
    ) {
        self.desired.unresolved.push(Unresolved { origin, object, reason: reason.into() });
    }
}
