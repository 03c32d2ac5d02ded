package guardrails.disruption

import rego.v1

declared(change) := {"capacity": {"disruption_budgets": [object.union({"namespace": "web", "name": "api", "origin": {"file": "a.yaml", "line": 3}}, change)]}}

test_warns_of_a_budget_at_zero if {
	found := warn_zero with input as declared({"max_unavailable": "0"})
	some finding in found
	finding._loc.line == 3
	count(warn_zero) == 1 with input as declared({"min_available": "100%"})
}

test_is_silent_where_pods_may_go if {
	count(warn_zero) == 0 with input as declared({"max_unavailable": "1"})
	count(warn_zero) == 0 with input as {"capacity": {}}
}
