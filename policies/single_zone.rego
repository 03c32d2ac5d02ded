# Fleets that one zone takes down.
package guardrails.single_zone

import rego.v1

# A node group is no node: its members have rows of their own.
after := [row.change.after |
	some row in input.resource_changes
	row.change.after != null
	object.get(row, "type", "") != "autoscaling_group"
]

# A node whose zone is not known may be in the same one: it makes no fleet safer.
zones := {state.zone | some state in after}

warn_one contains msg if {
	nodes := count(after)
	nodes > 1
	count(zones) == 1
	some zone in zones
	msg := sprintf("all %d nodes would be in %s", [nodes, zone])
}
