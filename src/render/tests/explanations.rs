//! Explanations of workloads and nodes by `explain`.

use super::*;
use crate::model::ids::workload_key;

fn explained(query: &str) -> String {
    let plan = plan();
    explain(&plan, None, query).expect("it is in the plan").text(&TextStyle::default())
}

#[test]
fn explaining_an_unresolved_object_gives_the_reason() {
    let mut open = nothing();
    open.capacity.unresolved = vec![UnresolvedRow {
        running: 0,
        object: "Rollout web/roll".into(),
        origin: crate::model::ids::Origin::new("roll.yaml", 3),
        reason: "kind Rollout is not read yet".into(),
    }];
    for query in ["web/roll", "roll", "Rollout web/roll", "web/Rollout/roll"] {
        let error = explain(&open, None, query).expect_err("no workload");
        assert_eq!(
            error.to_string(),
            "`Rollout web/roll` (roll.yaml:3) is unresolved, so none of its pods are planned: kind \
             Rollout is not read yet"
        );
    }
    assert!(matches!(explain(&open, None, "web/rol"), Err(ExplainError::Unknown { .. })));
}

#[test]
fn prefix_of_a_generated_name_explains_its_workload() {
    let mut plan = plan();
    let row = plan.capacity.demand.first_mut().expect("a workload");
    row.workload.name = "run-@jobs/a.yaml:3".into();
    let (full, key) = (row.workload.to_string(), workload_key(&row.workload));
    let prefix = format!("{}/run-", row.workload.namespace);
    for query in ["run-", &prefix, &full, &key] {
        let found = explain(&plan, None, query).expect("it is in the plan");
        assert!(found.text(&TextStyle::default()).contains("run-@jobs/a.yaml:3"), "{query}");
    }
    assert!(explain(&plan, None, "run").is_err());
}

#[test]
fn workload_explanation_has_counts_and_nodes() {
    insta::assert_snapshot!(explained("web/api"), @r#"
    web/Deployment/api  clusters/prod/apps.yaml:3
      36 pods planned, decided by the repository
      floor 2, live 36, ceiling 40
      each needs cpu 250m, memory 512Mi

           node                    pods  stay  type      zone        why
      +/-  ec2_instance.web["1"]      4     0  m5.large  eu-west-1a  takes the pods of more expensive nodes: saves $0.1070/h, moves 4 pods
      ~    ec2_instance.web["4"]      6     0  m5.large  eu-west-1a  needed by 6 pods; no cheaper replacement was found
      +    ec2_instance.web["9"]      6     0  m5.large  eu-west-1a  6 pods have no room: web/Deployment/api x6
      +    ec2_instance.web["10"]     6     0  m5.large  eu-west-1a  6 pods have no room: web/Deployment/api x6
      !    ec2_instance.web["3"]      1     0  m5.large  eu-west-1a  annotated karpenter.sh/do-not-disrupt
      =    ec2_instance.web["0"]     13     0  m5.large  eu-west-1a  needed by 18 pods; no cheaper replacement was found
         rejected for ec2_instance.web["9"], ec2_instance.web["10"]: 14 more expensive (next is m5a.xlarge at $0.1920/h)
    "#);
    insta::assert_snapshot!(explained("ml/Deployment/train"), @r"
    ml/Deployment/train  clusters/prod/apps.yaml:3
      3 pods planned, decided by the repository
      floor 2, live 3, ceiling 7
      each needs cpu 4, memory 96Gi

      ! ml/Deployment/train x3: needs cpu 4, memory 96Gi  clusters/prod/train.yaml:12
          of 255 offerings:
            212 [too-small] memory: needs 96Gi, largest has 61Gi
            40 [wrong-zone] outside eu-west-1a
            3 [limit-reached] pool web: memory 512Gi of 512Gi
          fix: raise spec.limits.memory of NodePool web to 608Gi
          kube-scheduler evicts shop/Deployment/web x2 to let 1 of them in
          if they are scheduled first, shop/Deployment/web x1 stay pending instead
    ");
    insta::assert_snapshot!(explained("cni"), @r"
    kube-system/DaemonSet/cni
      one pod on every node that admits it
      each needs cpu 150m, memory 200Mi
    ");
}

#[test]
fn node_explanation_accepts_address_name_and_instance() {
    let by_address = explained("ec2_instance.web[\"1\"]");
    assert_eq!(by_address, explained("node-web-1"));
    assert_eq!(by_address, explained("i-web1"));
    insta::assert_snapshot!(by_address, @r#"
    # ec2_instance.web["1"] must be replaced: launched, then terminated
    # (takes the pods of more expensive nodes: saves $0.1070/h, moves 4 pods)
    # (its pods move to other nodes: saves $0.1070/h, moves 4 pods, pays back in 1 h)
    +/- ec2_instance.web["1"]
          pool          = web
        ~ instance_type = m5.xlarge -> m5.large
          zone          = eu-west-1a
          capacity_type = on-demand
        ~ capacity      = cpu 4, memory 16Gi, pods 29 -> cpu 2, memory 8Gi, pods 29
        ~ allocatable   = cpu 3860m, memory 14200Mi, pods 29 -> cpu 1930m, memory 7100Mi, pods 29
        - instance_id   = i-web1
        - node          = node-web-1
        - node_uid      = uid-1
          # (5 unchanged attributes hidden)
          # (2 well-known labels hidden)
          price     $0.2140/h -> $0.1070/h
          pods      web/Deployment/api x4
          daemons   cpu 150m, memory 200Mi
          condition instance i-web1 exists, and its node has UID uid-1
          wave 1 of 2: launch, and wait until Ready
          wave 2 of 2: cordon, drain, terminate
    "#);
    let plan = plan();
    let json = explain(&plan, None, "i-web1").expect("a node").json();
    assert_eq!(json["row"]["address"], "ec2_instance.web[\"1\"]");
    assert_eq!(json["waves"].as_array().map(Vec::len), Some(2));
    let pod = explain(&plan, None, "web/api").expect("a workload").json();
    assert_eq!(pod["demand"]["planned"], 36);
    assert_eq!(pod["nodes"].as_array().map(Vec::len), Some(6));
}

#[test]
fn unknown_name_suggests_similar_names() {
    let plan = plan();
    let error = |query: &str| explain(&plan, None, query).expect_err("not in the plan");
    assert_eq!(error("web/apu").hint(), "did you mean web/api?");
    assert_eq!(error("web/Deployment/apu").hint(), "did you mean web/api?");
    assert_eq!(error("apu").hint(), "did you mean web/api?");
    assert!(error("zzzzzzzz").hint().starts_with("name a workload"));
    let mut twice = plan.clone();
    let mut other = twice.capacity.demand[2].clone();
    other.workload.namespace = "shop".into();
    twice.capacity.demand.push(other);
    assert_eq!(
        explain(&twice, None, "api").expect_err("two of them").hint(),
        "did you mean shop/Deployment/api or web/Deployment/api?"
    );
}
