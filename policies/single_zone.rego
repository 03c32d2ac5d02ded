# Warns about fleets with all nodes in one zone.
package guardrails.single_zone

import rego.v1

# The rows of node groups are excluded: their members have their own rows.
after := [row.change.after |
	some row in input.resource_changes
	row.change.after != null
	object.get(row, "type", "") != "autoscaling_group"
]

# A node with an unknown zone may be in the same zone, so it does not count as another zone.
zones := {state.zone | some state in after}

warn_one contains msg if {
	nodes := count(after)
	nodes > 1
	count(zones) == 1
	some zone in zones
	msg := sprintf("all %d nodes would be in %s", [nodes, zone])
}
