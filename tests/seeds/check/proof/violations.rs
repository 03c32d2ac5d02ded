//! The traces themselves, by what they are about.

use super::{
    APPLY, Arc, Asked, AwayPhase, BTreeSet, Bytes, CORDONED_ANNOTATION, Completeness, Effect,
    Ended, Going, LAUNCHED, LaunchRequest, Limits, Most, Plan, READS_PER_MINUTE, Rate,
    ResourceChange, SAME_MOST, SignedDuration, Trace, WaveStep, What, launched, rows, tag,
};

/// An invariant, what it is about, and a trace that violates it.
pub(super) type Violation = (&'static str, &'static str, fn(&mut Trace));

pub(super) const OF_PLANS: &[Violation] = &[
    ("I3", "a partial world", |t| {
        let failed = Completeness::Failed { reason: "x".to_owned() };
        t.grows.capacity.base.world.sources.insert("ec2".to_owned(), failed);
        t.applies(&t.grows);
    }),
    ("I4", "a mass removal", |t| {
        t.settings.mass_removal = Most::Count(3);
        t.tick();
        t.rolls.capacity.waves.retain(|wave| wave.step == WaveStep::Retire);
        t.applies(&t.rolls);
    }),
    ("I6", "a launch in quarantine", |t| {
        let until = t.now.checked_add(SignedDuration::from_mins(1)).expect("a time");
        t.status.quarantined.insert("web".into(), (String::new(), until));
        t.applies(&t.grows);
    }),
    ("I7", "a plan that knows better than what was seen", |t| {
        let row = rows(&t.grows, WaveStep::Launch).next().expect("something comes");
        let kind = row.change.after.as_ref().and_then(|a| a.instance_type.clone());
        let kind = kind.expect("known");
        t.world.instances.values_mut().for_each(|i| i.instance_type = kind.clone());
        t.world.nodes.values_mut().for_each(|node| node.allocatable.memory = Bytes(1));
        t.plans();
        t.applies(&t.grows);
    }),
    ("I7", "pods that are to come to a node that takes none", |t| {
        t.world.nodes.values_mut().for_each(|node| node.unschedulable = true);
        t.plans();
        let mut rows = t.grows.resource_changes.iter();
        let stays = |row: &&ResourceChange| {
            row.change.after.as_ref().is_some_and(|after| after.node.is_some())
        };
        let address = rows.find(stays).expect("one stays").address.clone();
        let placement = t.grows.capacity.placements.first_mut().expect("pods come");
        placement.address = address;
        t.applies(&t.grows);
    }),
    ("I14", "a removal while the world cannot be read", |t| {
        t.status.world.as_mut().expect("seen").reads.failures = 1;
        t.applies(&t.shrinks);
    }),
    ("I15", "a removal while the fleet is broken", |t| {
        t.world.nodes.values_mut().for_each(|node| node.ready = false);
        t.plans();
        t.applies(&t.shrinks);
    }),
    ("I17", "a removal for an empty commit", |t| {
        t.is_empty = true;
        t.applies(&t.shrinks);
    }),
    ("I18", "a plan with errors", |t| {
        t.grows.errored = true;
        t.applies(&t.grows);
    }),
    ("I18", "a plan that is denied", |t| {
        t.grows.applyable = false;
        t.applies(&t.grows);
    }),
    ("I16", "a machine that drifts from its like", |t| {
        for row in &mut t.rolls.resource_changes {
            for side in row.change.before.iter_mut().chain(&mut row.change.after) {
                (side.spec_digest, side.labels) = (Some("the same".to_owned()), [].into());
            }
        }
        t.applies(&t.rolls);
    }),
    ("I16", "a machine that is replaced for its image, of which it is the newest", |t| {
        t.launches_and_replaces(false);
    }),
    ("I16", "a fleet at rest in which another life finds something to change", |t| {
        let commit = t.status.repository.commit.clone().expect("served");
        let (world, limits) = (Arc::new(t.world.clone()), Limits::default());
        let plan = Effect::Plan { ticket: 1, commit: commit.clone(), world, limits };
        let now = |t: &mut Trace, mut plan: Plan| {
            plan.capacity.base.commit = Some(commit.clone());
            t.status.plan.as_mut().expect("planned").plan = Arc::new(plan);
        };
        let rolls = t.rolls.clone();
        let mut rests = rolls.clone();
        rests.capacity.waves.clear();
        t.effects(std::slice::from_ref(&plan));
        now(t, rests);
        t.effects(&[plan]);
        now(t, rolls);
        t.effects(&[]);
    }),
    ("I13", "a launch that is forgotten", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.calls(What::Launched(LAUNCHED[0].into()));
        t.plans();
    }),
    ("I13", "a launch while nobody has heard of another", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.later(1);
        t.applies(&t.rolls);
        t.calls(t.launch(&t.rolls, 1));
    }),
    ("I13", "a launch while somebody else has heard of another", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.call(&Asked { replica: 1, ..t.asked(What::Launched(LAUNCHED[0].into())) });
        t.later(1);
        t.applies(&t.rolls);
        t.calls(t.launch(&t.rolls, 1));
    }),
    ("I13", "a plan that launches, made without a launch that nobody has heard of", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.later(1);
        t.plans();
        t.applies(&t.rolls);
    }),
    ("I13", "a plan that launches, made before another replica had launched", |t| {
        t.plans();
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.call(&Asked { replica: 1, ..t.asked(What::Launched(LAUNCHED[0].into())) });
        t.applies(&t.rolls);
    }),
    ("I13", "a removal that is forgotten", |t| {
        t.calls(What::Ended(t.removal(&t.shrinks, 0).id));
        t.later(1);
        t.plans();
    }),
];

pub(super) const OF_LAUNCHES: &[Violation] = &[
    ("I1", "two machines of a change", |t| {
        let mut twin = t.world.instances.values().next().expect("one").clone();
        twin.id = "i-twin".into();
        t.world.instances.insert(twin.id.clone(), twin);
        t.tick();
    }),
    ("I2", "a launch without tags", |t| {
        t.applies(&t.grows);
        let What::Launch(mut request, id) = t.launch(&t.grows, 0) else { return };
        request.tags.remove(tag::POOL);
        t.calls(What::Launch(request, id));
    }),
    ("I5", "too many launches", |t| {
        t.settings.launches.most = Most::Count(1);
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.calls(t.launch(&t.grows, 1));
    }),
    ("I12", "a launch without the lease", |t| {
        t.applies(&t.grows);
        t.call(&Asked { lease: None, ..t.asked(t.launch(&t.grows, 0)) });
    }),
    ("I12", "a launch under the lease of another", |t| {
        t.applies(&t.grows);
        let call = t.asked(t.launch(&t.grows, 0));
        t.call(&Asked { lease: call.lease.map(|(_, until)| (1, until)), ..call });
    }),
    ("I12", "a launch at the end of the lease", |t| {
        t.applies(&t.grows);
        let call = t.asked(t.launch(&t.grows, 0));
        t.call(&Asked { lease: Some((0, t.now)), ..call });
    }),
    ("I18", "a launch that no plan has", |t| t.calls(t.launch(&t.grows, 0))),
    ("I18", "a launch as a change of before that nothing takes up again", |t| {
        t.applies(&t.grows);
        t.calls(t.launch_again(&t.grows, 0));
    }),
    ("I18", "a launch that was taken up as a change of before, and anew beside", |t| {
        t.applies_again(&t.grows, Trace::before(&t.grows, 0));
        t.calls(t.launch_again(&t.grows, 0));
        t.calls(t.launch(&t.grows, 0));
    }),
    ("I18", "a launch of something else than was decided", |t| {
        t.applies(&t.grows);
        t.calls(launched(0, LaunchRequest { zone: "us-east-1z".into(), ..t.request(&t.grows, 0) }));
    }),
    ("I18", "a launch as a change of before, of something else than is decided now", |t| {
        t.applies_again(&t.grows, Trace::before(&t.grows, 0));
        let What::Launch(request, id) = t.launch_again(&t.grows, 0) else { return };
        let instance_type = "m5.24xlarge".into();
        t.calls(What::Launch(Box::new(LaunchRequest { instance_type, ..*request }), id));
    }),
    ("I19", "the same launch over and over", |t| {
        t.applies(&t.grows);
        for _ in 0..=SAME_MOST {
            t.calls(t.launch(&t.grows, 0));
        }
    }),
    ("I19", "too many reads", |t| {
        t.tick();
        t.later(1);
        t.reads(READS_PER_MINUTE + 1);
    }),
];

pub(super) const OF_REMOVALS: &[Violation] = &[
    ("I2", "a removal of another's machine", |t| {
        t.applies(&t.shrinks);
        t.ends(Ended { ours: false, ..t.removal(&t.shrinks, 0) });
    }),
    ("I4", "too many removals", |t| {
        t.settings.removals = Rate { most: Most::Count(1), within: SignedDuration::from_mins(5) };
        t.applies(&t.shrinks);
        t.ends(t.removal(&t.shrinks, 0));
        t.later(4);
        t.ends(t.removal(&t.shrinks, 1));
    }),
    ("I8", "a removal before what replaces it is Ready", |t| {
        t.applies(&t.rolls);
        t.ends(Ended { ready: BTreeSet::new(), ..t.removal(&t.rolls, 0) });
    }),
    ("I8", "a removal before what was asked for again in its place is Ready", |t| {
        t.applies_again(&t.rolls, Trace::before(&t.rolls, 0));
        // What a plan calls its own changes is not what was asked for.
        for n in 0..rows(&t.rolls, WaveStep::Retire).count() {
            t.ends(t.removal(&t.rolls, n));
        }
    }),
    ("I9", "a removal with pods left", |t| {
        t.applies(&t.shrinks);
        t.ends(Ended { left: vec![None], ..t.removal(&t.shrinks, 0) });
    }),
    ("I9", "a removal without a cordon", |t| {
        t.applies(&t.shrinks);
        t.calls(What::Terminate(t.removal(&t.shrinks, 0)));
    }),
    ("I9", "a removal without a look after the cordon", |t| {
        t.applies(&t.shrinks);
        let ended = t.removal(&t.shrinks, 0);
        let looked = Some(t.now);
        t.later(1);
        let node = ended.node.clone().expect("joined");
        t.calls(What::Cordon { node, on: true, ours: true });
        t.call(&Asked { looked, ..t.asked(What::Terminate(ended)) });
    }),
    (
        "I9",
        "a removal of a node that a person has uncordoned since, and that was read since",
        |t| {
            t.applies(&t.shrinks);
            let ended = t.removal(&t.shrinks, 0);
            let node = ended.node.clone().expect("joined");
            t.calls(What::Cordon { node: node.clone(), on: true, ours: true });
            t.stands(&node, true);
            t.later(1);
            t.stands(&node, false);
            t.later(1);
            t.stands(&node, false);
            t.calls(What::Terminate(Ended { open: true, ..ended }));
        },
    ),
    (
        "I9",
        "a removal with pods left that ran before it was read, of a node that is open by now",
        |t| {
            t.applies(&t.shrinks);
            let ended = t.removal(&t.shrinks, 0);
            let node = ended.node.clone().expect("joined");
            let left = vec![Some(t.now)];
            t.calls(What::Cordon { node, on: true, ours: true });
            t.later(1);
            let looked = Some(t.now);
            t.call(&Asked {
                looked,
                ..t.asked(What::Terminate(Ended { open: true, left, ..ended }))
            });
        },
    ),
    ("I9", "an uncordon beside an apply", |t| {
        t.status.applying.insert("p".into(), (Vec::new(), t.now));
        t.uncordons(0);
    }),
    ("I9", "an uncordon of a machine that goes by itself beside the apply that drains it", |t| {
        t.applies(&t.shrinks);
        t.status.applying.insert(t.shrinks.capacity.plan_id.clone(), (Vec::new(), t.now));
        let instance = t.removal(&t.shrinks, 0).id;
        let (why, since) = ("health".to_owned(), t.now);
        let phase = AwayPhase::Draining;
        let (node, deadline, held) = (None, None, None);
        t.status.going.push(Going { instance, node, why, since, deadline, phase, held });
        t.uncordons(0);
    }),
    ("I9", "an uncordon of a node that the plan has go", |t| {
        t.status.plan.as_mut().expect("planned").plan = Arc::new(t.shrinks.clone());
        t.uncordons(0);
    }),
    ("I2", "an uncordon of what a person cordoned", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.calls(What::Cordon { node, on: false, ours: false });
    }),
    ("I10", "a cordon that nobody takes back", |t| {
        let node = t.world.nodes.values_mut().next().expect("one");
        node.unschedulable = true;
        node.annotations.insert(CORDONED_ANNOTATION.to_owned(), "drain".to_owned());
        t.tick();
        t.later(61);
        t.tick();
    }),
    ("I11", "a group that shrinks by number", |t| {
        t.calls(What::Raise { group: "g".into(), from: 3, to: 2 });
    }),
    ("I2", "a cordon of somebody else's node", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.calls(What::Cordon { node, on: true, ours: false });
    }),
    ("I12", "a node that is uncordoned while an apply has the lease", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        let lease = Some((APPLY, t.now));
        t.call(&Asked { lease, ..t.asked(What::Cordon { node, on: false, ours: true }) });
    }),
    ("I12", "a cordon without the lease", |t| {
        let node = t.world.nodes.keys().next().expect("one").clone();
        t.call(&Asked { lease: None, ..t.asked(What::Cordon { node, on: true, ours: true }) });
    }),
    ("I12", "a cordon of what EC2 takes back under the lease of another replica", |t| {
        let call = t.shields();
        t.call(&Asked { lease: call.lease.map(|(_, until)| (1, until)), ..call });
    }),
    ("I8", "a removal before what replaces it is Ready, though other launches were dropped", |t| {
        t.applies(&t.rolls);
        t.pins(&t.grows, &t.rolls);
        t.ends(Ended { ready: BTreeSet::new(), ..t.removal(&t.rolls, 0) });
    }),
    ("I8", "a removal before what replaces it is Ready, which was dropped the time before", |t| {
        t.applies(&t.rolls);
        t.pins(&t.rolls, &t.rolls);
        t.applies(&t.rolls);
        t.ends(Ended { ready: BTreeSet::new(), ..t.removal(&t.rolls, 0) });
    }),
    (
        "I8",
        "pods that are to leave weeks before EC2 ends their machine, which have no place",
        |t| {
            t.leaves(SignedDuration::from_hours(24 * 14));
        },
    ),
    ("I18", "a removal that nothing asks for", |t| t.ends(t.removal(&t.shrinks, 0))),
    ("I18", "a removal of what may still become Ready", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.later(14);
        let grows = t.grows.clone();
        t.goes_on(&grows);
        t.calls(What::Terminate(t.new_one(0)));
    }),
    ("I18", "a removal of what never was Ready by who does not wait for it", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.later(15);
        let rolls = t.rolls.clone();
        t.goes_on(&rolls);
        t.calls(What::Terminate(t.new_one(0)));
    }),
    ("I18", "a removal of what was Ready once, however long ago it came", |t| {
        t.applies(&t.grows);
        t.calls(t.launch(&t.grows, 0));
        t.serves(0);
        t.later(60);
        let grows = t.grows.clone();
        t.goes_on(&grows);
        t.calls(What::Terminate(t.new_one(0)));
    }),
    ("I20", "a message that is taken off too early", |t| {
        t.calls(What::Acknowledge("m1".to_owned(), vec!["i-1".into()]));
    }),
];
