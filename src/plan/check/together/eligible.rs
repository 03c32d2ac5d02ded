//! Which sites count for the spread constraints of a pod.
//!
//! A node counts if it has the topology keys of all the pod's constraints that forbid, and passes
//! the inclusion policies: by default node affinity and selector limit the nodes, and taints do not.
//! What volumes allow limits the pod, and does not limit the nodes that count.

use std::collections::{BTreeMap, BTreeSet};

use super::hard_spread;
use super::topology::Topologies;
use crate::demand::{NodeChoice, PodShape};
use crate::ids::{LabelKey, LabelValue};
use crate::plan::check::state::{Crowd, EndState, Site};
use crate::pod::{NodeInclusion, Taint, Toleration, TopologySpread, untolerated};

/// What pods can tell sites apart by: values of labels, taints, and whether they are closed.
type Traits<'a> = (Vec<Option<&'a LabelValue>>, &'a [Taint], bool);

/// Sites that no pod can tell apart by what it chooses and tolerates.
struct Alike<'a> {
    site: &'a Site<'a>,
    members: Vec<usize>,
}

/// How pods of one choice and these tolerations see each site.
type View = Vec<Sight>;

/// Whether a pod's node affinity chooses a site, and whether it tolerates its taints.
#[derive(Debug, Clone, Copy, Default)]
struct Sight {
    chosen: bool,
    tolerated: bool,
}

/// What the sites that count depend on.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    view: usize,
    honors_affinity: bool,
    honors_taints: bool,
    topologies: BTreeSet<usize>,
}

/// The sites that count for a constraint.
pub(super) struct Eligible {
    pub(super) sites: Vec<bool>,
    /// How many domains they make, by topology.
    pub(super) domains: BTreeMap<usize, usize>,
}

/// The answers given so far.
pub(super) struct Electorate<'a> {
    state: &'a EndState<'a>,
    alike: Vec<Alike<'a>>,
    view_index: BTreeMap<(&'a NodeChoice, &'a [Toleration]), usize>,
    views: Vec<View>,
    rules: BTreeMap<Rule, usize>,
    pub(super) known: Vec<Eligible>,
}

impl<'a> Electorate<'a> {
    pub(super) fn of(state: &'a EndState<'a>) -> Self {
        Self {
            state,
            alike: alike(state),
            view_index: BTreeMap::new(),
            views: Vec::new(),
            rules: BTreeMap::new(),
            known: Vec::new(),
        }
    }

    /// Returns which of `known` holds the sites that count for `constraint` of `crowd`.
    pub(super) fn get(
        &mut self,
        crowd: &'a Crowd,
        constraint: &TopologySpread,
        topologies: &mut Topologies<'a>,
    ) -> usize {
        let honors = |policy| policy == NodeInclusion::Honor;
        let rule = Rule {
            view: self.view(&crowd.shape),
            honors_affinity: honors(constraint.node_affinity_policy),
            honors_taints: honors(constraint.node_taints_policy),
            topologies: hard_spread(crowd).map(|rule| topologies.get(&rule.topology_key)).collect(),
        };
        if let Some(index) = self.rules.get(&rule) {
            return *index;
        }
        self.known.push(elect(&rule, &self.views[rule.view], topologies));
        self.rules.insert(rule, self.known.len() - 1);
        self.known.len() - 1
    }

    fn view(&mut self, shape: &'a PodShape) -> usize {
        let wish = (&shape.nodes, shape.tolerations.as_slice());
        if let Some(index) = self.view_index.get(&wish) {
            return *index;
        }
        let mut view = vec![Sight::default(); self.state.sites.len()];
        for Alike { site, members } in &self.alike {
            let sight = look(shape, site);
            for member in members {
                view[*member] = sight;
            }
        }
        if let Some(name) = &shape.nodes.name {
            let named = |site: &Site<'_>| site.name.is_some_and(|n| n.as_str() == name);
            let sites = view.iter_mut().zip(&self.state.sites);
            sites.for_each(|(sight, site)| sight.chosen &= named(site));
        }
        self.views.push(view);
        self.view_index.insert(wish, self.views.len() - 1);
        self.views.len() - 1
    }
}

fn look(shape: &PodShape, site: &Site<'_>) -> Sight {
    let labels = &site.after.labels;
    let taints = &site.after.taints;
    Sight {
        chosen: shape.nodes.stated().iter().any(|choice| choice.match_labels(labels)),
        // A node that is cordoned or not ready has a taint for it; who tolerates it is not asked.
        tolerated: !site.closed && untolerated(taints, &shape.tolerations).is_none(),
    }
}

fn elect(rule: &Rule, view: &View, topologies: &Topologies<'_>) -> Eligible {
    let has_keys =
        |site: usize| rule.topologies.iter().all(|t| topologies.domain(*t, site).is_some());
    let counts = |(site, sight): (usize, &Sight)| {
        (sight.chosen || !rule.honors_affinity)
            && (sight.tolerated || !rule.honors_taints)
            && has_keys(site)
    };
    let sites: Vec<bool> = view.iter().enumerate().map(counts).collect();
    let domains = rule.topologies.iter().map(|topology| {
        let counted = (0..sites.len()).filter(|site| sites[*site]);
        let here: BTreeSet<usize> =
            counted.filter_map(|site| topologies.domain(*topology, site)).collect();
        (*topology, here.len())
    });
    let domains = domains.collect();
    Eligible { sites, domains }
}

/// Puts together the sites that have the same taints, and the same values of all labels that pods
/// with spread constraints choose nodes by.
fn alike<'a>(state: &'a EndState<'a>) -> Vec<Alike<'a>> {
    let spread = state.crowds.iter().filter(|crowd| hard_spread(crowd).next().is_some());
    let choices = spread.flat_map(|crowd| crowd.shape.nodes.stated());
    let keys: BTreeSet<&LabelKey> =
        choices.flat_map(|choice| choice.iter().map(|(key, _)| key)).collect();
    let mut alike: BTreeMap<Traits<'a>, Alike<'a>> = BTreeMap::new();
    for (index, site) in state.sites.iter().enumerate() {
        let values = keys.iter().map(|key| site.after.labels.get(*key)).collect();
        let taints = site.after.taints.as_slice();
        let entry = alike.entry((values, taints, site.closed));
        entry.or_insert_with(|| Alike { site, members: Vec::new() }).members.push(index);
    }
    alike.into_values().collect()
}
