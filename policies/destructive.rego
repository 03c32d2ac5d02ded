# Removals must be meant.
package guardrails.destructive

import rego.v1

label := "capacity:remove"

deny_unlabelled contains msg if {
	input.summary.destructive
	not label in object.get(data.fleetwright, "labels", [])
	msg := sprintf("the plan removes %d nodes: add the label %s to say that this is meant", [input.summary.nodes.terminate, label])
}
