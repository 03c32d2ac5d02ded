//! Reader and writer of world files: [`Observed`] as JSON.

use std::collections::BTreeSet;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::{FORMAT_VERSION, LiveWorkload, Observed};
use crate::model::pod::PodTemplate;

/// Number of hash bytes in a template key. 64 bits are enough to distinguish all templates of a
/// cluster.
const KEY_BYTES: usize = 8;

/// Error of reading a world file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WorldError {
    /// The content is not JSON, or does not match the format.
    #[error("not a world file: {0}")]
    Malformed(String),
    /// The version is not of the form `major.minor`.
    #[error("format version `{0}` is not of the form `major.minor`")]
    BadVersion(String),
    /// The file has a newer major version.
    #[error("format version {found} is newer than {known}, which this program reads; upgrade it")]
    Newer {
        /// Version of the file.
        found: String,
        /// Supported version.
        known: String,
    },
    /// Entries contradict each other.
    #[error("the world contradicts itself: {}", .0.join("; "))]
    Inconsistent(Vec<String>),
}

/// Returns the content key of `template` in the file: the start of the SHA-256 of its JSON.
///
/// # Panics
/// Never, because all maps in a template have text keys.
pub fn template_key(template: &PodTemplate) -> String {
    let json = serde_json::to_vec(template).expect("a template has text keys only");
    let start = Sha256::digest(json).iter().take(KEY_BYTES).fold(0, |n, b| n << 8 | u64::from(*b));
    format!("{start:016x}")
}

/// Reads a world file. Unknown keys of newer minor versions are ignored.
///
/// # Errors
/// When the content is not a world file, has a newer major version, or is contradictory. The error
/// contains all contradictions.
pub fn read_world(bytes: &[u8]) -> Result<Observed, WorldError> {
    #[derive(Deserialize)]
    struct VersionHeader {
        format_version: String,
    }
    // Check the version first: a newer major version may change the meaning of a key.
    let head: VersionHeader = parse(bytes)?;
    check_version(&head.format_version)?;
    let world: Observed = parse(bytes)?;
    let problems = find_contradictions(&world);
    if problems.is_empty() { Ok(world) } else { Err(WorldError::Inconsistent(problems)) }
}

/// Writes a world file as indented JSON in a fixed order. Equal states have equal bytes.
///
/// # Panics
/// Never, because all maps in the state have text keys.
pub fn write_world(world: &Observed) -> Vec<u8> {
    let mut world = world.clone();
    world.canonicalize();
    let mut bytes = serde_json::to_vec_pretty(&world).expect("a world has text keys only");
    bytes.push(b'\n');
    bytes
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, WorldError> {
    serde_json::from_slice(bytes).map_err(|error| WorldError::Malformed(error.to_string()))
}

fn check_version(found: &str) -> Result<(), WorldError> {
    let major = |version: &str| version.split_once('.')?.0.parse::<u32>().ok();
    let bad = || WorldError::BadVersion(found.chars().take(20).collect());
    let ours = major(FORMAT_VERSION).expect("our own version is `major.minor`");
    if major(found).ok_or_else(bad)? > ours {
        let known = FORMAT_VERSION.to_owned();
        return Err(WorldError::Newer { found: found.to_owned(), known });
    }
    Ok(())
}

fn find_contradictions(world: &Observed) -> Vec<String> {
    let mut problems = Vec::new();
    for (id, instance) in &world.instances {
        if *id != instance.id {
            problems.push(format!("instance `{}` is listed under the id `{id}`", instance.id));
        }
    }
    for (name, node) in &world.nodes {
        if *name != node.name {
            problems.push(format!("node `{}` is listed under the name `{name}`", node.name));
        }
    }
    for (id, reservation) in &world.reservations {
        if *id != reservation.id {
            let found = &reservation.id;
            problems.push(format!("reservation `{found}` is listed under the id `{id}`"));
        }
    }
    let mut seen = BTreeSet::new();
    for pod in &world.pods {
        if !seen.insert((&pod.namespace, &pod.name)) {
            problems.push(format!("pod `{}/{}` is listed twice", pod.namespace, pod.name));
        }
        if !world.templates.contains_key(&*pod.template) {
            problems.push(format!(
                "pod `{}/{}` has the template `{}`, which is not among `templates`",
                pod.namespace, pod.name, pod.template
            ));
        }
    }
    for LiveWorkload { id, template, .. } in &world.workloads {
        if let Some(template) = template.as_ref().filter(|t| !world.templates.contains_key(*t)) {
            problems.push(format!(
                "workload `{id}` has the template `{template}`, which is not among `templates`"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::observed::{ClusterIdentity, Pod};
    use crate::testing::world::pod;

    fn world() -> Observed {
        let at = "2026-11-21T12:00:00Z".parse().expect("valid");
        let mut world = Observed::empty(ClusterIdentity::default(), at);
        world.templates.insert("b".into(), Arc::default());
        let pod = |name| Pod { template: "b".into(), created_at: at, ..pod(name) };
        world.with_pods(["z", "a"].map(pod))
    }

    #[test]
    fn written_world_is_read_back_in_canonical_form() {
        let mut expected = world();
        let read = read_world(&write_world(&expected)).expect("a written file is valid");
        expected.canonicalize();
        assert_eq!(read, expected);
        assert_eq!(&*read.pods[0].name, "a");
        assert_eq!(&*read.pods[0].template, template_key(&PodTemplate::default()));
    }

    #[test]
    fn list_order_does_not_change_the_file() {
        let mut reversed = world();
        reversed.pods.reverse();
        assert_eq!(write_world(&reversed), write_world(&world()));
    }

    #[test]
    fn only_newer_major_versions_are_rejected() {
        let json = String::from_utf8(write_world(&world())).expect("text");
        let version = |v: &str, extra: &str| {
            let head = format!("\"format_version\": \"{v}\",{extra}");
            read_world(json.replace("\"format_version\": \"1.0\",", &head).as_bytes())
        };
        assert!(version("1.7", "\"new_key\": {\"a\": 1},").is_ok());
        assert!(matches!(version("2.0", ""), Err(WorldError::Newer { .. })));
        assert!(matches!(version("one", ""), Err(WorldError::BadVersion(_))));
    }

    #[test]
    fn malformed_file_error_names_the_line() {
        let broken = read_world(b"{\"format_version\": \"1.0\",\n \"cluster\": 7}");
        assert!(matches!(broken, Err(WorldError::Malformed(why)) if why.contains("line 2")));
        assert!(matches!(read_world(b""), Err(WorldError::Malformed(_))));
    }

    #[test]
    fn every_contradiction_is_reported() {
        let mut world = world();
        world.templates.clear();
        let name = world.pods[0].name.clone();
        Arc::make_mut(&mut world.pods[1]).name = name;
        let Err(WorldError::Inconsistent(problems)) = read_world(&write_world(&world)) else {
            panic!("a pod without a template is a contradiction");
        };
        assert_eq!(problems.len(), 3, "{problems:?}");
    }
}
