//! The loop over the wire: `fleetwright run --world live` against the world that `fleetwright sandbox`
//! serves, a repository on disk, and moto's SQS.

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
use super::controller_fixture::{ControllerFixture, ControllerProcess, PATIENCE, account};
use super::kubelets::get;
use super::moto::Moto;
use super::proxy::Fault;
use super::sqs_queue::Queue;
use super::{measured, size};

#[test]
fn commits_add_and_remove_nodes_but_missing_repository_does_not() {
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        let replica = scene.start("a");
        scene.commit(3);
        scene.until(3, &replica).await;
        scene.commit(0);
        scene.until(0, &replica).await;
        scene.commit(2);
        let nodes = scene.until(2, &replica).await;
        // What cannot be read asks for nothing, and takes nothing away.
        fs::rename(scene.bare(), scene.remote.path().join("away")).expect("renamed");
        replica.says("cannot read the repository; nothing is removed because of it").await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(scene.nodes().await, nodes, "{}", replica.said());
        fs::rename(scene.remote.path().join("away"), scene.bare()).expect("renamed");
        scene.commit(3);
        let more = scene.until(3, &replica).await;
        assert!(more.is_superset(&nodes));
        let said = replica.end();
        assert!(!said.contains("ERROR") && !said.contains("secret"), "{said}");
        // What was given back is free at once.
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/fleetwright-apply";
        let lease = get(&scene.client(), lease).await;
        assert_eq!(lease["spec"]["holderIdentity"], "");
    });
    scene.sandbox.end();
}

/// Returns where the page of a replica is.
async fn page_of(replica: &ControllerProcess) -> String {
    replica.says("The page is at http://").await;
    let said = replica.said();
    let page = said.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    page.expect("an address").to_owned()
}

/// Waits until the page of a replica has all of that.
async fn shows(replica: &ControllerProcess, parts: &[&str]) {
    let (page, begun) = (page_of(replica).await, Instant::now());
    loop {
        let (_, html) = super::end_to_end::asks_page(&page, "/").await;
        if parts.iter().all(|part| html.contains(part)) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{parts:?}\n{html}\n{}", replica.said());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[test]
fn applied_changes_are_shown_by_standby_and_after_restart() {
    const PLANS: &str = "/apis/fleetwright.dev/v1alpha1/capacityplans";
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        let client = scene.client();
        let carried = async || {
            let plans = get(&client, PLANS).await;
            let items = plans["items"].as_array().expect("a list").clone();
            let done = items.into_iter().filter(|plan| plan["status"]["finishedAt"].is_string());
            let names =
                done.map(|plan| plan["metadata"]["name"].as_str().expect("a name").to_owned());
            names.collect::<BTreeSet<String>>()
        };
        let until_carried = async |count: usize, replica: &ControllerProcess| {
            let begun = Instant::now();
            loop {
                let carried = carried().await;
                if carried.len() >= count {
                    return carried;
                }
                assert!(begun.elapsed() < PATIENCE, "{carried:?}\n{}", replica.said());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let first = scene.start("a");
        scene.commit(2);
        scene.until(2, &first).await;
        let before = until_carried(1, &first).await;
        // The second follows, and shows what the first did.
        let second = scene.start("b");
        let parts = ["id=\"history\"", "by its merge", "done</span>", "id=\"over-time\""];
        shows(&second, &["standby of run/"]).await;
        shows(&second, &parts).await;
        second.end();
        first.end();
        // A life that knows nothing of it has done nothing, and shows it; what it does comes to it.
        let third = scene.start("c");
        shows(&third, &["<span class=\"badge\">leader</span>"]).await;
        shows(&third, &parts).await;
        scene.commit(0);
        scene.until(0, &third).await;
        let after = until_carried(before.len() + 1, &third).await;
        assert!(after.is_superset(&before), "{before:?} {after:?}");
        third.end();
    });
    scene.sandbox.end();
}

#[test]
fn interrupted_instance_is_replaced_before_acknowledgment() {
    let Some(moto) = Moto::start() else { return };
    let scene = ControllerFixture::set("controller", Some(moto));
    runtime().block_on(async {
        let moto = scene.moto.as_ref().expect("it runs");
        moto.deploy(include_str!("../../../deploy/aws/queue.yaml"), "prod");
        let sqs = aws_sdk_sqs::Client::new(&account(moto.url()));
        let queue = sqs.get_queue_url().queue_name("prod").send().await.expect("a queue");
        let queue = queue.queue_url.expect("a URL");
        let replica = scene.start("a");
        scene.commit(2);
        let before = scene.until(2, &replica).await;
        let done = scene.effects().len();
        let instance = scene.instances().await.into_values().flatten().next().expect("one");
        let send = sqs.send_message().queue_url(&queue).message_body("no event at all");
        send.send().await.expect("sent");
        let ended = json!({ "instance-id": "i-0123456789abcdef0", "state": "terminated" });
        moto.happens("EC2 Instance State-change Notification", &ended);
        let warned = json!({ "instance-id": instance, "instance-action": "terminate" });
        moto.happens("EC2 Spot Instance Interruption Warning", &warned);
        replica.says(&format!("{instance} is terminating (spot-interruption)")).await;
        let begun = Instant::now();
        loop {
            let left = scene.instances().await.into_values().flatten().any(|id| id == instance);
            if !left {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "it stays\n{}", replica.said());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let after = scene.until(2, &replica).await;
        assert_eq!(after.intersection(&before).count(), 1);
        // Until it is seen to be gone it is told again.
        let mut effects = scene.effects().split_off(done);
        effects.dedup();
        assert_eq!(effects, ["CreateFleet", "TerminateInstances"]);
        let names = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
        ];
        let look = sqs.get_queue_attributes().queue_url(&queue);
        let look = look.set_attribute_names(Some(names.into()));
        let found = look.send().await.expect("attributes").attributes.expect("some");
        assert!(found.values().all(|count| count == "0"), "{found:?}");
        let events = get(&scene.client(), "/api/v1/namespaces/default/events").await;
        assert!(events.to_string().contains("spot-interruption"), "{events}");
        replica.end();
    });
    scene.sandbox.end();
}

#[test]
fn controller_crash_loop_converges_without_double_launch() {
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        // Moments that differ, and are the same in every run.
        let mut moment: u64 = 7;
        let kills = size("FLEETWRIGHT_KILLS", 6);
        let begun = Instant::now();
        for replicas in [3, 6, 2, 5, 1, 4].into_iter().cycle().take(kills) {
            scene.commit(replicas);
            let replica = scene.start("a");
            moment = (moment * 1_103_515_245 + 12_345) % 2_147_483_648;
            tokio::time::sleep(Duration::from_millis(700 + moment % 4_500)).await;
            replica.kill();
        }
        measured(&format!("{kills} kills within {:?}", begun.elapsed()));
        scene.commit(4);
        let replica = scene.start("a");
        // Of launches that an earlier life was about to ask for nobody knows what became of them; others wait so long.
        let unheard = Duration::try_from(EC2_VISIBILITY_MAX).expect("not negative");
        scene.until_within(PATIENCE + unheard, 4, &replica).await;
        // Where the last life had more, those that are cordoned go within a while; a pod is on each of those that stay.
        let begun = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_secs(3)).await;
            let (instances, nodes) = (scene.instances().await, scene.nodes().await);
            assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
            let mut occupied = scene.occupied().await;
            occupied.sort_unstable();
            if instances.len() == 4 && nodes.len() == 4 && nodes.iter().eq(&occupied) {
                break;
            }
            let said = replica.said();
            assert!(begun.elapsed() < PATIENCE, "{instances:?} {nodes:?} {occupied:?}\n{said}");
        }
        replica.end();
    });
    scene.sandbox.end();
}

#[test]
fn standby_takes_over_when_leader_stops_or_dies() {
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        let first = scene.start("a");
        first.says("lease acquired").await;
        let second = scene.start("b");
        scene.commit(1);
        scene.until(1, &first).await;
        assert!(!second.said().contains("lease acquired"), "{}", second.said());
        first.end();
        second.says("lease acquired").await;
        scene.commit(2);
        scene.until(2, &second).await;
        // One that dies holds the lease until that runs out, after a minute; this test takes as long.
        let third = scene.start("c");
        tokio::time::sleep(Duration::from_secs(3)).await;
        second.kill();
        scene.commit(3);
        let begun = Instant::now();
        while !third.said().contains("lease acquired") {
            assert_eq!(scene.nodes().await.len(), 2, "nobody leads");
            assert!(begun.elapsed() < PATIENCE * 2, "{}", third.said());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(begun.elapsed() > Duration::from_secs(40), "nobody may take it sooner");
        scene.until(3, &third).await;
        let instances = scene.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        third.end();
    });
    scene.sandbox.end();
}

#[test]
fn ci_apply_gets_the_lock_and_its_receipt_serves_the_commit() {
    let scene = ControllerFixture::set("ci", None);
    runtime().block_on(async {
        let replica = scene.start("a");
        replica.says("nothing to change").await;
        scene.commit(2);
        replica.says("until CI has applied it").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(scene.effects(), [""; 0], "what was merged is CI's\n{}", replica.said());
        for arguments in [
            &["plan", "--world", "live", "--out", "plan.json"][..],
            &["apply", "plan.json", "--auto-approve"],
        ] {
            let ran = scene.command(arguments).output().expect("the program");
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.code(), Some(0), "{arguments:?}: {said}\n{}", replica.said());
        }
        assert_eq!(scene.effects(), ["CreateFleet"; 2]);
        let mut head = Command::new("git");
        head.args(["rev-parse", "main"]).current_dir(scene.tree.path());
        let head = head.output().expect("git").stdout;
        let head = String::from_utf8_lossy(&head).chars().take(12).collect::<String>();
        replica.says(&format!("serving commit {head}")).await;
        scene.until(2, &replica).await;
        assert_eq!(scene.effects(), ["CreateFleet"; 2], "and nothing is left to do");
        replica.end();
    });
    scene.sandbox.end();
}

#[test]
fn pod_burst_is_launched_within_a_fraction_of_a_second() {
    let bursts = size("FLEETWRIGHT_BURSTS", 5);
    let scene = ControllerFixture::set("controller", None);
    let launches = LaunchTimes::through(&scene.aws);
    runtime().block_on(async {
        let replica = scene.start("a");
        replica.says("nothing to change").await;
        let client = scene.client();
        let mut waits = Vec::new();
        for burst in 0..bursts {
            let begun = Instant::now();
            waits.push(launches.after_burst(&client, burst, || replica.said()).await);
            // As fast as the budget for launches fills again.
            let rest = Duration::from_millis(700).saturating_sub(begun.elapsed());
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
        let made = launches.made();
        assert!(made >= bursts && made <= bursts + bursts / 10 + 1, "{made} calls");
        replica.end();
    });
    scene.sandbox.end();
}

#[test]
fn messages_about_foreign_instances_are_all_deleted() {
    let messages = size("FLEETWRIGHT_MESSAGES", 1_000);
    let queue = Queue::start((0..messages).map(|n| {
        let told = json!({
            "source": "aws.ec2", "detail-type": "EC2 Instance State-change Notification",
            "detail": { "instance-id": format!("i-{n:017x}"), "state": "terminated" }
        });
        told.to_string()
    }));
    let scene = ControllerFixture::queued("controller", Some(queue.url.clone()));
    runtime().block_on(async {
        let replica = scene.start("a");
        replica.says("lease acquired").await;
        let begun = Instant::now();
        while queue.look().left() > 0 {
            let left = queue.look().left();
            assert!(begun.elapsed() < PATIENCE, "{left} are left\n{}", replica.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = begun.elapsed();
        let calls = queue.look().calls.clone();
        let again = queue.look().again;
        measured(&format!(
            "{messages} messages off the queue in {took:?}, {again} of them handed out twice: {calls:?}"
        ));
        assert!(calls["DeleteMessageBatch"] < messages.div_ceil(4), "in bundles: {calls:?}");
        assert_eq!(scene.effects(), [""; 0], "strangers are left alone");
        replica.end();
    });
    scene.sandbox.end();
}

/// Returns what was asked to be launched, by its token; a call that never arrived is none.
fn launched(scene: &ControllerFixture) -> BTreeSet<String> {
    let rows = scene.aws.ledger().into_iter().filter(|row| row.arrived);
    let launches = rows.filter(|row| row.call.name() == "CreateFleet");
    launches.filter_map(|row| row.call.form.get("ClientToken").cloned()).collect()
}

#[test]
fn crash_before_launch_reply_launches_once_despite_lag() {
    let scene = ControllerFixture::set("controller", None);
    scene.aws.lag(Duration::from_secs(4));
    runtime().block_on(async {
        let mut asked = 0;
        // The call of each wave at which it dies; whether the call arrives.
        for (more, call, arrives) in [(2, 1, true), (3, 2, true), (2, 1, false), (3, 3, true)] {
            asked += more;
            let mut calls = 0;
            scene.aws.judge(move |asked| {
                calls += u32::from(asked.name() == "CreateFleet");
                match (calls == call && asked.name() == "CreateFleet", arrives) {
                    (true, true) => Fault::DieAfter,
                    (true, false) => Fault::DieBefore,
                    (false, _) => Fault::None,
                }
            });
            scene.commit(asked);
            let first = scene.start("a");
            scene.aws.death().await;
            first.kill();
            let again = scene.start("a");
            let (begun, wanted) = (Instant::now(), usize::try_from(asked).expect("few"));
            while scene.nodes().await.len() < wanted {
                let there = scene.instances().await;
                assert!(there.len() <= wanted, "{there:?} of {asked}\n{}", again.said());
                assert!(begun.elapsed() < PATIENCE, "{there:?} of {asked}\n{}", again.said());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            again.end();
        }
        let instances = scene.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        let launched = launched(&scene);
        assert_eq!(launched.len(), usize::try_from(asked).expect("few"), "each asked for once");
    });
    scene.sandbox.end();
}

/// Has it die while it asks for the second offering, whether or not that call arrives, and go on with another life.
fn dies_at_the_second_offering(arrives: bool) {
    let scene = ControllerFixture::set("controller", None);
    scene.aws.lag(Duration::from_secs(4));
    // The first offering has no capacity, once.
    let mut calls = 0;
    scene.aws.judge(move |asked| {
        calls += u32::from(asked.name() == "CreateFleet");
        match (calls, asked.name() == "CreateFleet", arrives) {
            (1, true, _) => Fault::Answer(
                200,
                super::proxy_additions::fleet_refused("InsufficientInstanceCapacity"),
            ),
            (2, true, true) => Fault::DieAfter,
            (2, true, false) => Fault::DieBefore,
            _ => Fault::None,
        }
    });
    runtime().block_on(async {
        scene.commit(1);
        let first = scene.start("a");
        scene.aws.death().await;
        first.kill();
        let (again, begun) = (scene.start("a"), Instant::now());
        scene.until(1, &again).await;
        // It knows what it asks for, and need not wait until EC2 must have shown it.
        assert!(begun.elapsed() < Duration::from_mins(1), "{}", again.said());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let there = scene.instances().await;
        assert_eq!(there.len(), 1, "{there:?}\n{}", again.said());
        let rows = scene.aws.ledger().into_iter();
        let tokens: Vec<String> = rows
            .filter(|row| row.call.name() == "CreateFleet")
            .filter_map(|row| row.call.form.get("ClientToken").cloned())
            .collect();
        assert!(tokens.len() >= 3, "{tokens:?}");
        assert_ne!(tokens[0], tokens[1], "another offering is another token");
        assert!(tokens[2..].iter().all(|token| *token == tokens[1]), "{tokens:?}");
        again.end();
    });
    scene.sandbox.end();
}

#[test]
fn crash_during_second_offering_retries_that_offering() {
    dies_at_the_second_offering(true);
    dies_at_the_second_offering(false);
}

#[test]
fn missing_repository_is_reported_and_awaited() {
    let scene = ControllerFixture::set("controller", None);
    runtime().block_on(async {
        scene.commit(1);
        let away = scene.remote.path().join("away");
        fs::rename(scene.bare(), &away).expect("renamed");
        let replica = scene.start("a");
        replica.says("cannot start the controller, retrying").await;
        let said = replica.said();
        let page = said.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let (code, text) = super::end_to_end::asks_page(page.expect("an address"), "/readyz").await;
        assert!(
            code == "503" && text.contains("the repository was not read yet: "),
            "{code} {text}"
        );
        let (code, _) = super::end_to_end::asks_page(page.expect("an address"), "/healthz").await;
        assert_eq!(code, "200", "a restart does not help");
        assert_eq!(scene.aws.ledger().len(), 0, "nobody was asked for anything");
        fs::rename(away, scene.bare()).expect("renamed");
        scene.until(1, &replica).await;
        replica.end();
        // One that is told to end while it waits ends in order.
        fs::rename(scene.bare(), scene.remote.path().join("gone")).expect("renamed");
        let replica = scene.start("b");
        replica.says("cannot start the controller").await;
        replica.end();
    });
    scene.sandbox.end();
}

/// Passes on to `to` what is sent to a port, from now on, until the process ends.
fn pass_on(port: u16, to: &str) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    let to = to.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Ok(there) = TcpStream::connect(&to) else { continue };
            let ends = |stream: &TcpStream| stream.try_clone().expect("a stream");
            for (mut from, mut into) in [(ends(&stream), ends(&there)), (there, stream)] {
                std::thread::spawn(move || {
                    // Whichever end goes first, the other one goes with it.
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
    let mut scene = ControllerFixture::set("controller", None);
    // A port at which nobody listens yet.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let port = free.expect("a port").port();
    let served = scene.sandbox.url().trim_start_matches("http://").to_owned();
    let text = fs::read_to_string(&scene.sandbox.kubeconfig).expect("read");
    let text = text.replace(&served, &format!("127.0.0.1:{port}"));
    let elsewhere = scene.remote.path().join("kubeconfig");
    fs::write(&elsewhere, text).expect("written");
    let own = std::mem::replace(&mut scene.sandbox.kubeconfig, elsewhere);
    runtime().block_on(async {
        scene.commit(2);
        let replica = scene.start("a");
        replica.says("cannot start the controller, retrying").await;
        let said = replica.said();
        let page = said.split(AT).nth(1).and_then(|rest| rest.split('/').next());
        let page = page.expect("an address");
        for _ in 0..3 {
            let (code, text) = super::end_to_end::asks_page(page, "/readyz").await;
            assert_eq!(code, "503", "{text}");
            let (code, _) = super::end_to_end::asks_page(page, "/healthz").await;
            assert_eq!(code, "200", "a restart does not help");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(scene.effects(), [""; 0], "nothing is launched over a cluster that nobody sees");
        pass_on(port, &served);
        scene.until(2, &replica).await;
        // By now it listens at another port of its own choice.
        let said = replica.said();
        let page = said.rsplit(AT).next().and_then(|rest| rest.split('/').next());
        let page = page.expect("an address");
        let (code, text) = super::end_to_end::asks_page(page, "/readyz").await;
        assert_eq!(code, "200", "{text}");
        let instances = scene.instances().await;
        assert!(instances.values().all(|ids| ids.len() == 1), "{instances:?}");
        replica.end();
    });
    scene.sandbox.kubeconfig = own;
    scene.sandbox.end();
}
