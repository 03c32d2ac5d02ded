# Limits the percentage of spot nodes.
package guardrails.spot

import rego.v1

# The rows of node groups are excluded: their members have their own rows.
after := [row.change.after |
	some row in input.resource_changes
	row.change.after != null
	object.get(row, "type", "") != "autoscaling_group"
]

spot := [state | some state in after; object.get(state, "capacity_type", "") == "spot"]

deny_unset contains msg if {
	some limit in ["spot_percent_max"]
	not is_number(data.fleetwright[limit])
	msg := sprintf("data.fleetwright.%s is not set to a number", [limit])
}

deny_share contains msg if {
	limit := data.fleetwright.spot_percent_max
	count(after) > 0
	count(spot) * 100 > count(after) * limit
	msg := sprintf("%d of %d nodes would be spot; the limit is %d %%", [count(spot), count(after), limit])
}
