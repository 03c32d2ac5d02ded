# What the fleet may cost.
package guardrails.budget

import rego.v1

deny_unset contains msg if {
	some limit in ["hourly_max", "monthly_increase_max"]
	not is_number(data.fleetwright[limit])
	msg := sprintf("data.fleetwright.%s is not set to a number", [limit])
}

deny_hourly contains msg if {
	limit := data.fleetwright.hourly_max
	price := to_number(input.capacity.cost.hourly_after)
	price > limit
	msg := sprintf("the fleet would cost %v USD an hour, the budget is %v", [input.capacity.cost.hourly_after, limit])
}

deny_increase contains msg if {
	limit := data.fleetwright.monthly_increase_max
	price := to_number(input.capacity.cost.monthly_delta)
	price > limit
	msg := sprintf("the plan adds %v USD a month, the budget is %v", [input.capacity.cost.monthly_delta, limit])
}
