package guardrails.disruption

import rego.v1

plan_with_budget(change) := {"capacity": {"disruption_budgets": [object.union({"namespace": "web", "name": "api", "origin": {"file": "a.yaml", "line": 3}}, change)]}}

test_warns_about_budget_without_evictions if {
	found := warn_zero with input as plan_with_budget({"max_unavailable": "0"})
	some finding in found
	finding._loc.line == 3
	count(warn_zero) == 1 with input as plan_with_budget({"min_available": "100%"})
}

test_allows_budget_with_evictions if {
	count(warn_zero) == 0 with input as plan_with_budget({"max_unavailable": "1"})
	count(warn_zero) == 0 with input as {"capacity": {}}
}
