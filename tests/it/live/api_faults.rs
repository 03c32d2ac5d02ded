//! Tests of API faults during an apply to the world that `fleetwright sandbox` serves: throttling,
//! AWS faults, partial and failed fleets, an API server outage, and blocked evictions. Each fault
//! is bounded, and a second apply of the same plan finishes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use aws_config::retry::RetryConfig;
use fleetwright::adapters::aws::{Aws, call_budgets};
use fleetwright::apply::ports::Cloud as _;
use fleetwright::apply::{ApplyStatus, Bounds, Outcome, Receipt};
use jiff::SignedDuration;
use kube::Client;
use serde_json::{Value as Json, json};

use super::apply_faults::{ApplyFixture, bounds, expect};
use super::cluster::{post, runtime};
use super::controller_fixture::account;
use super::kubelets::get;
use super::observation_calls::page_of;
use super::proxy::{Call, Fault, Proxy, refusal_body};
use super::proxy_additions::fleet_refused;
use super::{measured, size};

/// Failures of each call before it succeeds.
const FAILURES: usize = 2;

/// Default duration of the API server outage, in seconds. The book quotes a run with
/// `FLEETWRIGHT_GONE=60`.
const OUTAGE_SECONDS: usize = 12;

/// Time for which reads are throttled.
const THROTTLED: Duration = Duration::from_secs(3);

/// Address of a quickstart instance that runs pods.
const BUSY: &str = "ec2_instance.general[\"0\"]";

fn is_launch(call: &Call) -> bool {
    call.name() == "CreateFleet"
}

/// Short bounds.
fn short_bounds() -> Bounds {
    let seconds = SignedDuration::from_secs;
    Bounds { ready: seconds(4), drain: seconds(4), replicas: seconds(4), ..bounds() }
}

impl ApplyFixture {
    fn client(&self) -> Client {
        let config = kube::Config::new(self.sandbox.url().parse().expect("a URL"));
        Client::try_from(config).expect("a client")
    }

    /// Applies without faults, and checks that each planned instance exists once.
    async fn finish(self) {
        self.aws.set_fault_rule(|_| Fault::None);
        self.api.set_fault_rule(|_| Fault::None);
        let receipt = self.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        self.check().await;
    }

    /// Returns true if a pod eviction was requested.
    fn has_evicted(&self) -> bool {
        self.api.calls().iter().any(|row| row.call.path.ends_with("/eviction"))
    }
}

/// Returns the outcome of each change.
fn outcomes(receipt: &Receipt) -> Vec<&Outcome> {
    receipt.outcomes.iter().map(|one| &one.outcome).collect()
}

#[test]
fn throttling_and_aws_faults_launch_each_instance_once() {
    let fixture = ApplyFixture::new();
    let mut attempts: BTreeMap<String, usize> = BTreeMap::new();
    fixture.aws.set_fault_rule(move |call| {
        let times = attempts.entry(call.name()).or_default();
        *times += 1;
        match *times {
            1 => Fault::Answer(503, refusal_body("RequestLimitExceeded", "slow down")),
            n if n <= FAILURES => Fault::Answer(500, refusal_body("InternalError", "our fault")),
            _ => Fault::None,
        }
    });
    runtime().block_on(async {
        let receipt = fixture.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        let refused = fixture.aws.calls().into_iter().filter(|row| !row.arrived);
        assert!(refused.count() > 3 * FAILURES, "calls failed");
        fixture.check().await;
    });
}

#[test]
fn endless_throttling_gives_up_without_launch() {
    let fixture = ApplyFixture::new();
    fixture.aws.set_fault_rule(|call| {
        if is_launch(call) {
            return Fault::Answer(503, refusal_body("RequestLimitExceeded", "slow down"));
        }
        Fault::None
    });
    runtime().block_on(async {
        let started = Instant::now();
        let receipt = fixture.apply_within(SignedDuration::ZERO, short_bounds()).await;
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        assert!(started.elapsed() < Duration::from_mins(2), "{:?}", started.elapsed());
        assert!(fixture.launched().await.is_empty() && !fixture.has_evicted());
        fixture.finish().await;
    });
}

#[test]
fn throttled_reads_stay_within_the_call_budget() {
    // The rule answers every call, so that nothing has to listen there.
    let ec2 = Proxy::start("http://127.0.0.1:1");
    let started = Instant::now();
    ec2.set_fault_rule(move |_| {
        if started.elapsed() < THROTTLED {
            return Fault::Answer(503, refusal_body("RequestLimitExceeded", "slow down"));
        }
        Fault::Answer(200, page_of("i-1", ""))
    });
    // The budget does not count the retries of the SDK.
    let config = account(&ec2.url).into_builder().retry_config(RetryConfig::disabled()).build();
    let aws = Aws::from_config(&config, "prod");
    let ids = BTreeSet::from(["i-1".into()]);
    let read = || async {
        while aws.find_instances(&ids).await.is_err() {
            assert!(started.elapsed() < Duration::from_mins(1), "throttling has ended");
        }
    };
    runtime().block_on(async { tokio::join!(read(), read(), read(), read()) });
    let seconds = u32::try_from(started.elapsed().as_secs() + 1).expect("a minute");
    let calls = u32::try_from(ec2.calls().len()).expect("a count");
    let mut budgets = call_budgets();
    let budget = budgets.find(|budget| budget.calls.contains("Describe")).expect("a budget");
    assert!(calls <= budget.within(seconds), "{calls} calls in {seconds} s");
    assert!(calls > budget.burst, "{calls} calls");
}

#[test]
fn missing_capacity_removes_nothing_and_next_run_finishes() {
    let fixture = ApplyFixture::new();
    fixture.aws.set_fault_rule(|call| {
        let none = fleet_refused("InsufficientInstanceCapacity");
        if is_launch(call) { Fault::Answer(200, none) } else { Fault::None }
    });
    // The program itself tries alternative offerings.
    let file = fixture.path("plan.json");
    let ended = fixture.run(&["apply", &file, "--auto-approve"]).output();
    expect(7, &ended.expect("the program"));
    runtime().block_on(async {
        let tried = fixture.aws.calls().iter().filter(|row| is_launch(&row.call)).count();
        assert!(tried > 1, "alternatives were tried: {tried}");
        assert!(fixture.launched().await.is_empty() && !fixture.has_evicted());
        fixture.finish().await;
    });
}

#[test]
fn instances_that_never_join_are_terminated() {
    let fixture = ApplyFixture::new();
    runtime().block_on(async {
        let nodes = get(&fixture.client(), "/api/v1/nodes").await;
        let names = nodes["items"].as_array().expect("a list").iter();
        let names = names.map(|node| node["metadata"]["name"].as_str().expect("a name").to_owned());
        let visible = names.collect();
        fixture.api.edit_additions(|additions| additions.visible_nodes = Some(visible));
        let receipt = fixture.apply_within(SignedDuration::ZERO, short_bounds()).await;
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        let all = receipt.outcomes.iter();
        let abandoned = all.filter(|one| matches!(one.outcome, Outcome::Abandoned { .. })).count();
        let launches = usize::try_from(fixture.plan.summary.add).expect("a count");
        assert_eq!(abandoned, launches, "{:?}", outcomes(&receipt));
        assert!(fixture.launched().await.is_empty(), "instances that never joined are terminated");
        assert!(!fixture.has_evicted(), "nothing was drained");
        fixture.api.edit_additions(|additions| additions.visible_nodes = None);
        fixture.finish().await;
    });
}

#[test]
fn fleet_reply_with_errors_and_instance_is_a_launch() {
    let fixture = ApplyFixture::new();
    fixture.aws.edit_additions(|additions| additions.partial_fleets = true);
    runtime().block_on(async {
        let receipt = fixture.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        fixture.check().await;
    });
}

#[test]
fn api_server_outage_is_awaited_without_loss() {
    let fixture = ApplyFixture::new();
    let outage = Duration::from_secs(
        u64::try_from(size("FLEETWRIGHT_GONE", OUTAGE_SECONDS)).expect("seconds"),
    );
    let mut outage_start = None;
    // The outage starts with the first launch call.
    let launch_time = std::sync::Arc::new(std::sync::OnceLock::new());
    let launch_seen = std::sync::Arc::clone(&launch_time);
    fixture.aws.set_fault_rule(move |call| {
        if is_launch(call) {
            launch_seen.get_or_init(Instant::now);
        }
        Fault::None
    });
    fixture.api.set_fault_rule(move |_| {
        let is_down = launch_time.get().is_some()
            && outage_start.get_or_insert_with(Instant::now).elapsed() < outage;
        if is_down {
            let body =
                r#"{"kind":"Status","code":503,"reason":"ServiceUnavailable","message":"gone"}"#;
            return Fault::Answer(503, body.to_owned());
        }
        Fault::None
    });
    runtime().block_on(async {
        let started = Instant::now();
        let bounds = Bounds { ready: SignedDuration::from_mins(3), ..bounds() };
        let receipt =
            fixture.apply_within(SignedDuration::ZERO, bounds).await.expect("not refused");
        assert!(started.elapsed() > outage, "the outage ended before the apply");
        measured(&format!(
            "apply during an API server outage of {outage:?}: {:?}",
            started.elapsed()
        ));
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        fixture.check().await;
    });
}

#[test]
fn blocked_drain_ends_with_an_uncordoned_node() {
    let fixture = ApplyFixture::with_plan_arguments(&["--replace", BUSY]);
    runtime().block_on(async {
        let client = fixture.client();
        let budgets = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets";
        let budget = json!({
            "metadata": { "name": "never" },
            "spec": { "maxUnavailable": 0, "selector": {} }
        });
        post(&client, budgets, &budget).await;
        let receipt = fixture.apply_within(SignedDuration::ZERO, short_bounds()).await;
        let receipt = receipt.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Partly, "{receipt:?}");
        let is_abandoned =
            |one: &Outcome| matches!(one, Outcome::Abandoned { why } if why.contains("never"));
        let all_outcomes = outcomes(&receipt);
        assert!(receipt.outcomes.iter().any(|one| is_abandoned(&one.outcome)), "{all_outcomes:?}");
        let nodes = get(&client, "/api/v1/nodes").await;
        let all = nodes["items"].as_array().expect("a list");
        let cordoned = |node: &&Json| node["spec"]["unschedulable"] == true;
        assert_eq!(all.iter().filter(cordoned).count(), 0, "the node accepts pods again");
        for row in fixture.api.calls() {
            let is_pod = row.call.path.contains("/pods/");
            assert!(row.call.method != "DELETE" || !is_pod, "{:?}", row.call);
        }
        let delete = http::Request::delete(format!("{budgets}/never")).body(Vec::new());
        let _: Json = client.request(delete.expect("a request")).await.expect("deleted");
        let receipt = fixture.apply(SignedDuration::ZERO).await.expect("not refused");
        assert_eq!(receipt.verdict, ApplyStatus::Applied, "{receipt:?}");
        fixture.check().await;
    });
}
