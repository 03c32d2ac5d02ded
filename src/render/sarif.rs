//! Problems as SARIF 2.1.0, which code scanning of GitHub, GitLab and Azure DevOps reads.
//!
//! The rules are the stable codes of problems. A problem without a code has the rule `problem`.
//! Source: <https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html>.

use std::collections::BTreeMap;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::text_page::escape;
use crate::model::code::Code;
use crate::model::desired::{Problem, Severity};
use crate::model::ids::Origin;

/// Bytes that are escaped in a path.
const URI_ESCAPED: AsciiSet =
    NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";
const HOME: &str = "https://github.com/fleetwright/fleetwright";

/// Returns the problems of a directory, which is `below` the root of its repository.
pub fn problems_sarif(problems: &[Problem], below: &str) -> Value {
    let codes: BTreeMap<&str, Option<Code>> =
        problems.iter().map(|problem| (rule_id(problem.code), problem.code)).collect();
    let rules: Vec<Value> = codes.values().map(|code| rule(*code)).collect();
    let index = |id: &str| codes.keys().position(|known| *known == id);
    let results: Vec<Value> = problems
        .iter()
        .map(|problem| {
            let id = rule_id(problem.code);
            let mut result = json!({
                "ruleId": id,
                "ruleIndex": index(id),
                "level": level(problem.severity),
                "message": { "text": message(problem) },
                "locations": [location(&problem.origin, below)],
            });
            if let Some(other) = &problem.other {
                result["relatedLocations"] = json!([location(other, below)]);
            }
            result
        })
        .collect();
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "Fleetwright",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "informationUri": HOME,
                "rules": rules,
            } },
            "columnKind": "unicodeCodePoints",
            "originalUriBaseIds": { "SRCROOT": { "description": { "text": "Root of the repository" } } },
            "results": results,
        }],
    })
}

fn rule_id(code: Option<Code>) -> &'static str {
    code.map_or("problem", Code::as_str)
}

fn rule(code: Option<Code>) -> Value {
    let cause = code.map_or("An input has a problem.", Code::cause);
    let remedy = code.map_or("Do what the message says.", Code::remedy);
    json!({
        "id": rule_id(code),
        "shortDescription": { "text": cause },
        "help": { "text": remedy },
        "helpUri": format!("{HOME}/blob/main/docs/src/reference/errors.md"),
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn message(problem: &Problem) -> String {
    let Problem { object, message, hint, .. } = problem;
    let colon = if object.is_empty() { "" } else { ": " };
    let hint = hint.as_ref().map(|hint| format!(" (hint: {hint})")).unwrap_or_default();
    // Brackets would be links to other locations.
    let text = escape(&format!("{object}{colon}{message}{hint}")).into_owned();
    text.replace('\\', "\\\\").replace('[', "\\[").replace(']', "\\]")
}

fn location(origin: &Origin, below: &str) -> Value {
    let file = &origin.file;
    let path = if below.is_empty() { file.to_string() } else { format!("{below}/{file}") };
    let mut place = json!({ "artifactLocation": { "uri": uri(&path), "uriBaseId": "SRCROOT" } });
    if origin.line > 0 {
        place["region"] = json!({ "startLine": origin.line });
    }
    json!({ "physicalLocation": place })
}

/// Returns a path as a relative URI.
fn uri(path: &str) -> String {
    utf8_percent_encode(path, &URI_ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems() -> [Problem; 2] {
        let hostile = "apps/a b:c\u{e9}.yaml";
        let origin = Origin::new(hostile, 31);
        let first = Problem::error(origin, "Deployment web/api", "`2G1` is not [a](quantity)")
            .hint("write 2Gi")
            .code(Code::InvalidQuantity)
            .other(Origin::new("base.yaml", 2));
        [first, Problem::warning(Origin::new("fleetwright.yaml", 0), "", "x\u{1b}[2K")]
    }

    #[test]
    fn document_has_the_members_that_sarif_requires() {
        let sarif = problems_sarif(&problems(), "");
        assert_eq!(sarif["version"], "2.1.0");
        assert!(sarif["$schema"].as_str().is_some_and(|url| url.contains("sarif-2.1.0")));
        let run = &sarif["runs"][0];
        assert_eq!(run["tool"]["driver"]["name"], "Fleetwright");
        let rules = run["tool"]["driver"]["rules"].as_array().expect("rules");
        let results = run["results"].as_array().expect("results");
        assert_eq!((rules.len(), results.len()), (2, 2));
        for result in results {
            let index = usize::try_from(result["ruleIndex"].as_u64().expect("an index"));
            assert_eq!(rules[index.expect("small")]["id"], result["ruleId"]);
            assert!(result["message"]["text"].is_string() && result["level"].is_string());
            let place = &result["locations"][0]["physicalLocation"];
            assert!(place["artifactLocation"]["uri"].is_string(), "{result}");
        }
        let none = problems_sarif(&[], "");
        assert_eq!(none["runs"][0]["results"], json!([]));
    }

    #[test]
    fn location_is_a_uri_below_the_root_of_the_repository() {
        let sarif = problems_sarif(&problems(), "clusters/prod");
        let results = &sarif["runs"][0]["results"];
        let place = |n: usize| results[n]["locations"][0]["physicalLocation"].clone();
        assert_eq!(place(0)["artifactLocation"]["uri"], "clusters/prod/apps/a%20b%3Ac%C3%A9.yaml");
        assert_eq!(place(0)["region"], json!({ "startLine": 31 }));
        assert!(place(1).get("region").is_none());
        let other = &results[0]["relatedLocations"][0]["physicalLocation"];
        assert_eq!(other["artifactLocation"]["uri"], "clusters/prod/base.yaml");
        assert!(results[1].get("relatedLocations").is_none());
    }

    #[test]
    fn message_of_outside_text_has_no_links_and_no_controls() {
        let sarif = problems_sarif(&problems(), "");
        let text = |n: usize| sarif["runs"][0]["results"][n]["message"]["text"].clone();
        assert_eq!(text(0), "Deployment web/api: `2G1` is not \\[a\\](quantity) (hint: write 2Gi)");
        assert!(!text(1).to_string().contains("\\u001b"), "{}", text(1));
    }
}
