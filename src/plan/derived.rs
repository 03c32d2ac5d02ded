//! Sections of a plan that repeat its rows in the form of `terraform show -json`.
//!
//! Policies and viewers for Terraform plans read `planned_values` and `prior_state`, and select
//! rows by `mode`. Only outputs contain these sections. A saved plan states each fact once, so its
//! digest, its identity and its readers never depend on a copy.

use super::saved::write;
use super::wire::{
    ModuleValues, NodeState, Plan, PriorState, ProviderName, ResourceChange, ResourceMode,
    ResourceValue, ResourceValues, STATE_FORMAT_VERSION,
};

impl Plan {
    /// Returns the plan as `--format json` writes it and policies read it: the plan file with all
    /// derived sections. It reads back as the same plan.
    pub fn to_output_json(&self) -> String {
        write(&self.clone().with_derived_sections())
    }

    /// Adds the derived sections. Every other function expects a plan without them.
    fn with_derived_sections(mut self) -> Self {
        let values = |state: fn(&ResourceChange) -> Option<&NodeState>| ResourceValues {
            root_module: ModuleValues {
                resources: self
                    .resource_changes
                    .iter()
                    .filter_map(|row| Some(resource_value(row, state(row)?)))
                    .collect(),
            },
        };
        let planned = values(|row| row.change.after.as_ref());
        let prior = values(|row| row.change.before.as_ref());
        self.planned_values = Some(planned);
        self.prior_state = Some(PriorState { format_version: STATE_FORMAT_VERSION, values: prior });
        for row in self.resource_changes.iter_mut().chain(&mut self.resource_drift) {
            row.mode = Some(ResourceMode::Managed);
            row.provider_name = Some(ProviderName::Fleetwright);
        }
        self
    }
}

fn resource_value(row: &ResourceChange, state: &NodeState) -> ResourceValue {
    ResourceValue {
        address: row.address.clone(),
        mode: ResourceMode::Managed,
        kind: row.kind,
        name: row.name.clone(),
        index: row.index.clone(),
        provider_name: ProviderName::Fleetwright,
        values: state.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::valid_plan::plan;

    fn output(plan: &Plan) -> Value {
        serde_json::from_str(&plan.to_output_json()).unwrap()
    }

    #[test]
    fn values_repeat_the_states_of_the_rows() {
        let output = output(&plan());
        for (section, side) in [("/planned_values", "after"), ("/prior_state/values", "before")] {
            let resources = output.pointer(&format!("{section}/root_module/resources")).unwrap();
            let rows = output["resource_changes"].as_array().unwrap().iter();
            let expected: Vec<Value> = rows
                .filter(|row| !row["change"][side].is_null())
                .map(|row| {
                    let mut row = row.clone();
                    let fields = row.as_object_mut().unwrap();
                    let change = fields.remove("change").unwrap();
                    fields.remove("action_reason");
                    fields.insert("values".to_owned(), change[side].clone());
                    row
                })
                .collect();
            assert_eq!(resources, &Value::from(expected), "{section}");
            assert_eq!(resources[0]["mode"], "managed");
            let provider = "fleetwright.dev/fleetwright/fleetwright";
            assert_eq!(resources[0]["provider_name"], provider);
        }
        assert_eq!(output["prior_state"]["format_version"], "1.0");
    }

    #[test]
    fn output_reads_back_as_the_same_plan() {
        let plan = plan();
        let read = Plan::from_json(&plan.to_output_json()).unwrap();
        assert_eq!(read, plan);
        let saved: Value = serde_json::from_str(&plan.to_json()).unwrap();
        let has = |value: &Value, key: &str| value.get(key).is_some();
        assert!(!has(&saved, "planned_values") && !has(&saved, "prior_state"));
        for row in saved["resource_changes"].as_array().unwrap() {
            assert!(!has(row, "mode") && !has(row, "provider_name"), "{row}");
        }
    }

    #[test]
    fn output_with_wrong_sections_is_read_without_them() {
        let mut value = output(&plan());
        value["planned_values"]["root_module"]["resources"] = json!([]);
        value["prior_state"] = "none".into();
        value["resource_changes"][0]["mode"] = "data".into();
        value["resource_changes"][0]["provider_name"] = 7.into();
        value.as_object_mut().unwrap().remove("checksum");
        let text = crate::plan::canonical::pretty(&value).unwrap();
        let text = crate::plan::checksum::with_checksum(text);
        let read = Plan::from_json(&text).unwrap();
        assert_eq!(read, plan());
        assert_eq!(read.to_output_json(), plan().to_output_json());
    }
}
