package guardrails.single_zone

import rego.v1

fleet(names) := {"resource_changes": [{"change": {"after": {"zone": zone}}} | some zone in names]}

test_warns_where_one_zone_holds_everything if {
	found := warn_one with input as fleet(["eu-west-1a", "eu-west-1a"])
	found == {"all 2 nodes would be in eu-west-1a"}
}

# A group without a zone made two nodes look spread, and one node with its group look like two.
test_counts_members_and_not_their_groups if {
	group := [{"type": "autoscaling_group", "change": {"after": {"group": {"desired": 2}}}}]
	found := warn_one with input as {"resource_changes": array.concat(fleet(["eu-west-1a", "eu-west-1a"]).resource_changes, group)}
	found == {"all 2 nodes would be in eu-west-1a"}
	count(warn_one) == 0 with input as {"resource_changes": array.concat(fleet(["eu-west-1a"]).resource_changes, group)}
}

test_is_silent_for_two_zones_and_for_one_node if {
	count(warn_one) == 0 with input as fleet(["eu-west-1a", "eu-west-1b"])
	count(warn_one) == 0 with input as fleet(["eu-west-1a"])
}
