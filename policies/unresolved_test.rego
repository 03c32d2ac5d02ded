package guardrails.unresolved

import rego.v1

plan(destructive, unresolved) := {"summary": {"destructive": destructive}, "capacity": {"unresolved": unresolved}}

test_denies_a_removal_while_demand_is_unresolved if {
	found := deny_removal with input as plan(true, [{"object": "HelmRelease web/shop"}])
	found == {"the plan removes nodes while the size of HelmRelease web/shop is not known"}
}

test_allows_growth_and_removals_with_all_known if {
	count(deny_removal) == 0 with input as plan(false, [{"object": "x"}])
	count(deny_removal) == 0 with input as plan(true, [])
}
