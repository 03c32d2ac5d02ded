# Denies plans in a format that these policies do not support.
package guardrails.format

import rego.v1

supported_major := "1"

deny_unknown contains msg if {
	not input.format_version
	msg := "the input is not a plan: it has no format_version"
}

deny_newer contains msg if {
	major := split(input.format_version, ".")[0]
	major != supported_major
	msg := sprintf("the plan has format %s; these policies support %s.x", [input.format_version, supported_major])
}
