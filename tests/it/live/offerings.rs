//! Tests of EC2 offerings that the embedded catalog lacks, of features that moto lacks, and of the
//! number of AWS calls.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use aws_sdk_ec2::types::Filter;
use fleetwright::apply::ports::{Cloud, LaunchOutcome, LaunchRequest, LaunchedInstance};
use fleetwright::model::market::CapacityType;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::account::{LaunchAccount, read_pools, request};
use super::cluster::runtime;
use super::controller_fixture::ControllerFixture;
use super::measured;
use super::moto::Moto;
use super::proxy::Fault;
use super::proxy_additions::{NewType, Reserved};

/// An instance type that the embedded catalog lacks.
const NEW: &str = "m99x.large";

/// Returns a fixture whose pool allows the new type and a type of the embedded catalog.
fn offerings_fixture() -> ControllerFixture {
    let fixture = ControllerFixture::new("ci", None);
    let path = fixture.tree.path().join("pools.yaml");
    let pools = fs::read_to_string(&path).expect("pools");
    let pools = pools
        .replace("[m5.large]", &format!("[m5.large, {NEW}]"))
        .replace("values: [on-demand]", "values: [on-demand, spot]");
    fs::write(path, pools).expect("written");
    fixture.aws.edit_additions(|additions| {
        let instance_type = NewType { vcpus: 2, memory_mib: 16_384, zones: &["us-east-1a"] };
        additions.types.insert(NEW.to_owned(), instance_type);
    });
    fixture.commit(2);
    fixture
}

impl ControllerFixture {
    /// Plans with the named cache. Returns the plan and the number of calls, by name.
    fn plan_with_cache(&self, cache: &str, more: &[&str]) -> (Json, BTreeMap<String, usize>) {
        let before = self.aws.calls().len();
        let mut command = self.command(&[&["plan", "--format", "json"], more].concat());
        let output = command.env("XDG_CACHE_HOME", self.cache_directory(cache)).output();
        let output = output.expect("the program");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let plan = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{stderr}"));
        let mut calls: BTreeMap<String, usize> = BTreeMap::new();
        for row in self.aws.calls().into_iter().skip(before) {
            *calls.entry(row.call.name()).or_default() += 1;
        }
        (plan, calls)
    }

    fn cache_directory(&self, name: &str) -> PathBuf {
        self.remote.path().join(format!("cache-{name}"))
    }
}

/// Returns the instance type and capacity type of each launch of a plan.
fn launched_offerings(plan: &Json) -> Vec<(String, String)> {
    let rows = plan["resource_changes"].as_array().expect("rows").iter();
    let created = rows.filter(|row| row["change"]["actions"] == json!(["create"]));
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    created
        .map(|row| {
            let after = &row["change"]["after"];
            (text(&after["instance_type"]), text(&after["capacity_type"]))
        })
        .collect()
}

fn diagnostics(plan: &Json) -> String {
    plan["capacity"]["diagnostics"].to_string()
}

#[test]
fn new_instance_type_needs_a_known_price() {
    let fixture = offerings_fixture();
    let (plan, calls) = fixture.plan_with_cache("unpriced", &[]);
    let spot_launches = [("m5.large", "spot"); 2]
        .map(|(instance_type, capacity_type)| (instance_type.to_owned(), capacity_type.to_owned()));
    assert_eq!(launched_offerings(&plan), spot_launches, "{}", diagnostics(&plan));
    assert!(
        diagnostics(&plan).contains(&format!("never launched: {NEW}")),
        "{}",
        diagnostics(&plan)
    );
    assert_eq!((calls["DescribeInstanceTypes"], calls["GetProducts"]), (1, 1), "{calls:?}");

    // The price list has the new type, cheaper than all spot prices.
    fixture.aws.edit_additions(|additions| {
        drop(additions.list_prices.insert(NEW.to_owned(), "0.0200000000".to_owned()));
    });
    let (plan, _) = fixture.plan_with_cache("listed", &[]);
    let on_demand =
        [(NEW.to_owned(), "on-demand".to_owned()), (NEW.to_owned(), "on-demand".to_owned())];
    assert_eq!(launched_offerings(&plan), on_demand, "{}", diagnostics(&plan));
    let after = &plan["resource_changes"][0]["change"]["after"];
    assert_eq!(after["labels"]["karpenter.k8s.aws/instance-generation"], "99");
    assert_eq!(after["labels"]["karpenter.k8s.aws/instance-memory"], "16384");
    assert_eq!(after["capacity"]["cpu_milli"], 2000);

    // The new type is available as spot for a lower price.
    let offering = (NEW.to_owned(), "us-east-1a".to_owned());
    fixture
        .aws
        .edit_additions(|additions| drop(additions.spot.insert(offering, "0.010000".to_owned())));
    let (live, _) = fixture.plan_with_cache("spot", &[]);
    assert!(launched_offerings(&live).iter().all(|(instance_type, capacity_type)| (
        instance_type.as_str(),
        capacity_type.as_str()
    ) == (
        NEW, "spot"
    )));

    // The saved world gives the same plan without credentials.
    let saved = fixture.remote.path().join("world.json").display().to_string();
    let mut observe = fixture.command(&["observe", "--out", &saved]);
    let observed = observe.env("XDG_CACHE_HOME", fixture.cache_directory("spot")).output();
    assert!(observed.expect("the program").status.success());
    let (replanned, calls) = fixture.plan_with_cache("none", &["--world", &saved]);
    assert!(calls.is_empty(), "{calls:?}");
    assert_eq!(replanned["capacity"]["digest"], live["capacity"]["digest"]);
    assert_eq!(replanned["capacity"]["cost"], live["capacity"]["cost"]);
    fixture.sandbox.end();
}

#[test]
fn list_prices_of_aws_replace_those_of_the_repository() {
    let fixture = ControllerFixture::new("ci", None);
    let file = json!({
        "format_version": 1, "region": "us-east-1", "version": "20260901120000",
        "published": "2026-09-01T12:00:00Z", "currency": "USD", "hourly": { "m5.large": "0.000001" }
    });
    let path = fixture.tree.path().join("fleetwright.prices.json");
    fs::write(path, file.to_string()).expect("written");
    fixture.aws.edit_additions(|additions| {
        drop(additions.list_prices.insert("m5.large".to_owned(), "0.0990000000".to_owned()));
    });
    fixture.commit(1);
    let (plan, _) = fixture.plan_with_cache("listed", &[]);
    let cost = &plan["capacity"]["cost"];
    assert_eq!(cost["prices"]["source"], "list prices of AWS", "{}", diagnostics(&plan));
    assert_eq!(cost["hourly_after"], "0.099000");

    refuse(&fixture, &["GetProducts"]);
    let (plan, _) = fixture.plan_with_cache("refused", &[]);
    let cost = &plan["capacity"]["cost"];
    assert_eq!(cost["prices"]["source"], "fleetwright.prices.json", "{}", diagnostics(&plan));
    assert!(diagnostics(&plan).contains("prices of the repository or embedded ones stand in"));
    fixture.sandbox.end();
}

#[test]
fn quota_overrun_warns_and_preflight_names_the_quota() {
    let fixture = offerings_fixture();
    fixture.aws.edit_additions(|additions| {
        additions.quotas =
            [("L-34B43A08".to_owned(), 3.0), ("L-1216C47A".to_owned(), 640.0)].into();
    });
    let (plan, _) = fixture.plan_with_cache("quota", &[]);
    let messages = diagnostics(&plan);
    assert!(
        messages.contains(
            "the plan launches 4 more before it terminates any, and the quota of the account is 3"
        ),
        "{messages}"
    );
    assert!(messages.contains("--quota-code L-34B43A08"), "{messages}");
    fixture.aws.edit_additions(|additions| {
        additions.quotas.insert("L-1216C47A".to_owned(), 0.0);
    });
    let output = fixture.command(&["preflight"]).output().expect("the program");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.contains("quota of spot Standard"), "{output}");
    assert!(output.contains("0 of 3 vCPUs run"), "{output}");
    assert!(output.contains("ok       read EC2 offerings"), "{output}");
    refuse(&fixture, &["DescribeSpotPriceHistory"]);
    let refused = fixture.command(&["preflight"]).output().expect("the program");
    let output = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(output.contains("MISSING  read EC2 offerings"), "{output}");
    assert!(output.contains("list spot prices failed: not for you"), "{output}");
    assert_eq!(refused.status.code(), Some(5));
    fixture.sandbox.end();
}

#[test]
fn second_plan_refreshes_only_safety_critical_data() {
    let fixture = offerings_fixture();
    let cached = [
        "DescribeAvailabilityZones",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeSpotPriceHistory",
        "GetProducts",
        "ListServiceQuotas",
    ];
    let (first, first_calls) = fixture.plan_with_cache("own", &[]);
    for name in cached {
        assert!(
            first_calls.contains_key(name),
            "{name} is called by the first plan: {first_calls:?}"
        );
    }
    let (second, second_calls) = fixture.plan_with_cache("own", &[]);
    for name in cached {
        assert!(!second_calls.contains_key(name), "{name} is cached: {second_calls:?}");
    }
    for name in ["DescribeInstances", "DescribeAutoScalingGroups", "GetCallerIdentity"] {
        assert_eq!(first_calls.get(name), second_calls.get(name), "{name} is called by each plan");
        assert!(second_calls.contains_key(name), "{second_calls:?}");
    }
    assert_eq!(first["capacity"]["digest"], second["capacity"]["digest"]);
    let sum = |calls: &BTreeMap<String, usize>| calls.values().sum::<usize>();
    measured(&format!(
        "AWS calls for a plan: {} for the first, {} for the second",
        sum(&first_calls),
        sum(&second_calls)
    ));

    // Broken cache files count as missing. Cache files contain no secrets.
    let directory = fixture.cache_directory("own").join("fleetwright/market");
    for entry in fs::read_dir(&directory).expect("a cache directory") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        assert!(!text.contains("test") && !text.contains("123456789012"), "{text}");
        fs::write(path, "broken").expect("written");
    }
    let (third, third_calls) = fixture.plan_with_cache("own", &[]);
    assert_eq!(third_calls, first_calls, "the broken cache is read again");
    assert_eq!(first["capacity"]["digest"], third["capacity"]["digest"]);
    fixture.sandbox.end();
}

/// Makes each cached response in `directory` older by `days` days.
fn age_cache(directory: &Path, days: i64) {
    for entry in fs::read_dir(directory.join("fleetwright/market")).expect("a cache directory") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        let (_, cached) = text.split_once('\n').expect("a digest and a value");
        let mut cached: Json = serde_json::from_str(cached).expect("JSON");
        let read_at: Timestamp =
            cached["read_at"].as_str().and_then(|at| at.parse().ok()).expect("a time");
        cached["read_at"] = (read_at - SignedDuration::from_hours(24 * days)).to_string().into();
        let cached = cached.to_string();
        let digest: String = hex::encode(Sha256::digest(&cached));
        fs::write(path, format!("{digest}\n{cached}")).expect("written");
    }
}

/// Makes AWS refuse the calls `names`.
fn refuse(fixture: &ControllerFixture, names: &'static [&'static str]) {
    fixture.aws.set_fault_rule(move |call| {
        let refused = json!({ "__type": "AccessDeniedException", "message": "not for you" });
        let xml = "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>not for \
                   you</Message></Error></Errors></Response>";
        if !names.contains(&&*call.name()) {
            Fault::None
        } else if call.target.is_empty() {
            Fault::Answer(403, xml.to_owned())
        } else {
            Fault::Answer(400, refused.to_string())
        }
    });
}

#[test]
fn unreadable_data_is_served_stale_with_a_warning() {
    let fixture = offerings_fixture();
    fixture.aws.edit_additions(|additions| {
        drop(additions.list_prices.insert(NEW.to_owned(), "0.0200000000".to_owned()));
    });
    let (before, _) = fixture.plan_with_cache("own", &[]);
    let on_demand = (NEW.to_owned(), "on-demand".to_owned());
    assert_eq!(
        launched_offerings(&before),
        [on_demand.clone(), on_demand],
        "{}",
        diagnostics(&before)
    );
    age_cache(&fixture.cache_directory("own"), 20);
    refuse(&fixture, &["DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "GetProducts"]);
    let (after, calls) = fixture.plan_with_cache("own", &[]);
    assert!(calls.contains_key("GetProducts"), "the call is made: {calls:?}");
    let messages = diagnostics(&after);
    assert_eq!(launched_offerings(&after), launched_offerings(&before), "{messages}");
    assert_eq!(
        after["capacity"]["cost"]["hourly_after"],
        before["capacity"]["cost"]["hourly_after"]
    );
    for part in [
        "list prices failed",
        "list offerings failed",
        "describe instance types failed",
        "not for you",
        "20 days ago, stands in",
    ] {
        assert!(messages.contains(part), "{part}: {messages}");
    }
    // Data of 100 days is too old to be used. Readable data is still used.
    age_cache(&fixture.cache_directory("own"), 80);
    refuse(&fixture, &["DescribeInstanceTypes", "GetProducts"]);
    let (expired, _) = fixture.plan_with_cache("own", &[]);
    let messages = diagnostics(&expired);
    assert!(messages.contains(&format!("{NEW} have no known price")), "{messages}");
    assert!(messages.contains("describe instance types failed"), "{messages}");
    assert!(
        expired["capacity"]["cost"]["prices"].to_string().contains("spot prices of EC2"),
        "{}",
        expired["capacity"]["cost"]
    );
    fixture.sandbox.end();
}

#[test]
fn undescribable_types_exclude_only_themselves() {
    let fixture = offerings_fixture();
    refuse(&fixture, &["DescribeInstanceTypes", "DescribeSpotPriceHistory"]);
    let (plan, calls) = fixture.plan_with_cache("refused", &[]);
    let messages = diagnostics(&plan);
    assert_eq!(launched_offerings(&plan).len(), 2, "{messages}");
    assert!(
        launched_offerings(&plan).iter().all(|(instance_type, _)| instance_type == "m5.large"),
        "{messages}"
    );
    assert!(calls.contains_key("ListServiceQuotas"), "the other calls are made: {calls:?}");
    assert!(messages.contains("types unknown to this version are left out"), "{messages}");
    assert!(messages.contains("on-demand prices stand in"), "{messages}");
    assert!(!messages.contains("EC2 offerings are unknown"), "{messages}");
    fixture.sandbox.end();
}

#[test]
fn apply_checks_identity_before_offerings() {
    let fixture = offerings_fixture();
    let saved = fixture.remote.path().join("plan.json").display().to_string();
    assert!(fixture.command(&["plan", "--out", &saved]).status().expect("the program").success());
    let before = fixture.aws.calls().len();
    let mut apply = fixture.command(&["apply", &saved, "--auto-approve"]);
    let applied =
        apply.env("XDG_CACHE_HOME", fixture.cache_directory("anew")).output().expect("the program");
    assert_eq!(applied.status.code(), Some(0), "{}", String::from_utf8_lossy(&applied.stderr));
    let calls = fixture.aws.calls();
    let at = |name: &str| calls.iter().skip(before).position(|row| row.call.name() == name);
    let (identity_call, offerings_call) =
        (at("GetCallerIdentity"), at("DescribeAvailabilityZones"));
    assert!(
        identity_call.is_some() && identity_call < offerings_call,
        "{identity_call:?} {offerings_call:?}"
    );
    fixture.sandbox.end();
}

#[test]
fn image_alias_resolves_through_ssm_parameter() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1a"]).await;
        let aws = account.launcher(&read_pools("alias: al2023@latest"));
        let missing = aws.launch(&request("us-east-1a")).await.expect_err("no such parameter");
        assert!(missing.reason.contains("ParameterNotFound"), "{missing}");
        let path = "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/\
                    recommended/image_id";
        account.proxy.edit_additions(|additions| {
            drop(additions.parameters.insert(path.to_owned(), account.image.clone()));
        });
        let launched = aws.launch(&request("us-east-1a")).await.expect("launched");
        let LaunchOutcome::Launched(LaunchedInstance { id, .. }) = launched else {
            panic!("{launched:?}")
        };
        let ec2 = aws_sdk_ec2::Client::new(&account.config);
        let by_id = Filter::builder().name("instance-id").values(id.as_str()).build();
        let found = ec2.describe_instances().filters(by_id).send().await.expect("a list");
        let instance = &found.reservations()[0].instances()[0];
        assert_eq!(instance.image_id(), Some(account.image.as_str()));
    });
}

#[test]
fn reservation_launches_stop_at_its_capacity() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let account = LaunchAccount::new(&moto, &["us-east-1a"]).await;
        let aws = account.launcher(&account.desired("")).with_reservations(true);
        account.proxy.edit_additions(|additions| {
            let reserved = Reserved { instance_type: "m5.large", zone: "us-east-1a", total: 1 };
            additions.reservations.insert("cr-1".to_owned(), reserved);
        });
        let inventory = aws.inventory().await.expect("read");
        assert_eq!(inventory.unread, Vec::<String>::new());
        assert_eq!(inventory.reservations[0].available, 1);
        let into = |token: &str| LaunchRequest {
            token: token.to_owned(),
            capacity_type: CapacityType::Reserved,
            reservation: Some("cr-1".into()),
            ..request("us-east-1a")
        };
        let launched = aws.launch(&into("token-a")).await.expect("launched");
        let LaunchOutcome::Launched(LaunchedInstance { id, .. }) = launched else {
            panic!("{launched:?}")
        };
        let inventory = aws.inventory().await.expect("read");
        assert_eq!(inventory.reservations[0].available, 0, "the reservation is full");
        let instance =
            inventory.instances.iter().find(|instance| instance.id == id).expect("listed");
        assert_eq!(instance.reservation, Some("cr-1".into()));
        assert_eq!(instance.capacity_type, CapacityType::Reserved);
        let full = aws.launch(&into("token-b")).await.expect("an answer");
        assert!(matches!(full, LaunchOutcome::InsufficientCapacity { .. }), "{full:?}");
        let form = account.last_call("CreateLaunchTemplate").form;
        let preference = "LaunchTemplateData.CapacityReservationSpecification.\
                          CapacityReservationPreference";
        assert_eq!(form[preference], "capacity-reservations-only");
    });
}
