//! Fields that Karpenter knows and that have no effect here.

use super::*;

#[test]
fn stated_fields_without_effect_are_warnings() {
    let devices = "  blockDeviceMappings:\n  - {deviceName: /dev/xvda, ebs: {snapshotID: s, \
                   volumeInitializationRate: 100}}\n";
    for (spec, expected) in [
        ("  ipPrefixCount: 1\n", "`spec.ipPrefixCount` is not supported: instances are launched"),
        ("  placementGroupSelector: {name: g}\n", "`spec.placementGroupSelector` is not supported"),
        (
            devices,
            "`spec.blockDeviceMappings[0].ebs.volumeInitializationRate` is not supported: volumes",
        ),
    ] {
        let found = problem(&node_class(&format!("{ALIAS}{spec}")));
        let expected = format!("EC2NodeClass c: {expected}");
        assert!(found.starts_with("warning") && found.contains(&expected), "{spec}\n{found}");
    }
}

#[test]
fn change_without_effect_is_no_drift() {
    let digests = |spec: &str| {
        let desired = read_text(&node_class(&format!("{ALIAS}{spec}")));
        desired.node_classes["c"].spec_digests.clone()
    };
    assert_eq!(digests(""), digests("  ipPrefixCount: 1\n"));
    for field in [
        "  detailedMonitoring: true\n",
        "  context: x\n",
        "  connectionTracking: {udpTimeout: 40}\n",
        "  cpuOptions: {nestedVirtualization: disabled}\n",
    ] {
        assert_ne!(digests(""), digests(field), "{field}");
    }
}
