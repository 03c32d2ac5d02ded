package guardrails.blast_radius

import rego.v1

limits := {"nodes_added_max": 5, "nodes_removed_max": 3, "nodes_removed_percent_max": 20}

nodes(before, launch, terminate) := {"summary": {"nodes": {"before": before, "launch": launch, "terminate": terminate}}}

test_denies_counts_above_limits if {
	count(deny_added) == 1 with input as nodes(10, 6, 0) with data.fleetwright as limits
	count(deny_removed) == 1 with input as nodes(100, 0, 4) with data.fleetwright as limits
}

test_denies_large_percentage_of_nodes if {
	found := deny_share with input as nodes(10, 0, 3) with data.fleetwright as limits
	found == {"the plan removes 3 of 10 nodes; the limit is 20 %"}
}

test_allows_counts_within_limits if {
	count(deny_added) == 0 with input as nodes(10, 5, 2) with data.fleetwright as limits
	count(deny_removed) == 0 with input as nodes(10, 5, 2) with data.fleetwright as limits
	count(deny_share) == 0 with input as nodes(3, 0, 2) with data.fleetwright as limits
}

test_denies_missing_limits if {
	count(deny_unset) == 3 with data.fleetwright as {}
	count(deny_unset) == 0 with data.fleetwright as limits
}
