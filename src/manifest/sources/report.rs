//! What is not followed to its end, and what nobody asked to render.

use std::sync::Arc;

use super::super::collect::Collected;
use super::super::delivery::{Content, Delivery, Parcel, Whose};
use super::super::fleet::Fleet;
use super::super::layout::directory;
use super::super::read::area;
use super::taken::Taken;
use super::{Ground, Sources, or_root};
use crate::ids::Origin;

impl Sources {
    /// Notes what is not followed to its end, and what nobody asked to render.
    pub(in super::super) fn report(&self, ground: &Ground<'_>, into: &mut Collected) {
        let Ground { fleet, layout, areas, renderings, .. } = ground;
        for Delivery { origin, object, parcels, .. } in &self.deliveries {
            for parcel in parcels {
                let reason = match parcel {
                    Err(reason) => reason,
                    Ok(Parcel {
                        whose: Whose::Ours, content: Content::Rendered(order), ..
                    }) => match renderings.done.get(order) {
                        Some(Ok(_)) => continue,
                        Some(Err(reason)) => reason,
                        None => &format!("{} was not run on it", order.recipe.as_str()),
                    },
                    Ok(
                        Parcel { whose: Whose::Theirs, .. }
                        | Parcel { content: Content::Files(_), .. },
                    ) => continue,
                };
                into.unresolved(origin.clone(), object.clone(), reason.clone());
            }
        }
        let taken = Taken::of(self, renderings, layout);
        let is_plain = |path: &str| {
            area(areas, path).is_some_and(|a| !a.rendered) && taken.holds(path).is_none()
        };
        for (chart, path) in layout.charts().filter(|(_, path)| is_plain(path)) {
            let object = format!("Helm chart {}", or_root(chart));
            into.unresolved(whole(path), object, ask(fleet, chart, "helm"));
        }
        for (path, kustomization) in &layout.kustomizations {
            if !is_plain(path) || layout.is_base(path) {
                continue;
            }
            let object = format!("Kustomization {}", or_root(directory(path)));
            if kustomization.remote {
                let reason = "takes charts or resources from elsewhere";
                into.unresolved(whole(path), object, reason);
            } else if !kustomization.changes.is_empty() {
                into.unresolved(whole(path), object, ask(fleet, directory(path), "kustomize"));
            }
        }
    }
}

/// Says what to add so that the directory `path` is rendered.
fn ask(fleet: &Fleet, path: &str, render: &str) -> String {
    let entry = format!("- {{ path: {}, render: {render} }}", or_root(path));
    let rest = if fleet.sources.is_empty() { ", beside the paths to read as they are" } else { "" };
    format!("no source renders it; add `{entry}` to `spec.sources` in fleetwright.yaml{rest}")
}

fn whole(path: &Arc<str>) -> Origin {
    Origin { file: Arc::clone(path), line: 0 }
}
