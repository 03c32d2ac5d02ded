//! Plan files: writing, reading, and the errors of reading.
//!
//! This module handles the bytes of a plan, not their meaning. [`verify`](super::verify()) verifies a
//! plan, and `apply` decides whether to apply it. Invariant: a plan that was read has a supported
//! version, and the digest and identity of its own contents.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;
use thiserror::Error;

use super::digest::{digest, has_complete_digest};
use super::identity::{plan_id, totals};
use super::wire::{FORMAT_VERSION, KeepReason, Plan, Reason, ResourceKind};
use super::{UNCHANGED_BYTES_MAX, canonical, changes_only, checksum};
use crate::model::ids::Address;

/// Maximum size of a plan in bytes: ten times the size of a plan for 5,000 nodes.
pub const PLAN_BYTES_MAX: usize = 64 << 20;

/// Maximum number of characters of input that an error quotes.
const QUOTED_MAX: usize = 80;

/// Kind of a [`ReadPlanError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPlanErrorKind {
    /// The bytes are not a plan, or exceed the size limit.
    Unreadable,
    /// The plan may have a version that this program does not support.
    OtherVersion,
    /// The contents differ from those of the written plan.
    Altered,
}

/// Reasons why bytes are not a usable plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadPlanError {
    /// The input is too large.
    #[error("the plan has {bytes} bytes; at most {PLAN_BYTES_MAX} are read")]
    TooLarge {
        /// Number of bytes.
        bytes: usize,
    },
    /// The unchanged rows are too large.
    #[error("the unchanged rows need {bytes} bytes of memory; the limit is {UNCHANGED_BYTES_MAX}")]
    TooManyUnchanged {
        /// Number of bytes of the restored rows.
        bytes: usize,
    },
    /// The input is not JSON.
    #[error("the plan is not JSON: {reason}")]
    NotJson {
        /// Parser error, with line and column.
        reason: String,
    },
    /// The JSON has no version.
    #[error("the plan has no `format_version`")]
    NoVersion,
    /// The version is not `major.minor`.
    #[error("`format_version` {found} is not a version of plans")]
    BadVersion {
        /// The value, as JSON.
        found: String,
    },
    /// The major version is newer than the supported one.
    #[error("the plan has format {found}; this program reads up to {FORMAT_VERSION}")]
    NewerMajor {
        /// The version.
        found: String,
    },
    /// The version is readable, but a field is missing or of the wrong type.
    #[error("the plan does not have the form of format {found}: {reason}")]
    BadForm {
        /// Version that the plan states.
        found: String,
        /// Missing or wrong field, with line and column.
        reason: String,
        /// True if the minor version is newer than the supported one.
        newer: bool,
    },
    /// The stated digest differs from the digest of the contents.
    #[error("the plan was altered: it states digest {stated}, its decisions have {computed}")]
    Altered {
        /// Stated digest.
        stated: String,
        /// Digest of the contents.
        computed: String,
        /// True if the minor version is newer than the supported one.
        newer: bool,
    },
    /// The stated identity differs from the identity of the contents.
    #[error("the plan was altered: it states plan_id {stated}, its contents give {computed}")]
    ForeignId {
        /// Stated identity.
        stated: String,
        /// Identity of the contents.
        computed: String,
    },
    /// A derived field contradicts its source fields.
    #[error("the plan was altered: {0}")]
    Contradiction(String),
}

impl ReadPlanError {
    /// Returns the kind of the error.
    pub fn kind(&self) -> ReadPlanErrorKind {
        match self {
            Self::TooLarge { .. }
            | Self::TooManyUnchanged { .. }
            | Self::NotJson { .. }
            | Self::NoVersion
            | Self::BadForm { newer: false, .. } => ReadPlanErrorKind::Unreadable,
            Self::BadVersion { .. }
            | Self::NewerMajor { .. }
            | Self::BadForm { newer: true, .. } => ReadPlanErrorKind::OtherVersion,
            Self::Altered { .. } | Self::ForeignId { .. } | Self::Contradiction(_) => {
                ReadPlanErrorKind::Altered
            }
        }
    }

    /// Returns the next step for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => {
                "save it with `--changes-only`, or plan a part with `--target`"
            }
            Self::TooManyUnchanged { .. } => "plan a part of the fleet with `--target`",
            Self::NotJson { .. } | Self::NoVersion | Self::BadForm { newer: false, .. } => {
                "name a file that `fleetwright plan --out FILE` wrote"
            }
            Self::BadVersion { .. } => {
                "write `format_version` as `\"1.0\"`, or save the plan again with `plan --out FILE`"
            }
            Self::NewerMajor { .. } | Self::BadForm { newer: true, .. } => {
                "use the release that made the plan or a later one, or plan again with this one"
            }
            Self::Altered { newer: true, .. } => {
                "the plan is of a newer minor version, which may decide more than this release \
                 knows: use the release that made it, or plan again"
            }
            Self::Altered { newer: false, .. }
            | Self::ForeignId { .. }
            | Self::Contradiction(_) => {
                "do not apply it; plan again and have the new plan approved"
            }
        }
    }
}

/// Version of a plan, compared with the version that this program writes.
struct PlanVersion {
    text: String,
    newer_minor: bool,
}

/// Reads a plan and checks it against its own digest and identity.
///
/// Unknown keys are ignored as long as the major version is supported.
///
/// # Errors
/// If the input is too large, not JSON, of another version or form, or altered.
pub fn read_plan(bytes: &[u8]) -> Result<Plan, ReadPlanError> {
    if bytes.len() > PLAN_BYTES_MAX {
        return Err(ReadPlanError::TooLarge { bytes: bytes.len() });
    }
    let version = read_version(bytes)?;
    let mut plan: Plan = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        Category::Data => ReadPlanError::BadForm {
            found: version.text.clone(),
            reason: error.to_string(),
            newer: version.newer_minor,
        },
        Category::Io | Category::Syntax | Category::Eof => {
            ReadPlanError::NotJson { reason: error.to_string() }
        }
    })?;
    changes_only::restore(&mut plan)?;
    verify_identity(&plan, version.newer_minor)?;
    verify_checksum(&mut plan, bytes)?;
    Ok(plan)
}

/// Checks the file checksum, which formats with complete digests have.
fn verify_checksum(plan: &mut Plan, bytes: &[u8]) -> Result<(), ReadPlanError> {
    let altered = |what: &str| Err(ReadPlanError::Contradiction(what.to_owned()));
    match (plan.checksum.take(), std::str::from_utf8(bytes)) {
        (None, _) if !has_complete_digest(plan) => Ok(()),
        (None, _) => altered("it states no checksum of its file"),
        (Some(stated), Ok(text)) if checksum::matches(text, &stated) => Ok(()),
        (Some(_), _) => altered("its file does not have the checksum that it states"),
    }
}

fn read_version(bytes: &[u8]) -> Result<PlanVersion, ReadPlanError> {
    #[derive(Deserialize)]
    struct VersionField {
        format_version: Option<Value>,
    }
    let head: VersionField =
        serde_json::from_slice(bytes).map_err(|error| match error.classify() {
            // JSON, but not an object with one version.
            Category::Data => ReadPlanError::NoVersion,
            Category::Io | Category::Syntax | Category::Eof => {
                ReadPlanError::NotJson { reason: error.to_string() }
            }
        })?;
    let found = head.format_version.ok_or(ReadPlanError::NoVersion)?;
    let bad = || ReadPlanError::BadVersion {
        found: found.to_string().chars().take(QUOTED_MAX).collect(),
    };
    let text = found.as_str().ok_or_else(bad)?;
    let (major, minor) = major_minor(text).ok_or_else(bad)?;
    let (ours_major, ours_minor) =
        major_minor(FORMAT_VERSION).expect("our own version is major.minor");
    if major < ours_major {
        return Err(bad());
    }
    if major > ours_major {
        return Err(ReadPlanError::NewerMajor { found: text.to_owned() });
    }
    Ok(PlanVersion { text: text.to_owned(), newer_minor: minor > ours_minor })
}

/// Parses `major.minor`. Both must be plain decimal numbers.
fn major_minor(text: &str) -> Option<(u32, u32)> {
    let number = |part: &str| part.parse::<u32>().ok().filter(|n| n.to_string() == part);
    let (major, minor) = text.split_once('.')?;
    Some((number(major)?, number(minor)?))
}

fn verify_identity(plan: &Plan, newer: bool) -> Result<(), ReadPlanError> {
    let capacity = &plan.capacity;
    let computed = digest(plan);
    if capacity.digest != computed {
        let stated = capacity.digest.to_string();
        return Err(ReadPlanError::Altered { stated, computed: computed.to_string(), newer });
    }
    let computed = plan_id(plan, &computed);
    if capacity.plan_id != computed {
        let stated = capacity.plan_id.to_string();
        return Err(ReadPlanError::ForeignId { stated, computed: computed.to_string() });
    }
    contradiction(plan).map_or(Ok(()), |what| Err(ReadPlanError::Contradiction(what)))
}

/// Returns a description of a derived field that contradicts its source fields.
fn contradiction(plan: &Plan) -> Option<String> {
    let mut computed = totals(plan);
    if plan.summary.blocked == protected_rows(plan) {
        // Older programs also counted rows that a rule protects while no change is due.
        computed.blocked = plan.summary.blocked;
    }
    if plan.summary != computed {
        let to_text = |summary| canonical::compact(summary).unwrap_or_default();
        let (stated, computed) = (to_text(&plan.summary), to_text(&computed));
        return Some(format!("it states the totals {stated}, its rows add up to {computed}"));
    }
    let objection = plan.checks.iter().find(|check| check.status.is_denial());
    match objection {
        _ if !plan.applyable => None,
        Some(check) => Some(format!("`applyable` is true, and {} denies it", check.name)),
        None => plan.errored.then(|| "`applyable` is true, and so is `errored`".to_owned()),
    }
}

/// Returns the number of nodes that a rule protects, whether or not a change is due.
fn protected_rows(plan: &Plan) -> u32 {
    let groups = plan.resource_changes.iter().filter(|r| r.kind == ResourceKind::AutoscalingGroup);
    let groups: BTreeSet<&Address> = groups.map(|row| &row.address).collect();
    let is_kept =
        |reason: &Reason| matches!(reason, Reason::Keep { because: KeepReason::Blocked { .. } });
    let rows = plan.capacity.explain.iter().filter(|row| is_kept(&row.reason));
    u32::try_from(rows.filter(|row| !groups.contains(&row.address)).count()).unwrap_or(u32::MAX)
}

impl Plan {
    /// Returns the plan file: canonical, indented, with its checksum and a final line feed.
    pub fn to_json(&self) -> String {
        write(self)
    }

    /// Reads a plan as [`read_plan`] does.
    ///
    /// # Errors
    /// As [`read_plan`].
    pub fn from_json(text: &str) -> Result<Self, ReadPlanError> {
        read_plan(text.as_bytes())
    }
}

/// Writes a plan file or an output, with its checksum.
pub(super) fn write(plan: &Plan) -> String {
    let pretty = canonical::pretty(plan).expect("a plan has no floats, and its keys are strings");
    if has_complete_digest(plan) { checksum::with_checksum(pretty) } else { pretty }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::wire::{Check, CheckStatus, JudgedBy, Summary};
    use crate::testing::valid_plan::plan;

    /// Reads the valid plan after a change, with a valid checksum.
    fn altered(change: impl FnOnce(&mut Value)) -> Result<Plan, ReadPlanError> {
        let mut value: Value = serde_json::from_str(&plan().to_json()).unwrap();
        change(&mut value);
        value.as_object_mut().unwrap().remove("checksum");
        let text = checksum::with_checksum(canonical::pretty(&value).unwrap());
        read_plan(text.as_bytes())
    }

    #[test]
    fn informational_fields_cannot_be_edited() {
        let text = plan().to_json();
        let written_anew: Value = serde_json::from_str(&text).unwrap();
        assert!(Plan::from_json(&written_anew.to_string()).is_ok(), "as another tool spells it");
        for change in [
            |value: &mut Value| value["capacity"]["cost"]["hourly_after"] = "0.000001".into(),
            |value: &mut Value| value["capacity"]["explain"] = json!([]),
            |value: &mut Value| value["tool_version"] = "9".into(),
            |value: &mut Value| value["novelty"] = 1.into(),
            |value: &mut Value| drop(value.as_object_mut().unwrap().remove("checksum")),
        ] {
            let mut value: Value = serde_json::from_str(&text).unwrap();
            change(&mut value);
            let error = read_plan(value.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ReadPlanErrorKind::Altered, "{error}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let whole = plan();
        let text = whole.to_json();
        for at in (0..text.len()).step_by(1 + text.len() / 2_000) {
            for bit in [0, 3, 6] {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let read = read_plan(&bytes);
                // White space between two tokens has no meaning.
                assert!(read.is_err() || read.is_ok_and(|read| read == whole), "byte {at}");
            }
        }
    }

    #[test]
    fn written_plan_reads_back_unchanged() {
        let plan = plan();
        let text = plan.to_json();
        let read = Plan::from_json(&text).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.to_json(), text);
        assert!(text.starts_with("{\n  \"applyable\": true,\n") && text.ends_with("}\n"));
    }

    #[test]
    fn unreadable_plan_reports_the_reason() {
        for (text, expected) in [
            ("", "the plan is not JSON: EOF while parsing a value at line 1 column 0"),
            ("{\"format_version\": ", "the plan is not JSON: EOF"),
            ("plan: yes", "the plan is not JSON: expected value at line 1 column 1"),
            ("[]", "the plan has no `format_version`"),
            ("{}", "the plan has no `format_version`"),
            ("{\"format_version\": null}", "the plan has no `format_version`"),
            ("{\"format_version\": 1.0}", "`format_version` 1.0 is not a version"),
            ("{\"format_version\": \"1\"}", "`format_version` \"1\" is not a version"),
            ("{\"format_version\": \"01.0\"}", "`format_version` \"01.0\" is not a version"),
            ("{\"format_version\": \"0.9\"}", "`format_version` \"0.9\" is not a version"),
            ("{\"format_version\": \"2.0\"}", "the plan has format 2.0; this program reads up to"),
            ("{\"format_version\": \"1.0\"}", "the plan does not have the form of format 1.0: mis"),
        ] {
            let error = read_plan(text.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{text}: {error}");
            assert!(!error.hint().is_empty());
            assert_ne!(error.kind(), ReadPlanErrorKind::Altered, "{text}");
        }
    }

    #[test]
    fn oversized_input_is_not_parsed() {
        let error = read_plan(&vec![b' '; PLAN_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(error, ReadPlanError::TooLarge { bytes: PLAN_BYTES_MAX + 1 });
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        let error = read_plan("[".repeat(100_000).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ReadPlanErrorKind::Unreadable);
    }

    #[test]
    fn keys_of_newer_minor_versions_are_ignored() {
        let read = altered(|value| {
            value["format_version"] = "1.7".into();
            value["novelty"] = 1.into();
            value["capacity"]["base"]["world"]["novelty"] = 2.into();
            value["resource_changes"][0]["change"]["novelty"] = 3.into();
        });
        assert_eq!(read.unwrap().capacity, plan().capacity);
    }

    #[test]
    fn edited_decision_is_found() {
        let error = altered(|value| {
            for row in value["resource_changes"].as_array_mut().unwrap() {
                if row["change"]["actions"][0] == "create" {
                    row["change"]["after"]["instance_type"] = "p5.48xlarge".into();
                }
            }
        });
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ReadPlanErrorKind::Altered);
        assert!(error.hint().starts_with("do not apply it"), "{}", error.hint());
    }

    #[test]
    fn flags_expiry_and_policies_cannot_be_edited() {
        let mut denied = plan();
        let check = Check { name: "p".into(), status: CheckStatus::Fail, ..Check::default() };
        denied.checks.push(check);
        denied.applyable = false;
        let file = JudgedBy { path: "p.rego".into(), sha256: "0".repeat(64) };
        denied.capacity.base.judged_by.push(file);
        let denied = denied.with_identity().to_json();
        assert!(Plan::from_json(&denied).is_ok());
        for change in [
            |value: &mut Value| value["summary"] = json!(Summary::default()),
            |value: &mut Value| value["summary"]["destroy"] = 0.into(),
            |value: &mut Value| value["errored"] = true.into(),
            |value: &mut Value| value["applyable"] = true.into(),
            |value: &mut Value| {
                value["applyable"] = true.into();
                value["checks"] = json!([]);
            },
            |value: &mut Value| value["checks"] = json!([]),
            |value: &mut Value| value["capacity"]["expires_at"] = "2099-01-01T00:00:00Z".into(),
            |value: &mut Value| value["capacity"]["base"]["judged_by"] = json!([]),
            |value: &mut Value| value["capacity"]["base"]["path"] = "/tmp/elsewhere".into(),
        ] {
            let mut value: Value = serde_json::from_str(&denied).unwrap();
            change(&mut value);
            let error = read_plan(value.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.kind(), ReadPlanErrorKind::Altered, "{error}");
        }
    }

    #[test]
    fn contradictory_plan_is_altered_despite_valid_identity() {
        let check = Check { name: "p".into(), status: CheckStatus::Error, ..Check::default() };
        let denied = Plan { checks: vec![check], ..plan() }.with_identity();
        let errored = Plan { errored: true, ..plan() }.with_identity();
        let small = Plan { summary: Summary::default(), ..plan() }.with_identity();
        for (plan, says) in
            [(denied, "p denies it"), (errored, "so is `errored`"), (small, "totals")]
        {
            let error = Plan::from_json(&plan.to_json()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn newer_minor_version_has_its_own_hint() {
        let error = altered(|value| {
            value["format_version"] = "1.9".into();
            value["capacity"]["digest"] = "sha256:0".into();
        });
        assert!(error.unwrap_err().hint().contains("newer minor version"));
    }

    #[test]
    fn identity_follows_from_digest_commit_and_observation() {
        for change in [
            |value: &mut Value| value["capacity"]["plan_id"] = "0".into(),
            |value: &mut Value| value["capacity"]["base"]["commit"] = "beef".into(),
            |value: &mut Value| {
                value["capacity"]["base"]["world"]["taken_at"] = "2026-01-01T00:00:00Z".into();
            },
        ] {
            let error = altered(change).unwrap_err();
            assert!(matches!(error, ReadPlanError::ForeignId { .. }), "{error}");
            assert_eq!(error.kind(), ReadPlanErrorKind::Altered);
        }
        // For a dirty work tree, the tree identifies the files, and the commit is covered as well.
        let mut dirty = plan();
        dirty.capacity.base.dirty = true;
        let dirty = dirty.with_identity();
        for edit in [
            |plan: &mut Plan| plan.capacity.base.commit = Some("beef".to_owned()),
            |plan: &mut Plan| plan.capacity.base.tree.push('0'),
        ] {
            let mut other = dirty.clone();
            edit(&mut other);
            assert!(Plan::from_json(&other.to_json()).is_err());
        }
    }
}
