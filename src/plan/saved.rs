//! A plan as a file: what is written, and everything that can be wrong with what is read.
//!
//! This module knows the bytes of a plan, not what they mean: whether a plan is right is for
//! [`check`](super::check), whether it may be applied for `apply`. Invariant: a plan that was read
//! has a version that this program understands, and the digest and identity of its own contents.

use serde::Deserialize;
use serde_json::Value;
use serde_json::error::Category;
use thiserror::Error;

use super::canonical;
use super::checksum;
use super::digest::{digest, is_whole};
use super::identity::{plan_id, totals};
use super::wire::{FORMAT_VERSION, Plan};

/// Most bytes of a plan: ten times what a fleet of 5,000 nodes takes.
pub const PLAN_BYTES_MAX: usize = 64 << 20;

/// Longest piece of a foreign text that an error repeats, in characters.
const SHOWN_MAX: usize = 80;

/// What kind of refusal a [`ReadPlanError`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPlanErrorKind {
    /// The bytes are no plan, or too many.
    Unreadable,
    /// The bytes may be a plan of a version that this program does not know.
    OtherVersion,
    /// The bytes are a plan whose contents are not those it was made with.
    Altered,
}

/// Why bytes are no plan to work with.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadPlanError {
    /// There are too many of them.
    #[error("the plan has {bytes} bytes; at most {PLAN_BYTES_MAX} are read")]
    TooLarge {
        /// How many there are.
        bytes: usize,
    },
    /// They are no JSON.
    #[error("the plan is not JSON: {reason}")]
    NotJson {
        /// What the parser found, with line and column.
        reason: String,
    },
    /// They are JSON without a version.
    #[error("the plan has no `format_version`")]
    NoVersion,
    /// The version is not `major.minor`.
    #[error("`format_version` {found} is not a version of plans")]
    BadVersion {
        /// The value, as JSON.
        found: String,
    },
    /// The major version is above ours.
    #[error("the plan has format {found}; this program reads up to {FORMAT_VERSION}")]
    NewerMajor {
        /// The version.
        found: String,
    },
    /// They are JSON of a readable version, and something is missing or of the wrong type.
    #[error("the plan does not have the form of format {found}: {reason}")]
    BadForm {
        /// The version that the plan states.
        found: String,
        /// What is missing or wrong, with line and column.
        reason: String,
        /// Whether the version's minor part is above ours.
        newer: bool,
    },
    /// The digest is not that of the contents.
    #[error("the plan was altered: it states digest {stated}, its decisions have {computed}")]
    Altered {
        /// The digest stated.
        stated: String,
        /// The digest of the contents.
        computed: String,
        /// Whether the version's minor part is above ours.
        newer: bool,
    },
    /// The identity is not that of digest, commit, world and what else it holds.
    #[error(
        "the plan was altered: it states plan_id {stated}, its digest, flags, expiry, commit, world \
         and policies give {computed}"
    )]
    ForeignId {
        /// The identity stated.
        stated: String,
        /// The identity that follows.
        computed: String,
    },
    /// A part that follows from other parts does not.
    #[error("the plan was altered: {0}")]
    Contradiction(String),
}

impl ReadPlanError {
    /// Returns what kind of refusal it is.
    #[must_use]
    pub fn kind(&self) -> ReadPlanErrorKind {
        match self {
            Self::TooLarge { .. }
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

    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "plan a part of the fleet with `--target`",
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

/// Where a version stands against the one that this program writes.
struct Version {
    text: String,
    newer_minor: bool,
}

/// Reads a plan and holds it to its own digest and identity.
///
/// Keys that this program does not know are passed over, as long as the major version is ours.
///
/// # Errors
/// When the bytes are too many, no JSON, of another version, of another form, or altered.
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
    hold_to_identity(&plan, version.newer_minor)?;
    hold_to_checksum(&mut plan, bytes)?;
    Ok(plan)
}

/// Holds a plan to the checksum of its file, which formats have whose digest is whole.
fn hold_to_checksum(plan: &mut Plan, bytes: &[u8]) -> Result<(), ReadPlanError> {
    let altered = |what: &str| Err(ReadPlanError::Contradiction(what.to_owned()));
    match (plan.checksum.take(), std::str::from_utf8(bytes)) {
        (None, _) if !is_whole(plan) => Ok(()),
        (None, _) => altered("it states no checksum of its file"),
        (Some(stated), Ok(text)) if checksum::holds(text, &stated) => Ok(()),
        (Some(_), _) => altered("its file does not have the checksum that it states"),
    }
}

fn read_version(bytes: &[u8]) -> Result<Version, ReadPlanError> {
    #[derive(Deserialize)]
    struct Head {
        format_version: Option<Value>,
    }
    let head: Head = serde_json::from_slice(bytes).map_err(|error| match error.classify() {
        // JSON, but no object with one version.
        Category::Data => ReadPlanError::NoVersion,
        Category::Io | Category::Syntax | Category::Eof => {
            ReadPlanError::NotJson { reason: error.to_string() }
        }
    })?;
    let found = head.format_version.ok_or(ReadPlanError::NoVersion)?;
    let bad =
        || ReadPlanError::BadVersion { found: found.to_string().chars().take(SHOWN_MAX).collect() };
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
    Ok(Version { text: text.to_owned(), newer_minor: minor > ours_minor })
}

/// Splits `1.0`; nothing but two plain numbers is a version.
fn major_minor(text: &str) -> Option<(u32, u32)> {
    let number = |part: &str| part.parse::<u32>().ok().filter(|n| n.to_string() == part);
    let (major, minor) = text.split_once('.')?;
    Some((number(major)?, number(minor)?))
}

fn hold_to_identity(plan: &Plan, newer: bool) -> Result<(), ReadPlanError> {
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

/// Returns where a plan says one thing and what it follows from another.
fn contradiction(plan: &Plan) -> Option<String> {
    let holds = totals(plan);
    if plan.summary != holds {
        let shown = |summary| canonical::compact(summary).unwrap_or_default();
        let (stated, holds) = (shown(&plan.summary), shown(&holds));
        return Some(format!("it states the totals {stated}, its rows come to {holds}"));
    }
    let denies = |status: &str| matches!(status, "fail" | "error");
    let objection = plan.checks.iter().find(|check| denies(&check.status));
    match objection {
        _ if !plan.applyable => None,
        Some(check) => Some(format!("`applyable` is true, and {} denies it", check.name)),
        None => plan.errored.then(|| "`applyable` is true, and so is `errored`".to_owned()),
    }
}

impl Plan {
    /// Returns the plan as its file holds it: canonical, indented, with its checksum and a final line
    /// feed.
    #[must_use]
    pub fn to_json(&self) -> String {
        write(self)
    }

    /// Reads a plan and holds it to its own digest and identity, as [`read_plan`] does.
    ///
    /// # Errors
    /// As [`read_plan`].
    pub fn from_json(text: &str) -> Result<Self, ReadPlanError> {
        read_plan(text.as_bytes())
    }
}

fn write(plan: &Plan) -> String {
    let pretty =
        canonical::pretty(plan).expect("the types of a plan hold no float and no key but text");
    if is_whole(plan) { checksum::with_checksum(pretty) } else { pretty }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::fixture::{plan, sealed};
    use crate::plan::wire::{Check, JudgedBy, Summary};

    /// Reads a plan that was changed, and whose file has the checksum of what it was changed to.
    fn altered(change: impl FnOnce(&mut Value)) -> Result<Plan, ReadPlanError> {
        let mut value: Value = serde_json::from_str(&plan().to_json()).unwrap();
        change(&mut value);
        value.as_object_mut().unwrap().remove("checksum");
        let text = checksum::with_checksum(canonical::pretty(&value).unwrap());
        read_plan(text.as_bytes())
    }

    #[test]
    fn what_is_only_shown_cannot_be_edited_either() {
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
    fn a_flipped_bit_is_found_wherever_it_is() {
        let whole = plan();
        let text = whole.to_json();
        for at in (0..text.len()).step_by(1 + text.len() / 2_000) {
            for bit in [0, 3, 6] {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let read = read_plan(&bytes);
                // White space between two tokens says nothing.
                assert!(read.is_err() || read.is_ok_and(|read| read == whole), "byte {at}");
            }
        }
    }

    #[test]
    fn writing_and_reading_again_changes_nothing() {
        let plan = plan();
        let text = plan.to_json();
        let read = Plan::from_json(&text).unwrap();
        assert_eq!(read, plan);
        assert_eq!(read.to_json(), text);
        assert!(text.starts_with("{\n  \"applyable\": true,\n") && text.ends_with("}\n"));
    }

    #[test]
    fn what_is_no_plan_says_why() {
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
    fn bytes_beyond_the_cap_are_not_parsed() {
        let error = read_plan(&vec![b' '; PLAN_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(error, ReadPlanError::TooLarge { bytes: PLAN_BYTES_MAX + 1 });
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        let error = read_plan("[".repeat(100_000).as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ReadPlanErrorKind::Unreadable);
    }

    #[test]
    fn keys_of_a_newer_minor_version_are_passed_over() {
        let read = altered(|value| {
            value["format_version"] = "1.7".into();
            value["novelty"] = 1.into();
            value["capacity"]["base"]["world"]["novelty"] = 2.into();
            value["resource_changes"][0]["change"]["novelty"] = 3.into();
        });
        assert_eq!(read.unwrap().capacity, plan().capacity);
    }

    #[test]
    fn a_decision_changed_by_hand_is_found() {
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
    fn what_says_whether_and_when_and_by_whom_it_is_judged_cannot_be_edited() {
        let mut denied = plan();
        let check = Check { name: "p".into(), status: "fail".into(), ..Check::default() };
        denied.checks.push(check);
        denied.applyable = false;
        let file = JudgedBy { path: "p.rego".into(), sha256: "0".repeat(64) };
        denied.capacity.base.judged_by.push(file);
        let denied = sealed(denied).to_json();
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
    fn a_plan_that_contradicts_itself_is_altered_even_under_its_own_identity() {
        let check = Check { name: "p".into(), status: "error".into(), ..Check::default() };
        let denied = sealed(Plan { checks: vec![check], ..plan() });
        let errored = sealed(Plan { errored: true, ..plan() });
        let small = sealed(Plan { summary: Summary::default(), ..plan() });
        for (plan, says) in
            [(denied, "p denies it"), (errored, "so is `errored`"), (small, "totals")]
        {
            let error = Plan::from_json(&plan.to_json()).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn a_newer_plan_that_decides_more_is_told_from_an_altered_one_by_its_hint() {
        let error = altered(|value| {
            value["format_version"] = "1.9".into();
            value["capacity"]["digest"] = "sha256:0".into();
        });
        assert!(error.unwrap_err().hint().contains("newer minor version"));
    }

    #[test]
    fn the_identity_follows_from_digest_commit_and_world() {
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
        // Of a dirty work tree the commit says nothing, and the tree everything.
        let mut dirty = plan();
        dirty.capacity.base.dirty = true;
        let mut other = sealed(dirty.clone());
        other.capacity.base.commit = Some("beef".to_owned());
        assert!(Plan::from_json(&other.to_json()).is_ok());
        other.capacity.base.tree.push('0');
        assert!(Plan::from_json(&other.to_json()).is_err());
    }
}
