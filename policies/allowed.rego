# Denies instance families and regions that are not in the allowlist.
package guardrails.allowed

import rego.v1

family(row) := split(row.change.after.instance_type, ".")[0]

is_launch(row) if "create" in row.change.actions

deny_unset contains msg if {
	some list in ["families", "regions"]
	not is_array(data.fleetwright[list])
	msg := sprintf("data.fleetwright.%s is not set: write a list of allowed values, or [] to allow all", [list])
}

deny_family contains {"msg": msg, "address": row.address} if {
	allowed := data.fleetwright.families
	count(allowed) > 0
	some row in input.resource_changes
	is_launch(row)
	not family(row) in allowed
	msg := sprintf("%s launches %s; allowed families are %s", [row.address, row.change.after.instance_type, concat(", ", allowed)])
}

# Alternatives are launched if EC2 has no capacity for the planned type.
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
