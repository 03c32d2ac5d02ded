//! Sources whose pods a plan does not count, grouped by kind.

use std::collections::BTreeMap;

use super::amount::count;
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

fn noun(code: Code) -> &'static str {
    match code {
        Code::ChartNotRendered => "Helm chart",
        Code::KustomizationNotRendered => "kustomization",
        Code::ApplicationNotRendered => "Argo CD application",
        Code::SourceNotRendered => "source of fleetwright.yaml",
        _ => "object of unknown size",
    }
}

/// Returns how many sources of a kind there are, such as `2 Helm charts`.
pub(super) fn counted(code: Code, n: usize) -> String {
    let n = u32::try_from(n).unwrap_or(u32::MAX);
    match code {
        Code::SourceNotRendered if n != 1 => format!("{n} sources of fleetwright.yaml"),
        Code::SizeUnknown if n != 1 => format!("{n} objects of unknown size"),
        _ => count(n, noun(code)),
    }
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
        let (verb, whose) = if rows.len() == 1 { ("was", "its") } else { ("were", "their") };
        let done = if code == Code::SizeUnknown { "counted" } else { "rendered" };
        let sources = counted(code, rows.len());
        if code == Code::SizeUnknown {
            return format!("Incomplete: {sources} {verb} not {done}. [{code}]");
        }
        format!(
            "Incomplete: {sources} {verb} not {done}, so {whose} pods are not counted. [{code}]"
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
