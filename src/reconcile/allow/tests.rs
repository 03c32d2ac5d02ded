use jiff::SignedDuration;

use super::*;
use crate::manifest::{ControllerSettings, GuardSettings, Most, Rate, Window};
use crate::plan::wire::{Check, Wave};
use crate::reconcile::kept::{Launched, Quarantine, Removed};
use crate::reconcile::status::{Breaker, Suspension};
use crate::render::fixture;

/// Launches `web 9` and `web 10`; replaces `web 1`; exchanges `batch 0` and `1` for `2`; retires the
/// empty `web 2`.
fn plan() -> Plan {
    fixture::plan()
}

fn now() -> Timestamp {
    "2026-09-01T10:02:00Z".parse().expect("a time")
}

fn ago(seconds: i64) -> Timestamp {
    now().checked_sub(SignedDuration::from_secs(seconds)).expect("a time")
}

/// What verdicts depend on, in a form that tests can change.
struct Given {
    leader: bool,
    mode: Mode,
    head: Head,
    kept: Kept,
    unready: u32,
    under_way: BTreeSet<Address>,
    removing: bool,
    removes_after: BTreeMap<PoolName, Timestamp>,
    launches_after: BTreeMap<PoolName, Timestamp>,
    planned_since: BTreeMap<InstanceId, Timestamp>,
    quiet_since: BTreeMap<InstanceId, Timestamp>,
    plan: Plan,
}

impl Given {
    /// A loop that may do everything, and has wanted to for long.
    fn new() -> Self {
        let plan = plan();
        let rows = plan.resource_changes.iter();
        let known = rows.filter_map(|row| row.change.before.as_ref()?.instance_id.clone());
        let all = Rate { most: Most::Share(100_000), within: SignedDuration::from_mins(5) };
        let controller =
            ControllerSettings { mode: Mode::Full, removals: all, ..ControllerSettings::default() };
        Self {
            leader: true,
            mode: Mode::Full,
            head: Head {
                commit: "c".to_owned(),
                controller,
                guard: GuardSettings::default(),
                rests: BTreeMap::new(),
                problems: 0,
                is_empty: false,
                autoscaler_namespaces: None,
                auto_mode: false,
            },
            kept: Kept::default(),
            unready: 0,
            under_way: BTreeSet::new(),
            removing: false,
            removes_after: BTreeMap::new(),
            launches_after: BTreeMap::new(),
            planned_since: known.clone().map(|id| (id, ago(3600))).collect(),
            quiet_since: known.map(|id| (id, ago(3600))).collect(),
            plan,
        }
    }

    fn with(change: impl FnOnce(&mut Self)) -> Self {
        let mut given = Self::new();
        change(&mut given);
        given
    }

    fn circumstances(&self) -> Circumstances<'_> {
        Circumstances {
            leader: self.leader,
            mode: self.mode,
            head: &self.head,
            kept: &self.kept,
            nodes: 8,
            unready: self.unready,
            under_way: &self.under_way,
            removing: self.removing,
            removes_after: &self.removes_after,
            launches_after: &self.launches_after,
            planned_since: &self.planned_since,
            quiet_since: &self.quiet_since,
        }
    }

    /// The rows that go, as `pool key`.
    fn go(&self) -> Vec<String> {
        let verdicts = allowed(&self.plan, &self.circumstances(), now()).into_iter();
        let go = verdicts.filter(|(_, verdict)| *verdict == Verdict::Go);
        go.map(|(address, _)| short(&address)).collect()
    }

    fn held(&self, row: &str) -> Held {
        let all = allowed(&self.plan, &self.circumstances(), now());
        let found = all.into_iter().find(|(address, _)| short(address) == row);
        match found.expect("a change of the plan").1 {
            Verdict::Hold(held) => held,
            Verdict::Go => panic!("{row} goes"),
        }
    }
}

fn short(address: &Address) -> String {
    let text = address.as_str().trim_start_matches("ec2_instance.");
    text.replace("[\"", " ").replace("\"]", "")
}

const ALL: [&str; 7] = ["batch 0", "batch 1", "batch 2", "web 1", "web 10", "web 2", "web 9"];
const LAUNCHES: [&str; 2] = ["web 10", "web 9"];

fn asked(until: Option<Timestamp>) -> Suspension {
    let (reason, by) = ("a migration".to_owned(), "alice".to_owned());
    Suspension { reason, until, since: ago(60), by }
}

fn launched(n: usize) -> Vec<Launched> {
    let one = |n: usize| Launched {
        instance: format!("i-{n}").as_str().into(),
        pool: "web".into(),
        at: ago(60),
        ready_at: None,
        helped: true,
        from_start: false,
        passed_over: false,
    };
    (0..n).map(one).collect()
}

fn removed(n: usize) -> Vec<Removed> {
    let one = |n: usize| {
        let instance = format!("i-{n}").as_str().into();
        Removed { instance, at: ago(60), open: false, noted: None }
    };
    (0..n).map(one).collect()
}

type Change = fn(&mut Given);
/// What is different, and which rows go then.
type Case = (&'static str, Change, &'static [&'static str]);

/// What concerns every change, or every removal.
const OF_ALL: &[Case] = &[
    ("another replica leads", |g| g.leader = false, &[]),
    ("mode observe", |g| g.mode = Mode::Observe, &[]),
    ("mode additive", |g| g.mode = Mode::Additive, &LAUNCHES),
    ("errors", |g| g.plan.errored = true, &[]),
    ("not applyable", |g| g.plan.applyable = false, &[]),
    ("suspended", |g| g.kept.suspended = Some(asked(None)), &[]),
    ("a commit that asks for nothing", |g| g.head.is_empty = true, &LAUNCHES),
    ("by digest", |g| g.head.controller.approval = ApprovalRule::Digest, &[]),
    ("one removal at a time", |g| g.removing = true, &LAUNCHES),
    (
        "backing off from removals of a pool",
        |g| {
            g.removes_after.insert("web".into(), ago(-5));
        },
        &["batch 0", "batch 1", "batch 2", "web 10", "web 9"],
    ),
    (
        "backing off from launches of a pool",
        |g| {
            g.launches_after.insert("web".into(), ago(-5));
        },
        &["batch 0", "batch 1", "batch 2", "web 2"],
    ),
    (
        "what another pool failed at concerns nobody",
        |g| {
            g.launches_after.insert("gpu".into(), ago(-5));
            g.removes_after.insert("gpu".into(), ago(-5));
            g.removes_after.insert("web".into(), now());
        },
        &ALL,
    ),
    ("three unready are few", |g| g.unready = 3, &ALL),
    ("four of eight are many", |g| g.unready = 4, &LAUNCHES),
];

/// What concerns one row, and with it its exchange.
const OF_ROWS: &[Case] = &[
    (
        "a row that is under way holds its exchange",
        |g| {
            g.under_way.insert("ec2_instance.batch[\"0\"]".into());
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "a pool that asks for confirmations",
        |g| {
            g.head.controller.confirm.insert("batch".into());
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "planned for too short a time",
        |g| {
            g.planned_since.insert("i-web2".into(), ago(30));
        },
        &["batch 0", "batch 1", "batch 2", "web 1", "web 10", "web 9"],
    ),
    (
        "a pool whose pods moved lately",
        |g| {
            g.head.rests.insert("batch".into(), SignedDuration::from_mins(5));
            g.quiet_since.insert("i-batch1".into(), ago(299));
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "a pool that rested as long as it asks for",
        |g| {
            g.head.rests.insert("batch".into(), SignedDuration::from_mins(5));
            g.quiet_since.insert("i-batch1".into(), ago(300));
        },
        &ALL,
    ),
    (
        "what drifted does not wait for quiet",
        |g| {
            g.head.rests.insert("web".into(), SignedDuration::from_mins(5));
            g.quiet_since.insert("i-web1".into(), ago(1));
            let mut rows = g.plan.capacity.explain.iter_mut();
            let row = rows.find(|row| short(&row.address) == "web 1").expect("web 1 is replaced");
            let [field, is, declared] = ["image", "a", "b"].map(ToOwned::to_owned);
            row.retire_reason = Some(RetireReason::Drifted { field, is, declared });
        },
        &ALL,
    ),
    (
        "a pool that rests longer",
        |g| {
            g.head.rests.insert("batch".into(), SignedDuration::from_hours(2));
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
];

/// Breakers, quarantines and budgets.
const OF_NUMBERS: &[Case] = &[
    (
        "a breaker of removals",
        |g| {
            g.kept.latch(MASS_REMOVAL, (String::new(), None), now());
        },
        &LAUNCHES,
    ),
    (
        "a breaker of launches leaves what only goes",
        |g| {
            let (name, why) = (super::LAUNCHES.to_owned(), String::new());
            g.kept.breakers.push(Breaker { name, since: now(), why, removes: None });
        },
        &["web 2"],
    ),
    (
        "a pool in quarantine",
        |g| {
            let held = Quarantine { until: ago(-60), times: 0, why: String::new() };
            g.kept.quarantine.insert("web".into(), held);
        },
        &["batch 0", "batch 1", "batch 2", "web 2"],
    ),
    (
        "room for one launch",
        |g| {
            g.head.controller.launches.most = Most::Count(4);
            g.kept.launched = launched(3);
        },
        &["web 10", "web 2"],
    ),
    (
        "room for two removals",
        |g| {
            g.head.controller.removals.most = Most::Count(3);
            g.kept.removed = removed(1);
        },
        &["web 1", "web 10", "web 2", "web 9"],
    ),
    (
        "an exchange that is larger than the budget goes alone",
        |g| g.head.controller.removals.most = Most::Count(1),
        &["web 1", "web 10", "web 9"],
    ),
    (
        "what may wait for a launch takes no room from an exchange that launches",
        |g| {
            g.head.controller.removals.most = Most::Count(1);
            let of = |key: &str| Address::from(format!("ec2_instance.web[\"{key}\"]"));
            g.plan.capacity.waves.iter_mut().for_each(|w| w.addresses.retain(|a| *a != of("1")));
            let mut rows = g.plan.capacity.explain.iter_mut();
            let row = rows.find(|row| row.address == of("2")).expect("a row");
            row.pods_before.insert("web/Deployment/api".into(), 1);
        },
        &["batch 0", "batch 1", "batch 2", "web 10", "web 9"],
    ),
];

#[test]
fn each_rule_holds_back_what_it_is_about_and_nothing_else() {
    assert_eq!(Given::new().go(), ALL);
    for (name, change, go) in [OF_ALL, OF_ROWS, OF_NUMBERS].concat() {
        let mut found = Given::with(change).go();
        found.sort();
        let mut wanted: Vec<String> = go.iter().map(|row| (*row).to_owned()).collect();
        wanted.sort();
        assert_eq!(found, wanted, "{name}");
    }
}

#[test]
fn outside_the_windows_nothing_goes_and_it_is_said_when_the_next_opens() {
    let zone = jiff::tz::TimeZone::UTC;
    let closed = Window { days: Vec::new(), from: 12 * 60, to: 13 * 60, zone };
    let outside = Given::with(|g| g.head.guard.windows.push(closed));
    assert_eq!(outside.go(), [""; 0]);
    let opens = "2026-09-01T12:00:00Z".parse().ok();
    assert_eq!(outside.held("web 9"), Held::Window { opens });
}

#[test]
fn broken_glass_passes_over_approval_and_windows_and_over_no_rule_of_safety() {
    let glass = |change: fn(&mut Given)| {
        Given::with(|g| {
            g.head.controller.approval = ApprovalRule::Digest;
            g.head.guard.windows.push(Window {
                days: Vec::new(),
                from: 0,
                to: 1,
                zone: jiff::tz::TimeZone::UTC,
            });
            g.kept.break_glass = Some(asked(Some(ago(-600))));
            change(g);
        })
    };
    assert_eq!(glass(|_| ()).go(), ALL);
    assert_eq!(glass(|g| g.unready = 5).go(), LAUNCHES);
    assert_eq!(glass(|g| g.plan.applyable = false).go(), [""; 0]);
    assert_eq!(glass(|g| g.leader = false).go(), [""; 0]);
    assert_eq!(glass(|g| g.kept.suspended = Some(asked(None))).go(), [""; 0]);
}

#[test]
fn with_the_glass_broken_each_rule_but_approval_holds_back_what_it_did() {
    for (name, change, go) in [OF_ALL, OF_ROWS, OF_NUMBERS].concat() {
        let broken = |g: &mut Given| {
            change(g);
            g.kept.break_glass = Some(asked(Some(ago(-600))));
        };
        let mut found = Given::with(broken).go();
        found.sort();
        let of_approval = name == "by digest";
        let mut wanted = if of_approval { ALL.to_vec() } else { go.to_vec() };
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{name}");
    }
    let removes = |broken: bool| {
        let given = Given::with(|g| {
            g.plan = emptied();
            g.kept.break_glass = broken.then(|| asked(Some(ago(-600))));
        });
        mass_removal(&given.plan, &given.circumstances())
    };
    assert!(removes(false).is_some_and(|why| Some(why) == removes(true)), "nobody has seen it");
}

#[test]
fn a_plan_is_approved_as_the_repository_says() {
    let rule = |rule, change: fn(&mut Given)| {
        let given = Given::with(|g| {
            g.head.controller.approval = rule;
            change(g);
        });
        approval(&given.plan, &given.circumstances())
    };
    let approve = |g: &mut Given| {
        let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
        g.kept.approved.push(Approved { digest, by, at: now(), rows: BTreeSet::new() });
    };
    let warns = |g: &mut Given| {
        g.plan.checks = vec![Check { name: "p".into(), status: "warn".into(), ..Check::default() }];
    };
    let bob = Some(ApprovedBy::Digest { who: "bob".to_owned() });
    assert_eq!(rule(ApprovalRule::Merge, |_| ()), Some(ApprovedBy::Merge));
    assert_eq!(rule(ApprovalRule::Digest, |_| ()), None);
    assert_eq!(rule(ApprovalRule::Digest, approve), bob);
    assert_eq!(rule(ApprovalRule::Policy, |_| ()), Some(ApprovedBy::Policy));
    assert_eq!(rule(ApprovalRule::Policy, warns), None);
    let other = |g: &mut Given| {
        let (digest, by) = (format!("sha256:{}", "0".repeat(64)), "bob".to_owned());
        g.kept.approved.push(Approved {
            digest: digest.into(),
            by,
            at: now(),
            rows: BTreeSet::new(),
        });
    };
    assert_eq!(rule(ApprovalRule::Digest, other), None, "another plan was approved");
}

#[test]
fn a_part_of_what_was_approved_is_approved_and_nothing_else_is() {
    let of = |change: fn(&mut Plan)| {
        let given = Given::with(|g| {
            g.head.controller.approval = ApprovalRule::Digest;
            let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
            g.kept.approved.push(Approved { digest, by, at: now(), rows: BTreeSet::new() });
            g.kept.note_approved(&g.plan);
            // Made again without what is held back it is another plan.
            g.plan.capacity.digest = format!("sha256:{}", "1".repeat(64)).into();
            change(&mut g.plan);
        });
        approval(&given.plan, &given.circumstances())
    };
    let bob = Some(ApprovedBy::Digest { who: "bob".to_owned() });
    let only_web2 = |plan: &mut Plan| {
        plan.capacity.waves.retain(|wave| wave.step == WaveStep::Retire);
        plan.capacity.waves.iter_mut().for_each(|wave| {
            wave.addresses.retain(|address| short(address) == "web 2");
        });
    };
    assert_eq!(of(|_| ()), bob);
    assert_eq!(of(only_web2), bob);
    let dearer = |plan: &mut Plan| {
        let row = plan.resource_changes.iter_mut().find(|row| short(&row.address) == "web 9");
        let after = row.and_then(|row| row.change.after.as_mut()).expect("web 9 comes");
        after.instance_type = Some("m5.24xlarge".into());
    };
    assert_eq!(of(dearer), None, "a change that nobody has seen");
    assert_eq!(of(|plan| plan.capacity.waves.clear()), None, "nothing is no part");
}

#[test]
fn empty_nodes_are_no_mass_removal() {
    let mass = |because: RetireReason| {
        let given = Given::with(|g| {
            g.plan = emptied();
            g.plan.capacity.explain.iter_mut().for_each(|row| {
                row.reason = Reason::Retire { because: because.clone() };
            });
        });
        mass_removal(&given.plan, &given.circumstances()).is_some()
    };
    assert!(mass(RetireReason::PoolRemoved));
    assert!(!mass(RetireReason::Empty { saves_hourly: crate::units::MicroUsd(0) }));
}

/// A plan that removes all of eight nodes.
fn emptied() -> Plan {
    let mut plan = fixture::large(8, 8);
    let addresses = plan.resource_changes.iter().map(|row| row.address.clone()).collect();
    plan.capacity.waves = vec![Wave { step: WaveStep::Retire, addresses }];
    for row in &mut plan.capacity.explain {
        row.reason = Reason::Retire { because: RetireReason::PoolRemoved };
    }
    plan
}

#[test]
fn what_goes_without_being_replaced_is_counted_against_the_fleet() {
    let most = |most: Most, change: fn(&mut Given)| {
        let given = Given::with(|g| {
            g.head.controller.mass_removal = most;
            change(g);
        });
        mass_removal(&given.plan, &given.circumstances()).is_some()
    };
    // Two of the rows of the plan go without another one coming: few, whatever the share.
    assert!(!most(Most::Share(1_000), |_| ()));
    let many = |g: &mut Given| g.plan = emptied();
    assert!(most(Most::Share(50_000), many));
    assert!(!most(Most::Share(100_000), many));
    let approved = |g: &mut Given| {
        g.plan = emptied();
        let (digest, by) = (g.plan.capacity.digest.clone(), "bob".to_owned());
        g.kept.approved.push(Approved { digest, by, at: now(), rows: BTreeSet::new() });
    };
    assert!(!most(Most::Share(50_000), approved), "somebody has seen it");
}

#[test]
fn a_removal_whose_pods_may_be_counted_on_a_launch_is_held_back_with_it() {
    let quarantined = |moves: bool| {
        Given::with(|given| {
            let held = Quarantine { until: ago(-60), times: 0, why: String::new() };
            given.kept.quarantine.insert("web".into(), held);
            let mut rows = given.plan.capacity.explain.iter_mut();
            let row = rows.find(|row| short(&row.address) == "web 2").expect("it goes");
            row.pods_before.extend(moves.then(|| ("shop/Deployment/api".into(), 1)));
        })
    };
    assert!(quarantined(false).go().contains(&"web 2".to_owned()), "nobody is on it");
    let held = quarantined(true).held("web 2");
    assert!(matches!(held, Held::Together { .. }), "{held:?}");
}
