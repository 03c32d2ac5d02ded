//! Fields that Karpenter knows and that have no effect here.

use super::*;

#[test]
fn stated_fields_without_effect_are_warnings() {
    let devices = "  blockDeviceMappings:\n  - {deviceName: /dev/xvda, ebs: {snapshotID: s, \
                   volumeInitializationRate: 100}}\n";
    let found = problem(&node_class(&format!("{ALIAS}{devices}")));
    let expected = "EC2NodeClass c: `spec.blockDeviceMappings[0].ebs.volumeInitializationRate` is \
                    not supported: volumes";
    assert!(found.starts_with("warning") && found.contains(expected), "{found}");
}

#[test]
fn change_without_effect_is_no_drift() {
    let digests = |spec: &str| {
        let desired = read_text(&node_class(&format!("{ALIAS}{spec}")));
        desired.node_classes["c"].spec_digests.clone()
    };
    assert_eq!(digests(""), digests("  ipPrefixCount: 1\n"));
    assert_eq!(digests(""), digests("  networkInterfaces: []\n"));
    for field in [
        "  detailedMonitoring: true\n",
        "  context: x\n",
        "  connectionTracking: {udpTimeout: 40}\n",
        "  cpuOptions: {nestedVirtualization: disabled}\n",
        "  placementGroupSelector: {name: g}\n",
        "  networkInterfaces: [{networkCardIndex: 0, deviceIndex: 0, interfaceType: interface}]\n",
    ] {
        assert_ne!(digests(""), digests(field), "{field}");
    }
}
