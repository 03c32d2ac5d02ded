# Fleets that one zone takes down.
package guardrails.single_zone

import rego.v1

zones := {row.change.after.zone | some row in input.resource_changes; row.change.after != null}

nodes := count([1 | some row in input.resource_changes; row.change.after != null])

warn_one contains msg if {
	nodes > 1
	count(zones) == 1
	some zone in zones
	msg := sprintf("all %d nodes would be in %s", [nodes, zone])
}
