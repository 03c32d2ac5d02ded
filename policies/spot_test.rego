package guardrails.spot

import rego.v1

nodes(kinds) := {"resource_changes": [{"change": {"after": {"capacity_type": kind}}} | some kind in kinds]}

test_denies_too_much_spot if {
	found := deny_share with input as nodes(["spot", "spot", "spot", "on-demand"]) with data.fleetwright.spot_percent_max as 50
	found == {"3 of 4 nodes would be spot, at most 50 % may be"}
}

test_allows_some_spot_and_no_nodes_at_all if {
	count(deny_share) == 0 with input as nodes(["spot", "on-demand"]) with data.fleetwright.spot_percent_max as 50
	count(deny_share) == 0 with input as {"resource_changes": []} with data.fleetwright.spot_percent_max as 50
}

test_denies_where_a_limit_is_missing if {
	count(deny_unset) == 1 with data.fleetwright as {}
	count(deny_unset) == 0 with data.fleetwright as {"spot_percent_max": 50}
}
