//! Documents for programs, as JSON or YAML.

use serde::Serialize;

use super::error::CliError;
use crate::plan::canonical;

/// The format of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DocumentFormat {
    Json,
    Yaml,
}

/// Returns a value as a document.
pub(super) fn document<T: Serialize + ?Sized>(
    value: &T,
    format: DocumentFormat,
) -> Result<String, CliError> {
    from_json(canonical::pretty(value).map_err(CliError::new)?, format)
}

/// Returns a JSON document in another format.
pub(super) fn from_json(json: String, format: DocumentFormat) -> Result<String, CliError> {
    match format {
        DocumentFormat::Json => Ok(json),
        DocumentFormat::Yaml => {
            let value: serde_json::Value = serde_json::from_str(&json).map_err(CliError::new)?;
            serde_saphyr::to_string(&value).map_err(CliError::new)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_plan;

    #[test]
    fn yaml_has_the_values_of_json() {
        let json = sample_plan::plan().sealed().to_json();
        let yaml = from_json(json.clone(), DocumentFormat::Yaml).expect("written");
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).expect("YAML");
        assert_eq!(read, serde_json::from_str::<serde_json::Value>(&json).expect("JSON"));
        assert!(yaml.contains("format_version: "), "{yaml}");
    }
}
