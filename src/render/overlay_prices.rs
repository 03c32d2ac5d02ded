//! Text about prices that node overlays set, with the list prices beside them.

use super::amount::{count, dollars, hourly, signed_dollars};
use crate::plan::wire::{Comparison, Cost, ListCost};

/// Most overlays named in a text.
const NAMED_MAX: usize = 5;

/// Returns the overlays that set prices of a plan, and its cost at list prices, without a full stop.
/// `arrow` separates before and after.
pub(super) fn cost_text(cost: &Cost, arrow: &str) -> Option<String> {
    let ListCost { hourly_before, hourly_after, overlays, unlisted } = cost.list.as_ref()?;
    let unlisted = match *unlisted {
        0 => String::new(),
        nodes => format!(", {} without a list price", count(nodes, "node")),
    };
    Some(format!(
        "Prices set by NodeOverlay {}; at list prices {} {arrow} {}{unlisted}",
        names(overlays),
        dollars(*hourly_before, 4),
        hourly(*hourly_after)
    ))
}

/// Returns the overlays that set prices of the compared plans, and the caused change at list prices,
/// without a full stop.
pub(super) fn comparison_text(found: &Comparison) -> Option<String> {
    let at_list = found.hourly_caused_list?;
    Some(format!(
        "Prices set by NodeOverlay {}; at list prices {}/mo",
        names(&found.overlays),
        signed_dollars(at_list.per_month(), 2)
    ))
}

/// Returns the first names, and the number of those that are left out.
pub(super) fn names(overlays: &[String]) -> String {
    let first = &overlays[..overlays.len().min(NAMED_MAX)];
    match overlays.len() - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::MicroUsd;
    use crate::plan::Plan;
    use crate::render::text_page::{TextStyle, Verbosity};
    use crate::testing::sample_plan::plan;

    fn views(plan: &Plan) -> [String; 3] {
        let style = TextStyle { verbosity: Verbosity::Summary, ..TextStyle::default() };
        [
            crate::render::text(plan, &style),
            crate::render::markdown(plan, crate::render::MarkdownStyle::default()),
            crate::render::html(plan),
        ]
    }

    fn list(overlays: &[&str], unlisted: u32) -> ListCost {
        let overlays = overlays.iter().map(|name| (*name).to_owned()).collect();
        let (hourly_before, hourly_after) = (MicroUsd::ZERO, MicroUsd(96_000));
        ListCost { hourly_before, hourly_after, overlays, unlisted }
    }

    #[test]
    fn every_view_names_the_overlays_beside_the_cost() {
        let mut plan = plan();
        plan.capacity.cost.list = None;
        assert!(views(&plan).iter().all(|view| !view.contains("Prices set by")));
        plan.capacity.cost.list = Some(list(&["deal", "spot-<b>"], 1));
        let [text, markdown, html] = views(&plan);
        let tail = "/h, 1 node without a list price";
        let expected =
            "Prices set by NodeOverlay deal, spot-<b>; at list prices $0.0000 -> $0.0960";
        assert!(text.contains(&format!("  {expected}{tail}\n")), "{text}");
        let expected =
            "Prices set by NodeOverlay deal, spot-&lt;b&gt;; at list prices $0.0000 → $0.0960";
        for view in [markdown, html] {
            assert!(view.contains(&format!("{expected}{tail}.")), "{view}");
        }
    }

    #[test]
    fn every_view_names_the_overlays_of_a_comparison() {
        let mut plan = plan();
        let mut other = plan.clone();
        other.capacity.cost.list = Some(list(&["deal"], 0));
        plan.capacity.cost.list = None;
        let found = crate::plan::compare(&plan, &other, "main");
        let change = (plan.capacity.cost.hourly_after - MicroUsd(96_000)).per_month();
        plan.capacity.comparison = Some(found);
        let expected = format!(
            "Prices set by NodeOverlay deal; at list prices {}/mo",
            signed_dollars(change, 2)
        );
        for view in views(&plan) {
            assert!(view.contains(&expected), "{view}");
        }
        assert!(crate::render::stream(&plan).contains(&expected));
        assert!(crate::render::github(&plan).contains(&expected));
    }

    #[test]
    fn many_overlays_are_counted() {
        let all: Vec<String> = (0..7).map(|n| format!("o{n}")).collect();
        assert_eq!(names(&all), "o0, o1, o2, o3, o4 and 2 more");
        assert_eq!(names(&all[..5]), "o0, o1, o2, o3, o4");
    }
}
