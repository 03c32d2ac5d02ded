package guardrails.format

import rego.v1

test_denies_what_is_no_plan if {
	count(deny_unknown) == 1 with input as {"kind": "Deployment"}
}

test_denies_a_format_that_is_not_known if {
	found := deny_newer with input as {"format_version": "2.0"}
	found == {"the plan has format 2.0; these policies know 1.x"}
}

test_allows_every_minor_version if {
	count(deny_newer) == 0 with input as {"format_version": "1.9"}
	count(deny_unknown) == 0 with input as {"format_version": "1.9"}
}
