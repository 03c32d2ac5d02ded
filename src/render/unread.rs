//! Sources whose pods a plan does not count, grouped by kind.

use std::collections::BTreeMap;

use crate::model::code::Code;
use crate::model::desired::UnresolvedPolicy;
use crate::plan::Plan;
use crate::plan::wire::{Diagnostic, DiagnosticSeverity, UnresolvedRow};

/// The kind of a source, from the first word of its name.
fn code_of(row: &UnresolvedRow) -> Code {
    let object = row.object.as_str();
    match object.split(' ').next().unwrap_or_default() {
        "HelmRelease" | "HelmChart" | "Helm" => Code::ChartNotRendered,
        "Kustomization" => Code::KustomizationNotRendered,
        "Application" | "ApplicationSet" => Code::ApplicationNotRendered,
        "source" => Code::SourceNotRendered,
        _ => Code::SizeUnknown,
    }
}

/// A kind of source with its singular and its plural.
const NOUNS: [(Code, &str, &str); 5] = [
    (Code::ChartNotRendered, "Helm chart", "Helm charts"),
    (Code::KustomizationNotRendered, "kustomization", "kustomizations"),
    (Code::ApplicationNotRendered, "Argo CD application", "Argo CD applications"),
    (Code::SourceNotRendered, "source of fleetwright.yaml", "sources of fleetwright.yaml"),
    (Code::SizeUnknown, "object of unknown size", "objects of unknown size"),
];

/// Returns how many sources of a kind there are, such as `2 Helm charts`.
pub(super) fn counted(code: Code, n: usize) -> String {
    let found = NOUNS.into_iter().find(|(known, ..)| *known == code);
    let (_, one, many) = found.unwrap_or((code, "source", "sources"));
    format!("{n} {}", if n == 1 { one } else { many })
}

/// Returns the sources of each kind.
pub(super) fn by_code(plan: &Plan) -> BTreeMap<Code, Vec<&UnresolvedRow>> {
    let mut groups: BTreeMap<Code, Vec<&UnresolvedRow>> = BTreeMap::new();
    for row in &plan.capacity.unresolved {
        groups.entry(code_of(row)).or_default().push(row);
    }
    groups
}

/// Returns one sentence for each kind of source that was not read.
pub(crate) fn sentences(plan: &Plan) -> Vec<String> {
    let sentence = |(code, rows): (Code, Vec<&UnresolvedRow>)| {
        let sources = counted(code, rows.len());
        let (verb, whose) = if rows.len() == 1 { ("was", "its") } else { ("were", "their") };
        if code == Code::SizeUnknown {
            return format!("Incomplete: {sources} {verb} not counted. [{code}]");
        }
        format!(
            "Incomplete: {sources} {verb} not rendered, so {whose} pods are not counted. [{code}]"
        )
    };
    by_code(plan).into_iter().map(sentence).collect()
}

/// Returns what the plan does about sources that were not read.
pub(super) fn treatment(plan: &Plan) -> &'static str {
    match plan.capacity.base.unresolved {
        None | Some(UnresolvedPolicy::Hold) => "No node is removed meanwhile (unresolved: hold).",
        Some(UnresolvedPolicy::Running) => {
            "Their running pods keep their capacity (unresolved: running)."
        }
        Some(UnresolvedPolicy::Ignore) => "They count as empty (unresolved: ignore).",
    }
}

/// Returns the number of running pods of a source, if it has any.
pub(super) fn running(row: &UnresolvedRow) -> String {
    match row.running {
        0 => String::new(),
        1 => " (1 pod runs)".to_owned(),
        n => format!(" ({n} pods run)"),
    }
}

/// Returns why a source was not read. An error of the source is the cause of all other reasons.
pub(super) fn reason<'p>(plan: &'p Plan, row: &'p UnresolvedRow) -> &'p str {
    // Rendered objects share the origin of their chart or Application, so an error without an
    // object is of this source only if no other source has the same line.
    let is_alone = || {
        let mut rows = plan.capacity.unresolved.iter();
        row.origin.line > 0
            && rows.all(|other| other.origin != row.origin || other.object == row.object)
    };
    let is_cause = |diagnostic: &&Diagnostic| {
        diagnostic.severity == DiagnosticSeverity::Error
            && diagnostic.origin.as_ref() == Some(&row.origin)
            && (diagnostic.object == row.object || diagnostic.object.is_empty() && is_alone())
    };
    let error = plan.capacity.diagnostics.iter().find(is_cause);
    error.map_or(row.reason.as_str(), |error| error.message.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::Origin;
    use crate::testing::sample_plan::plan;

    /// Returns the reasons of two sources at `line`, with an error of `object` there.
    fn reasons(line: u32, object: &str) -> Vec<String> {
        let mut plan = plan();
        let origin = Origin::new("apps/web.yaml", line);
        plan.capacity.unresolved = ["Rollout web/a", "Rollout web/b"]
            .map(|name| UnresolvedRow {
                running: 0,
                object: name.into(),
                origin: origin.clone(),
                reason: "its size is unknown".into(),
            })
            .into();
        plan.capacity.diagnostics = vec![Diagnostic::error(object, "is malformed").origin(origin)];
        let rows = plan.capacity.unresolved.iter();
        rows.map(|row| reason(&plan, row).to_owned()).collect()
    }

    #[test]
    fn error_of_one_object_is_not_the_reason_of_others() {
        let other = "its size is unknown";
        for line in [0, 5] {
            assert_eq!(reasons(line, "Rollout web/a"), ["is malformed", other]);
            assert_eq!(reasons(line, ""), [other, other], "two objects have the same line");
        }
    }
}
