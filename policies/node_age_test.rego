package guardrails.node_age

import rego.v1

node(launched) := {
	"timestamp": "2026-09-01T10:00:00Z",
	"resource_changes": [{"address": "a", "change": {"actions": ["no-op"], "before": {"launched_at": launched}}}],
}

test_warns_about_old_nodes if {
	found := warn_old with input as node("2026-07-01T09:30:00Z") with data.fleetwright.node_age_hours_max as 720
	some finding in found
	finding.msg == "a was launched at 2026-07-01T09:30:00Z, 1489 h ago; the limit is 720 h"
}

test_allows_young_nodes if {
	count(warn_old) == 0 with input as node("2026-08-31T09:30:00Z") with data.fleetwright.node_age_hours_max as 720
	count(warn_old) == 0 with input as node("2026-02-28T10:00:00Z") with data.fleetwright.node_age_hours_max as 9000
}

test_denies_missing_limit if {
	count(deny_unset) == 1 with data.fleetwright as {}
	count(deny_unset) == 0 with data.fleetwright as {"node_age_hours_max": 720}
}
