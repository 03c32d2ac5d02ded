//! Selects the served revision: the newest, or the previous one until CI has applied the newest.
//!
//! Invariant: a newer revision that waits for CI never leaves the controller without a revision.
//! Until the previously served revision is read, another one is its substitute. Plans of the
//! substitute cover existing pods only and remove nothing. If the previous revision no longer exists,
//! the newest is served.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;

use super::counters::Counter;
use super::event::{Effect, Revision, RevisionError};
use super::persisted_state::{CiApply, PersistedState};
use super::retry::{ReadSchedule, Retry, backoff};
use super::served_rules::{LoosenedRule, ServedRules};
use super::state::ControllerState;
use super::status::RepositoryStatus;
use crate::model::desired::{AppliedBy, ControllerSettings, Mode};
use crate::model::saturating_time::later;
use crate::telemetry::histogram::Measurement;

/// A revision that must be served and is not the head of the branch.
#[derive(Debug, Clone)]
pub(super) struct RequiredRevision {
    pub(super) commit: String,
    /// Error of its last read.
    error: Option<String>,
}

/// A newer revision that CI may apply.
#[derive(Debug, Clone)]
pub(super) struct WaitingRevision {
    pub(super) revision: Arc<Revision>,
    pub(super) serve_without_ci: ServeWithoutCi,
}

/// When a revision is served although CI has not applied it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServeWithoutCi {
    /// After a time.
    After(Timestamp),
    /// Never, because its approvers sign.
    Never,
}

impl ServeWithoutCi {
    fn due(self) -> Option<Timestamp> {
        match self {
            Self::After(at) => Some(at),
            Self::Never => None,
        }
    }
}

/// A revision that loosens rules, as it was read.
#[derive(Debug, Clone)]
struct HeldRevision {
    revision: Arc<Revision>,
    loosened: BTreeSet<LoosenedRule>,
}

/// The served revision, and those that wait or are read.
#[derive(Debug, Clone)]
pub(super) struct Revisions {
    pub(super) served: Option<Arc<Revision>>,
    pub(super) required: Option<RequiredRevision>,
    required_retry: Retry,
    pub(super) is_reading_required: bool,
    pub(super) waiting: Option<WaitingRevision>,
    /// The served revision with its own rules, while those before it count.
    held: Option<HeldRevision>,
    pub(super) reads: ReadSchedule,
}

impl Revisions {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            served: None,
            required: None,
            required_retry: Retry::new(now),
            is_reading_required: false,
            waiting: None,
            held: None,
            reads: ReadSchedule::new(now),
        }
    }

    pub(super) fn on_clock_set_back(&mut self, now: Timestamp) {
        (self.reads.due, self.required_retry.at) = (now, now);
    }

    /// Returns the settings of the served revision.
    pub(super) fn settings(&self) -> Option<&ControllerSettings> {
        self.served.as_ref().map(|revision| &revision.controller)
    }

    /// Returns the mode in the repository.
    pub(super) fn mode(&self) -> Option<Mode> {
        self.settings().map(|settings| settings.mode)
    }

    /// Serves a revision that was read, or lets it wait for CI.
    fn serve_or_wait_for_ci(
        &mut self,
        revision: Arc<Revision>,
        persisted: Option<&mut PersistedState>,
        now: Timestamp,
    ) {
        let known = self.served.as_ref().is_some_and(|served| served.commit == revision.commit);
        if known && !self.serves_substitute() {
            self.serve(revision, persisted);
            return;
        }
        let rules = persisted.as_ref().and_then(|persisted| persisted.rules.as_ref());
        let is_for_ci = revision.controller.applied_by == AppliedBy::Ci
            || rules.is_some_and(|before| before.keeps_ci(&ServedRules::of(&revision)));
        let waits = is_for_ci && !is_applied(persisted.as_deref(), &revision.commit);
        // After a start, the previously served revision is served as soon as it is read. Any other
        // waits for CI. Without a previous revision, nothing waits.
        let served = persisted.as_ref().and_then(|persisted| persisted.served_commit.clone());
        let begins = self.served.is_none() && served.is_none();
        let same = served.as_ref() == Some(&revision.commit);
        if !waits || begins || same {
            self.serve(revision, persisted);
            return;
        }
        if self.served.is_none() {
            let previous = served.map(|commit| RequiredRevision { commit, error: None });
            self.required = self.required.take().or(previous);
            self.served = Some(restricted(&revision, persisted.as_deref()));
        }
        let next = ServedRules::of(&revision);
        let timeout = rules.map_or(next.ci_timeout(&next), |before| before.ci_timeout(&next));
        let deadline = later(now, timeout);
        let Some(persisted) = persisted else { return };
        // A fixed deadline: neither frequent merges nor frequent restarts may extend the wait
        // forever.
        let until = *persisted.ci_wait_until.get_or_insert(deadline);
        // Where approvers sign, a merge alone is never enough.
        let signed_before = persisted.rules.as_ref().is_some_and(ServedRules::has_keys);
        let is_signed = signed_before || !revision.guard.keys.is_empty();
        let serve_without_ci =
            if is_signed { ServeWithoutCi::Never } else { ServeWithoutCi::After(until) };
        self.waiting = Some(WaitingRevision { revision, serve_without_ci });
    }

    /// Serves the persisted revision of the previous leader if CI applies merges, and keeps its
    /// deadline for newer ones. This replica's own view from before it led does not count.
    pub(super) fn serve_persisted(&mut self, persisted: &mut PersistedState, now: Timestamp) {
        let newest = self.waiting.as_ref().map(|waiting| &waiting.revision);
        let held = self.held.as_ref().map(|held| &held.revision);
        let newest = newest.or(held).or(self.served.as_ref());
        let newest = newest.filter(|newest| newest.controller.applied_by == AppliedBy::Ci).cloned();
        let (Some(served), Some(newest)) = (persisted.served_commit.clone(), newest) else {
            return;
        };
        self.waiting = None;
        if self.served.as_ref().is_some_and(|revision| revision.commit != served) {
            self.required = Some(RequiredRevision { commit: served, error: None });
            self.required_retry.record_success(now);
        }
        let is_newest =
            self.served.as_ref().is_some_and(|revision| revision.commit == newest.commit);
        if !is_newest || self.serves_substitute() {
            self.serve_or_wait_for_ci(newest, Some(persisted), now);
        }
    }

    /// Returns true if a substitute is served because the revision to serve was not read yet. The
    /// substitute may itself wait for CI.
    pub(super) fn serves_substitute(&self) -> bool {
        let wanted = self.required.as_ref().zip(self.served.as_ref());
        wanted.is_some_and(|(required, revision)| required.commit != revision.commit)
    }

    fn serve(&mut self, revision: Arc<Revision>, persisted: Option<&mut PersistedState>) {
        self.waiting = None;
        self.required = None;
        let Some(persisted) = persisted else {
            self.served = Some(revision);
            return;
        };
        persisted.served_commit = Some(revision.commit.clone());
        persisted.ci_wait_until = None;
        self.serve_within_rules(revision, persisted);
    }

    /// Serves a revision. If it loosens rules, those that were served before still count.
    fn serve_within_rules(&mut self, revision: Arc<Revision>, persisted: &mut PersistedState) {
        let rules = ServedRules::of(&revision);
        if let Some(before) = &persisted.rules {
            let loosened = before.loosened_by(&rules);
            if !loosened.is_empty() && !before.accepts_merge(&rules, &loosened) {
                self.served = Some(Arc::new(before.restrict(&revision, &loosened)));
                self.held = Some(HeldRevision { revision, loosened });
                return;
            }
        }
        persisted.rules = Some(rules);
        self.held = None;
        self.served = Some(revision);
    }

    /// Accepts the rules of the served revision: the operator approved one of its plans.
    pub(super) fn accept_rules(&mut self, commit: &str, persisted: &mut PersistedState) {
        if let Some(held) = self.held.take_if(|held| held.revision.commit == commit) {
            persisted.rules = Some(ServedRules::of(&held.revision));
            self.served = Some(held.revision);
        }
    }

    /// Accepts loosened rules that need no approval. Returns true if they were accepted. The caller
    /// has found nothing left to do.
    pub(super) fn accept_rules_if_done(&mut self, persisted: Option<&mut PersistedState>) -> bool {
        let (Some(held), Some(persisted)) = (&self.held, persisted) else { return false };
        let before = persisted.rules.as_ref();
        if !before.is_some_and(|before| before.accepts_done(&held.loosened)) {
            return false;
        }
        let commit = held.revision.commit.clone();
        self.accept_rules(&commit, persisted);
        true
    }

    /// Serves the waiting revision once CI has applied it, its deadline has passed, or break-glass
    /// is active.
    pub(super) fn adopt_waiting(&mut self, persisted: Option<&mut PersistedState>, now: Timestamp) {
        let Some(WaitingRevision { revision, serve_without_ci }) = &self.waiting else { return };
        let broken = persisted.as_ref().is_some_and(|persisted| persisted.break_glass.is_some());
        let is_due = serve_without_ci.due().is_some_and(|due| now >= due);
        if broken || is_applied(persisted.as_deref(), &revision.commit) || is_due {
            self.serve(Arc::clone(revision), persisted);
        }
    }

    /// Returns whether a revision waits that may be served without CI. Where approvers sign, none
    /// may.
    fn may_serve_waiting(&self) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|waiting| waiting.serve_without_ci != ServeWithoutCi::Never)
    }

    /// Reads the revision to serve if the branch has moved past it.
    pub(super) fn read_required(&mut self, effects: &mut Vec<Effect>, now: Timestamp) {
        let Some(required) = &self.required else { return };
        if !self.is_reading_required && now >= self.required_retry.at {
            self.is_reading_required = true;
            effects.push(Effect::ReadCommit { commit: required.commit.clone() });
        }
    }

    /// Reads the served revision again, because its planner is no longer cached.
    pub(super) fn reread_served(&mut self, persisted: Option<&PersistedState>) {
        if self.serves_substitute() {
            // The newest was read last.
            let newest = self.waiting.as_ref();
            let newest = newest.map(|waiting| restricted(&waiting.revision, persisted));
            self.served = newest.or(self.served.take());
        } else if let Some(revision) = self.served.as_ref().filter(|_| self.required.is_none()) {
            let commit = revision.commit.clone();
            self.required = Some(RequiredRevision { commit, error: None });
        }
    }

    /// Reads the served revision again if the pools of the cluster changed since it was read. The
    /// newest commit, which was just read with `pools`, may wait for CI.
    fn reread_with_pools(&mut self, pools: Option<&str>, persisted: Option<&PersistedState>) {
        let served = self.served.as_ref().and_then(|served| served.cluster_pools.as_deref());
        if served.is_some() && pools.is_some() && served != pools {
            self.reread_served(persisted);
        }
    }

    /// Returns when a revision is read or served without an event, if one waits.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        let required = self.required.as_ref().filter(|_| !self.is_reading_required);
        let required = required.map(|_| self.required_retry.at);
        let waiting = self.waiting.as_ref().and_then(|waiting| waiting.serve_without_ci.due());
        waiting.into_iter().chain(required).min()
    }

    pub(super) fn to_status(&self) -> RepositoryStatus {
        let waiting = self.waiting.as_ref().map(|WaitingRevision { revision, serve_without_ci }| {
            let required_note = match &self.required {
                Some(RequiredRevision { commit, error }) if self.serves_substitute() => {
                    let why = error.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                    format!(
                        "; until commit {commit} can be read{why}, plans cover existing pods only"
                    )
                }
                Some(RequiredRevision { commit, error: Some(why) }) => {
                    format!("; commit {commit}, to be served until then, cannot be read: {why}")
                }
                Some(RequiredRevision { error: None, .. }) | None => String::new(),
            };
            let or = match serve_without_ci {
                ServeWithoutCi::Never => ", because its approvers sign".to_owned(),
                ServeWithoutCi::After(until) => format!(", or {until:.0}"),
            };
            let why = format!("until CI has applied it{or}{required_note}");
            (revision.commit.clone(), why)
        });
        let required = self.required.as_ref().filter(|_| self.serves_substitute());
        RepositoryStatus {
            commit: self.served.as_ref().map(|revision| revision.commit.clone()),
            origin: self.served.as_ref().and_then(|revision| revision.origin.clone()),
            pool_limits: self
                .served
                .as_ref()
                .map(|revision| revision.pool_limits.clone())
                .unwrap_or_default(),
            substitute_for: required.map(|required| required.commit.clone()),
            loosened: self
                .held
                .iter()
                .flat_map(|held| &held.loosened)
                .map(|rule| rule.as_str().to_owned())
                .collect(),
            waiting,
            reads: self.reads.result.clone(),
            problems: self.served.as_ref().map_or(0, |revision| revision.error_count),
        }
    }
}

/// Returns a substitute for another revision: it loosens no rule.
fn restricted(revision: &Arc<Revision>, persisted: Option<&PersistedState>) -> Arc<Revision> {
    let Some(before) = persisted.and_then(|persisted| persisted.rules.as_ref()) else {
        return Arc::clone(revision);
    };
    let loosened = before.loosened_by(&ServedRules::of(revision));
    Arc::new(before.restrict(revision, &loosened))
}

fn is_applied(persisted: Option<&PersistedState>, commit: &str) -> bool {
    let applied = persisted.and_then(|persisted| persisted.ci_apply.as_ref());
    applied.is_some_and(|CiApply { commit: of, complete, .. }| of == commit && *complete)
}

impl ControllerState {
    pub(super) fn on_branch_read(&mut self, read: Result<Arc<Revision>, String>) {
        let now = self.now;
        match read {
            Ok(revision) => {
                self.counters.count(Counter::RepositoryReadsDone);
                self.time_since(
                    Measurement::Read { source: "repository" },
                    self.revisions.reads.started_at,
                );
                self.revisions.reads.record_success(now);
                self.revisions.reads.schedule(revision.controller.poll, now);
                self.set_auto_mode(revision.auto_mode);
                let begins = self.revisions.served.is_none();
                let mut persisted = self.persistence.loaded.as_mut();
                if let Some(persisted) = &mut persisted {
                    // The next commit starts its chain of signatures here.
                    persisted.verified.clone_from(&revision.verified);
                }
                let cluster_pools = revision.cluster_pools.clone();
                self.revisions.serve_or_wait_for_ci(revision, persisted, now);
                let persisted = self.persistence.loaded.as_ref();
                self.revisions.reread_with_pools(cluster_pools.as_deref(), persisted);
                if begins {
                    // Lookups of its node classes ran with this read, so earlier observations lack
                    // them.
                    self.observation.require_next();
                }
            }
            Err(why) => {
                self.counters.count(Counter::RepositoryReadsFailed);
                self.counters.count_error("repository");
                let reads = &mut self.revisions.reads;
                reads.record_failure(why, now);
                reads.schedule_retry(backoff(reads.result.failures), now);
            }
        }
    }

    pub(super) fn on_commit_read(
        &mut self,
        commit: &str,
        read: Result<Arc<Revision>, RevisionError>,
    ) {
        let (now, revisions) = (self.now, &mut self.revisions);
        revisions.is_reading_required = false;
        if revisions.required.as_ref().is_none_or(|wanted| wanted.commit != commit) {
            return;
        }
        match read {
            Ok(revision) => {
                self.counters.count(Counter::RepositoryReadsDone);
                revisions.required_retry.record_success(now);
                revisions.required = None;
                let auto_mode = revision.auto_mode;
                match &mut self.persistence.loaded {
                    Some(persisted) => revisions.serve_within_rules(revision, persisted),
                    None => revisions.served = Some(revision),
                }
                self.set_auto_mode(auto_mode);
                // Earlier observations lack the lookups of its node classes.
                self.observation.require_next();
                self.planning.replan_at = now;
            }
            Err(RevisionError::NotFound(_)) if revisions.may_serve_waiting() => {
                self.counters.count(Counter::RepositoryReadsRefMissing);
                revisions.required_retry.record_success(now);
                if let Some(newest) = revisions.waiting.take() {
                    revisions.serve(newest.revision, self.persistence.loaded.as_mut());
                }
                self.planning.replan_at = now;
            }
            Err(RevisionError::NotFound(why) | RevisionError::Unreadable(why)) => {
                self.counters.count(Counter::RepositoryReadsFailed);
                self.counters.count_error("repository");
                revisions.required_retry.record_failure(now);
                let commit = commit.to_owned();
                revisions.required = Some(RequiredRevision { commit, error: Some(why) });
                // If it no longer exists, the head of the branch replaces it.
                revisions.reads.bring_forward(now);
            }
        }
    }
}

#[cfg(test)]
mod tests;
