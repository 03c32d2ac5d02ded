package guardrails.single_zone

import rego.v1

fleet(names) := {"resource_changes": [{"change": {"after": {"zone": zone}}} | some zone in names]}

test_warns_about_single_zone if {
	found := warn_one with input as fleet(["eu-west-1a", "eu-west-1a"])
	found == {"all 2 nodes would be in eu-west-1a"}
}

# Groups have no zone. If they counted, one zone would pass as two, and one node as two nodes.
test_counts_members_but_not_groups if {
	group := [{"type": "autoscaling_group", "change": {"after": {"group": {"desired": 2}}}}]
	found := warn_one with input as {"resource_changes": array.concat(fleet(["eu-west-1a", "eu-west-1a"]).resource_changes, group)}
	found == {"all 2 nodes would be in eu-west-1a"}
	count(warn_one) == 0 with input as {"resource_changes": array.concat(fleet(["eu-west-1a"]).resource_changes, group)}
}

test_allows_two_zones_and_single_node if {
	count(warn_one) == 0 with input as fleet(["eu-west-1a", "eu-west-1b"])
	count(warn_one) == 0 with input as fleet(["eu-west-1a"])
}
