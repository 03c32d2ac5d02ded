//! Defects of the version, base and flags of a plan.

use super::*;

pub(super) const DEFECTS: &[Defect] = &[
    ("plan/version", "another version", |p, _| p.format_version = "1.9".to_owned()),
    ("base/cluster", "another cluster", |p, _| p.capacity.base.world.cluster.uid.push('x')),
    ("base/world", "an older observation", |_, i| i.observed.taken_at = jiff::Timestamp::MAX),
    ("base/world", "a source that failed", |p, _| {
        let failed = Completeness::Failed { reason: "403".to_owned() };
        p.capacity.base.world.sources.insert("ec2".to_owned(), failed);
    }),
    ("flags/errored", "an error in the manifests", |_, i| i.desired.problems.push(problem())),
    ("flags/errored", "an error in the demand", |_, i| i.demand.problems.push(problem())),
    ("flags/errored", "a partial observation", |p, i| {
        let partial = Completeness::Partial { reason: "throttled".to_owned() };
        i.observed.sources.insert("ec2".to_owned(), partial);
        p.capacity.base.world.sources = i.observed.sources.clone();
    }),
    ("flags/applyable", "an errored plan that is applyable", |p, _| p.errored = true),
    ("flags/applyable", "an empty observation", |p, _| {
        p.capacity.base.world.name = "empty".to_owned();
    }),
    ("flags/expiry", "a plan that expires at its timestamp", |p, _| {
        p.capacity.expires_at = p.timestamp;
    }),
];
