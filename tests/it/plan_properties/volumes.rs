//! Random volumes: unbound claims, zonal and local volumes, shared and exclusive.

use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, Strategy, Union};

use super::tree_features::{TreeFeature, any};

const ZONES: [&str; 2] = ["us-east-1a", "us-east-1b"];

/// Pods with volumes.
pub(super) fn volumes() -> BoxedStrategy<TreeFeature> {
    let own = (any(), select(vec!["gp3", "gp3-b"])).prop_map(|(of, class)| {
        let spec = format!("{{ spec: {{ storageClassName: {class} }} }}");
        let line =
            format!("volumes: [{{ name: data, ephemeral: {{ volumeClaimTemplate: {spec} }} }}]");
        classes().and(TreeFeature::pods(of, "", &[&line]))
    });
    let set = (any(), select(vec!["gp3", "gp3-b"])).prop_map(|(of, class)| {
        let line = format!("claims data {class}");
        classes().and(TreeFeature::pods(of, "kind=StatefulSet", &[&line]))
    });
    let retained = (any(), 0..3_usize, select(ZONES.to_vec())).prop_map(|(of, ordinal, zone)| {
        let claim = format!("data-{{w}}-{ordinal}");
        let lines = bound(&claim, "ReadWriteOnce", &in_zone(zone));
        let set = classes().and(TreeFeature::pods(of, "kind=StatefulSet", &["claims data gp3"]));
        lines.into_iter().fold(set, TreeFeature::with_manifest)
    });
    let shared = (any(), select(ZONES.to_vec()), modes()).prop_map(|(of, zone, mode)| {
        let lines = bound("one", mode, &in_zone(zone));
        lines.into_iter().fold(classes().and(uses("one", of)), TreeFeature::with_manifest)
    });
    let local = any().prop_map(|of| {
        let lines = bound("one", "ReadWriteOnce", &required("kubernetes.io/hostname", "n0"));
        lines.into_iter().fold(classes().and(uses("one", of)), TreeFeature::with_manifest)
    });
    let unbound = (any(), modes()).prop_map(|(of, mode)| {
        let spec = format!("{{ accessModes: [{mode}], storageClassName: gp3 }}");
        classes().and(uses("late", of)).with_manifest(claim("late", &spec))
    });
    let limit = (0..2_usize, 0..3_u32).prop_map(|(node, count)| TreeFeature {
        last: vec![format!("attaches n{node} {count}")],
        ..TreeFeature::default()
    });
    let limited = (any(), limit).prop_map(|(of, limit)| {
        let line = "volumes: [{ name: data, ephemeral: { volumeClaimTemplate: { spec: { storageClassName: gp3 } } } }]";
        classes().and(TreeFeature::pods(of, "", &[line])).and(limit)
    });
    Union::new(vec![
        own.boxed(),
        set.boxed(),
        retained.boxed(),
        shared.boxed(),
        local.boxed(),
        unbound.boxed(),
        limited.boxed(),
    ])
    .boxed()
}

fn modes() -> impl Strategy<Value = &'static str> {
    select(vec!["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"])
}

/// Storage classes: one provisions volumes in all zones, one in a single zone.
fn classes() -> TreeFeature {
    let class = |name: &str, more: &str| {
        format!(
            "manifest\n  apiVersion: storage.k8s.io/v1\n  kind: StorageClass\n  metadata: {{ name: \
             {name} }}\n  provisioner: ebs.csi.aws.com\n  volumeBindingMode: \
             WaitForFirstConsumer\n{more}"
        )
    };
    let topology = "  allowedTopologies: [{ matchLabelExpressions: [{ key: \
                    topology.ebs.csi.aws.com/zone, values: [us-east-1b] }] }]\n";
    TreeFeature::from_lines(&[class("gp3", "").trim_end(), class("gp3-b", topology).trim_end()])
}

/// Mounts a claim into the pods of a workload.
fn uses(claim: &str, of: usize) -> TreeFeature {
    let line =
        format!("volumes: [{{ name: data, persistentVolumeClaim: {{ claimName: {claim} }} }}]");
    TreeFeature::pods(of, "", &[&line])
}

fn in_zone(zone: &str) -> String {
    required("topology.kubernetes.io/zone", zone)
}

fn required(key: &str, value: &str) -> String {
    format!(
        "{{ required: {{ nodeSelectorTerms: [{{ matchExpressions: [{{ key: {key}, operator: In, \
         values: [{value}] }}] }}] }} }}"
    )
}

/// Returns the manifests of a claim and its bound volume.
fn bound(name: &str, mode: &str, places: &str) -> Vec<String> {
    let volume = format!(
        "manifest\n  apiVersion: v1\n  kind: PersistentVolume\n  metadata: {{ name: {{ns}}-{name} \
         }}\n  spec: {{ storageClassName: gp3, accessModes: [{mode}], csi: {{ driver: \
         ebs.csi.aws.com, volumeHandle: {{ns}}-{name} }}, claimRef: {{ namespace: {{ns}}, name: \
         {name} }}, nodeAffinity: {places} }}"
    );
    let spec =
        format!("{{ accessModes: [{mode}], storageClassName: gp3, volumeName: {{ns}}-{name} }}");
    vec![volume, claim(name, &spec)]
}

fn claim(name: &str, spec: &str) -> String {
    format!(
        "manifest\n  apiVersion: v1\n  kind: PersistentVolumeClaim\n  metadata: {{ name: {name}, \
         namespace: {{ns}} }}\n  spec: {spec}"
    )
}
