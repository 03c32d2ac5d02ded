//! Views of nodes.

use jiff::SignedDuration;

use crate::model::units::MicroUsd;
use crate::plan::wire::Amount;
use crate::render::{TopNode, TopState, TopView};

const GIB: i64 = 1 << 30;

/// Returns a view of `nodes` unchanged nodes of pool web, each fuller and older than the one
/// before.
pub(crate) fn view(nodes: u32) -> TopView {
    TopView {
        cluster: "shop".to_owned(),
        region: "us-east-1".to_owned(),
        world: "live".to_owned(),
        taken_at: "2026-09-01T10:00:00Z".parse().expect("a time"),
        pools: Vec::new(),
        nodes: (0..nodes).map(node).collect(),
        pending: 0,
        notes: Vec::new(),
    }
}

/// Returns node `n` of pool web.
pub(crate) fn node(n: u32) -> TopNode {
    let share = i64::from(n % 10) + 1;
    let amount = |cpu_milli, memory_bytes, pods| Amount {
        cpu_milli,
        memory_bytes,
        pods,
        ..Amount::default()
    };
    TopNode {
        address: format!("web[\"{n}\"]"),
        name: Some(format!("ip-10-0-1-{n}.ec2.internal")),
        pool: Some("web".to_owned()),
        instance_type: Some("m5.large".to_owned()),
        capacity_type: Some("on-demand".to_owned()),
        zone: Some("us-east-1a".to_owned()),
        requested: amount(193 * share, GIB * 7 * share / 20, 2 + share),
        allocatable: amount(1930, GIB * 7, 29),
        hourly: Some(MicroUsd(96_000)),
        age: Some(SignedDuration::from_hours(share * 5)),
        state: TopState::Unchanged,
    }
}
