package guardrails.budget

import rego.v1

limits := {"hourly_max": 10, "monthly_increase_max": 100}

cost(hourly, monthly) := {"capacity": {"cost": {"hourly_after": hourly, "monthly_delta": monthly}}}

test_denies_a_fleet_above_the_budget_of_an_hour if {
	found := deny_hourly with input as cost("10.000001", "0.000000") with data.fleetwright as limits
	found == {"the fleet would cost 10.000001 USD an hour, the budget is 10"}
}

test_denies_an_increase_above_the_budget_of_a_month if {
	count(deny_increase) == 1 with input as cost("1.000000", "100.500000") with data.fleetwright as limits
}

test_allows_what_is_within if {
	count(deny_hourly) == 0 with input as cost("10.000000", "-900.000000") with data.fleetwright as limits
	count(deny_increase) == 0 with input as cost("10.000000", "-900.000000") with data.fleetwright as limits
}

test_denies_where_a_limit_is_missing if {
	count(deny_unset) == 2 with data.fleetwright as {}
	count(deny_unset) == 0 with data.fleetwright as limits
}
