//! What EC2 offers that nothing embedded knows, what moto lacks of it, and how often it is asked.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use aws_sdk_ec2::types::Filter;
use fleetwright::adapters::aws::Aws;
use fleetwright::apply::ports::{Cloud, LaunchOutcome, LaunchRequest};
use fleetwright::model::market::CapacityType;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value as Json, json};
use sha2::{Digest as _, Sha256};

use super::account::{machines, prepare, read_pools, request};
use super::cluster::runtime;
use super::controller_fixture::ControllerFixture;
use super::end_to_end::make_cluster;
use super::measured;
use super::moto::Moto;
use super::proxy::{Fault, Proxy};
use super::proxy_additions::{NewType, Reserved};

/// A type of the year after next.
const NEW: &str = "m99x.large";

/// A tree whose pool may be made of the new type and of one that everybody knows.
fn scene() -> ControllerFixture {
    let scene = ControllerFixture::set("ci", None);
    let path = scene.tree.path().join("pools.yaml");
    let pools = fs::read_to_string(&path).expect("pools");
    let pools = pools
        .replace("[m5.large]", &format!("[m5.large, {NEW}]"))
        .replace("values: [on-demand]", "values: [on-demand, spot]");
    fs::write(path, pools).expect("written");
    scene.aws.add(|added| {
        let kind = NewType { vcpus: 2, memory_mib: 16_384, zones: &["us-east-1a"] };
        added.types.insert(NEW.to_owned(), kind);
    });
    scene.commit(2);
    scene
}

impl ControllerFixture {
    /// Plans with a cache of this name; returns the plan, and how often each call was made for it.
    fn planned(&self, cache: &str, more: &[&str]) -> (Json, BTreeMap<String, usize>) {
        let before = self.aws.ledger().len();
        let mut command = self.command(&[&["plan", "--format", "json"], more].concat());
        let output = command.env("XDG_CACHE_HOME", self.cache(cache)).output();
        let output = output.expect("the program");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let plan = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"));
        let mut calls: BTreeMap<String, usize> = BTreeMap::new();
        for row in self.aws.ledger().into_iter().skip(before) {
            *calls.entry(row.call.name()).or_default() += 1;
        }
        (plan, calls)
    }

    fn cache(&self, name: &str) -> PathBuf {
        self.remote.path().join(format!("cache-{name}"))
    }
}

/// Returns type, capacity type and price of each launch of a plan.
fn launches(plan: &Json) -> Vec<(String, String)> {
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
    let scene = scene();
    let (plan, calls) = scene.planned("unpriced", &[]);
    let usual = [("m5.large", "spot"); 2].map(|(kind, how)| (kind.to_owned(), how.to_owned()));
    assert_eq!(launches(&plan), usual, "{}", diagnostics(&plan));
    assert!(
        diagnostics(&plan).contains(&format!("never launched: {NEW}")),
        "{}",
        diagnostics(&plan)
    );
    assert_eq!((calls["DescribeInstanceTypes"], calls["GetProducts"]), (1, 1), "{calls:?}");

    // The price list has it, and it is cheaper than anything that spot has.
    scene.aws.add(|added| drop(added.listed.insert(NEW.to_owned(), "0.0200000000".to_owned())));
    let (plan, _) = scene.planned("listed", &[]);
    let on_demand =
        [(NEW.to_owned(), "on-demand".to_owned()), (NEW.to_owned(), "on-demand".to_owned())];
    assert_eq!(launches(&plan), on_demand, "{}", diagnostics(&plan));
    let after = &plan["resource_changes"][0]["change"]["after"];
    assert_eq!(after["labels"]["karpenter.k8s.aws/instance-generation"], "99");
    assert_eq!(after["labels"]["karpenter.k8s.aws/instance-memory"], "16384");
    assert_eq!(after["capacity"]["cpu_milli"], 2000);

    // Spot has it as well, for less.
    let place = (NEW.to_owned(), "us-east-1a".to_owned());
    scene.aws.add(|added| drop(added.spot.insert(place, "0.010000".to_owned())));
    let (live, _) = scene.planned("spot", &[]);
    assert!(
        launches(&live).iter().all(|(kind, how)| (kind.as_str(), how.as_str()) == (NEW, "spot"))
    );

    // What was saved plans the same without any credentials.
    let saved = scene.remote.path().join("world.json").display().to_string();
    let mut observe = scene.command(&["observe", "--out", &saved]);
    let observed = observe.env("XDG_CACHE_HOME", scene.cache("spot")).output();
    assert!(observed.expect("the program").status.success());
    let (filed, calls) = scene.planned("none", &["--world", &saved]);
    assert!(calls.is_empty(), "{calls:?}");
    assert_eq!(filed["capacity"]["digest"], live["capacity"]["digest"]);
    assert_eq!(filed["capacity"]["cost"], live["capacity"]["cost"]);
    scene.sandbox.end();
}

#[test]
fn quota_overrun_warns_and_preflight_names_the_quota() {
    let scene = scene();
    scene.aws.add(|added| {
        added.quotas = [("L-34B43A08".to_owned(), 3.0), ("L-1216C47A".to_owned(), 640.0)].into();
    });
    let (plan, _) = scene.planned("quota", &[]);
    let said = diagnostics(&plan);
    assert!(
        said.contains(
            "the plan launches 4 more before it terminates any, and the quota of the account is 3"
        ),
        "{said}"
    );
    assert!(said.contains("--quota-code L-34B43A08"), "{said}");
    scene.aws.add(|added| {
        added.quotas.insert("L-1216C47A".to_owned(), 0.0);
    });
    let shown = scene.command(&["preflight"]).output().expect("the program");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("quota of spot Standard"), "{shown}");
    assert!(shown.contains("0 of 3 vCPUs run"), "{shown}");
    assert!(shown.contains("ok       read EC2 offerings"), "{shown}");
    refuse(&scene, &["DescribeSpotPriceHistory"]);
    let refused = scene.command(&["preflight"]).output().expect("the program");
    let shown = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(shown.contains("MISSING  read EC2 offerings"), "{shown}");
    assert!(shown.contains("list spot prices failed: not for you"), "{shown}");
    assert_eq!(refused.status.code(), Some(5));
    scene.sandbox.end();
}

#[test]
fn second_plan_refreshes_only_safety_critical_data() {
    let scene = scene();
    let kept = [
        "DescribeAvailabilityZones",
        "DescribeInstanceTypeOfferings",
        "DescribeInstanceTypes",
        "DescribeSpotPriceHistory",
        "GetProducts",
        "ListServiceQuotas",
    ];
    let (first, asked) = scene.planned("own", &[]);
    for name in kept {
        assert!(asked.contains_key(name), "{name} is asked at first: {asked:?}");
    }
    let (second, again) = scene.planned("own", &[]);
    for name in kept {
        assert!(!again.contains_key(name), "{name} is kept: {again:?}");
    }
    for name in ["DescribeInstances", "DescribeAutoScalingGroups", "GetCallerIdentity"] {
        assert_eq!(asked.get(name), again.get(name), "{name} is read anew");
        assert!(again.contains_key(name), "{again:?}");
    }
    assert_eq!(first["capacity"]["digest"], second["capacity"]["digest"]);
    let sum = |calls: &BTreeMap<String, usize>| calls.values().sum::<usize>();
    measured(&format!("calls of AWS for a plan: {} at first, {} again", sum(&asked), sum(&again)));

    // What is broken counts as absent, and what is kept tells nothing that is secret.
    let folder = scene.cache("own").join("fleetwright/market");
    for entry in fs::read_dir(&folder).expect("it is kept") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        assert!(!text.contains("test") && !text.contains("123456789012"), "{text}");
        fs::write(path, "broken").expect("written");
    }
    let (third, anew) = scene.planned("own", &[]);
    assert_eq!(anew, asked, "all of it");
    assert_eq!(first["capacity"]["digest"], third["capacity"]["digest"]);
    scene.sandbox.end();
}

/// Makes every answer that is kept in `folder` so many days older.
fn age(folder: &Path, days: i64) {
    for entry in fs::read_dir(folder.join("fleetwright/market")).expect("it is kept") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("text");
        let (_, kept) = text.split_once('\n').expect("a digest, and what it is of");
        let mut kept: Json = serde_json::from_str(kept).expect("JSON");
        let read_at: Timestamp =
            kept["read_at"].as_str().and_then(|at| at.parse().ok()).expect("a time");
        kept["read_at"] = (read_at - SignedDuration::from_hours(24 * days)).to_string().into();
        let kept = kept.to_string();
        let digest: String = hex::encode(Sha256::digest(&kept));
        fs::write(path, format!("{digest}\n{kept}")).expect("written");
    }
}

/// Has AWS refuse these calls.
fn refuse(scene: &ControllerFixture, names: &'static [&'static str]) {
    scene.aws.judge(move |call| {
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
    let scene = scene();
    scene.aws.add(|added| drop(added.listed.insert(NEW.to_owned(), "0.0200000000".to_owned())));
    let (before, _) = scene.planned("own", &[]);
    let on_demand = (NEW.to_owned(), "on-demand".to_owned());
    assert_eq!(launches(&before), [on_demand.clone(), on_demand], "{}", diagnostics(&before));
    age(&scene.cache("own"), 20);
    refuse(&scene, &["DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "GetProducts"]);
    let (after, calls) = scene.planned("own", &[]);
    assert!(calls.contains_key("GetProducts"), "it is asked: {calls:?}");
    let said = diagnostics(&after);
    assert_eq!(launches(&after), launches(&before), "{said}");
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
        assert!(said.contains(part), "{part}: {said}");
    }
    // What is older than that is as good as unknown; what can be read is used all the same.
    age(&scene.cache("own"), 80);
    refuse(&scene, &["DescribeInstanceTypes", "GetProducts"]);
    let (late, _) = scene.planned("own", &[]);
    let said = diagnostics(&late);
    assert!(said.contains(&format!("{NEW} have no known price")), "{said}");
    assert!(said.contains("describe instance types failed"), "{said}");
    assert!(
        late["capacity"]["cost"]["prices"].to_string().contains("spot prices of EC2"),
        "{}",
        late["capacity"]["cost"]
    );
    scene.sandbox.end();
}

#[test]
fn undescribable_types_exclude_only_themselves() {
    let scene = scene();
    refuse(&scene, &["DescribeInstanceTypes", "DescribeSpotPriceHistory"]);
    let (plan, calls) = scene.planned("refused", &[]);
    let said = diagnostics(&plan);
    assert_eq!(launches(&plan).len(), 2, "{said}");
    assert!(launches(&plan).iter().all(|(kind, _)| kind == "m5.large"), "{said}");
    assert!(calls.contains_key("ListServiceQuotas"), "the rest is asked all the same: {calls:?}");
    assert!(said.contains("types unknown to this version are left out"), "{said}");
    assert!(said.contains("on-demand prices stand in"), "{said}");
    assert!(!said.contains("EC2 offerings are unknown"), "{said}");
    scene.sandbox.end();
}

#[test]
fn apply_checks_identity_before_offerings() {
    let scene = scene();
    let saved = scene.remote.path().join("plan.json").display().to_string();
    assert!(scene.command(&["plan", "--out", &saved]).status().expect("the program").success());
    let before = scene.aws.ledger().len();
    let mut apply = scene.command(&["apply", &saved, "--auto-approve"]);
    let applied = apply.env("XDG_CACHE_HOME", scene.cache("anew")).output().expect("the program");
    assert_eq!(applied.status.code(), Some(0), "{}", String::from_utf8_lossy(&applied.stderr));
    let ledger = scene.aws.ledger();
    let at = |name: &str| ledger.iter().skip(before).position(|row| row.call.name() == name);
    let (who, what) = (at("GetCallerIdentity"), at("DescribeAvailabilityZones"));
    assert!(who.is_some() && who < what, "{who:?} {what:?}");
    scene.sandbox.end();
}

/// Returns an account in moto behind a proxy, and what launches need.
async fn account(moto: &Moto, images: &str) -> (Proxy, Aws, String) {
    let config = moto.account();
    let ec2 = aws_sdk_ec2::Client::new(&config);
    let image = prepare(&ec2, &["us-east-1a", "us-east-1b"]).await;
    make_cluster(&config, "prod").await;
    let proxy = Proxy::start(moto.url());
    let through = config.into_builder().endpoint_url(&proxy.url).build();
    let desired = read_pools(images);
    let aws = Aws::from_config(&through, "prod")
        .with_launch_context(machines(&desired))
        .with_reservations(true);
    (proxy, aws, image)
}

#[test]
fn image_alias_resolves_through_ssm_parameter() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let (proxy, aws, image) = account(&moto, "alias: al2023@latest").await;
        let missing = aws.launch(&request("us-east-1a")).await.expect_err("no such parameter");
        assert!(missing.reason.contains("ParameterNotFound"), "{missing}");
        let path = "/aws/service/eks/optimized-ami/1.33/amazon-linux-2023/x86_64/standard/\
                    recommended/image_id";
        proxy.add(|added| drop(added.parameters.insert(path.to_owned(), image.clone())));
        let launched = aws.launch(&request("us-east-1a")).await.expect("launched");
        let LaunchOutcome::Launched(id) = launched else { panic!("{launched:?}") };
        let ec2 = aws_sdk_ec2::Client::new(&moto.account());
        let by_id = Filter::builder().name("instance-id").values(id.as_str()).build();
        let found = ec2.describe_instances().filters(by_id).send().await.expect("a list");
        let machine = &found.reservations()[0].instances()[0];
        assert_eq!(machine.image_id(), Some(image.as_str()));
    });
}

#[test]
fn reservation_launches_stop_at_its_capacity() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let (proxy, aws, image) = account(&moto, "id: IMAGE").await;
        let desired = read_pools(&format!("id: {image}"));
        let aws = aws.with_launch_context(machines(&desired));
        proxy.add(|added| {
            let reserved = Reserved { kind: "m5.large", zone: "us-east-1a", total: 1 };
            added.reservations.insert("cr-1".to_owned(), reserved);
        });
        let held = aws.holdings().await.expect("read");
        assert_eq!(held.unread, Vec::<String>::new());
        assert_eq!(held.reservations[0].available, 1);
        let into = |token: &str| LaunchRequest {
            token: token.to_owned(),
            capacity_type: CapacityType::Reserved,
            reservation: Some("cr-1".into()),
            ..request("us-east-1a")
        };
        let launched = aws.launch(&into("token-a")).await.expect("launched");
        let LaunchOutcome::Launched(id) = launched else { panic!("{launched:?}") };
        let held = aws.holdings().await.expect("read");
        assert_eq!(held.reservations[0].available, 0, "its place is taken");
        let machine = held.instances.iter().find(|machine| machine.id == id).expect("listed");
        assert_eq!(machine.reservation, Some("cr-1".into()));
        assert_eq!(machine.capacity_type, CapacityType::Reserved);
        let full = aws.launch(&into("token-b")).await.expect("an answer");
        assert!(matches!(full, LaunchOutcome::InsufficientCapacity { .. }), "{full:?}");
        let template =
            proxy.ledger().into_iter().find(|row| row.call.name() == "CreateLaunchTemplate");
        let form = template.expect("one was made").call.form;
        let preference = "LaunchTemplateData.CapacityReservationSpecification.\
                          CapacityReservationPreference";
        assert_eq!(form[preference], "capacity-reservations-only");
    });
}
