//! Violations of plans, launches, removals and cordons.

use super::{
    APPLY, Arc, BTreeSet, Bytes, CORDONED_ANNOTATION, CallKind, Completeness, CountOrShare, Effect,
    InterruptionPhase, InterruptionStatus, LAUNCHED, Plan, PlanScope, READS_PER_MINUTE,
    REPEATS_MAX, RateLimit, RecordedCall, SignedDuration, TerminatedInstance, ViolationTrace,
    WaveStep, launched, rows, tag,
};

/// An invariant, a description, and a trace that violates it.
pub(super) type ViolationCase = (&'static str, &'static str, fn(&mut ViolationTrace));

pub(super) const OF_PLANS: &[ViolationCase] = &[
    ("I3", "a partial observation", |t| {
        let failed = Completeness::Failed { reason: "x".to_owned() };
        t.growth.capacity.base.world.sources.insert("ec2".to_owned(), failed);
        t.applies(&t.growth);
    }),
    ("I4", "a mass removal", |t| {
        t.settings.mass_removal = CountOrShare::Count(3);
        t.tick();
        t.rollout.capacity.waves.retain(|wave| wave.step == WaveStep::Retire);
        t.applies(&t.rollout);
    }),
    ("I6", "a launch in quarantine", |t| {
        let until = t.now.checked_add(SignedDuration::from_mins(1)).expect("a time");
        t.status.quarantined.insert("web".into(), (String::new(), until));
        t.applies(&t.growth);
    }),
    ("I7", "a plan with other amounts than observed", |t| {
        let row = rows(&t.growth, WaveStep::Launch).next().expect("something comes");
        let after = row.change.after.as_ref().expect("a launch");
        let kind = after.instance_type.clone().expect("known");
        let less = Bytes(after.allocatable.memory_bytes / 10 * 9);
        t.world.instances.values_mut().for_each(|i| i.instance_type = kind.clone());
        t.world.nodes.values_mut().for_each(|node| node.allocatable.memory = less);
        t.plans();
        t.applies(&t.growth);
    }),
    ("I7", "pods assigned to an unschedulable node", |t| {
        t.sets_all_cordons(true);
        t.plans();
        t.places_pods_on_a_node();
        t.applies(&t.growth);
    }),
    ("I7", "pods assigned to a node that was uncordoned after the plan", |t| {
        t.sets_all_cordons(true);
        t.plans();
        t.observes_later();
        t.sets_all_cordons(false);
        t.plans();
        t.places_pods_on_a_node();
        t.applies(&t.growth);
    }),
    ("I14", "a removal while the world cannot be read", |t| {
        t.status.world.as_mut().expect("seen").reads.failures = 1;
        t.applies(&t.scale_down);
    }),
    ("I15", "a removal while the fleet is broken", |t| {
        t.world.nodes.values_mut().for_each(|node| node.ready = false);
        t.plans();
        t.applies(&t.scale_down);
    }),
    ("I17", "a removal for an empty commit", |t| {
        t.is_empty = true;
        t.applies(&t.scale_down);
    }),
    ("I18", "a plan with errors", |t| {
        t.growth.errored = true;
        t.applies(&t.growth);
    }),
    ("I18", "a plan that is denied", |t| {
        t.growth.applyable = false;
        t.applies(&t.growth);
    }),
    ("I16", "drift between identical nodes", |t| {
        for row in &mut t.rollout.resource_changes {
            for side in row.change.before.iter_mut().chain(&mut row.change.after) {
                (side.spec_digest, side.labels) = (Some("the same".to_owned()), [].into());
            }
        }
        t.applies(&t.rollout);
    }),
    ("I16", "a replacement of an instance with the newest image", |t| {
        t.launches_and_replaces(false);
    }),
    ("I16", "a change in a converged fleet after a restart", |t| {
        let commit = t.status.repository.commit.clone().expect("served");
        let (world, limits) = (Arc::new(t.world.clone()), PlanScope::default());
        let plan = Effect::Plan { ticket: 1, commit: commit.clone(), world, limits };
        let now = |t: &mut ViolationTrace, mut plan: Plan| {
            plan.capacity.base.commit = Some(commit.clone());
            t.status.plan.as_mut().expect("planned").plan = Arc::new(plan);
        };
        let rollout = t.rollout.clone();
        let mut rests = rollout.clone();
        rests.capacity.waves.clear();
        t.effects(std::slice::from_ref(&plan));
        now(t, rests);
        t.effects(&[plan]);
        now(t, rollout);
        t.effects(&[]);
    }),
    ("I13", "a forgotten launch", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.calls(CallKind::Launched(LAUNCHED[0].into()));
        t.plans();
    }),
    ("I13", "a forgotten launch while the clock of another replica is ahead", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.calls(CallKind::Launched(LAUNCHED[0].into()));
        t.later(1);
        t.sets_clock(1, SignedDuration::from_mins(3));
        t.sets_clock(0, SignedDuration::from_secs(50));
        t.plans();
    }),
    ("I13", "a launch while another has no reply", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.later(1);
        t.applies(&t.rollout);
        t.calls(t.launch(&t.rollout, 1));
    }),
    ("I13", "a launch while another replica has a reply", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.call(&RecordedCall { replica: 1, ..t.asked(CallKind::Launched(LAUNCHED[0].into())) });
        t.later(1);
        t.applies(&t.rollout);
        t.calls(t.launch(&t.rollout, 1));
    }),
    ("I13", "a launch plan that ignores a launch without reply", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.later(1);
        t.plans();
        t.applies(&t.rollout);
    }),
    ("I13", "a launch plan older than a launch of another replica", |t| {
        t.plans();
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.call(&RecordedCall { replica: 1, ..t.asked(CallKind::Launched(LAUNCHED[0].into())) });
        t.applies(&t.rollout);
    }),
    ("I13", "a forgotten removal", |t| {
        t.calls(CallKind::Ended(t.removal(&t.scale_down, 0).id));
        t.later(1);
        t.plans();
    }),
];

pub(super) const OF_LAUNCHES: &[ViolationCase] = &[
    ("I1", "two instances of one change", |t| {
        let mut twin = t.world.instances.values().next().expect("one").clone();
        twin.id = "i-twin".into();
        t.world.instances.insert(twin.id.clone(), twin);
        t.tick();
    }),
    ("I2", "a launch without tags", |t| {
        t.applies(&t.growth);
        let CallKind::Launch(mut request, id) = t.launch(&t.growth, 0) else { return };
        request.tags.remove(tag::POOL);
        t.calls(CallKind::Launch(request, id));
    }),
    ("I5", "too many launches", |t| {
        t.settings.launches.limit = CountOrShare::Count(1);
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.calls(t.launch(&t.growth, 1));
    }),
    ("I12", "a launch without the lease", |t| {
        t.applies(&t.growth);
        t.call(&RecordedCall { lease: None, ..t.asked(t.launch(&t.growth, 0)) });
    }),
    ("I12", "a launch under the lease of another", |t| {
        t.applies(&t.growth);
        let call = t.asked(t.launch(&t.growth, 0));
        t.call(&RecordedCall { lease: call.lease.map(|(_, until)| (1, until)), ..call });
    }),
    ("I12", "a launch at the end of the lease", |t| {
        t.applies(&t.growth);
        let call = t.asked(t.launch(&t.growth, 0));
        t.call(&RecordedCall { lease: Some((0, t.now)), ..call });
    }),
    ("I18", "a launch without a plan", |t| t.calls(t.launch(&t.growth, 0))),
    ("I18", "a launch of an earlier change that no plan resumes", |t| {
        t.applies(&t.growth);
        t.calls(t.repeated_launch(&t.growth, 0));
    }),
    ("I18", "a launch both resumed and started again", |t| {
        t.applies_resumed(&t.growth, ViolationTrace::earlier_launch(&t.growth, 0));
        t.calls(t.repeated_launch(&t.growth, 0));
        t.calls(t.launch(&t.growth, 0));
    }),
    ("I18", "a launch that differs from the plan", |t| {
        t.applies(&t.growth);
        let mut request = t.request(&t.growth, 0);
        request.offerings[0].zone = "us-east-1z".into();
        t.calls(launched(0, request));
    }),
    ("I18", "a resumed launch that differs from the plan", |t| {
        t.applies_resumed(&t.growth, ViolationTrace::earlier_launch(&t.growth, 0));
        let CallKind::Launch(mut request, id) = t.repeated_launch(&t.growth, 0) else { return };
        request.offerings[0].instance_type = "m5.24xlarge".into();
        t.calls(CallKind::Launch(request, id));
    }),
    ("I19", "the same launch repeated", |t| {
        t.applies(&t.growth);
        for _ in 0..=REPEATS_MAX {
            t.calls(t.launch(&t.growth, 0));
        }
    }),
    ("I19", "too many reads", |t| {
        t.tick();
        t.later(1);
        t.reads(READS_PER_MINUTE + 1);
    }),
];

pub(super) const OF_REMOVALS: &[ViolationCase] = &[
    ("I2", "a removal of a foreign instance", |t| {
        t.applies(&t.scale_down);
        t.terminates(TerminatedInstance { ours: false, ..t.removal(&t.scale_down, 0) });
    }),
    ("I4", "too many removals", |t| {
        t.settings.removals =
            RateLimit { limit: CountOrShare::Count(1), window: SignedDuration::from_mins(5) };
        // The plan calls the nodes empty, because their workloads are gone from the commit.
        t.plans();
        t.applies(&t.scale_down);
        t.terminates(t.removal(&t.scale_down, 0));
        t.later(4);
        t.terminates(t.removal(&t.scale_down, 1));
    }),
    ("I4", "evictions from nodes that were empty when their apply began", |t| {
        t.settings.removals =
            RateLimit { limit: CountOrShare::Count(1), window: SignedDuration::from_mins(5) };
        t.world.pods.clear();
        t.plans();
        t.applies(&t.scale_down);
        for n in [0, 1] {
            let ended = t.removal(&t.scale_down, n);
            t.calls(CallKind::Evict("late".into(), ended.node.clone()));
            t.terminates(ended);
        }
    }),
    ("I8", "a removal before its replacement is Ready", |t| {
        t.applies(&t.rollout);
        t.terminates(TerminatedInstance { ready: BTreeSet::new(), ..t.removal(&t.rollout, 0) });
    }),
    ("I8", "a removal before its resumed replacement is Ready", |t| {
        t.applies_resumed(&t.rollout, ViolationTrace::earlier_launch(&t.rollout, 0));
        // The plan's own change is not the requested one.
        for n in 0..rows(&t.rollout, WaveStep::Retire).count() {
            t.terminates(t.removal(&t.rollout, n));
        }
    }),
    ("I9", "a removal with pods left", |t| {
        t.applies(&t.scale_down);
        t.terminates(TerminatedInstance { left: vec![None], ..t.removal(&t.scale_down, 0) });
    }),
    ("I9", "a removal without a cordon", |t| {
        t.applies(&t.scale_down);
        t.calls(CallKind::Terminate(t.removal(&t.scale_down, 0)));
    }),
    ("I9", "a removal without an observation after the cordon", |t| {
        t.applies(&t.scale_down);
        let ended = t.removal(&t.scale_down, 0);
        let cluster_read_at = Some(t.now);
        t.later(1);
        let node = ended.node.clone().expect("joined");
        t.calls(CallKind::Cordon { node, on: true, ours: true });
        t.call(&RecordedCall { cluster_read_at, ..t.asked(CallKind::Terminate(ended)) });
    }),
    ("I9", "a removal of a node that an operator has uncordoned since", |t| {
        t.applies(&t.scale_down);
        let ended = t.removal(&t.scale_down, 0);
        let node = ended.node.clone().expect("joined");
        t.calls(CallKind::Cordon { node: node.clone(), on: true, ours: true });
        t.observe_cordon(&node, true);
        t.later(1);
        t.observe_cordon(&node, false);
        t.later(1);
        t.observe_cordon(&node, false);
        t.calls(CallKind::Terminate(TerminatedInstance { open: true, ..ended }));
    }),
    ("I9", "a removal with pods that ran before the last read of an open node", |t| {
        t.applies(&t.scale_down);
        let ended = t.removal(&t.scale_down, 0);
        let node = ended.node.clone().expect("joined");
        let left = vec![Some(t.now)];
        t.calls(CallKind::Cordon { node, on: true, ours: true });
        t.later(1);
        let cluster_read_at = Some(t.now);
        t.call(&RecordedCall {
            cluster_read_at,
            ..t.asked(CallKind::Terminate(TerminatedInstance { open: true, left, ..ended }))
        });
    }),
    ("I9", "a removal with pods after the start of a scheduled change", |t| {
        t.terminates_overdue("health");
    }),
    ("I9", "an uncordon beside an apply", |t| {
        t.status.in_progress.insert("p".into(), (Vec::new(), t.now));
        t.uncordons(0);
    }),
    ("I9", "an uncordon of an interrupted node during its drain", |t| {
        t.applies(&t.scale_down);
        t.status.in_progress.insert(t.scale_down.capacity.plan_id.clone(), (Vec::new(), t.now));
        let instance = t.removal(&t.scale_down, 0).id;
        let (why, since) = ("health".to_owned(), t.now);
        let phase = InterruptionPhase::Draining;
        let (node, deadline, held) = (None, None, None);
        t.status.interrupted.push(InterruptionStatus {
            instance,
            node,
            reason: why,
            since,
            deadline,
            phase,
            replacement_blocked: held,
        });
        t.uncordons(0);
    }),
    ("I9", "an uncordon of a node that the plan removes", |t| {
        t.status.plan.as_mut().expect("planned").plan = Arc::new(t.scale_down.clone());
        t.uncordons(0);
    }),
    ("I2", "an uncordon of an operator's cordon", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.calls(CallKind::Cordon { node, on: false, ours: false });
    }),
    ("I10", "a cordon that is never reverted", |t| {
        let node = t.world.nodes.values_mut().next().expect("one");
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
        t.tick();
        t.later(61);
        t.tick();
    }),
    ("I11", "a group that shrinks by number", |t| {
        t.calls(CallKind::Raise { group: "g".into(), from: 3, to: 2 });
    }),
    ("I2", "a cordon of a foreign node", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.calls(CallKind::Cordon { node, on: true, ours: false });
    }),
    ("I12", "an uncordon during a CI apply", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        let lease = Some((APPLY, t.now));
        t.call(&RecordedCall {
            lease,
            ..t.asked(CallKind::Cordon { node, on: false, ours: true })
        });
    }),
    ("I12", "a cordon without the lease", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.call(&RecordedCall {
            lease: None,
            ..t.asked(CallKind::Cordon { node, on: true, ours: true })
        });
    }),
    ("I12", "a cordon of an interrupted node without the lease", |t| {
        let call = t.cordons_without_lease();
        t.call(&RecordedCall { lease: call.lease.map(|(_, until)| (1, until)), ..call });
    }),
    ("I8", "a removal before its replacement is Ready after dropped launches", |t| {
        t.applies(&t.rollout);
        t.replans(&t.growth, &t.rollout);
        t.terminates(TerminatedInstance { ready: BTreeSet::new(), ..t.removal(&t.rollout, 0) });
    }),
    ("I8", "a removal before its formerly dropped replacement is Ready", |t| {
        t.applies(&t.rollout);
        t.replans(&t.rollout, &t.rollout);
        t.applies(&t.rollout);
        t.terminates(TerminatedInstance { ready: BTreeSet::new(), ..t.removal(&t.rollout, 0) });
    }),
    ("I8", "a removal of a CI apply whose pods have no place yet", |t| {
        t.replaces_first_of_many(1_000);
    }),
    ("I18", "a launch taken back while a pod waits", |t| {
        let since = t.now;
        t.later(3);
        t.takes_back(vec![since]);
    }),
    ("I8", "an eviction without another place weeks before the deadline", |t| {
        t.evicts_while_blocked(SignedDuration::from_hours(24 * 14));
    }),
    ("I18", "a removal without a plan", |t| t.terminates(t.removal(&t.scale_down, 0))),
    ("I18", "a removal of an instance that may still become Ready", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.later(14);
        let growth = t.growth.clone();
        t.reports_in_progress(&growth);
        t.calls(CallKind::Terminate(t.removal_of_launched(0)));
    }),
    ("I18", "a removal of a never Ready instance without waiting", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.later(15);
        let rollout = t.rollout.clone();
        t.reports_in_progress(&rollout);
        t.calls(CallKind::Terminate(t.removal_of_launched(0)));
    }),
    ("I18", "a removal of an instance that was Ready once", |t| {
        t.applies(&t.growth);
        t.calls(t.launch(&t.growth, 0));
        t.becomes_ready(0);
        t.later(60);
        t.tick();
        let growth = t.growth.clone();
        t.reports_in_progress(&growth);
        t.calls(CallKind::Terminate(t.removal_of_launched(0)));
    }),
    ("I20", "a message deleted too early", |t| {
        t.calls(CallKind::Acknowledge("m1".to_owned(), vec!["i-1".into()]));
    }),
];
