package guardrails.destructive

import rego.v1

removal := {"summary": {"destructive": true, "nodes": {"terminate": 2}}}

test_denies_a_removal_without_the_label if {
	found := deny_unlabelled with input as removal with data.fleetwright.labels as ["x"]
	found == {"the plan removes 2 nodes: add the label capacity:remove to say that this is meant"}
}

test_allows_it_with_the_label_and_growth_without if {
	count(deny_unlabelled) == 0 with input as removal with data.fleetwright.labels as ["capacity:remove"]
	count(deny_unlabelled) == 0 with input as {"summary": {"destructive": false}} with data.fleetwright.labels as []
}
