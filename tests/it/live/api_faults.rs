//! Weather outside while a plan is applied to the world that `fleetwright sandbox` serves: throttling,
//! faults of AWS, fleets that come in part or not at all, an API server that is gone, evictions that are
//! blocked for ever. Each is bounded, and the same plan run again finishes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleetwright::apply::{ApplyStatus, Bounds, Outcome, Receipt};
use jiff::SignedDuration;
use kube::Client;
use serde_json::{Value as Json, json};

use super::apply_faults::{ApplyFixture, bounds, expect};
use super::cluster::{post, runtime};
use super::kubelets::get;
use super::proxy::{Call, Fault, refusal_body};
use super::proxy_additions::fleet_refused;
use super::{measured, size};

/// How often each call fails before it is served.
const FAILURES: usize = 2;

/// For how long the API server is gone, in seconds; `FLEETWRIGHT_GONE=60` is what the README tells of.
const GONE: usize = 12;

/// A node of the quickstart that pods run on.
const BUSY: &str = "ec2_instance.general[\"0\"]";

fn is_launch(call: &Call) -> bool {
    call.name() == "CreateFleet"
}

/// Bounds that are soon reached.
fn short() -> Bounds {
    let seconds = SignedDuration::from_secs;
    Bounds { ready: seconds(4), drain: seconds(4), replicas: seconds(4), ..bounds() }
}

impl ApplyFixture {
    fn client(&self) -> Client {
        let config = kube::Config::new(self.sandbox.url().parse().expect("a URL"));
        Client::try_from(config).expect("a client")
    }

    /// Applies in fair weather, and checks that all of the plan is there once.
    async fn finish(self) {
        self.aws.judge(|_| Fault::None);
        self.api.judge(|_| Fault::None);
        let receipt = self.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        self.check().await;
    }

    /// Returns whether anybody was asked to leave.
    fn has_evicted(&self) -> bool {
        self.api.ledger().iter().any(|row| row.call.path.ends_with("/eviction"))
    }
}

/// Returns what became of each change.
fn outcomes(receipt: &Receipt) -> Vec<&Outcome> {
    receipt.outcomes.iter().map(|one| &one.outcome).collect()
}

#[test]
fn throttling_and_aws_faults_launch_each_instance_once() {
    let scene = ApplyFixture::set();
    let mut met: BTreeMap<String, usize> = BTreeMap::new();
    scene.aws.judge(move |call| {
        let times = met.entry(call.name()).or_default();
        *times += 1;
        match *times {
            1 => Fault::Answer(503, refusal_body("RequestLimitExceeded", "slow down")),
            n if n <= FAILURES => Fault::Answer(500, refusal_body("InternalError", "our fault")),
            _ => Fault::None,
        }
    });
    runtime().block_on(async {
        let receipt = scene.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        let refused = scene.aws.ledger().into_iter().filter(|row| !row.arrived);
        assert!(refused.count() > 3 * FAILURES, "it rained");
        scene.check().await;
    });
}

#[test]
fn endless_throttling_gives_up_without_launch() {
    let scene = ApplyFixture::set();
    scene.aws.judge(|call| {
        if is_launch(call) {
            return Fault::Answer(503, refusal_body("RequestLimitExceeded", "slow down"));
        }
        Fault::None
    });
    runtime().block_on(async {
        let begun = Instant::now();
        let receipt = scene.apply_within(SignedDuration::ZERO, short()).await;
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        assert!(begun.elapsed() < Duration::from_mins(2), "{:?}", begun.elapsed());
        assert!(scene.launched().await.is_empty() && !scene.has_evicted());
        scene.finish().await;
    });
}

#[test]
fn missing_capacity_removes_nothing_and_next_run_finishes() {
    let scene = ApplyFixture::set();
    scene.aws.judge(|call| {
        let none = fleet_refused("InsufficientInstanceCapacity");
        if is_launch(call) { Fault::Answer(200, none) } else { Fault::None }
    });
    // The program itself: it knows what else would do.
    let file = scene.path("plan.json");
    let ended = scene.run(&["apply", &file, "--auto-approve"]).output();
    expect(7, &ended.expect("the program"));
    runtime().block_on(async {
        let tried = scene.aws.ledger().iter().filter(|row| is_launch(&row.call)).count();
        assert!(tried > 1, "alternatives were tried: {tried}");
        assert!(scene.launched().await.is_empty() && !scene.has_evicted());
        scene.finish().await;
    });
}

#[test]
fn instances_that_never_join_are_terminated() {
    let scene = ApplyFixture::set();
    runtime().block_on(async {
        let nodes = get(&scene.client(), "/api/v1/nodes").await;
        let names = nodes["items"].as_array().expect("a list").iter();
        let names = names.map(|node| node["metadata"]["name"].as_str().expect("a name").to_owned());
        let shown = names.collect();
        scene.api.add(|added| added.nodes = Some(shown));
        let receipt = scene.apply_within(SignedDuration::ZERO, short()).await;
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        let given_up = receipt.outcomes.iter();
        let given_up =
            given_up.filter(|one| matches!(one.outcome, Outcome::GivenUp { .. })).count();
        let launches = usize::try_from(scene.plan.summary.add).expect("a count");
        assert_eq!(given_up, launches, "{:?}", outcomes(&receipt));
        assert!(scene.launched().await.is_empty(), "what never joined is gone");
        assert!(!scene.has_evicted(), "nothing was drained for it");
        scene.api.add(|added| added.nodes = None);
        scene.finish().await;
    });
}

#[test]
fn fleet_reply_with_errors_and_instance_is_a_launch() {
    let scene = ApplyFixture::set();
    scene.aws.add(|added| added.partly = true);
    runtime().block_on(async {
        let receipt = scene.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        scene.check().await;
    });
}

#[test]
fn api_server_outage_is_awaited_without_loss() {
    let scene = ApplyFixture::set();
    let gone = Duration::from_secs(u64::try_from(size("FLEETWRIGHT_GONE", GONE)).expect("seconds"));
    let mut since = None;
    // From the moment on at which the instance is asked for.
    let asked = std::sync::Arc::new(std::sync::OnceLock::new());
    let told = std::sync::Arc::clone(&asked);
    scene.aws.judge(move |call| {
        if is_launch(call) {
            told.get_or_init(Instant::now);
        }
        Fault::None
    });
    scene.api.judge(move |_| {
        let is_gone =
            asked.get().is_some() && since.get_or_insert_with(Instant::now).elapsed() < gone;
        if is_gone {
            let body =
                r#"{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"gone"}"#;
            return Fault::Answer(503, body.to_owned());
        }
        Fault::None
    });
    runtime().block_on(async {
        let begun = Instant::now();
        let patient = Bounds { ready: SignedDuration::from_mins(3), ..bounds() };
        let receipt = scene.apply_within(SignedDuration::ZERO, patient).await.expect("not refused");
        assert!(begun.elapsed() > gone, "it was gone while it was applied");
        measured(&format!("an apply with the API server gone for {gone:?}: {:?}", begun.elapsed()));
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        scene.check().await;
    });
}

#[test]
fn blocked_drain_ends_with_an_uncordoned_node() {
    let scene = ApplyFixture::planned(&["--replace", BUSY]);
    runtime().block_on(async {
        let client = scene.client();
        let budgets = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets";
        let budget = json!({
            "metadata": { "name": "never" },
            "spec": { "maxUnavailable": 0, "selector": {} }
        });
        post(&client, budgets, &budget).await;
        let receipt = scene.apply_within(SignedDuration::ZERO, short()).await;
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        let given_up =
            |one: &Outcome| matches!(one, Outcome::GivenUp { why } if why.contains("never"));
        let outcomes_said = outcomes(&receipt);
        assert!(receipt.outcomes.iter().any(|one| given_up(&one.outcome)), "{outcomes_said:?}");
        let nodes = get(&client, "/api/v1/nodes").await;
        let all = nodes["items"].as_array().expect("a list");
        let cordoned = |node: &&Json| node["spec"]["unschedulable"] == true;
        assert_eq!(all.iter().filter(cordoned).count(), 0, "it takes pods again");
        for row in scene.api.ledger() {
            let is_pod = row.call.path.contains("/pods/");
            assert!(row.call.method != "DELETE" || !is_pod, "{:?}", row.call);
        }
        let delete = http::Request::delete(format!("{budgets}/never")).body(Vec::new());
        let _: Json = client.request(delete.expect("a request")).await.expect("deleted");
        let receipt = scene.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        scene.check().await;
    });
}
