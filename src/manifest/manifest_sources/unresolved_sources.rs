//! Reports sources that cannot be followed, and charts and kustomizations that no source renders.

use std::sync::Arc;

use super::super::cluster_alternatives::Alternatives;
use super::super::collector::Collector;
use super::super::decode::ProblemCollector;
use super::super::delivery::{DeliveryObject, ManifestContent, ManifestSet, TargetCluster};
use super::super::repository_layout::parent_directory;
use super::super::settings::is_for_tests;
use super::super::source_area::{SourceArea, area_of};
use super::delivered_files::DeliveredFiles;
use super::{DeliverySources, SourceContext, display_directory};
use crate::model::desired::{Fleet, Problem, is_external};
use crate::model::ids::Origin;

/// Reason that a chart or kustomization is not read: no cluster has its objects.
const FOR_TESTS: &str = "in a directory for tests";

impl DeliverySources {
    /// Reports sources that cannot be followed, and charts and kustomizations that no source
    /// renders.
    pub(in super::super) fn report_unresolved(
        &self,
        context: &SourceContext<'_>,
        alternatives: &[Alternatives],
        into: &mut Collector,
    ) {
        self.report_deliveries(context, into);
        self.report_unrendered(context, alternatives, into);
        let SourceContext { fleet, layout, .. } = context;
        for source in &fleet.sources {
            if layout.kustomization_in(&source.path).is_some_and(|of| of.is_component) {
                let object = format!("source {}", display_directory(&source.path));
                let why =
                    "it is a component, which only other kustomizations use; name one of those";
                into.add_unresolved(source.origin.clone(), object, why);
            }
        }
    }

    /// Reports delivery objects whose content is not read.
    fn report_deliveries(&self, context: &SourceContext<'_>, into: &mut Collector) {
        let renderings = context.renderings;
        for DeliveryObject { origin, object, manifest_sets, .. } in &self.deliveries {
            for manifest_set in manifest_sets {
                let reason = match manifest_set {
                    Err(reason) => reason,
                    Ok(ManifestSet {
                        cluster: TargetCluster::This,
                        content: ManifestContent::Rendered(request),
                        ..
                    }) => match renderings.results.get(request) {
                        Some(Ok(_)) => continue,
                        Some(Err(reason)) => reason,
                        None => &format!("{} was not run on it", request.recipe.as_str()),
                    },
                    Ok(
                        ManifestSet {
                            cluster: TargetCluster::Other | TargetCluster::Stopped, ..
                        }
                        | ManifestSet { content: ManifestContent::Files(_), .. },
                    ) => continue,
                };
                into.add_unresolved(origin.clone(), object.clone(), reason.clone());
            }
        }
    }

    /// Reports sets of applications that make none, which are often a wrong pattern.
    pub(in super::super) fn report_empty_sets(&self, report: &ProblemCollector) {
        for delivery in self.deliveries.iter().filter(|delivery| delivery.makes_nothing) {
            let problem = Problem::warning(
                delivery.origin.clone(),
                delivery.object.clone(),
                "its generators make no application",
            );
            report.add(problem.hint("check the paths and selectors of its generators"));
        }
    }

    /// Reports charts and kustomizations that no source renders.
    fn report_unrendered(
        &self,
        context: &SourceContext<'_>,
        alternatives: &[Alternatives],
        into: &mut Collector,
    ) {
        let SourceContext { fleet, layout, areas, renderings, .. } = context;
        let delivered = DeliveredFiles::new(self, renderings, layout);
        let is_plain = |path: &str| {
            !is_external(path)
                && area_of(areas, path).is_some_and(|a| !a.rendered)
                && delivered.cluster_of(path).is_none()
                && delivered.other_overlay(path).is_none()
                && !delivered.is_left_out(path)
        };
        // A source may name a directory for tests.
        let is_unnamed_test = |path: &str| {
            let is_named = |area: &SourceArea| is_for_tests(&format!("{}/", area.path));
            is_for_tests(path) && !area_of(areas, path).is_some_and(is_named)
        };
        for (chart, path) in layout.charts().filter(|(_, path)| is_plain(path)) {
            if layout.is_dependency(chart) {
                into.skip(file_origin(path), "chart that another chart uses");
                continue;
            }
            if is_unnamed_test(path) {
                into.skip(file_origin(path), FOR_TESTS);
                continue;
            }
            let object = format!("Helm chart {}", display_directory(chart));
            into.add_unresolved(
                file_origin(path),
                object,
                missing_source_hint(fleet, chart, "helm"),
            );
        }
        for (path, kustomization) in &layout.kustomizations {
            if kustomization.is_component || !is_plain(path) || layout.is_base(path) {
                continue;
            }
            let object = format!("Kustomization {}", display_directory(parent_directory(path)));
            let directory = parent_directory(path);
            let excluding = alternatives.iter().find(|all| all.has_overlay(directory));
            if let Some(all) = excluding {
                let reason = format!("no source chooses one of {}", all.named());
                into.add_unresolved(file_origin(path), object, reason);
            } else if is_unnamed_test(path) {
                into.skip(file_origin(path), FOR_TESTS);
            } else if !kustomization.changes.is_empty() {
                let reason = missing_source_hint(fleet, directory, "kustomize");
                into.add_unresolved(file_origin(path), object, reason);
            }
        }
    }
}

/// Returns the hint for rendering the directory `path`.
fn missing_source_hint(fleet: &Fleet, path: &str, render: &str) -> String {
    let entry = format!("- {{ path: {}, render: {render} }}", display_directory(path));
    let rest = if fleet.sources.is_empty() { ", next to the paths of plain manifests" } else { "" };
    format!("no source renders it; add `{entry}` to `spec.sources` in fleetwright.yaml{rest}")
}

fn file_origin(path: &Arc<str>) -> Origin {
    Origin { file: Arc::clone(path), line: 0 }
}
