# Denies removals while the size of any demand is unknown.
package guardrails.unresolved

import rego.v1

deny_removal contains msg if {
	input.summary.destructive
	count(input.capacity.unresolved) > 0
	msg := sprintf("the plan removes nodes while the size of %s is unknown", [input.capacity.unresolved[0].object])
}
