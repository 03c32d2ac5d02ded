# Families and regions that may be used.
package guardrails.allowed

import rego.v1

family(row) := split(row.change.after.instance_type, ".")[0]

comes(row) if "create" in row.change.actions

deny_unset contains msg if {
	some list in ["families", "regions"]
	not is_array(data.fleetwright[list])
	msg := sprintf("data.fleetwright.%s is not set: list what is allowed, or nothing to allow all", [list])
}

deny_family contains {"msg": msg, "address": row.address} if {
	allowed := data.fleetwright.families
	count(allowed) > 0
	some row in input.resource_changes
	comes(row)
	not family(row) in allowed
	msg := sprintf("%s launches %s; allowed families are %s", [row.address, row.change.after.instance_type, concat(", ", allowed)])
}

# What may stand in for a launch is launched where the planned type has no capacity.
deny_family contains {"msg": msg, "address": row.address} if {
	allowed := data.fleetwright.families
	count(allowed) > 0
	some row in input.capacity.alternatives
	some offering in row.offerings
	not split(offering.instance_type, ".")[0] in allowed
	msg := sprintf("%s may launch %s instead; allowed families are %s", [row.address, offering.instance_type, concat(", ", allowed)])
}

deny_region contains msg if {
	allowed := data.fleetwright.regions
	count(allowed) > 0
	region := input.capacity.base.world.cluster.region
	not region in allowed
	msg := sprintf("the cluster is in %s; allowed regions are %s", [region, concat(", ", allowed)])
}
