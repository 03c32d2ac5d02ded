package guardrails.spot

import rego.v1

nodes(kinds) := {"resource_changes": [{"change": {"after": {"capacity_type": kind}}} | some kind in kinds]}

test_denies_spot_above_limit if {
	found := deny_share with input as nodes(["spot", "spot", "spot", "on-demand"]) with data.fleetwright.spot_percent_max as 50
	found == {"3 of 4 nodes would be spot; the limit is 50 %"}
}

test_allows_spot_within_limit_and_empty_fleet if {
	count(deny_share) == 0 with input as nodes(["spot", "on-demand"]) with data.fleetwright.spot_percent_max as 50
	count(deny_share) == 0 with input as {"resource_changes": []} with data.fleetwright.spot_percent_max as 50
}

# If the rows of groups counted, the percentage of spot nodes would be too low.
test_counts_members_but_not_groups if {
	groups := [{"type": "autoscaling_group", "change": {"after": {"group": {"desired": 1}}}} | some _ in [1, 2, 3, 4]]
	found := deny_share with input as {"resource_changes": array.concat(nodes(["spot", "spot", "on-demand"]).resource_changes, groups)} with data.fleetwright.spot_percent_max as 50
	found == {"2 of 3 nodes would be spot; the limit is 50 %"}
}

test_denies_missing_limit if {
	count(deny_unset) == 1 with data.fleetwright as {}
	count(deny_unset) == 0 with data.fleetwright as {"spot_percent_max": 50}
}
