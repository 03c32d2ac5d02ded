# Nothing is removed while demand is not known.
package guardrails.unresolved

import rego.v1

deny_removal contains msg if {
	input.summary.destructive
	count(input.capacity.unresolved) > 0
	msg := sprintf("the plan removes nodes while the size of %s is not known", [input.capacity.unresolved[0].object])
}
