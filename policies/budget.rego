# Limits the cost of the fleet, including Fargate.
package guardrails.budget

import rego.v1

hours_per_month := 730

deny_unset contains msg if {
	some limit in ["hourly_max", "monthly_increase_max"]
	not is_number(data.fleetwright[limit])
	msg := sprintf("data.fleetwright.%s is not set to a number", [limit])
}

# The cost of nodes does not include Fargate pods.
fargate(side) := object.get(object.get(input.capacity.cost, "fargate", {}), side, {})

fargate_hourly(side) := to_number(object.get(fargate(side), "hourly", "0"))

# A NodeOverlay in the same change can state any price: list prices count where overlays adjust them.
list := object.get(input.capacity.cost, "list", {})

nodes_hourly := to_number(object.get(list, "hourly_after", input.capacity.cost.hourly_after))

nodes_increase := (to_number(list.hourly_after) - to_number(list.hourly_before)) * hours_per_month if {
	list.hourly_after
}

nodes_increase := to_number(input.capacity.cost.monthly_delta) if {
	not list.hourly_after
}

hourly := nodes_hourly + fargate_hourly("after")

increase := nodes_increase + ((fargate_hourly("after") - fargate_hourly("before")) * hours_per_month)

deny_hourly contains msg if {
	limit := data.fleetwright.hourly_max
	hourly > limit
	msg := sprintf("the fleet would cost %v USD per hour; the budget is %v", [hourly, limit])
}

deny_increase contains msg if {
	limit := data.fleetwright.monthly_increase_max
	increase > limit
	msg := sprintf("the plan adds %v USD per month; the budget is %v", [increase, limit])
}

# A budget cannot cover capacity without a price.
deny_unpriced contains msg if {
	some side in ["before", "after"]
	object.get(fargate(side), "pods", 0) > 0
	not fargate(side).hourly
	msg := "Fargate pods have no price: set spec.fargate in fleetwright.yaml, so that the budget covers them"
}

deny_unpriced contains msg if {
	input.capacity.cost.unpriced > 0
	msg := sprintf("nodes without a price: %d, so the budget does not cover them", [input.capacity.cost.unpriced])
}

# Without a list price, the NodeOverlay alone states the cost, and the same change may set it to any amount.
deny_unlisted contains msg if {
	unlisted := object.get(list, "unlisted", 0)
	unlisted > 0
	msg := sprintf("nodes without a list price: %d, so the budget would rely on the price of a NodeOverlay", [unlisted])
}
