//! Kubelet settings of node classes.

use super::*;
use crate::model::desired::KubeletSettings;

#[test]
fn kubelet_settings_are_read_and_contradictions_are_errors() {
    let class = |kubelet: &str| node_class(&format!("{ALIAS}  kubelet: {{{kubelet}}}\n"));
    let text = class(
        "evictionSoft: {memory.available: 500Mi}, evictionSoftGracePeriod: {memory.available: 1m30s}, \
         evictionMaxPodGracePeriod: 60, imageGCHighThresholdPercent: 80, \
         imageGCLowThresholdPercent: 70, cpuCFSQuota: false, clusterDNS: [10.0.0.9, 'fd00::a']",
    );
    clean(&text);
    let kubelet = read_text(&text).node_classes["c"].kubelet.clone();
    let expected = KubeletSettings {
        eviction_soft: [("memory.available".to_owned(), ReservedAmount::Bytes(500 << 20))].into(),
        eviction_soft_grace_period: [(
            "memory.available".to_owned(),
            SignedDuration::from_secs(90),
        )]
        .into(),
        eviction_max_pod_grace_period: Some(60),
        image_gc_high_percent: Some(80),
        image_gc_low_percent: Some(70),
        cpu_cfs_quota: Some(false),
        cluster_dns: vec!["10.0.0.9".parse().unwrap(), "fd00::a".parse().unwrap()],
        ..KubeletSettings::default()
    };
    assert_eq!(kubelet, expected);
    for (kubelet, expected) in [
        ("evictionSoft: {memory.available: 5%}", "grace periods of different signals"),
        ("evictionSoftGracePeriod: {memory.available: 1m}", "grace periods of different signals"),
        (
            "imageGCHighThresholdPercent: 70, imageGCLowThresholdPercent: 70",
            "`imageGCLowThresholdPercent` 70, not below `imageGCHighThresholdPercent` 70",
        ),
        ("imageGCHighThresholdPercent: 75", "80, not below `imageGCHighThresholdPercent` 75"),
        ("imageGCLowThresholdPercent: 90", "90, not below `imageGCHighThresholdPercent` 85"),
        ("imageGCHighThresholdPercent: 101", "is 101, not a percentage"),
        ("clusterDNS: [dns.example]", "is `dns.example`, not an IP address"),
        ("evictionSoft: {disk: 5%}", "is for `disk`, which is not a signal"),
    ] {
        let found = problem(&class(kubelet));
        assert!(found.starts_with("error") && found.contains(expected), "{kubelet}\n{found}");
    }
}
