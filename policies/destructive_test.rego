package guardrails.destructive

import rego.v1

removal := {"summary": {"destructive": true, "nodes": {"terminate": 2}}}

test_denies_removal_without_label if {
	found := deny_unlabeled with input as removal with data.fleetwright.labels as ["x"]
	found == {"nodes removed by the plan: 2; add the label capacity:remove to confirm"}
}

test_allows_labeled_removal_and_unlabeled_launch if {
	count(deny_unlabeled) == 0 with input as removal with data.fleetwright.labels as ["capacity:remove"]
	count(deny_unlabeled) == 0 with input as {"summary": {"destructive": false}} with data.fleetwright.labels as []
}
