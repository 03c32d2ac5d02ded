# Plans that these policies were written for.
package guardrails.format

import rego.v1

known_major := "1"

deny_unknown contains msg if {
	not input.format_version
	msg := "the input is no plan: it has no format_version"
}

deny_newer contains msg if {
	major := split(input.format_version, ".")[0]
	major != known_major
	msg := sprintf("the plan has format %s; these policies know %s.x", [input.format_version, known_major])
}
