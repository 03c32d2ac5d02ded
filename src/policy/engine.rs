//! The engine: policies in, values of rules out, within limits.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use regorus::utils::limits::ExecutionTimerConfig;
use serde_json::{Map, Value};

use super::read::{Declared, Package, PolicyFile, idle, packages};
use super::{Bundle, Limits, broken_check};
use crate::plan::wire::Check;

/// Steps between two looks at the time.
const CHECK_INTERVAL: u32 = 1_000;

/// Policies, loaded.
pub(super) struct Engine {
    engine: regorus::Engine,
    /// What the files declare, by package.
    pub(super) packages: BTreeMap<String, Package>,
}

impl Engine {
    /// Loads every file, or returns what is wrong with each that cannot be.
    pub(super) fn load(bundle: &Bundle, limits: Limits) -> Result<Self, Vec<Check>> {
        regorus::set_global_memory_limit(Some(limits.memory));
        let mut engine = regorus::Engine::new();
        // What a policy prints is for its author, and belongs on no stream of ours.
        engine.set_gather_prints(true);
        engine.set_execution_timer_config(ExecutionTimerConfig {
            limit: limits.time,
            check_interval: NonZeroU32::new(CHECK_INTERVAL).unwrap_or(NonZeroU32::MIN),
        });
        let mut broken = Vec::new();
        for file in &bundle.files {
            if let Err(reason) = add(&mut engine, &file.path, &file.text) {
                broken.push(broken_check(&file.path, &reason));
            }
        }
        let mut data = Value::Object(Map::new());
        for file in &bundle.data {
            match serde_json::from_str(&file.text) {
                Ok(Value::Object(map)) => merge(&mut data, Value::Object(map)),
                Ok(_) => broken.push(broken_check(&file.path, "data is no JSON object")),
                Err(error) => {
                    broken.push(broken_check(&file.path, &format!("data cannot be read: {error}")));
                }
            }
        }
        if let Err(error) = engine.add_data_json(&data.to_string()) {
            broken.push(broken_check("data", &format!("data cannot be read: {error}")));
        }
        if !broken.is_empty() {
            return Err(broken);
        }
        let packages = declared(&mut engine, &bundle.files)?;
        Ok(Self { engine, packages })
    }

    pub(super) fn set_input(&mut self, json: &str) -> Result<(), String> {
        self.engine.set_input_json(json).map_err(|error| error.to_string())
    }

    /// Returns the value of a rule; null where it is not defined.
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

/// Adds `more` to `data`: of the same key, what comes later counts.
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

/// Returns what the loaded files declare, or what is wrong with each that declares nothing of use.
fn declared(
    engine: &mut regorus::Engine,
    files: &[PolicyFile],
) -> Result<BTreeMap<String, Package>, Vec<Check>> {
    let mut broken = Vec::new();
    let mut found = Vec::new();
    for (file, module) in files.iter().zip(engine.get_modules()) {
        match Declared::of(module) {
            Ok(declared) => found.push(declared),
            Err(reason) => broken.push(broken_check(&file.path, &reason)),
        }
    }
    if broken.is_empty() {
        const IDLE: &str = "nothing runs it: it has no rule named deny, violation or warn and no \
                            test, and no other policy names its package";
        broken.extend(idle(files, &found).into_iter().map(|file| broken_check(&file.path, IDLE)));
    }
    if broken.is_empty() { Ok(packages(&found)) } else { Err(broken) }
}

/// Adds a file, as Rego of version 1, or of version 0 where it is none of that.
fn add(engine: &mut regorus::Engine, path: &str, text: &str) -> Result<(), String> {
    engine.set_rego_v0(false);
    let Err(first) = engine.add_policy(path.to_owned(), text.to_owned()) else { return Ok(()) };
    engine.set_rego_v0(true);
    let second = engine.add_policy(path.to_owned(), text.to_owned());
    engine.set_rego_v0(false);
    // What is Rego of neither version was most likely meant for the newer one.
    second.map(|_| ()).map_err(|_| first.to_string())
}
