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

# The rows of the groups themselves made spot look rarer than it is.
test_counts_members_and_not_their_groups if {
	groups := [{"type": "autoscaling_group", "change": {"after": {"group": {"desired": 1}}}} | some _ in [1, 2, 3, 4]]
	found := deny_share with input as {"resource_changes": array.concat(nodes(["spot", "spot", "on-demand"]).resource_changes, groups)} with data.fleetwright.spot_percent_max as 50
	found == {"2 of 3 nodes would be spot, at most 50 % may be"}
}

test_denies_where_a_limit_is_missing if {
	count(deny_unset) == 1 with data.fleetwright as {}
	count(deny_unset) == 0 with data.fleetwright as {"spot_percent_max": 50}
}
