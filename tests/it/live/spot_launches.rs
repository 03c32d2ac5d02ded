//! Tests of launches that offer several instance types and zones to EC2.

use std::collections::BTreeSet;
use std::fs;

use fleetwright::apply::ports::{
    Cloud, LaunchOffering, LaunchOutcome, LaunchRequest, LaunchedInstance,
};
use fleetwright::model::market::CapacityType;
use fleetwright::model::units::Resources;
use serde_json::Value as Json;

use super::account::{LaunchAccount, request};
use super::cluster::runtime;
use super::controller_fixture::ControllerFixture;
use super::moto::Moto;
use super::proxy::{Fault, LoggedCall, refusal_body};

fn offering(instance_type: &str, zone: &str) -> LaunchOffering {
    LaunchOffering {
        instance_type: instance_type.into(),
        zone: zone.into(),
        labels: [("kind".into(), instance_type.into()), ("in".into(), zone.into())].into(),
        capacity: Resources::default(),
        allocatable: Resources::default(),
    }
}

/// Returns a request of four offerings. The node class has no subnet in the zone of the third.
fn request_of_four(token: &str, capacity_type: CapacityType) -> LaunchRequest {
    let request = request("us-east-1a");
    LaunchRequest {
        token: token.to_owned(),
        capacity_type,
        offerings: vec![
            request.offerings[0].clone(),
            offering("m6i.large", "us-east-1a"),
            offering("m5.large", "us-east-1c"),
            offering("m5.large", "us-east-1b"),
        ],
        ..request
    }
}

fn launched(outcome: LaunchOutcome) -> LaunchedInstance {
    match outcome {
        LaunchOutcome::Launched(launched) => launched,
        LaunchOutcome::InsufficientCapacity { reason } => panic!("{reason}"),
    }
}

#[test]
fn fleet_offers_every_offering_with_a_subnet() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1a", "us-east-1b"]).await;
        let aws = account.launcher(&account.desired(""));
        for (capacity_type, strategy, priorities) in [
            (CapacityType::Spot, "price-capacity-optimized", [None, None, None]),
            (CapacityType::OnDemand, "prioritized", [Some("0"), Some("1"), Some("3")]),
        ] {
            let request = request_of_four(capacity_type.as_str(), capacity_type);
            let first = launched(aws.launch(&request).await.expect("an answer"));
            assert_eq!((first.offering, first.unavailable), (Some(0), vec![]));
            let form = account.last_call("CreateFleet").form;
            let options = if capacity_type.is_spot() { "SpotOptions" } else { "OnDemandOptions" };
            assert_eq!(form[&format!("{options}.AllocationStrategy")], strategy);
            let of = |n: usize, part: &str| {
                form.get(&format!("LaunchTemplateConfigs.{n}.Overrides.1.{part}"))
            };
            let kinds = [1, 2, 3, 4].map(|n| of(n, "InstanceType").map(String::as_str));
            assert_eq!(kinds, [Some("m5.large"), Some("m6i.large"), Some("m5.large"), None]);
            let found =
                [1, 2, 3].map(|n| of(n, "Priority").map(|text| text.trim_end_matches(".0")));
            assert_eq!(found, priorities);
            assert!(
                of(1, "SubnetId") == of(2, "SubnetId") && of(1, "SubnetId") != of(3, "SubnetId")
            );
            assert!(!form.keys().any(|key| key.contains("MaxPrice")), "{form:?}");
        }
        // Each offering has its own template, and both fleets share them.
        assert_eq!(account.calls("CreateLaunchTemplate").len(), 3);
    });
}

#[test]
fn concurrent_launches_create_each_template_once() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1a", "us-east-1b"]).await;
        let aws = account.launcher(&account.desired(""));
        let requests = ["one", "two"].map(|token| request_of_four(token, CapacityType::Spot));
        let (one, two) = tokio::join!(aws.launch(&requests[0]), aws.launch(&requests[1]));
        let ids = [one, two].map(|end| launched(end.expect("an answer")).id);
        assert_ne!(ids[0], ids[1]);
        let created = account.calls("CreateLaunchTemplate");
        let names: BTreeSet<&str> =
            created.iter().map(|call| call.form["LaunchTemplateName"].as_str()).collect();
        assert_eq!((names.len(), created.len()), (3, 3));
    });
}

#[test]
fn launch_requests_few_templates_after_a_refusal() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1a"]).await;
        let aws = account.launcher(&account.desired(""));
        let refusal = refusal_body("UnauthorizedOperation", "no");
        account.proxy.set_fault_rule(move |call| {
            let is_refused = call.name() == "CreateLaunchTemplate";
            if is_refused { Fault::Answer(403, refusal.clone()) } else { Fault::None }
        });
        let mut request = request("us-east-1a");
        for size in ["large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge"] {
            request.offerings.push(offering(&format!("c5.{size}"), "us-east-1a"));
        }
        aws.launch(&request).await.expect_err("no template");
        // Four are requested at the same time.
        assert_eq!(account.calls("CreateLaunchTemplate").len(), 4);
        assert!(account.calls("CreateFleet").is_empty());
    });
}

#[test]
fn outcome_names_the_offering_that_ec2_chose() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1a", "us-east-1b"]).await;
        let aws = account.launcher(&account.desired(""));
        for (choice, offering, kind, zone) in
            [(2, 1, "m6i.large", "us-east-1a"), (3, 3, "m5.large", "us-east-1b")]
        {
            account.proxy.edit_additions(|additions| additions.fleet_choice = Some(choice));
            let request = request_of_four(&format!("choice-{choice}"), CapacityType::Spot);
            let outcome = launched(aws.launch(&request).await.expect("an answer"));
            assert_eq!(outcome.offering, Some(offering));
            let again = launched(aws.launch(&request).await.expect("an answer"));
            assert_eq!(again, outcome, "the same token is the same launch");
            let listed = aws.inventory().await.expect("a list").instances;
            let instance = listed.iter().find(|instance| instance.id == outcome.id);
            let instance = instance.expect("listed");
            assert_eq!((instance.instance_type.as_str(), instance.zone.as_str()), (kind, zone));
        }
        assert_eq!(aws.inventory().await.expect("a list").instances.len(), 2);
    });
}

#[test]
fn node_of_another_offering_leaves_the_plan_at_rest() {
    let fixture = ControllerFixture::new("ci", None);
    fixture.edit("pools.yaml", "[m5.large]", "[m5.large, m6i.large, m5a.large, m7i.large]");
    fixture.edit("pools.yaml", "values: [on-demand]", "values: [spot]");
    let prices = [
        ("m5.large", "0.0300"),
        ("m6i.large", "0.0350"),
        ("m5a.large", "0.0355"),
        ("m7i.large", "0.06"),
    ];
    fixture.aws.edit_additions(|additions| {
        for (kind, price) in prices {
            for zone in ["us-east-1a", "us-east-1b"] {
                let price = price.to_owned();
                drop(additions.spot.insert((kind.to_owned(), zone.to_owned()), price));
            }
        }
        additions.fleet_choice = Some(3);
    });
    fixture.commit(2);
    let saved = fixture.remote.path().join("plan.json").display().to_string();
    let run = |arguments: &[&str]| {
        let output = fixture.command(arguments).output().expect("the program");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run(&["plan", "--out", &saved]);
    assert_eq!(code, Some(0), "{out}{err}");
    let plan: Json =
        serde_json::from_str(&fs::read_to_string(&saved).expect("a plan")).expect("JSON");
    let after = &plan["resource_changes"][0]["change"]["after"];
    assert_eq!(after["instance_type"], "m5.large", "the cheapest is planned");
    let (code, out, err) = run(&["apply", &saved, "--auto-approve"]);
    assert_eq!(code, Some(0), "{out}{err}");
    assert!(
        err.contains("instead of m5.large in us-east-1")
            || out.contains("instead of m5.large in us-east-1"),
        "{out}{err}"
    );
    let is_fleet = |row: &LoggedCall| row.call.name() == "CreateFleet";
    let form = fixture.aws.calls().into_iter().rfind(is_fleet).expect("a fleet").call.form;
    let kinds: Vec<String> = (1..=4)
        .filter_map(|n| {
            let key = format!("LaunchTemplateConfigs.{n}.Overrides.1.InstanceType");
            form.get(&key).cloned()
        })
        .collect();
    assert!(kinds.len() >= 3 && !kinds.contains(&"m7i.large".to_owned()), "{kinds:?}");
    let (code, out, err) = run(&["plan", "--detailed-exitcode"]);
    assert_eq!(code, Some(0), "the plan is at rest: {out}{err}");
    fixture.sandbox.end();
}
