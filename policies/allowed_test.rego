package guardrails.allowed

import rego.v1

launch(kind) := {"resource_changes": [{"address": "ec2_instance.web[\"0\"]", "change": {"actions": ["create"], "after": {"instance_type": kind}}}]}

in_region(region) := {"resource_changes": [], "capacity": {"base": {"world": {"cluster": {"region": region}}}}}

test_denies_a_family_that_is_not_listed if {
	found := deny_family with input as launch("p5.48xlarge") with data.fleetwright.families as ["m5", "c6i"]
	some finding in found
	finding.address == "ec2_instance.web[\"0\"]"
}

test_allows_listed_families_and_any_where_none_is_listed if {
	count(deny_family) == 0 with input as launch("m5.large") with data.fleetwright.families as ["m5"]
	count(deny_family) == 0 with input as launch("p5.48xlarge") with data.fleetwright.families as []
}

test_denies_a_region_that_is_not_listed if {
	count(deny_region) == 1 with input as in_region("us-east-1") with data.fleetwright.regions as ["eu-west-1"]
	count(deny_region) == 0 with input as in_region("eu-west-1") with data.fleetwright.regions as ["eu-west-1"]
}
