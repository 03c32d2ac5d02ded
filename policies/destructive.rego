# Removals require a label on the pull request.
package guardrails.destructive

import rego.v1

label := "capacity:remove"

deny_unlabeled contains msg if {
	input.summary.destructive
	not label in object.get(data.fleetwright, "labels", [])
	msg := sprintf("nodes removed by the plan: %d; add the label %s to confirm", [input.summary.nodes.terminate, label])
}
