use super::*;
use crate::testing::Scenario;
use crate::testing::pods::template;

fn request(class: &str, amount: DeviceAmount, selectors: &[&str]) -> DeviceRequest {
    let selectors = selectors.iter().map(|text| (*text).to_owned()).collect();
    DeviceRequest { name: "r".to_owned(), class: class.to_owned(), selectors, amount }
}

/// Returns the devices of one pod with a claim for `requests`, where `classes` are declared.
fn devices(
    requests: Vec<DeviceRequest>,
    classes: &[(&str, &[&str])],
) -> Result<Vec<(String, i64)>, String> {
    let mut desired = Desired::default();
    for (name, selectors) in classes {
        let selectors = selectors.iter().map(|text| (*text).to_owned()).collect();
        desired.device_classes.insert((*name).to_owned(), selectors);
    }
    let claim = DeviceClaim { requests, is_constrained: false };
    desired.claim_templates.insert(("web".into(), "t".to_owned()), claim);
    let found = DeviceClaims::new(&desired).devices(&"web".into(), &claiming("t"))?;
    Ok(found.into_iter().map(|(name, count)| (name.as_str().to_owned(), count)).collect())
}

fn claiming(name: &str) -> PodSpec {
    PodSpec {
        resource_claims: vec!["gpu".to_owned()],
        resource_claim_templates: [("gpu".to_owned(), name.to_owned())].into(),
        ..PodSpec::default()
    }
}

const WHOLE: &str =
    r#"device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == 'gpu'"#;

#[test]
fn whole_devices_of_known_classes_count() {
    let two = DeviceAmount::Exactly(2);
    let gpus = |count| Ok(vec![("nvidia.com/gpu".to_owned(), count)]);
    let own: &[(&str, &[&str])] = &[("ours", &[WHOLE])];
    let neuron: &[(&str, &[&str])] = &[("chips", &["device.driver=='neuron.aws.com'"])];
    assert_eq!(devices(vec![request("gpu.nvidia.com", two, &[])], &[]), gpus(2));
    assert_eq!(devices(vec![request("gpu.nvidia.com", two, &[WHOLE])], &[]), gpus(2));
    assert_eq!(devices(vec![request("ours", two, &[])], own), gpus(2));
    let both = vec![request("ours", two, &[]), request("gpu.nvidia.com", two, &[])];
    assert_eq!(devices(both, own), gpus(4));
    let chips = Ok(vec![("aws.amazon.com/neuron".to_owned(), 2)]);
    assert_eq!(devices(vec![request("neuron.aws.com", two, &[])], &[]), chips);
    assert_eq!(devices(vec![request("chips", two, &[])], neuron), chips);
    assert_eq!(devices(Vec::new(), &[]), Ok(Vec::new()), "a claim without requests");
}

#[test]
fn devices_that_are_not_known_are_named() {
    let one = DeviceAmount::Exactly(1);
    let known = |amount, selectors: &[&str]| vec![request("gpu.nvidia.com", amount, selectors)];
    let memory = r#"device.capacity["gpu.nvidia.com"].memory >= quantity("40Gi")"#;
    for (requests, classes, expected) in [
        (
            vec![request("mig.nvidia.com", one, &[])],
            &[][..],
            "request r: the devices of DeviceClass mig.nvidia.com are not known",
        ),
        (
            known(DeviceAmount::Unplanned("allocationMode: All"), &[]),
            &[],
            "request r: allocationMode: All is not planned",
        ),
        (
            known(one, &[memory]),
            &[],
            "request r: selector `device.capacity[\"gpu.nvidia.com\"].memory >= quantity(\"40Gi\")` \
             is not evaluated",
        ),
        (
            known(one, &["device.driver == 'gpu.nvidia.com' || true"]),
            &[],
            "request r: selector `device.driver == 'gpu.nvidia.com' || true` is not evaluated",
        ),
        (
            known(one, &["device.attributes['gpu.nvidia.com'].type == 'mig'"]),
            &[],
            "request r: selector `device.attributes['gpu.nvidia.com'].type == 'mig'` is not evaluated",
        ),
        (
            known(one, &[]),
            &[("gpu.nvidia.com", &["device.driver == 'other.com'"][..])],
            "request r: the selectors of DeviceClass gpu.nvidia.com name no known driver",
        ),
        (
            vec![request("ours", one, &[])],
            &[("ours", &[])],
            "request r: the selectors of DeviceClass ours name no known driver",
        ),
        (
            vec![request("ours", one, &[])],
            &[("ours", &["device.driver == 'gpu.nvidia.com' && device.attributes['x'].y"])],
            "request r: DeviceClass ours: selector `device.driver == 'gpu.nvidia.com' && \
             device.attributes['x'].y` is not evaluated",
        ),
    ] {
        let expected = format!("ResourceClaimTemplate t: {expected}");
        assert_eq!(devices(requests, classes), Err(expected));
    }
}

#[test]
fn claims_without_a_declared_template_are_named() {
    let desired = Desired::default();
    let problem = |spec: &PodSpec| claim_problem(&desired, &"web".into(), spec);
    assert_eq!(problem(&PodSpec::default()), None);
    assert_eq!(
        problem(&claiming("t")).as_deref(),
        Some(
            "claim gpu names ResourceClaimTemplate t, which the repository does not declare in \
             namespace web"
        )
    );
    let shared = PodSpec { resource_claims: vec!["gpu".to_owned()], ..PodSpec::default() };
    assert_eq!(
        problem(&shared).as_deref(),
        Some("claim gpu names a ResourceClaim, whose devices several pods may share")
    );
}

/// A scenario with `pods` pods that claim two GPUs each.
fn scenario(pods: u32) -> Scenario {
    let mut scenario = Scenario::new(&["g4dn.xlarge", "g4dn.12xlarge"], 500, 1);
    let namespace = crate::testing::workload_id().namespace;
    let requests = vec![request("gpu.nvidia.com", DeviceAmount::Exactly(2), &[])];
    let claim = DeviceClaim { requests, is_constrained: false };
    scenario.desired.claim_templates.insert((namespace, "t".to_owned()), claim);
    let spec = &mut scenario.template().spec;
    (spec.resource_claims, spec.resource_claim_templates) =
        (claiming("t").resource_claims, claiming("t").resource_claim_templates);
    scenario.scale(pods);
    scenario
}

#[test]
fn claims_and_extended_resources_share_devices() {
    let target = scenario(2).solve().target;
    assert!(target.unschedulable.is_empty(), "{:?}", target.unschedulable);
    let types = |target: &crate::solver::TargetFleet| {
        target.launches.iter().map(|node| node.node.instance_type.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(types(&target), ["g4dn.12xlarge"], "four GPUs hold two claims for two");

    let mut mixed = scenario(1);
    let mut plain = template(500, 1);
    plain.spec.node_selector = mixed.template().spec.node_selector.clone();
    plain.spec.containers[0].resources.requests.insert("nvidia.com/gpu".into(), 3);
    mixed.deploy("plain", 1, plain);
    let target = mixed.solve().target;
    assert!(target.unschedulable.is_empty(), "{:?}", target.unschedulable);
    assert_eq!(types(&target), ["g4dn.12xlarge"; 2], "five GPUs need two nodes of four");
}
