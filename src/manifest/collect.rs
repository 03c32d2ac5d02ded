//! Where read objects are gathered; one object is defined once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use super::decode::{Map, Scope};
use super::model::{
    Desired, DisruptionBudget, LimitRangeItem, ResourceQuota, Severity, Skipped, Unresolved,
};
use super::scaling::{Buffer, Found, Parameters, Scaler, VerticalScaler};
use crate::ids::{Namespace, Origin};
use crate::pod::PodTemplate;

/// What was read so far, and where each object was defined.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) desired: Desired,
    /// Items of limit ranges, by namespace and name of the range.
    pub(super) limit_ranges: BTreeMap<(Namespace, String), Vec<LimitRangeItem>>,
    /// Quotas, by namespace and name.
    pub(super) quotas: BTreeMap<(Namespace, String), ResourceQuota>,
    /// Disruption budgets, by namespace and name.
    pub(super) budgets: BTreeMap<(Namespace, String), DisruptionBudget>,
    /// The cluster that the fleet names; without one, objects of any cluster count.
    cluster: Option<String>,
    /// Autoscalers that scale with the cluster, their parameters still to come.
    pub(super) proportional: Vec<Found>,
    /// Parameters of such autoscalers, by namespace and name of their ConfigMap.
    pub(super) parameters: BTreeMap<(Namespace, String), Parameters>,
    /// Buffers by namespace and name, their pods still to be found.
    pub(super) buffers: BTreeMap<(Namespace, String), Buffer>,
    /// `PodTemplate` objects, by namespace and name.
    pub(super) templates: BTreeMap<(Namespace, String), Arc<PodTemplate>>,
    /// Scalers, by object.
    scalers: BTreeMap<String, Scaler>,
    /// Vertical scalers, by object.
    verticals: BTreeMap<String, VerticalScaler>,
    /// Where each object was defined and by whom, by sort and name.
    places: BTreeMap<&'static str, BTreeMap<String, String>>,
}

/// The name of an object among its sort.
pub(super) struct Named<'a> {
    /// Objects of one sort share their names.
    pub(super) sort: &'static str,
    pub(super) name: String,
    pub(super) scope: &'a Scope<'a>,
    pub(super) origin: Origin,
}

impl Collected {
    /// Returns a place for the objects of `cluster`; without one, for those of any.
    pub(super) fn of(cluster: Option<&str>) -> Self {
        Self { cluster: cluster.map(str::to_owned), ..Self::default() }
    }

    /// Returns whether objects that say to be of the cluster `name` count.
    pub(super) fn is_of_cluster(&self, name: &str) -> bool {
        self.cluster.as_deref().is_none_or(|cluster| cluster == name)
    }

    /// Puts an object into the map that `of` chooses. The first definition stays; another one is
    /// an error unless it says the same.
    pub(super) fn insert<K: Ord, V>(
        &mut self,
        named: Named<'_>,
        of: impl FnOnce(&mut Self) -> &mut BTreeMap<K, V>,
        (key, value): (K, V),
        same: impl FnOnce(&V, &V) -> bool,
    ) {
        let Named { sort, name, scope, origin } = named;
        let places = self.places.entry(sort).or_default();
        let Some(first) = places.get(&name).cloned() else {
            let by = scope.by.map(|by| format!(", by {by}")).unwrap_or_default();
            places.insert(name, format!("{origin}{by}"));
            match of(self).entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert(value);
                }
                // Of another sort: a node group brings a pool and a node class of its own name.
                Entry::Occupied(_) => scope.note(
                    Severity::Error,
                    origin.line,
                    "has the name of a pool or node class that is defined elsewhere".to_owned(),
                    Some("give the node group, or the other, another name".to_owned()),
                ),
            }
            return;
        };
        if !of(self).get(&key).is_some_and(|held| same(held, &value)) {
            let hint = "keep one of the two, or name the paths to read under `spec.sources`";
            scope.note(
                Severity::Error,
                origin.line,
                format!(
                    "{}is defined differently at {first}",
                    scope.by.map(|by| format!("as {by} has it, ")).unwrap_or_default()
                ),
                Some(hint.to_owned()),
            );
        }
    }

    /// Adds a scaler.
    pub(super) fn scaler(&mut self, scaler: Scaler, root: &Map<'_>) {
        let (object, origin) = (scaler.object.clone(), scaler.origin.clone());
        let scope = root.field.scope;
        let named = Named { sort: "scaler", name: object.clone(), scope, origin };
        let same = |a: &Scaler, b: &Scaler| a.rule == b.rule && a.targets == b.targets;
        self.insert(named, |all| &mut all.scalers, (object, scaler), same);
    }

    /// Adds a vertical scaler.
    pub(super) fn vertical(&mut self, scaler: VerticalScaler, root: &Map<'_>) {
        let (object, origin) = (scaler.object.clone(), scaler.origin.clone());
        let scope = root.field.scope;
        let named = Named { sort: "vertical scaler", name: object.clone(), scope, origin };
        let same = |a: &VerticalScaler, b: &VerticalScaler| {
            a.target == b.target && a.mode == b.mode && a.policies == b.policies
        };
        self.insert(named, |all| &mut all.verticals, (object, scaler), same);
    }

    /// Returns what was read, in its final order.
    pub(super) fn into_desired(self) -> Desired {
        let Self { mut desired, limit_ranges, quotas, budgets, scalers, verticals, .. } = self;
        for ((namespace, _), items) in limit_ranges {
            desired.limit_ranges.entry(namespace).or_default().extend(items);
        }
        desired.quotas = quotas.into_values().collect();
        desired.disruption_budgets = budgets.into_values().collect();
        desired.scalers.extend(scalers.into_values());
        desired.scalers.sort_by(|a, b| (&a.object, &a.origin).cmp(&(&b.object, &b.origin)));
        desired.verticals = verticals.into_values().collect();
        desired.unresolved.sort();
        desired.skipped.sort();
        desired
    }

    /// Notes a file or document that is no input.
    pub(super) fn skip(&mut self, origin: Origin, reason: impl Into<String>) {
        self.desired.skipped.push(Skipped { origin, reason: reason.into() });
    }

    /// Notes a source of workloads whose size is not known.
    pub(super) fn unresolved(&mut self, origin: Origin, object: String, reason: impl Into<String>) {
        self.desired.unresolved.push(Unresolved { origin, object, reason: reason.into() });
    }
}
