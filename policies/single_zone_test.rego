package guardrails.single_zone

import rego.v1

fleet(names) := {"resource_changes": [{"change": {"after": {"zone": zone}}} | some zone in names]}

test_warns_where_one_zone_holds_everything if {
	found := warn_one with input as fleet(["eu-west-1a", "eu-west-1a"])
	found == {"all 2 nodes would be in eu-west-1a"}
}

test_is_silent_for_two_zones_and_for_one_node if {
	count(warn_one) == 0 with input as fleet(["eu-west-1a", "eu-west-1b"])
	count(warn_one) == 0 with input as fleet(["eu-west-1a"])
}
