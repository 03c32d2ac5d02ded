//! End-to-end tests of the controller: `fleetwright run --world live` with the world that
//! `fleetwright sandbox` serves, a repository on disk, and SQS of moto.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use aws_sdk_sqs::types::QueueAttributeName;
use fleetwright::controller::EC2_VISIBILITY_MAX;
use serde_json::json;

use super::burst::LaunchTimes;
use super::cluster::runtime;
use super::controller_fixture::{ControllerFixture, ControllerProcess, TIMEOUT, account};
use super::kubelets::get;
use super::moto::Moto;
use super::proxy::Fault;
use super::sqs_queue::Queue;
use super::{measured, size};

#[test]
fn commits_add_and_remove_nodes_but_missing_repository_does_not() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        let replica = fixture.start("a");
        fixture.commit(3);
        fixture.wait_for_nodes(3, &replica).await;
        fixture.commit(0);
        fixture.wait_for_nodes(0, &replica).await;
        fixture.commit(2);
        let nodes = fixture.wait_for_nodes(2, &replica).await;
        // An unreadable repository launches and removes nothing.
        fs::rename(fixture.bare(), fixture.remote.path().join("away")).expect("renamed");
        replica.wait_for_log("cannot read the repository; nothing is removed because of it").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(fixture.nodes().await, nodes, "{}", replica.read_log());
        fs::rename(fixture.remote.path().join("away"), fixture.bare()).expect("renamed");
        fixture.commit(3);
        let more = fixture.wait_for_nodes(3, &replica).await;
        assert!(more.is_superset(&nodes));
        let log = replica.end();
        assert!(!log.contains("ERROR") && !log.contains("secret"), "{log}");
        // A released lease is free at once.
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fleetwright-apply";
        let lease = get(&fixture.client(), lease).await;
        assert_eq!(lease["spec"]["holderIdentity"], "");
    });
    fixture.sandbox.end();
}

/// Returns the address of the status page of a replica.
async fn page_address(replica: &ControllerProcess) -> String {
    replica.wait_for_log("The page is at http://").await;
    let log = replica.read_log();
    let page = log.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    page.expect("an address").to_owned()
}

/// Waits until the status page of a replica contains all `parts`.
async fn wait_for_page(replica: &ControllerProcess, parts: &[&str]) {
    let (page, started) = (page_address(replica).await, Instant::now());
    loop {
        let (_, html) = super::end_to_end::get_page(&page, "/").await;
        if parts.iter().all(|part| html.contains(part)) {
            return;
        }
        assert!(started.elapsed() < TIMEOUT, "{parts:?}\n{html}\n{}", replica.read_log());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[test]
fn applied_changes_are_shown_by_standby_and_after_restart() {
    const PLANS: &str = "/apis/fleetwright.dev/v1alpha1/capacityplans";
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        let client = fixture.client();
        let finished_plans = async || {
            let plans = get(&client, PLANS).await;
            let items = plans["items"].as_array().expect("a list").clone();
            let done = items.into_iter().filter(|plan| plan["status"]["finishedAt"].is_string());
            let names =
                done.map(|plan| plan["metadata"]["name"].as_str().expect("a name").to_owned());
            names.collect::<BTreeSet<String>>()
        };
        let wait_for_finished_plans = async |count: usize, replica: &ControllerProcess| {
            let started = Instant::now();
            loop {
                let finished_plans = finished_plans().await;
                if finished_plans.len() >= count {
                    return finished_plans;
                }
                assert!(started.elapsed() < TIMEOUT, "{finished_plans:?}\n{}", replica.read_log());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let first = fixture.start("a");
        fixture.commit(2);
        fixture.wait_for_nodes(2, &first).await;
        let before = wait_for_finished_plans(1, &first).await;
        // The second replica is a standby and shows the applied changes of the first.
        let second = fixture.start("b");
        let parts = ["id=\"history\"", "by its merge", "done</span>", "id=\"over-time\""];
        wait_for_page(&second, &["standby of run/"]).await;
        wait_for_page(&second, &parts).await;
        second.end();
        first.end();
        // A new process shows the applied changes of its predecessors and adds its own.
        let third = fixture.start("c");
        wait_for_page(&third, &["<dt>Replica</dt><dd>leader</dd>"]).await;
        wait_for_page(&third, &parts).await;
        fixture.commit(0);
        fixture.wait_for_nodes(0, &third).await;
        let after = wait_for_finished_plans(before.len() + 1, &third).await;
        assert!(after.is_superset(&before), "{before:?} {after:?}");
        third.end();
    });
    fixture.sandbox.end();
}

#[test]
fn interrupted_instance_is_replaced_before_acknowledgment() {
    let Some(moto) = Moto::start() else { return };
    let fixture = ControllerFixture::new("controller", Some(moto));
    // EC2 sends warnings about spot instances only.
    fixture.edit("pools.yaml", "values: [on-demand]", "values: [spot]");
    fixture.aws.edit_additions(|additions| {
        for zone in ["us-east-1a", "us-east-1b"] {
            let offering = ("m5.large".to_owned(), zone.to_owned());
            drop(additions.spot.insert(offering, "0.0300".to_owned()));
        }
    });
    runtime().block_on(async {
        let moto = fixture.moto.as_ref().expect("it runs");
        let template = include_str!("../../../deploy/aws/queue.yaml");
        moto.deploy(template, "prod", &[("Name", "prod")]);
        let sqs = aws_sdk_sqs::Client::new(&account(moto.url()));
        let queue = sqs.get_queue_url().queue_name("prod").send().await.expect("a queue");
        let queue = queue.queue_url.expect("a URL");
        let replica = fixture.start("a");
        fixture.commit(2);
        let before = fixture.wait_for_nodes(2, &replica).await;
        let done = fixture.effects().len();
        let instance = fixture.instances().await.into_values().flatten().next().expect("one");
        let send = sqs.send_message().queue_url(&queue).message_body("no event at all");
        send.send().await.expect("sent");
        let terminated = json!({ "instance-id": "i-0123456789abcdef0", "state": "terminated" });
        moto.put_event("EC2 Instance State-change Notification", &terminated);
        let interruption = json!({ "instance-id": instance, "instance-action": "terminate" });
        moto.put_event("EC2 Spot Instance Interruption Warning", &interruption);
        replica.wait_for_log(&format!("{instance} is terminating (spot-interruption)")).await;
        let started = Instant::now();
        loop {
            let remaining =
                fixture.instances().await.into_values().flatten().any(|id| id == instance);
            if !remaining {
                break;
            }
            assert!(
                started.elapsed() < TIMEOUT,
                "the instance is still active\n{}",
                replica.read_log()
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let after = fixture.wait_for_nodes(2, &replica).await;
        assert_eq!(after.intersection(&before).count(), 1);
        // Termination is requested again until the instance is observed to be gone.
        let mut effects = fixture.effects().split_off(done);
        effects.dedup();
        assert_eq!(effects, ["CreateFleet", "TerminateInstances"]);
        let names = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        ];
        let request = sqs.get_queue_attributes().queue_url(&queue);
        let request = request.set_attribute_names(Some(names.into()));
        let found = request.send().await.expect("attributes").attributes.expect("some");
        assert!(found.values().all(|count| count == "0"), "{found:?}");
        let events = get(&fixture.client(), "/api/v1/namespaces/default/events").await;
        assert!(events.to_string().contains("spot-interruption"), "{events}");
        replica.end();
    });
    fixture.sandbox.end();
}

#[test]
fn controller_crash_loop_converges_without_double_launch() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        // Deterministic pseudo-random times.
        let mut moment: u64 = 7;
        let kills = size("FLEETWRIGHT_KILLS", 6);
        let started = Instant::now();
        for replicas in [3, 6, 2, 5, 1, 4].into_iter().cycle().take(kills) {
            fixture.commit(replicas);
            let replica = fixture.start("a");
            moment = (moment * 1_103_515_245 + 12_345) % 2_147_483_648;
            tokio::time::sleep(Duration::from_millis(700 + moment % 4_500)).await;
            replica.kill();
        }
        measured(&format!("{kills} kills within {:?}", started.elapsed()));
        fixture.commit(4);
        let replica = fixture.start("a");
        // The fate of launches that a killed process was about to request is unknown for this time.
        // Other launches wait for it.
        let visibility = Duration::try_from(EC2_VISIBILITY_MAX).expect("not negative");
        fixture.wait_for_nodes_within(TIMEOUT + visibility, 4, &replica).await;
        // Cordoned surplus nodes are removed within a while. Each remaining node has a pod.
        let started = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let (instances, nodes) = (fixture.instances().await, fixture.nodes().await);
            assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
            let mut nodes_of_running_pods = fixture.nodes_of_running_pods().await;
            nodes_of_running_pods.sort_unstable();
            if instances.len() == 4 && nodes.len() == 4 && nodes.iter().eq(&nodes_of_running_pods) {
                break;
            }
            let log = replica.read_log();
            assert!(
                started.elapsed() < TIMEOUT,
                "{instances:?} {nodes:?} {nodes_of_running_pods:?}\n{log}"
            );
        }
        replica.end();
    });
    fixture.sandbox.end();
}

#[test]
fn standby_takes_over_when_leader_stops_or_dies() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        let first = fixture.start("a");
        first.wait_for_log("lease acquired").await;
        let second = fixture.start("b");
        fixture.commit(1);
        fixture.wait_for_nodes(1, &first).await;
        assert!(!second.read_log().contains("lease acquired"), "{}", second.read_log());
        first.end();
        second.wait_for_log("lease acquired").await;
        fixture.commit(2);
        fixture.wait_for_nodes(2, &second).await;
        // A killed leader holds the lease until it expires after one minute.
        let third = fixture.start("c");
        tokio::time::sleep(Duration::from_secs(3)).await;
        second.kill();
        fixture.commit(3);
        let started = Instant::now();
        while !third.read_log().contains("lease acquired") {
            assert_eq!(fixture.nodes().await.len(), 2, "no leader acts");
            assert!(started.elapsed() < TIMEOUT * 2, "{}", third.read_log());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(
            started.elapsed() > Duration::from_secs(40),
            "the lease is not taken before it expires"
        );
        fixture.wait_for_nodes(3, &third).await;
        let instances = fixture.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        third.end();
    });
    fixture.sandbox.end();
}

#[test]
fn ci_apply_gets_the_lock_and_its_receipt_serves_the_commit() {
    let fixture = ControllerFixture::new("ci", None);
    runtime().block_on(async {
        let replica = fixture.start("a");
        replica.wait_for_log("nothing to change").await;
        fixture.commit(2);
        replica.wait_for_log("until CI has applied it").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(fixture.effects(), [""; 0], "CI applies merged changes\n{}", replica.read_log());
        for arguments in [
            &["plan", "--world", "live", "--out", "plan.json"][..],
            &["apply", "plan.json", "--auto-approve"],
        ] {
            let ran = fixture.command(arguments).output().expect("the program");
            let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(
                ran.status.code(),
                Some(0),
                "{arguments:?}: {stderr}\n{}",
                replica.read_log()
            );
        }
        assert_eq!(fixture.effects(), ["CreateFleet"; 2]);
        let mut head = Command::new("git");
        head.args(["rev-parse", "main"]).current_dir(fixture.tree.path());
        let head = head.output().expect("git").stdout;
        let head = String::from_utf8_lossy(&head).chars().take(12).collect::<String>();
        replica.wait_for_log(&format!("serving commit {head}")).await;
        fixture.wait_for_nodes(2, &replica).await;
        assert_eq!(fixture.effects(), ["CreateFleet"; 2], "the controller launches nothing more");
        replica.end();
    });
    fixture.sandbox.end();
}

#[test]
fn pod_burst_is_launched_within_a_fraction_of_a_second() {
    let bursts = size("FLEETWRIGHT_BURSTS", 5);
    let fixture = ControllerFixture::new("controller", None);
    let launches = LaunchTimes::record(&fixture.aws);
    runtime().block_on(async {
        let replica = fixture.start("a");
        replica.wait_for_log("nothing to change").await;
        let client = fixture.client();
        let mut waits = Vec::new();
        for burst in 0..bursts {
            let started = Instant::now();
            waits.push(launches.delay_after_burst(&client, burst, || replica.read_log()).await);
            // The pause matches the refill rate of the launch budget.
            let rest = Duration::from_millis(700).saturating_sub(started.elapsed());
            tokio::time::sleep(rest).await;
        }
        waits.sort_unstable();
        let at = |percent: usize| waits[(waits.len() * percent / 100).min(waits.len() - 1)];
        measured(&format!(
            "last pod of a burst to CreateFleet over {bursts} bursts: p50 {} ms, p99 {} ms, most {} ms",
            at(50),
            at(99),
            at(100)
        ));
        assert!(at(50) < 2_000, "{waits:?}");
        let count = launches.count();
        assert!(count >= bursts && count <= bursts + bursts / 10 + 1, "{count} calls");
        replica.end();
    });
    fixture.sandbox.end();
}

#[test]
fn messages_about_foreign_instances_are_all_deleted() {
    let messages = size("FLEETWRIGHT_MESSAGES", 1_000);
    let queue = Queue::start((0..messages).map(|n| {
        let event = json!({
            "source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification",
            "detail": { "instance-id": format!("i-{n:017x}"), "state": "terminated" }
        });
        event.to_string()
    }));
    let fixture = ControllerFixture::with_queue("controller", Some(queue.url.clone()));
    runtime().block_on(async {
        let replica = fixture.start("a");
        replica.wait_for_log("lease acquired").await;
        let started = Instant::now();
        while queue.state().remaining() > 0 {
            let remaining = queue.state().remaining();
            assert!(started.elapsed() < TIMEOUT, "{remaining} are left\n{}", replica.read_log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let elapsed = started.elapsed();
        let calls = queue.state().calls.clone();
        let redelivered = queue.state().redelivered;
        measured(&format!(
            "{messages} messages deleted within {elapsed:?}, {redelivered} of them delivered twice: {calls:?}"
        ));
        assert!(calls["DeleteMessageBatch"] < messages.div_ceil(4), "in batches: {calls:?}");
        assert_eq!(fixture.effects(), [""; 0], "foreign instances are not touched");
        replica.end();
    });
    fixture.sandbox.end();
}

/// Returns the client tokens of the launch calls that arrived.
fn launched(fixture: &ControllerFixture) -> BTreeSet<String> {
    let rows = fixture.aws.calls().into_iter().filter(|row| row.arrived);
    let launches = rows.filter(|row| row.call.name() == "CreateFleet");
    launches.filter_map(|row| row.call.form.get("ClientToken").cloned()).collect()
}

#[test]
fn crash_before_launch_reply_launches_once_despite_lag() {
    let fixture = ControllerFixture::new("controller", None);
    fixture.aws.set_list_lag(Duration::from_secs(4));
    runtime().block_on(async {
        let mut replicas = 0;
        // Additional replicas, the launch call at which the process crashes, and true if the call
        // arrives.
        for (more, call, arrives) in [(2, 1, true), (3, 2, true), (2, 1, false), (3, 3, true)] {
            replicas += more;
            let mut calls = 0;
            fixture.aws.set_fault_rule(move |request| {
                calls += u32::from(request.name() == "CreateFleet");
                match (calls == call && request.name() == "CreateFleet", arrives) {
                    (true, true) => Fault::CrashAfter,
                    (true, false) => Fault::CrashBefore,
                    (false, _) => Fault::None,
                }
            });
            fixture.commit(replicas);
            let first = fixture.start("a");
            fixture.aws.wait_for_crash().await;
            first.kill();
            let second = fixture.start("a");
            let (started, wanted) = (Instant::now(), usize::try_from(replicas).expect("few"));
            while fixture.nodes().await.len() < wanted {
                let there = fixture.instances().await;
                assert!(there.len() <= wanted, "{there:?} of {replicas}\n{}", second.read_log());
                assert!(
                    started.elapsed() < TIMEOUT,
                    "{there:?} of {replicas}\n{}",
                    second.read_log()
                );
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            second.end();
        }
        let instances = fixture.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        let launched = launched(&fixture);
        assert_eq!(
            launched.len(),
            usize::try_from(replicas).expect("few"),
            "each launch is requested once"
        );
    });
    fixture.sandbox.end();
}

/// A launch call during which the controller crashes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InterruptedCall {
    /// EC2 receives the call.
    Received,
    /// EC2 does not receive the call.
    Lost,
}

/// Checks a crash during the launch call for the second offering, followed by a restart.
fn check_crash_at_second_offering(call: InterruptedCall) {
    let fixture = ControllerFixture::new("controller", None);
    fixture.aws.set_list_lag(Duration::from_secs(4));
    // The first offering has insufficient capacity once.
    let mut calls = 0;
    fixture.aws.set_fault_rule(move |request| {
        calls += u32::from(request.name() == "CreateFleet");
        match (calls, request.name() == "CreateFleet", call) {
            (1, true, _) => Fault::Answer(
                200,
                super::proxy_additions::fleet_refused("InsufficientInstanceCapacity"),
            ),
            (2, true, InterruptedCall::Received) => Fault::CrashAfter,
            (2, true, InterruptedCall::Lost) => Fault::CrashBefore,
            _ => Fault::None,
        }
    });
    runtime().block_on(async {
        fixture.commit(1);
        let first = fixture.start("a");
        fixture.aws.wait_for_crash().await;
        first.kill();
        let (second, started) = (fixture.start("a"), Instant::now());
        fixture.wait_for_nodes(1, &second).await;
        // The persisted request is retried without the wait for EC2 visibility.
        assert!(started.elapsed() < Duration::from_mins(1), "{}", second.read_log());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let there = fixture.instances().await;
        assert_eq!(there.len(), 1, "{there:?}\n{}", second.read_log());
        let rows = fixture.aws.calls().into_iter();
        let tokens: Vec<String> = rows
            .filter(|row| row.call.name() == "CreateFleet")
            .filter_map(|row| row.call.form.get("ClientToken").cloned())
            .collect();
        // On a busy computer, EC2 may list the instance before the second process needs to call.
        let least = if call == InterruptedCall::Received { 2 } else { 3 };
        assert!(tokens.len() >= least, "{tokens:?}");
        assert_ne!(tokens[0], tokens[1], "another offering is another token");
        assert!(tokens[2..].iter().all(|token| *token == tokens[1]), "{tokens:?}");
        second.end();
    });
    fixture.sandbox.end();
}

#[test]
fn crash_during_second_offering_retries_that_offering() {
    check_crash_at_second_offering(InterruptedCall::Received);
    check_crash_at_second_offering(InterruptedCall::Lost);
}

#[test]
fn missing_repository_is_reported_and_awaited() {
    let fixture = ControllerFixture::new("controller", None);
    runtime().block_on(async {
        fixture.commit(1);
        let moved = fixture.remote.path().join("away");
        fs::rename(fixture.bare(), &moved).expect("renamed");
        let replica = fixture.start("a");
        replica.wait_for_log("cannot start the controller, retrying").await;
        let log = replica.read_log();
        let page = log.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let (code, text) = super::end_to_end::get_page(page.expect("an address"), "/readyz").await;
        assert!(
            code == "503" && text.contains("the repository was not read yet: "),
            "{code} {text}"
        );
        let (code, _) = super::end_to_end::get_page(page.expect("an address"), "/healthz").await;
        assert_eq!(code, "200", "a restart does not help");
        assert_eq!(fixture.aws.calls().len(), 0, "no AWS call");
        fs::rename(moved, fixture.bare()).expect("renamed");
        fixture.wait_for_nodes(1, &replica).await;
        replica.end();
        // A replica that waits for the repository shuts down cleanly.
        fs::rename(fixture.bare(), fixture.remote.path().join("gone")).expect("renamed");
        let replica = fixture.start("b");
        replica.wait_for_log("cannot start the controller").await;
        replica.end();
    });
    fixture.sandbox.end();
}

/// Forwards connections on a local port to `to` until the test process ends.
fn forward_port(port: u16, to: &str) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    let to = to.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Ok(there) = TcpStream::connect(&to) else { continue };
            let ends = |stream: &TcpStream| stream.try_clone().expect("a stream");
            for (mut from, mut into) in [(ends(&stream), ends(&there)), (there, stream)] {
                std::thread::spawn(move || {
                    // If either side closes, the other side is closed as well.
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(Shutdown::Both);
                });
            }
        }
    });
}

#[test]
fn missing_api_server_is_reported_and_awaited() {
    const AT: &str = "The page is at http://";
    let mut fixture = ControllerFixture::new("controller", None);
    // A port without a listener.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = free.expect("a port").port();
    let served = fixture.sandbox.url().trim_start_matches("http://").to_owned();
    let text = fs::read_to_string(&fixture.sandbox.kubeconfig).expect("read");
    let text = text.replace(&served, &format!("127.0.0.1:{port}"));
    let kubeconfig = fixture.remote.path().join("kubeconfig");
    fs::write(&kubeconfig, text).expect("written");
    let original = std::mem::replace(&mut fixture.sandbox.kubeconfig, kubeconfig);
    runtime().block_on(async {
        fixture.commit(2);
        let replica = fixture.start("a");
        replica.wait_for_log("cannot start the controller, retrying").await;
        let log = replica.read_log();
        let page = log.split(AT).nth(1).and_then(|rest| rest.split('/').next());
        let page = page.expect("an address");
        for _ in 0..3 {
            let (code, text) = super::end_to_end::get_page(page, "/readyz").await;
            assert_eq!(code, "503", "{text}");
            let (code, _) = super::end_to_end::get_page(page, "/healthz").await;
            assert_eq!(code, "200", "a restart does not help");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(
            fixture.effects(),
            [""; 0],
            "nothing is launched without an observation of the cluster"
        );
        forward_port(port, &served);
        fixture.wait_for_nodes(2, &replica).await;
        // The controller listens on another free port by now.
        let log = replica.read_log();
        let page = log.rsplit(AT).next().and_then(|rest| rest.split('/').next());
        let page = page.expect("an address");
        let (code, text) = super::end_to_end::get_page(page, "/readyz").await;
        assert_eq!(code, "200", "{text}");
        let instances = fixture.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        replica.end();
    });
    fixture.sandbox.kubeconfig = original;
    fixture.sandbox.end();
}
