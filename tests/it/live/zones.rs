//! Tests of the checks of zones and credentials before a plan, against moto.

use fleetwright::adapters::aws::Aws;
use fleetwright::apply::ports::PrerequisiteState;
use fleetwright::manifest::read;
use fleetwright::model::desired::{Desired, Fleet, Tree, TreeFile};
use fleetwright::model::market::ZoneSetting;

use super::cluster::runtime;
use super::controller_fixture::account;
use super::end_to_end::create_cluster;
use super::moto::Moto;
use super::proxy::{Fault, Proxy};

const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  template:
    spec:
      requirements:
      - { key: KEY, operator: In, values: [VALUES] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: web }
";

fn pool(key: &str, values: &str) -> Desired {
    let text = POOL.replace("KEY", key).replace("VALUES", values);
    let content = Ok(text.into_bytes().into());
    read(&Tree { files: vec![TreeFile { path: "pool.yaml".into(), content }] }, &Fleet::default())
}

fn settings(zones: &[(&str, Option<&str>)]) -> Vec<ZoneSetting> {
    let setting = |(name, id): &(&str, Option<&str>)| ZoneSetting {
        name: (*name).into(),
        id: id.map(Into::into),
    };
    zones.iter().map(setting).collect()
}

/// Returns the state of the check `name`.
async fn check(aws: &Aws, desired: &Desired, zones: &[ZoneSetting], name: &str) -> String {
    let found = aws.preflight(desired, zones, None).await.prerequisites;
    let one = found.into_iter().find(|one| one.name == name);
    match one.unwrap_or_else(|| panic!("no {name}")).state {
        PrerequisiteState::Met { detail } => detail,
        PrerequisiteState::Missing { why, remedy } => format!("{why} -> {remedy}"),
        PrerequisiteState::Unknown { why } => panic!("{why}"),
    }
}

#[test]
fn preflight_compares_zones_with_the_account() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        create_cluster(&moto.account(), "prod").await;
        let aws = Aws::from_config(&moto.account(), "prod");
        let pool_zones = pool("topology.kubernetes.io/zone", "us-east-1a, us-east-1z");
        let of_cluster = "zones of the cluster";
        let valid = settings(&[("us-east-1a", Some("use1-az6")), ("us-east-1b", None)]);
        assert_eq!(
            check(&aws, &pool_zones, &valid, of_cluster).await,
            "us-east-1a: use1-az6, us-east-1b: use1-az1"
        );
        let swapped = settings(&[("us-east-1a", Some("use1-az1")), ("us-east-1x", None)]);
        assert_eq!(
            check(&aws, &pool_zones, &swapped, of_cluster).await,
            "us-east-1a is use1-az6 in this account, not use1-az1; \
             us-east-1x: the account has no such zone -> in fleetwright.yaml, write \
             `zones: { us-east-1a: use1-az6 }` below spec.cluster"
        );
        let found = check(&aws, &pool_zones, &valid, "pool web: topology.kubernetes.io/zone").await;
        assert_eq!(found, "us-east-1a, us-east-1z: the account has no such zone");
        let none = pool("topology.kubernetes.io/zone", "us-east-1z");
        let found = check(&aws, &none, &valid, "pool web: topology.kubernetes.io/zone").await;
        assert!(
            found.starts_with(
                "us-east-1z: the account has no such zone -> in pool.yaml:1, change the values \
                 of topology.kubernetes.io/zone to zones of the account: us-east-1a, us-east-1b"
            ),
            "{found}"
        );
        let by_id = pool("topology.k8s.aws/zone-id", "use1-az9");
        let found = check(&aws, &by_id, &valid, "pool web: topology.k8s.aws/zone-id").await;
        assert!(found.starts_with("use1-az9: the account has no such zone"), "{found}");
    });
}

/// Returns the zones of an account with zones in which no node is launched. moto has none.
fn zones_response() -> String {
    let zone = |name: &str, id: &str, kind: &str, opt_in: &str, state: &str| {
        format!(
            "<item><zoneName>{name}</zoneName><zoneId>{id}</zoneId><zoneType>{kind}</zoneType>\
             <optInStatus>{opt_in}</optInStatus><zoneState>{state}</zoneState></item>"
        )
    };
    let regular = "availability-zone";
    let items = [
        zone("us-east-1a", "use1-az6", regular, "opt-in-not-required", "available"),
        zone("us-east-1b", "use1-az1", regular, "not-opted-in", "available"),
        zone("us-east-1c", "use1-az2", regular, "opt-in-not-required", "impaired"),
        zone("us-east-1-bos-1a", "use1-bos1-az1", "local-zone", "opted-in", "available"),
        zone(
            "us-east-1-wl1-bos-wlz-1",
            "use1-wl1-bos-wlz1",
            "wavelength-zone",
            "opted-in",
            "available",
        ),
    ];
    format!(
        "<DescribeAvailabilityZonesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>r</requestId><availabilityZoneInfo>{}</availabilityZoneInfo>\
         </DescribeAvailabilityZonesResponse>",
        items.concat()
    )
}

#[test]
fn preflight_names_zones_without_launches() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        create_cluster(&moto.account(), "prod").await;
        let proxy = Proxy::start(moto.url());
        proxy.set_fault_rule(|call| match call.name().as_str() {
            "DescribeAvailabilityZones" => Fault::Answer(200, zones_response()),
            _ => Fault::None,
        });
        let aws = Aws::from_config(&account(&proxy.url), "prod");
        let names = "us-east-1b, us-east-1c, us-east-1-bos-1a, us-east-1-wl1-bos-wlz-1";
        let desired = pool("topology.kubernetes.io/zone", names);
        let found = check(&aws, &desired, &[], "pool web: topology.kubernetes.io/zone").await;
        assert_eq!(
            found,
            "us-east-1b: the account has not opted in to it; us-east-1c: its state is impaired; \
             us-east-1-bos-1a: it is a Local Zone, and Fleetwright launches no nodes there; \
             us-east-1-wl1-bos-wlz-1: it is a Wavelength Zone, and Fleetwright launches no nodes \
             there -> in pool.yaml:1, change the values of topology.kubernetes.io/zone to zones \
             of the account: us-east-1a"
        );
        let none = settings(&[("us-east-1b", None)]);
        let found = check(&aws, &desired, &none, "zones of the cluster").await;
        assert!(found.ends_with("write `zones: { us-east-1a: use1-az6 }` below spec.cluster"));
        let found = check(&aws, &desired, &[], "zones of the cluster").await;
        assert_eq!(found, "all of the account, us-east-1a: use1-az6");
    });
}

#[test]
fn preflight_says_what_to_do_about_expired_credentials() {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let proxy = Proxy::start(moto.url());
        proxy.set_fault_rule(|_| {
            let body = "<ErrorResponse><Error><Code>ExpiredToken</Code><Message>it is expired\
                        </Message></Error></ErrorResponse>";
            Fault::Answer(403, body.to_owned())
        });
        let aws = Aws::from_config(&account(&proxy.url), "prod");
        let found = check(&aws, &Desired::default(), &[], "AWS identity").await;
        assert_eq!(
            found,
            "get caller identity failed: it is expired (ExpiredToken) -> the credentials have \
             expired: run `aws sso login`, or set new ones"
        );
    });
}
