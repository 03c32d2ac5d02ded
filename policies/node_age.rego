# Warns about old nodes that the plan keeps.
package guardrails.node_age

import rego.v1

deny_unset contains msg if {
	some limit in ["node_age_hours_max"]
	not is_number(data.fleetwright[limit])
	msg := sprintf("data.fleetwright.%s is not set to a number", [limit])
}

# Policies have no clock. The age is computed from the texts of two UTC times in the same format.
warn_old contains {"msg": msg, "address": row.address} if {
	limit := data.fleetwright.node_age_hours_max
	some row in input.resource_changes
	row.change.actions == ["no-op"]
	launched := row.change.before.launched_at
	hours := age_hours(launched, input.timestamp)
	hours > limit
	msg := sprintf("%s was launched at %s, %d h ago; the limit is %d h", [row.address, launched, hours, limit])
}

# Hours between two times.
age_hours(from, to) := (hours(to) - hours(from))

hours(timestamp) := ((days(timestamp) * 24) + to_number(trim_zero(substring(timestamp, 11, 2))))

# Julian day number of a date in the Gregorian calendar, with a constant offset.
days(timestamp) := result if {
	year := to_number(substring(timestamp, 0, 4))
	month := to_number(trim_zero(substring(timestamp, 5, 2)))
	day := to_number(trim_zero(substring(timestamp, 8, 2)))
	shift := floor((14 - month) / 12)
	y := (year + 4800) - shift
	m := (month + (12 * shift)) - 3
	result := (((day + floor(((153 * m) + 2) / 5)) + (365 * y)) + floor(y / 4)) - (floor(y / 100) - floor(y / 400))
}

trim_zero(text) := substring(text, 1, 1) if startswith(text, "0")

trim_zero(text) := text if not startswith(text, "0")
