//! Budgets that slide, launches that count once, and what fits.

use super::super::asked::ROWS_MAX;
use super::*;
use crate::fleet::fixture;
use crate::plan::wire::PlacementRow;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).expect("a time")
}

#[test]
fn a_budget_slides_and_says_when_the_next_may_come() {
    let within = SignedDuration::from_secs(60);
    for (moments, most, now, left, next) in [
        (vec![], 2, 0, 2, 0),
        (vec![-70, -10], 2, 0, 1, 50),
        (vec![-50, -10], 2, 0, 0, 10),
        (vec![-50, -20, -10], 2, 0, 0, 40),
        (vec![-60], 1, 0, 1, 0),
    ] {
        let found = Kept::room(moments.iter().map(|s| at(*s)), most, within, at(now));
        assert_eq!(found, (left, at(next)), "{moments:?} of {most}");
    }
    assert_eq!(Kept::room([].into_iter(), 0, within, at(0)), (0, at(60)));
}

#[test]
fn what_is_sold_out_again_is_left_out_for_longer_and_what_rests_is_forgotten() {
    let kind = |kind: &str| Exclusion {
        instance_type: Some(kind.into()),
        zone: None,
        capacity_type: None,
        until: Timestamp::MIN,
    };
    let mut kept = Kept::default();
    kept.note_sold_out(kind("a"), at(0));
    assert_eq!((kept.exclusions(at(179)).len(), kept.exclusions(at(180)).len()), (1, 0));
    kept.note_sold_out(kind("a"), at(200));
    assert_eq!((kept.exclusions(at(559)).len(), kept.exclusions(at(560)).len()), (1, 0));
    kept.forget(at(560 + 360));
    assert_eq!(kept.sold_out, []);
}

#[test]
fn a_quarantine_doubles_and_ends() {
    let mut kept = Kept::default();
    let pool = PoolName::from("web");
    kept.quarantine(&pool, String::new(), at(0));
    assert!(kept.quarantined(&pool, at(299)).is_some());
    assert!(kept.quarantined(&pool, at(300)).is_none());
    kept.quarantine(&pool, String::new(), at(310));
    assert!(kept.quarantined(&pool, at(909)).is_some());
    assert!(kept.quarantined(&pool, at(910)).is_none());
    assert_eq!(futile::rests_for(40), futile::QUARANTINE_MOST);
    kept.forget(at(100_000));
    assert!(kept.quarantine.is_empty());
}

/// Returns what a plan wants that launches in pool `web` for pods that wait since then, and has no pod on `idle`.
fn wants(since: Option<i64>, idle: &[&str]) -> Wanted {
    Wanted::with(&[("web", since.map(at))], idle)
}

#[test]
fn a_pool_whose_machines_are_of_no_use_launches_nothing_for_a_while() {
    let pool = PoolName::from("web");
    let launched = |n: i64, ready: Option<i64>, helped| Launched {
        instance: format!("i-{n}").as_str().into(),
        pool: pool.clone(),
        at: at(n),
        ready_at: ready.map(at),
        helped,
        from_start: false,
        passed_over: false,
    };
    let all = ["i-1", "i-2", "i-3"];
    let held = |launches: &[Launched], wanted: &Wanted, now| {
        let mut kept = Kept { launched: launches.to_vec(), ..Kept::default() };
        kept.judge_launches(wanted, at(now));
        kept.quarantined(&pool, at(now)).is_some()
    };
    let three = |ready, helped| [1, 2, 3].map(|n| launched(n, ready, helped)).to_vec();
    let ready = three(Some(40), false);
    let waited = wants(Some(0), &all);
    assert!(held(&ready, &waited, 85), "Ready beside pods that wait");
    assert!(!held(&ready, &waited, 84), "pods need a moment");
    assert!(!held(&ready, &wants(Some(100), &all), 144), "these wait since a moment ago");
    assert!(held(&ready, &wants(Some(100), &all), 145));
    assert!(!held(&ready, &wants(None, &all), 2_000), "more is launched, and no pod waits");
    assert!(!held(&ready, &wants(Some(0), &[]), 2_000), "pods are to come to them");
    assert!(!held(&ready, &Wanted::with(&[("jobs", Some(at(0)))], &all), 2_000), "of another pool");
    assert!(!held(&three(Some(40), true), &waited, 200), "pods came");
    assert!(!held(&ready[1..], &waited, 200), "two may be chance");
    assert!(!held(&three(None, false), &waited, 800), "still booting");
    assert!(held(&three(None, false), &wants(None, &[]), 904), "never Ready, whatever for");
    let mut kept = Kept { launched: ready, ..Kept::default() };
    kept.judge_launches(&waited, at(100));
    kept.launched.push(launched(401, Some(440), false));
    let waited = wants(Some(0), &["i-401"]);
    kept.judge_launches(&waited, at(450));
    assert!(kept.quarantined(&pool, at(450)).is_none(), "tried again");
    kept.judge_launches(&waited, at(490));
    assert!(kept.quarantined(&pool, at(1000)).is_some(), "for twice as long");
}

#[test]
fn pods_that_wait_for_something_else_than_a_place_make_no_machine_useless() {
    let mut plan = crate::render::fixture::plan();
    let row = crate::reconcile::work::launched(&plan).next().expect("something is launched");
    let (address, after) = (row.address.clone(), row.change.after.clone());
    let pool = after.and_then(|after| after.pool).expect("of a pool");
    let workload = crate::story::workload_id();
    let mut world = crate::reconcile::fixture::world(0);
    for seconds in [-9_000, -30, -20] {
        let owner = Some(workload.clone());
        let created_at = at(seconds);
        let name = format!("api{seconds}");
        let pod = crate::fleet::Pod { owner, created_at, ..crate::fleet::fixture::pod(&name) };
        world.pods.push(std::sync::Arc::new(pod));
    }
    let mut since = |launches: u32, stuck: u32| {
        let placed =
            PlacementRow { workload: workload.clone(), address: address.clone(), pods: launches };
        plan.capacity.placements = vec![placed];
        let row = plan.capacity.unschedulable.first_mut().expect("one has no place");
        (row.workload, row.pods) = (workload.clone(), stuck);
        plan.capacity.unschedulable.truncate(1);
        let since = Wanted::of(&plan, &world).pools.get(&pool).copied();
        since.expect("it launches there")
    };
    assert_eq!(since(3, 0), Some(at(-9_000)), "all of them");
    assert_eq!(since(2, 1), Some(at(-30)), "the first is stuck");
    assert_eq!(since(1, 0), Some(at(-20)), "the plan knows of one");
    assert_eq!(since(3, 3), None, "those that are not there yet");
}

#[test]
fn a_launch_counts_from_the_moment_that_ec2_tells_by_whatever_clock_it_was_noted() {
    let within = SignedDuration::from_mins(3);
    let left = |kept: &Kept, now| Kept::room(kept.came(), 5, within, at(now)).0;
    let launched = |at: Timestamp| Launched {
        instance: format!("i-{:017x}", 4).into(),
        pool: "web".into(),
        at,
        ready_at: None,
        helped: false,
        from_start: true,
        passed_over: false,
    };
    // Five were launched at 0 to 4; who noted the last had a clock four minutes behind.
    let mut kept = Kept { launched: vec![launched(at(-236))], ..Kept::default() };
    kept.learn(&running(5), at(10));
    assert_eq!((left(&kept, 10), left(&kept, 183), left(&kept, 184)), (0, 0, 1));
    // Of those that nobody noted it counts that our clock may be ahead.
    assert_eq!((left(&kept, 189), left(&kept, 190)), (1, 5));
    let mut kept = Kept::default();
    kept.learn(&running(5), at(200));
    assert_eq!((left(&kept, 379), left(&kept, 380)), (0, 5));
    // One that was noted by a clock that is ahead counts for longer.
    let mut kept = Kept { launched: vec![launched(at(240))], ..Kept::default() };
    kept.learn(&running(5), at(10));
    assert_eq!((left(&kept, 419), left(&kept, 420)), (4, 5));
}

#[test]
fn what_is_about_to_go_counts_before_it_goes_and_no_longer_where_it_stays() {
    let ids = |names: &[&str]| names.iter().copied().map(InstanceId::from).collect();
    let mut kept = Kept::default();
    kept.reserve(&ids(&["i-1", "i-2", "i-3"]), at(0));
    assert!(kept.has_reserved(&ids(&["i-1", "i-3"])) && !kept.has_reserved(&ids(&["i-4"])));
    kept.remove(&ids(&["i-1"]), at(100));
    kept.release(&ids(&["i-2"]));
    let counted = |kept: &Kept| {
        let all = kept.removed.iter().map(|r| (r.instance.to_string(), r.at, r.open));
        all.collect::<Vec<_>>()
    };
    let (one, three) = ("i-1".to_owned(), "i-3".to_owned());
    assert_eq!(counted(&kept), [(three.clone(), at(0), true), (one.clone(), at(100), false)]);
    // A process that died may have removed it at any moment until now.
    kept.take_over(at(900));
    // The other it has removed, by a clock that may have been behind this one.
    assert_eq!(counted(&kept), [(three.clone(), at(900), false), (one.clone(), at(700), false)]);
    // That is once enough, however many die; of the first it is only now that an earlier life has noted it.
    kept.take_over(at(1_000));
    assert_eq!(counted(&kept), [(three, at(1_000), false), (one, at(700), false)]);
}

#[test]
fn a_removal_is_counted_no_earlier_than_it_was_by_the_clock_of_whoever_counts() {
    // It was at 1,000 by a clock that is right, five minutes earlier by the first, as much later by the last.
    let mut kept = Kept::default();
    kept.remove(&["i-1".into()].into(), at(700));
    for (life, at_most) in [(at(720), at(720)), (at(1_310), at(1_300))] {
        kept.take_over(life);
        let counted: Vec<Timestamp> = kept.went().collect();
        assert_eq!(counted, [at_most]);
        let read: Kept =
            serde_json::from_str(&serde_json::to_string(&kept).expect("text")).expect("reads");
        assert_eq!(read, kept);
    }
}

fn repaired(n: usize) -> Repaired {
    let instance = format!("i-{n:017x}").as_str().into();
    Repaired { instance, pool: "a-pool-with-a-name".into(), at: at(0) }
}

/// Returns what is kept where every list is as long as it can be.
fn full() -> Kept {
    let id = |n: usize| InstanceId::from(format!("i-{n:017x}").as_str());
    let name = |n: usize| format!("a-pool-with-a-name-{n}").as_str().into();
    let moment = |n: usize| at(i64::try_from(n).expect("few"));
    let asked = |plan: usize| Asked {
        plan: format!("{plan:064x}").into(),
        at: at(0),
        times: 1,
        rows: (0..ROWS_MAX)
            .map(|n| (format!("ec2_instance.pool[\"{n}\"]").into(), format!("{n:016x}")))
            .collect(),
        turns: BTreeMap::new(),
        since: Some(at(0)),
        more: 0,
    };
    Kept {
        launched: (0..MOVES_MAX)
            .map(|n| Launched {
                instance: id(n),
                pool: name(n % 9),
                at: moment(n),
                ready_at: Some(at(9)),
                helped: true,
                from_start: true,
                passed_over: false,
            })
            .collect(),
        removed: (0..MOVES_MAX)
            .map(|n| Removed {
                instance: id(n),
                at: moment(n),
                open: false,
                noted: Some(moment(n)),
            })
            .collect(),
        approved: (0..APPROVALS_MAX)
            .map(|n| Approved {
                digest: format!("{n:064x}").into(),
                by: "somebody@example.com".to_owned(),
                at: moment(n),
                rows: (0..if n + APPROVED_ROWS_OF < APPROVALS_MAX { 0 } else { APPROVED_ROWS_MAX })
                    .map(|row| format!("{row:020x}"))
                    .collect(),
            })
            .collect(),
        confirmed: (0..CONFIRMED_MAX).map(id).collect(),
        sold_out: (0..SOLD_OUT_MAX)
            .map(|n| SoldOut {
                exclusion: Exclusion {
                    instance_type: Some(format!("m5.{n}xlarge").as_str().into()),
                    zone: Some("us-east-1a".into()),
                    capacity_type: None,
                    until: at(9),
                },
                seconds: 360,
            })
            .collect(),
        going: (0..GOING_MAX)
            .map(|n| Leaving {
                instance: id(n),
                why: "rebalance-recommendation".to_owned(),
                since: moment(n),
                deadline: Some(at(9)),
                member: false,
            })
            .collect(),
        repaired: (0..REPAIRED_MAX).map(repaired).collect(),
        asked: vec![asked(1), asked(2)],
        ..Kept::default()
    }
}

#[test]
fn what_does_not_fit_is_left_out_in_a_stated_order_and_counted() {
    let kept = full();
    let rows = APPROVED_ROWS_OF * APPROVED_ROWS_MAX;
    let sizes = |kept: &Kept| {
        let rows: usize = kept.approved.iter().map(|approval| approval.rows.len()).sum();
        let asked: Vec<_> = kept.asked.iter().map(|a| (a.rows.len(), a.more)).collect();
        (rows, asked, kept.launched.len())
    };
    let whole = (ROWS_MAX, 0);
    let count = (0, u32::try_from(ROWS_MAX).expect("few"));
    assert_eq!(kept.fitted(usize::MAX), kept, "what fits stays whole");
    for (less, left, shed) in [
        (1, (rows - APPROVED_ROWS_MAX, vec![whole, whole], MOVES_MAX), APPROVED_ROWS_MAX),
        (40_000, (0, vec![whole, whole], MOVES_MAX - 50), rows + 50),
        (150_000, (0, vec![count, whole], 0), rows + MOVES_MAX + SOLD_OUT_MAX + ROWS_MAX),
    ] {
        let fitted = kept.fitted(kept.size() - less);
        assert_eq!((sizes(&fitted), fitted.shed), (left, shed), "{less} bytes less");
        assert_eq!(fitted.came().count(), MOVES_MAX, "budgets count all of them");
    }
    // The API server takes 256 KiB of annotations, and others have some.
    let fitted = kept.fitted(150 << 10);
    assert!(fitted.size() <= 150 << 10, "{}", fitted.size());
    assert_eq!((&fitted.going, &fitted.removed), (&kept.going, &kept.removed));
    assert_eq!((&fitted.repaired, &fitted.confirmed), (&kept.repaired, &kept.confirmed));
}

/// Returns a world with so many machines of ours, launched a second apart.
fn running(count: i64) -> Observed {
    let mut observed = Observed::empty(crate::fleet::ClusterIdentity::default(), at(0));
    for n in 0..count {
        let ours = fixture::ours(&format!("i-{n:017x}"), "");
        let instance = Instance { launched_at: at(n), ..ours };
        observed.instances.insert(instance.id.clone(), instance);
    }
    observed
}

#[test]
fn more_launches_than_have_names_count_once_however_often_they_are_seen() {
    let (observed, mut kept) = (running(5_000), Kept::default());
    for look in 0..3 {
        kept.learn(&observed, at(5_000 + look));
        kept.forget(at(5_000 + look));
        assert_eq!((kept.came().count(), kept.launched.len()), (5_000, MOVES_MAX), "{look}");
        // Nor does a restart have them count anew.
        let text = serde_json::to_string(&kept).expect("text");
        assert!(text.len() < 150_000, "{}", text.len());
        kept = serde_json::from_str(&text).expect("reads");
    }
    // What is launched after them counts.
    kept.learn(&running(5_010), at(5_020));
    kept.forget(at(5_020));
    assert_eq!(kept.came().count(), 5_010);
}

#[test]
fn machines_of_no_use_latch_the_breaker_in_fleets_of_any_size() {
    let pool = PoolName::from("web");
    for (helped, futile, latches) in [
        (9, 10, true),
        (10, 10, false),
        (0, 9, false),
        (900, 250, true),
        // As long as half of those that are known one by one were of use.
        (900, 200, false),
    ] {
        let launch = |n: i64, helped| Launched {
            instance: format!("i-{n}").as_str().into(),
            pool: pool.clone(),
            at: at(n),
            ready_at: Some(at(n)),
            helped,
            from_start: false,
            passed_over: !helped,
        };
        let all = (0..helped + futile).map(|n| launch(n, n < helped)).collect();
        let (mut kept, now) = (Kept { launched: all, ..Kept::default() }, at(2_000));
        kept.forget(now);
        kept.judge_launches(&Wanted::default(), now);
        assert_eq!(kept.breakers.len(), usize::from(latches), "{futile} of {helped} more");
    }
}

#[test]
fn a_launch_counts_once_however_often_it_is_seen_and_however_many_there_are() {
    let (observed, mut kept) = (running(1_500), Kept::default());
    for look in 0..3 {
        kept.learn(&observed, at(1_500 + look));
        kept.forget(at(1_500 + look));
        assert_eq!((kept.came().count(), kept.launched.len()), (1_500, MOVES_MAX), "{look}");
    }
    let within = SignedDuration::from_mins(10);
    // 600 s hold as many, and 300 more: nobody noted them, and our clock may be ahead; but for those that are counted
    // with later ones of their minute.
    let (left, _) = Kept::room(kept.came(), 1_000, within, at(1_502));
    assert!((40..=103).contains(&left), "{left}");
    // What is about to go is known one by one, and what went is counted.
    let ids =
        |from: usize| (from..from + 300).map(|n| InstanceId::from(format!("i-{n}"))).collect();
    kept.reserve(&ids(0), at(1_600));
    assert_eq!((kept.open_left(), kept.has_reserved(&ids(0))), (100, true));
    kept.remove(&ids(0), at(1_601));
    kept.reserve(&ids(300), at(1_602));
    kept.forget(at(1_602));
    assert_eq!((kept.removed.len(), kept.went().count()), (MOVES_MAX, 600));
    assert!(kept.has_reserved(&ids(300)));
    let read: Kept =
        serde_json::from_str(&serde_json::to_string(&kept).expect("text")).expect("reads");
    assert_eq!(read, kept);
}

#[test]
fn what_is_kept_is_bounded_and_reads_back() {
    let mut kept = Kept::default();
    for n in 0..1_000 {
        let instance = InstanceId::from(format!("i-{n}"));
        let removal = Removed { instance: instance.clone(), at: at(n), open: false, noted: None };
        kept.removed.push(removal);
        kept.launched.push(Launched {
            instance,
            pool: "web".into(),
            at: at(n),
            ready_at: None,
            helped: true,
            from_start: false,
            passed_over: false,
        });
    }
    kept.forget(at(1_000));
    assert_eq!((kept.removed.len(), kept.launched.len()), (MOVES_MAX, MOVES_MAX));
    let text = serde_json::to_string(&kept).expect("text keys");
    // The API server takes 256 KiB of annotations.
    assert!(text.len() < 100_000, "{}", text.len());
    assert_eq!(serde_json::from_str::<Kept>(&text).expect("reads"), kept);
    assert_eq!(serde_json::from_str::<Kept>("{}").expect("reads"), Kept::default());
}

#[test]
fn of_more_confirmations_than_are_kept_the_newest_stay() {
    let id = |n: usize| InstanceId::from(format!("i-{:017x}", 1_000 - n).as_str());
    let confirmed = (0..CONFIRMED_MAX + 3).map(id).collect();
    let mut kept = Kept { confirmed, ..Kept::default() };
    kept.forget(at(0));
    assert_eq!(kept.confirmed, (3..CONFIRMED_MAX + 3).map(id).collect::<Vec<_>>());
}
