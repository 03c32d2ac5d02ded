package guardrails.budget

import rego.v1

limits := {"hourly_max": 10, "monthly_increase_max": 100}

cost(hourly, monthly) := {"capacity": {"cost": {"hourly_after": hourly, "monthly_delta": monthly}}}

test_denies_fleet_above_hourly_budget if {
	found := deny_hourly with input as cost("10.000001", "0.000000") with data.fleetwright as limits
	found == {"the fleet would cost 10.000001 USD per hour; the budget is 10"}
}

test_denies_increase_above_monthly_budget if {
	count(deny_increase) == 1 with input as cost("1.000000", "100.500000") with data.fleetwright as limits
}

on_fargate(before, after) := {"capacity": {"cost": {"hourly_after": "6.000000", "monthly_delta": "0.000000", "unpriced": 0, "fargate": {"before": before, "after": after}}}}

test_denies_fargate_cost_above_budget if {
	expensive := on_fargate({"pods": 1, "hourly": "1.000000"}, {"pods": 9, "hourly": "4.500000"})
	count(deny_hourly) == 1 with input as expensive with data.fleetwright as limits
	found := deny_increase with input as expensive with data.fleetwright as limits
	found == {"the plan adds 2555 USD per month; the budget is 100"}
	cheap := on_fargate({"pods": 1, "hourly": "1.000000"}, {"pods": 1, "hourly": "1.000000"})
	count(deny_hourly) == 0 with input as cheap with data.fleetwright as limits
	count(deny_increase) == 0 with input as cheap with data.fleetwright as limits
	count(deny_unpriced) == 0 with input as cheap with data.fleetwright as limits
}

test_judges_list_prices_where_overlays_adjust_them if {
	list := {"hourly_before": "1.000000", "hourly_after": "11.000000", "overlays": ["cheap"]}
	adjusted := {"capacity": {"cost": {"hourly_after": "0.100000", "monthly_delta": "0.000000", "unpriced": 0, "list": list}}}
	count(deny_hourly) == 1 with input as adjusted with data.fleetwright as limits
	found := deny_increase with input as adjusted with data.fleetwright as limits
	found == {"the plan adds 7300 USD per month; the budget is 100"}
}

test_denies_prices_that_only_an_overlay_states if {
	list := {"hourly_before": "0.000000", "hourly_after": "0.000001", "overlays": ["cheap"], "unlisted": 2}
	unlisted := {"capacity": {"cost": {"hourly_after": "0.000001", "monthly_delta": "0.000730", "unpriced": 0, "list": list}}}
	found := deny_unlisted with input as unlisted with data.fleetwright as limits
	found == {"nodes without a list price: 2, so the budget would rely on the price of a NodeOverlay"}
	count(deny_unlisted) == 0 with input as cost("1.000000", "1.000000") with data.fleetwright as limits
}

test_denies_capacity_without_price if {
	unknown := on_fargate({"pods": 0}, {"pods": 2})
	count(deny_unpriced) == 1 with input as unknown with data.fleetwright as limits
	nodes := {"capacity": {"cost": {"hourly_after": "1.000000", "monthly_delta": "0.000000", "unpriced": 3}}}
	count(deny_unpriced) == 1 with input as nodes with data.fleetwright as limits
}

# Without a Fargate price, the budget still applies to the nodes.
test_checks_nodes_without_fargate_price if {
	unknown := {"capacity": {"cost": {"hourly_after": "11.000000", "monthly_delta": "0.000000", "fargate": {"before": {"pods": 0}, "after": {"pods": 2}}}}}
	count(deny_hourly) == 1 with input as unknown with data.fleetwright as limits
}

test_allows_cost_within_budget if {
	count(deny_hourly) == 0 with input as cost("10.000000", "-900.000000") with data.fleetwright as limits
	count(deny_increase) == 0 with input as cost("10.000000", "-900.000000") with data.fleetwright as limits
}

test_denies_missing_limits if {
	count(deny_unset) == 2 with data.fleetwright as {}
	count(deny_unset) == 0 with data.fleetwright as limits
}
