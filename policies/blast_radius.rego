# Limits the number of nodes that one plan adds or removes.
package guardrails.blast_radius

import rego.v1

deny_unset contains msg if {
	some limit in ["nodes_added_max", "nodes_removed_max", "nodes_removed_percent_max"]
	not is_number(data.fleetwright[limit])
	msg := sprintf("data.fleetwright.%s is not set to a number", [limit])
}

deny_added contains msg if {
	limit := data.fleetwright.nodes_added_max
	added := input.summary.nodes.launch
	added > limit
	msg := sprintf("nodes added by the plan: %d; the limit is %d", [added, limit])
}

deny_removed contains msg if {
	limit := data.fleetwright.nodes_removed_max
	removed := input.summary.nodes.terminate
	removed > limit
	msg := sprintf("nodes removed by the plan: %d; the limit is %d", [removed, limit])
}

# Fleets of fewer than 10 nodes are exempt, because one node is a large percentage of them.
deny_share contains msg if {
	limit := data.fleetwright.nodes_removed_percent_max
	nodes := input.summary.nodes
	nodes.before >= 10
	nodes.terminate * 100 > nodes.before * limit
	msg := sprintf("the plan removes %d of %d nodes; the limit is %d %%", [nodes.terminate, nodes.before, limit])
}
