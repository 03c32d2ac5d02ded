package guardrails.format

import rego.v1

test_denies_input_without_format_version if {
	count(deny_unknown) == 1 with input as {"kind": "Deployment"}
}

test_denies_unsupported_format if {
	found := deny_newer with input as {"format_version": "2.0"}
	found == {"the plan has format 2.0; these policies support 1.x"}
}

test_allows_all_minor_versions if {
	count(deny_newer) == 0 with input as {"format_version": "1.9"}
	count(deny_unknown) == 0 with input as {"format_version": "1.9"}
}
