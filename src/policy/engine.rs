//! Policy engine: loads policies and evaluates rules within limits.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use regorus::unstable::Module;
use regorus::utils::limits::ExecutionTimerConfig;
use serde_json::{Map, Value};

use super::call_graph::CallGraph;
use super::declarations::{FileDeclarations, Package, collect_packages, unused_files};
use super::{Bundle, PolicyFile, PolicyLimits, error_check};
use crate::plan::wire::Check;

/// Evaluation steps between two checks of the time limit.
const CHECK_INTERVAL: u32 = 1_000;

/// An engine with loaded policies.
pub(super) struct Engine {
    engine: regorus::Engine,
    /// Declarations by package.
    pub(super) packages: BTreeMap<String, Package>,
}

impl Engine {
    /// Loads all files, or returns an error for each invalid file.
    pub(super) fn load(bundle: &Bundle, limits: PolicyLimits) -> Result<Self, Vec<Check>> {
        regorus::set_global_memory_limit(Some(limits.memory));
        let mut engine = regorus::Engine::new();
        // Gather the output of `print`, so that it does not reach stderr.
        engine.set_gather_prints(true);
        engine.set_execution_timer_config(ExecutionTimerConfig {
            limit: limits.time,
            check_interval: NonZeroU32::new(CHECK_INTERVAL).unwrap_or(NonZeroU32::MIN),
        });
        let mut broken = Vec::new();
        for file in &bundle.files {
            if let Err(reason) = add_policy(&mut engine, &file.path, &file.text) {
                broken.push(error_check(&file.path, &reason));
            }
        }
        let mut data = Value::Object(Map::new());
        for file in &bundle.data {
            match serde_json::from_str(&file.text) {
                Ok(Value::Object(map)) => merge(&mut data, Value::Object(map)),
                Ok(_) => broken.push(error_check(&file.path, "data is no JSON object")),
                Err(error) => {
                    broken.push(error_check(&file.path, &format!("data cannot be read: {error}")));
                }
            }
        }
        if let Err(error) = engine.add_data_json(&data.to_string()) {
            broken.push(error_check("data", &format!("data cannot be read: {error}")));
        }
        if !broken.is_empty() {
            return Err(broken);
        }
        let packages = read_declarations(&mut engine, &bundle.files)?;
        Ok(Self { engine, packages })
    }

    pub(super) fn set_input(&mut self, json: &str) -> Result<(), String> {
        self.engine.set_input_json(json).map_err(|error| error.to_string())
    }

    /// Returns the value of a rule; `null` if undefined.
    pub(super) fn rule(&mut self, package: &str, rule: &str) -> Result<Value, String> {
        let value = self.engine.eval_rule(format!("data.{package}.{rule}"));
        let _ = self.engine.take_prints();
        let value = value.map_err(|error| error.to_string())?;
        if value == regorus::Value::Undefined {
            return Ok(Value::Null);
        }
        let json = value.to_json_str().map_err(|error| error.to_string())?;
        serde_json::from_str(&json).map_err(|error| error.to_string())
    }
}

/// Merges `more` into `data`. Values in `more` override values with the same key.
fn merge(data: &mut Value, more: Value) {
    match (data, more) {
        (Value::Object(data), Value::Object(more)) => {
            for (key, value) in more {
                merge(data.entry(key).or_insert(Value::Null), value);
            }
        }
        (data, more) => *data = more,
    }
}

/// Returns the packages of the loaded files, or an error for each file without effect.
fn read_declarations(
    engine: &mut regorus::Engine,
    files: &[PolicyFile],
) -> Result<BTreeMap<String, Package>, Vec<Check>> {
    let mut broken = Vec::new();
    let mut found = Vec::new();
    for (file, module) in files.iter().zip(engine.get_modules()) {
        match FileDeclarations::from_module(module) {
            Ok(declared) => found.push(declared),
            Err(reason) => broken.push(error_check(&file.path, &reason)),
        }
    }
    if broken.is_empty() {
        let modules = found.iter().map(|declared| declared.package().to_owned());
        let modules: Vec<(String, &Module)> =
            modules.zip(engine.get_modules().iter().map(|module| &**module)).collect();
        if let Some(((package, _), why)) = CallGraph::from_modules(&modules).problem() {
            let file = files.iter().zip(&found).find(|(_, declared)| declared.package() == package);
            let path = file.map_or(package.as_str(), |(file, _)| &file.path);
            broken.push(error_check(path, &why));
        }
    }
    if broken.is_empty() {
        const IDLE: &str = "nothing runs it: it has no rule named deny, violation or warn and no \
                            test, and no other policy names its package";
        broken.extend(
            unused_files(files, &found).into_iter().map(|file| error_check(&file.path, IDLE)),
        );
    }
    if broken.is_empty() { Ok(collect_packages(&found)) } else { Err(broken) }
}

/// Adds a file as Rego v1. If it is invalid, adds it as Rego v0.
fn add_policy(engine: &mut regorus::Engine, path: &str, text: &str) -> Result<(), String> {
    engine.set_rego_v0(false);
    let Err(first) = engine.add_policy(path.to_owned(), text.to_owned()) else { return Ok(()) };
    engine.set_rego_v0(true);
    let second = engine.add_policy(path.to_owned(), text.to_owned());
    engine.set_rego_v0(false);
    // If both versions fail, the file is most likely intended for v1, so return that error.
    second.map(|_| ()).map_err(|_| first.to_string())
}
