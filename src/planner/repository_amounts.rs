//! Diagnostics of files of the repository that change sizes of nodes: who judges a plan has to know
//! them.

use crate::catalog::Catalog;
use crate::model::desired::{Desired, LEARNED_FILE, LearnedNode};
use crate::model::ids::Origin;
use crate::plan::wire::Diagnostic;
use crate::solver::stored_reports_in_use;

/// Maximum number of types listed in a diagnostic.
const NAMED_MAX: usize = 5;

/// Returns a note on stored sizes that count, and a warning of stored sizes that are not believed.
pub(super) fn diagnostics(desired: &Desired, catalog: &Catalog) -> Vec<Diagnostic> {
    let found = stored_reports_in_use(desired, catalog);
    let origin = || Origin::new(LEARNED_FILE, 1);
    let mut list = Vec::new();
    if !found.counted.is_empty() {
        let message = format!(
            "sets the size of {}, instead of the formulas and of running nodes",
            type_names(&found.counted)
        );
        list.push(Diagnostic::note(LEARNED_FILE, message).origin(origin()));
    }
    if !found.implausible.is_empty() {
        let message = format!(
            "has sizes far from the formulas for {}: they do not count",
            type_names(&found.implausible)
        );
        let hint = "remove these entries: running nodes count without them";
        list.push(Diagnostic::warning(LEARNED_FILE, message).origin(origin()).hint(hint));
    }
    list
}

/// Returns types with their pools, such as `c7a.medium of pool web`, and the number of further ones.
fn type_names(nodes: &[&LearnedNode]) -> String {
    let name = |node: &&LearnedNode| format!("{} of pool {}", node.instance_type, node.pool);
    let mut named: Vec<String> = nodes.iter().take(NAMED_MAX).map(name).collect();
    if let Some(more) = nodes.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        named.push(format!("{more} more"));
    }
    named.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::wire::DiagnosticSeverity;
    use crate::solver::{learned_nodes, measured_resources};
    use crate::testing::Scenario;

    #[test]
    fn plan_names_the_file_of_sizes_that_count() {
        let found = |cpu: i64| {
            let mut scenario = Scenario::new(&["m5.large"], 500, 1);
            scenario.scale(1);
            let solution = scenario.solve();
            scenario.carry_out(&solution);
            scenario.node().allocatable.cpu.0 = cpu;
            scenario.desired.learned_nodes = learned_nodes(&scenario.desired, &scenario.observed);
            scenario.observed.nodes.clear();
            let Scenario { desired, observed, catalog, .. } = scenario;
            let measured = measured_resources(&desired, &observed, &catalog);
            let list = diagnostics(&desired, &Catalog { measured, ..catalog });
            list.into_iter().map(|found| (found.severity, found.message)).collect::<Vec<_>>()
        };
        assert!(found(1_930).is_empty(), "as the formulas have it");
        let [(severity, message)] = &found(1_900)[..] else { panic!("one note") };
        assert_eq!(*severity, DiagnosticSeverity::Note);
        assert!(message.contains("sets the size of m5.large of pool"), "{message}");
        let [(severity, message)] = &found(64_000)[..] else { panic!("one warning") };
        assert_eq!(*severity, DiagnosticSeverity::Warning);
        assert!(message.contains("they do not count"), "{message}");
    }
}
