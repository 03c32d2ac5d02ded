# How old nodes may become.
package guardrails.node_age

import rego.v1

deny_unset contains msg if {
	some limit in ["node_age_hours_max"]
	not is_number(data.fleetwright[limit])
	msg := sprintf("data.fleetwright.%s is not set to a number", [limit])
}

# Hours are counted from the text of both moments, which are in UTC and of one form.
warn_old contains {"msg": msg, "address": row.address} if {
	limit := data.fleetwright.node_age_hours_max
	some row in input.resource_changes
	row.change.actions == ["no-op"]
	launched := row.change.before.launched_at
	hours := age_hours(launched, input.timestamp)
	hours > limit
	msg := sprintf("%s was launched %s, %d hours ago; nodes are to be younger than %d hours", [row.address, launched, hours, limit])
}

# Hours between two moments; without a clock, by counting days.
age_hours(from, to) := (hours(to) - hours(from))

hours(moment) := ((days(moment) * 24) + to_number(trim_zero(substring(moment, 11, 2))))

# Days since a day long ago, by the civil calendar.
days(moment) := result if {
	year := to_number(substring(moment, 0, 4))
	month := to_number(trim_zero(substring(moment, 5, 2)))
	day := to_number(trim_zero(substring(moment, 8, 2)))
	shift := floor((14 - month) / 12)
	y := (year + 4800) - shift
	m := (month + (12 * shift)) - 3
	result := (((day + floor(((153 * m) + 2) / 5)) + (365 * y)) + floor(y / 4)) - (floor(y / 100) - floor(y / 400))
}

trim_zero(text) := substring(text, 1, 1) if startswith(text, "0")

trim_zero(text) := text if not startswith(text, "0")
