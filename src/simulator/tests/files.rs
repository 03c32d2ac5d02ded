//! World files across runs.

use super::*;

#[test]
fn world_survives_its_file() {
    let dir = tempfile::tempdir().expect("scratch");
    let open = || World::open(dir.path(), &genesis(), shapes()).expect("own file");
    let world = open();
    assert!(dir.path().join("world.json").exists(), "created empty when absent");
    launch(&world, &request("a"));
    deliver(
        &world,
        &Delivery::default()
            .with(WorkloadKind::Deployment, "api", 3, 500)
            .with(WorkloadKind::DaemonSet, "agent", 0, 10)
            .budget("api", Some("1"), None),
    );
    // The same time in one run and in many gives the same world.
    let reference = simulator::world();
    launch(&reference, &request("a"));
    deliver(
        &reference,
        &Delivery::default()
            .with(WorkloadKind::Deployment, "api", 3, 500)
            .with(WorkloadKind::DaemonSet, "agent", 0, 10)
            .budget("api", Some("1"), None),
    );
    for _ in 0..12 {
        advance(&open(), seconds(7));
        advance(&reference, seconds(7));
    }
    let reopened = open();
    assert_eq!(write_world(&reopened.observed()), write_world(&reference.observed()));
    let leftovers = std::fs::read_dir(dir.path()).expect("readable").count();
    assert_eq!(leftovers, 1, "no temporary file remains");
    assert_eq!(launch(&reopened, &request("a")), launch(&reference, &request("a")));
}

#[test]
fn world_file_is_readable_and_deterministic() {
    let bytes = || {
        let dir = tempfile::tempdir().expect("scratch");
        let world = World::open(dir.path(), &genesis(), shapes()).expect("new");
        deliver(&world, &Delivery::default().with(WorkloadKind::Deployment, "api", 3, 500));
        launch(&world, &request("a"));
        advance(&world, MINUTE);
        (std::fs::read(dir.path().join("world.json")).expect("written"), world.observed())
    };
    let (file, observed) = bytes();
    assert_eq!(read_world(&file), Ok(observed));
    assert_eq!(bytes().0, file);
}

#[test]
fn nodes_report_configured_resources() {
    let dir = tempfile::tempdir().expect("scratch");
    let open = || World::open(dir.path(), &genesis(), shapes()).expect("own file");
    let (capacity, allocatable) =
        (simulator::resources(2000, 7, 20), simulator::resources(1900, 6, 20));
    let world = open();
    let (real, less) = (capacity.clone(), allocatable.clone());
    let instance_type = "m5.large".into();
    world.set_reported(vec![ReportedResources {
        instance_type,
        capacity: real,
        allocatable: less,
    }]);
    advance(&world, seconds(1));
    let world = open();
    launch(&world, &request("a"));
    let other = request_with("b", |offering| offering.instance_type = "c5.large".into());
    launch(&world, &other);
    advance(&world, MINUTE);
    for node in nodes(&world) {
        let instance = node.instance.as_ref().map(|id| world.observed().instances[id].clone());
        if instance.expect("runs").instance_type.as_str() == "m5.large" {
            assert_eq!((&node.capacity, &node.allocatable), (&capacity, &allocatable));
        } else {
            assert_eq!(
                node.allocatable,
                request("b").offerings[0].allocatable,
                "as its launch expected"
            );
        }
    }
}

#[test]
fn journaled_ec2_calls_survive_a_crash() {
    let dir = tempfile::tempdir().expect("scratch");
    let journal = dir.path().join("world.journal");
    let open = || World::open(dir.path(), &genesis(), shapes()).expect("own file");
    let id = launch(&open(), &request("a"));
    assert!(open().observed().instances.contains_key(&id));
    assert_eq!(launch(&open(), &request("a")), id, "with its token");
    run(open().terminate(&id)).expect("known");
    let text = std::fs::read_to_string(&journal).expect("kept");
    // An incomplete line belongs to a call that never returned.
    std::fs::write(&journal, format!("{text}{{\"call\": \"launch\", ")).expect("written");
    let world = open();
    assert_eq!(world.observed().instances.len(), 1);
    assert_eq!(world.observed().instances[&id].state, InstanceState::ShuttingDown);
    // After a crash between world and journal, the replay changes nothing.
    advance(&world, MINUTE);
    assert!(!journal.exists());
    std::fs::write(&journal, text).expect("written");
    assert_eq!(open().observed(), world.observed());
}

#[test]
fn observed_world_can_be_simulated() {
    let dir = tempfile::tempdir().expect("scratch");
    let origin = fleet(2);
    deliver(&origin, &Delivery::default().with(WorkloadKind::Deployment, "api", 2, 100));
    settle(&origin);
    let mut observed = run(observe(&origin, &origin, &origin, cluster()));
    observed.workloads[0].delivered = false;
    std::fs::write(dir.path().join("world.json"), write_world(&observed)).expect("written");
    let world = World::open(dir.path(), &genesis(), shapes()).expect("a world file");
    assert_eq!(world.now(), observed.taken_at);
    let pod = pods(&world, "api").remove(0);
    run(world.evict(&pod)).expect("no budget");
    settle(&world);
    assert_eq!(pods(&world, "api").iter().filter(|p| p.phase == PodPhase::Running).count(), 2);
    let fresh = launch(&world, &request("new"));
    assert!(!observed.instances.contains_key(&fresh), "ids are not given out twice");
    assert_eq!(world.observed().instances.len(), 3);
}

#[test]
fn invalid_world_files_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("scratch");
    let path = dir.path().join("world.json");
    for (content, expected) in [
        ("{", "line 1"),
        ("{\"format_version\": \"9.0\"}", "newer"),
        ("{\"format_version\": \"1.0\"}", "missing field"),
    ] {
        std::fs::write(&path, content).expect("written");
        let error = World::open(dir.path(), &genesis(), shapes()).err().expect("refused");
        assert!(error.to_string().contains("world.json"), "{error}");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(cause.contains(expected), "{cause}");
        assert_eq!(std::fs::read_to_string(&path).expect("kept"), content, "left as it was");
    }
}

#[test]
fn pipes_and_links_beside_a_world_are_refused() {
    let dir = tempfile::tempdir().expect("scratch");
    let path = |name: &str| dir.path().join(name);
    let make_pipe = |name: &str| {
        let made = std::process::Command::new("mkfifo").arg(path(name)).status();
        assert!(made.expect("mkfifo runs").success());
    };
    let open = || World::open(dir.path(), &genesis(), shapes());
    let refused = || {
        let error = open().err().expect("refused");
        std::error::Error::source(&error).expect("a cause").to_string()
    };
    make_pipe("world.json");
    assert_eq!(refused(), "it is no regular file");
    std::fs::remove_file(path("world.json")).expect("removed");
    let world = open().expect("new");
    make_pipe("world.journal");
    assert!(refused().contains("world.journal`: it is no regular file"));
    std::fs::remove_file(path("world.journal")).expect("removed");
    // A link must not lead the journal out of the repository.
    std::fs::write(path("elsewhere"), "").expect("written");
    std::os::unix::fs::symlink(path("elsewhere"), path("world.journal")).expect("linked");
    assert!(refused().contains("world.journal`: it is no regular file"));
    assert!(run(world.launch(&request("a"))).is_err(), "the call is not recorded");
    assert_eq!(std::fs::read_to_string(path("elsewhere")).expect("kept"), "");
}

#[test]
fn failed_save_fails_the_next_verb() {
    let dir = tempfile::tempdir().expect("scratch");
    let inner = dir.path().join("world");
    let world = World::open(&inner, &genesis(), shapes()).expect("new");
    std::fs::remove_dir_all(&inner).expect("removed");
    std::fs::write(&inner, "a file where a directory was").expect("written");
    advance(&world, MINUTE);
    let error = run(world.inventory()).expect_err("the clock's write failed");
    assert!(error.reason.contains("world.json"), "{error}");
}
