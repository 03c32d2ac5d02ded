# Warns about PodDisruptionBudgets that block every drain.
package guardrails.disruption

import rego.v1

allows_no_eviction(budget) if budget.max_unavailable in {"0", "0%"}

allows_no_eviction(budget) if budget.min_available == "100%"

warn_zero contains {"msg": msg, "_loc": budget.origin} if {
	some budget in input.capacity.disruption_budgets
	allows_no_eviction(budget)
	msg := sprintf("PodDisruptionBudget %s/%s allows no eviction, so no node with one of its pods can be drained", [budget.namespace, budget.name])
}
