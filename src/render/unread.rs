//! Sources whose pods a plan does not count, grouped by kind.

use std::collections::BTreeMap;

use crate::model::code::Code;
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
pub(super) fn sentences(plan: &Plan) -> Vec<String> {
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

/// Returns why a source was not read. An error at the same place is the cause of all others.
pub(super) fn reason<'p>(plan: &'p Plan, row: &'p UnresolvedRow) -> &'p str {
    let is_same = |diagnostic: &&Diagnostic| {
        diagnostic.severity == DiagnosticSeverity::Error
            && diagnostic.origin.as_ref() == Some(&row.origin)
    };
    let error = plan.capacity.diagnostics.iter().find(is_same);
    error.map_or(row.reason.as_str(), |error| error.message.as_str())
}
