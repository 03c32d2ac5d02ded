//! Versions of charts: the index of a repository, the dependencies of a chart, and version ranges.

use semver::Version;

use super::yaml::{self, YamlNode, YamlValue};

/// A version of a chart in the index of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartVersion {
    /// Version.
    pub version: String,
    /// URL of the archive; it may be relative to the repository.
    pub url: String,
    /// SHA-256 of the archive in hex, if the index has it.
    pub digest: Option<String>,
}

/// Returns the versions of `chart` in the `index.yaml` of a repository.
///
/// # Errors
/// Returns the reason if the index cannot be parsed or has no such chart.
pub fn chart_versions(index: &[u8], chart: &str) -> Result<Vec<ChartVersion>, String> {
    let text = yaml::decode(index).map_err(|fault| format!("its index {fault}"))?;
    let loaded = yaml::load(&text);
    if let Some(fault) = loaded.fault {
        return Err(format!("its index is not YAML: line {}: {}", fault.line, fault.message));
    }
    let entries = loaded.documents.first().and_then(|document| document.root.get("entries"));
    let entries = entries.ok_or("its index has no `entries`")?;
    let versions = entries.get(chart).ok_or_else(|| format!("it has no chart {chart}"))?;
    let one = |entry: &YamlNode<'_>| {
        Some(ChartVersion {
            version: text_of(entry, "version")?,
            url: items(entry, "urls").first()?.text()?.to_owned(),
            digest: text_of(entry, "digest"),
        })
    };
    let YamlValue::Seq(versions) = &versions.value else { return Ok(Vec::new()) };
    Ok(versions.iter().filter_map(one).collect())
}

/// A dependency of a chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartDependency {
    /// Name of the chart.
    pub name: String,
    /// URL of its repository; empty if the chart contains it.
    pub repository: String,
    /// Version that `Chart.lock` pins, else the range of `Chart.yaml`.
    pub version: String,
}

/// Returns the dependencies in `Chart.yaml`, with the versions of `Chart.lock`.
pub fn chart_dependencies(chart: &[u8], lock: Option<&[u8]>) -> Vec<ChartDependency> {
    let locked = lock.map(dependencies).unwrap_or_default();
    let mut found = dependencies(chart);
    for dependency in &mut found {
        let same = |other: &&ChartDependency| {
            other.name == dependency.name && other.repository == dependency.repository
        };
        if let Some(locked) = locked.iter().find(same) {
            dependency.version.clone_from(&locked.version);
        }
    }
    found
}

fn dependencies(bytes: &[u8]) -> Vec<ChartDependency> {
    let Ok(text) = yaml::decode(bytes) else { return Vec::new() };
    let loaded = yaml::load(&text);
    let Some(document) = loaded.documents.first() else { return Vec::new() };
    let one = |item: &YamlNode<'_>| {
        Some(ChartDependency {
            name: text_of(item, "name")?,
            repository: text_of(item, "repository").unwrap_or_default(),
            version: text_of(item, "version").unwrap_or_default(),
        })
    };
    items(&document.root, "dependencies").iter().filter_map(one).collect()
}

fn text_of(node: &YamlNode<'_>, key: &str) -> Option<String> {
    node.get(key).and_then(YamlNode::text).filter(|text| !text.is_empty()).map(str::to_owned)
}

fn items<'n, 't>(node: &'n YamlNode<'t>, key: &str) -> &'n [YamlNode<'t>] {
    match node.get(key).map(|node| &node.value) {
        Some(YamlValue::Seq(items)) => items,
        Some(_) | None => &[],
    }
}

/// Returns the newest of `versions` in `range`, as Helm selects it; `None` if no version matches.
///
/// # Errors
/// Returns the reason if the range cannot be parsed.
pub fn newest_in_range<'v>(
    range: &str,
    versions: impl IntoIterator<Item = &'v str>,
) -> Result<Option<&'v str>, String> {
    let range = VersionRange::parse(range)?;
    let parsed = versions.into_iter().filter_map(|text| Some((parse_version(text)?, text)));
    let matching = parsed.filter(|(version, _)| range.contains(version));
    Ok(matching.max_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, text)| text))
}

/// Returns whether `text` is one version and not a range.
pub fn is_exact_version(text: &str) -> bool {
    parse_version(text).is_some()
}

fn parse_version(text: &str) -> Option<Version> {
    Version::parse(text.strip_prefix('v').unwrap_or(text)).ok()
}

/// A range of versions in the syntax of Helm: alternatives of conditions.
#[derive(Debug)]
struct VersionRange(Vec<Vec<Condition>>);

/// A condition on versions: from `low` (inclusive) up to `high` (exclusive), or its opposite.
#[derive(Debug)]
struct Condition {
    low: Option<Version>,
    high: Option<Version>,
    is_excluded: bool,
    /// The condition names a pre-release, so that pre-releases match.
    allows_pre: bool,
}

/// A version with missing parts, such as `1.x`.
#[derive(Debug, Clone)]
struct PartialVersion {
    parts: [Option<u64>; 3],
    full: Option<Version>,
}

impl VersionRange {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("version `{}` is not a range", super::decode::shorten(text));
        let alternatives = text.split("||").map(|part| parse_all(part.trim()).ok_or_else(wrong));
        alternatives.collect::<Result<_, _>>().map(Self)
    }

    fn contains(&self, version: &Version) -> bool {
        self.0.iter().any(|all| all.iter().all(|condition| condition.contains(version)))
    }
}

impl Condition {
    fn contains(&self, version: &Version) -> bool {
        if !version.pre.is_empty() && !self.allows_pre {
            return false;
        }
        let inside = self.low.as_ref().is_none_or(|low| low <= version)
            && self.high.as_ref().is_none_or(|high| version < high);
        inside != self.is_excluded
    }
}

/// Parses conditions that hold together: `>=1.2 <2`, `1.2 - 1.4`, `^1.2`.
fn parse_all(text: &str) -> Option<Vec<Condition>> {
    if let Some((from, to)) = text.split_once(" - ") {
        return Some(vec![condition(">=", from.trim())?, condition("<=", to.trim())?]);
    }
    let mut conditions = Vec::new();
    let mut operator = String::new();
    for word in text.split([' ', ',']).filter(|word| !word.is_empty()) {
        let end = word.find(|c: char| !"<>=!~^".contains(c)).unwrap_or(word.len());
        operator.push_str(&word[..end]);
        if end < word.len() {
            conditions.push(condition(&std::mem::take(&mut operator), &word[end..])?);
        }
    }
    if conditions.is_empty() {
        conditions.push(condition("", "*")?);
    }
    operator.is_empty().then_some(conditions)
}

fn condition(operator: &str, text: &str) -> Option<Condition> {
    let version = PartialVersion::parse(text)?;
    let allows_pre = version.full.as_ref().is_some_and(|full| !full.pre.is_empty());
    let low = version.low();
    let above = version.above();
    let (low, high, is_excluded) = match operator {
        "" | "=" | "==" => (Some(low), above, false),
        "!=" => (Some(low), above, true),
        ">=" | "=>" => (Some(low), None, false),
        ">" => (Some(above?), None, false),
        "<" => (None, Some(low), false),
        "<=" | "=<" => (None, above, false),
        "~" | "~>" => (Some(low), version.next_minor(), false),
        "^" => (Some(low), version.next_breaking(), false),
        _ => return None,
    };
    Some(Condition { low, high, is_excluded, allows_pre })
}

impl PartialVersion {
    fn parse(text: &str) -> Option<Self> {
        let plain = text.strip_prefix(['v', 'V']).unwrap_or(text);
        if let Ok(full) = Version::parse(plain) {
            let parts = [Some(full.major), Some(full.minor), Some(full.patch)];
            return Some(Self { parts, full: Some(full) });
        }
        let mut parts = [None; 3];
        let words: Vec<&str> = plain.split('.').collect();
        if words.len() > parts.len() {
            return None;
        }
        for (part, word) in parts.iter_mut().zip(words) {
            if matches!(word, "x" | "X" | "*") {
                break;
            }
            *part = Some(word.parse().ok()?);
        }
        Some(Self { parts, full: None })
    }

    /// Returns the lowest version that it denotes.
    fn low(&self) -> Version {
        self.full.clone().unwrap_or_else(|| {
            let [major, minor, patch] = self.parts.map(Option::unwrap_or_default);
            Version::new(major, minor, patch)
        })
    }

    /// Returns the lowest version above all that it denotes; `None` if it denotes every version.
    fn above(&self) -> Option<Version> {
        match (self.parts, &self.full) {
            (_, Some(full)) if !full.pre.is_empty() => {
                let mut above = full.clone();
                above.pre = semver::Prerelease::new(&format!("{}.0", full.pre)).ok()?;
                Some(above)
            }
            ([Some(major), Some(minor), Some(patch)], _) => {
                Some(Version::new(major, minor, patch.checked_add(1)?))
            }
            ([Some(_), ..], _) => self.next_minor(),
            _ => None,
        }
    }

    fn next_minor(&self) -> Option<Version> {
        match self.parts {
            [Some(major), Some(minor), _] => Some(Version::new(major, minor.checked_add(1)?, 0)),
            [Some(major), None, _] => Some(Version::new(major.checked_add(1)?, 0, 0)),
            [None, ..] => None,
        }
    }

    fn next_breaking(&self) -> Option<Version> {
        match self.parts {
            [Some(0), Some(0), Some(patch)] => Some(Version::new(0, 0, patch.checked_add(1)?)),
            [Some(0), Some(minor), _] => Some(Version::new(0, minor.checked_add(1)?, 0)),
            [Some(major), ..] => Some(Version::new(major.checked_add(1)?, 0, 0)),
            [None, ..] => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_in_a_range_is_selected_as_helm_does() {
        let all =
            ["0.2.3", "0.2.9", "0.3.0", "1.2.3", "1.2.10", "1.4.0", "v2.0.0", "2.1.0-rc.1", "next"];
        for (range, expected) in [
            ("", Some("v2.0.0")),
            ("*", Some("v2.0.0")),
            ("1.2.3", Some("1.2.3")),
            ("v1.2.3", Some("1.2.3")),
            ("1.2", Some("1.2.10")),
            ("1.x", Some("1.4.0")),
            ("1", Some("1.4.0")),
            ("~1.2.0", Some("1.2.10")),
            ("^1.2.0", Some("1.4.0")),
            ("^0.2.0", Some("0.2.9")),
            (">=1.2.3 <1.4.0", Some("1.2.10")),
            (">= 1.2.3, < 1.4.0", Some("1.2.10")),
            (">1.2", Some("v2.0.0")),
            ("<=1.2", Some("1.2.10")),
            ("1.2.0 - 1.4", Some("1.4.0")),
            ("<1.0.0 || 3.x", Some("0.3.0")),
            (">=1.0.0 !=2.0.0", Some("1.4.0")),
            (">2.0.0-0", Some("2.1.0-rc.1")),
            ("9.x", None),
        ] {
            assert_eq!(newest_in_range(range, all), Ok(expected), "{range}");
        }
        for wrong in ["latest", "1.2.3.4", ">", "1..2", "?1"] {
            assert!(newest_in_range(wrong, all).is_err(), "{wrong}");
        }
        assert!(is_exact_version("v1.2.3-rc.1") && !is_exact_version("1.2"));
    }

    #[test]
    fn index_and_dependencies_are_read() {
        let index = "apiVersion: v1\nentries:\n  web:\n  - {version: 1.0.0, urls: [web-1.0.0.tgz], \
                     digest: aa}\n  - {version: 0.9.0, urls: []}\n";
        let found = chart_versions(index.as_bytes(), "web").expect("versions");
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].url, found[0].digest.as_deref()), ("web-1.0.0.tgz", Some("aa")));
        let none = chart_versions(index.as_bytes(), "db").expect_err("no such chart");
        assert_eq!(none, "it has no chart db");
        assert!(chart_versions(b"<html>", "web").is_err());
        let chart =
            b"dependencies: [{name: db, repository: 'https://h', version: 1.x}, {name: in}]";
        let lock = b"dependencies: [{name: db, repository: 'https://h', version: 1.2.3}]";
        let found = chart_dependencies(chart, Some(lock));
        assert_eq!((&*found[0].version, &*found[1].repository), ("1.2.3", ""));
        assert_eq!(chart_dependencies(chart, None)[0].version, "1.x");
    }
}
