# Budgets that keep nodes from being drained.
package guardrails.disruption

import rego.v1

never(budget) if budget.max_unavailable in {"0", "0%"}

never(budget) if budget.min_available == "100%"

warn_zero contains {"msg": msg, "_loc": budget.origin} if {
	some budget in input.capacity.disruption_budgets
	never(budget)
	msg := sprintf("PodDisruptionBudget %s/%s lets no pod go: no node with one of its pods can be drained", [budget.namespace, budget.name])
}
