package guardrails.allowed

import rego.v1

launch(kind) := {"resource_changes": [{"address": "ec2_instance.web[\"0\"]", "change": {"actions": ["create"], "after": {"instance_type": kind}}}]}

in_region(region) := {"resource_changes": [], "capacity": {"base": {"world": {"cluster": {"region": region}}}}}

test_denies_unlisted_family if {
	found := deny_family with input as launch("p5.48xlarge") with data.fleetwright.families as ["m5", "c6i"]
	some finding in found
	finding.address == "ec2_instance.web[\"0\"]"
}

test_allows_listed_family_and_all_if_list_is_empty if {
	count(deny_family) == 0 with input as launch("m5.large") with data.fleetwright.families as ["m5"]
	count(deny_family) == 0 with input as launch("p5.48xlarge") with data.fleetwright.families as []
}

test_denies_unlisted_family_of_alternative if {
	alternative := {"resource_changes": [], "capacity": {"alternatives": [{"address": "a", "offerings": [{"instance_type": "m5.large"}, {"instance_type": "p5.48xlarge"}]}]}}
	found := deny_family with input as alternative with data.fleetwright.families as ["m5"]
	found == {{"msg": "a may launch p5.48xlarge instead; allowed families are m5", "address": "a"}}
	count(deny_family) == 0 with input as alternative with data.fleetwright.families as ["m5", "p5"]
}

test_denies_missing_lists if {
	count(deny_unset) == 2 with data.fleetwright as {}
	count(deny_unset) == 1 with data.fleetwright as {"families": [], "regions": "eu-west-1"}
	count(deny_unset) == 0 with data.fleetwright as {"families": [], "regions": []}
}

test_denies_unlisted_region if {
	count(deny_region) == 1 with input as in_region("us-east-1") with data.fleetwright.regions as ["eu-west-1"]
	count(deny_region) == 0 with input as in_region("eu-west-1") with data.fleetwright.regions as ["eu-west-1"]
}
