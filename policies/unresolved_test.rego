package guardrails.unresolved

import rego.v1

plan(destructive, unresolved) := {"summary": {"destructive": destructive}, "capacity": {"unresolved": unresolved}}

test_denies_removal_with_unresolved_demand if {
	found := deny_removal with input as plan(true, [{"object": "HelmRelease web/shop"}])
	found == {"the plan removes nodes while the size of HelmRelease web/shop is unknown"}
}

test_allows_launch_and_removal_with_resolved_demand if {
	count(deny_removal) == 0 with input as plan(false, [{"object": "x"}])
	count(deny_removal) == 0 with input as plan(true, [])
}
