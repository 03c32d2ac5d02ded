# How much of the fleet may be spot.
package guardrails.spot

import rego.v1

# A node group is no node: its members have rows of their own.
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
	msg := sprintf("%d of %d nodes would be spot, at most %d %% may be", [count(spot), count(after), limit])
}
