//! The text of a new `fleetwright.yaml`.

use std::fmt;

use super::Choice;
use super::detect::Detected;
use super::selection::{SelectedSource, Selection};

/// Address of the schema that editors check the file with.
const SCHEMA: &str =
    "https://raw.githubusercontent.com/fleetwright/fleetwright/main/plans/fleet.schema.json";

/// Most sources that are listed.
const SOURCES_MAX: usize = 20;

/// A new `fleetwright.yaml`. Settings that are comments have no effect; each is valid without `# `.
pub(super) struct FleetTemplate<'a> {
    pub(super) cluster: &'a Choice,
    pub(super) region: &'a Choice,
    pub(super) detected: &'a Detected,
    pub(super) selection: &'a Selection,
    /// Path of the directory in its repository, if it is that of one cluster.
    pub(super) own_directory: Option<&'a str>,
}

impl fmt::Display for FleetTemplate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, region, detected, selection, own_directory } = self;
        let name = scalar(&cluster.value);
        write!(
            f,
            "# yaml-language-server: $schema={SCHEMA}\n\
             apiVersion: fleetwright.dev/v1\n\
             kind: Fleet\n\
             metadata:\n  name: {name}\n\
             spec:\n  cluster:\n    \
             # {}.\n    name: {name}\n    \
             # {}.\n    region: {}\n    \
             # Zones with subnets of the cluster. Default: every zone of the region.\n    \
             # zones: [{}]\n",
            sentence(&cluster.why),
            sentence(&region.why),
            scalar(&region.value),
            zones(&region.value, detected),
        )?;
        match own_directory {
            Some(directory) => write_own_directory(f, directory)?,
            None if !selection.sources.is_empty() => write_selected(f, selection, detected)?,
            None => write_sources(f, &cluster.value, detected)?,
        }
        if let Some((own, other)) = &selection.destinations {
            write_destinations(f, own, other)?;
        }
        f.write_str(REST)
    }
}

/// Returns a text that fits a comment and begins a sentence.
fn sentence(text: &str) -> String {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn zones(region: &str, detected: &Detected) -> String {
    let found: Vec<&str> = detected
        .zones
        .iter()
        .map(String::as_str)
        .filter(|zone| zone.strip_prefix(region).is_some_and(|end| end.len() == 1))
        .collect();
    if found.is_empty() { format!("{region}a, {region}b") } else { found.join(", ") }
}

fn write_own_directory(f: &mut fmt::Formatter<'_>, directory: &str) -> fmt::Result {
    write!(
        f,
        "\n  # References may lead anywhere in the repository. Paths of sources are below its root.\n  \
         wholeRepository: true\n  sources:\n    - path: {}\n",
        scalar(directory)
    )
}

fn write_sources(f: &mut fmt::Formatter<'_>, cluster: &str, detected: &Detected) -> fmt::Result {
    f.write_str(
        "\n  # Manifests of this cluster. Default: all plain manifests below this directory, and what\n  \
         # Argo CD and Flux deliver from it.\n",
    )?;
    if let Some(directory) = detected.directory_of(cluster) {
        write!(f, "  sources:\n    - path: {}\n", scalar(directory))?;
    } else {
        f.write_str("  # sources:\n")?;
    }
    for directory in &detected.cluster_directories {
        if Some(directory.as_str()) != detected.directory_of(cluster) {
            writeln!(f, "  #   - path: {}", scalar(directory))?;
        }
    }
    let kustomizations = detected.kustomizations.iter().map(|path| (path, "kustomize"));
    let charts = detected.charts.iter().map(|path| (path, "helm"));
    let all: Vec<(&String, &str)> = kustomizations.chain(charts).collect();
    if all.is_empty() && detected.cluster_directories.is_empty() {
        f.write_str("  #   - path: .\n")?;
    }
    for (path, render) in all.iter().take(SOURCES_MAX) {
        let path = if path.is_empty() { "." } else { path.as_str() };
        write!(f, "  #   - path: {}\n  #     render: {render}\n", scalar(path))?;
        write_release(f, "  #     ", detected, path)?;
    }
    if all.len() > SOURCES_MAX {
        writeln!(f, "  #   # and {} more", all.len() - SOURCES_MAX)?;
    }
    Ok(())
}

/// Writes a release for the chart at `path`: the default of several charts may be one name.
fn write_release(
    f: &mut fmt::Formatter<'_>,
    indent: &str,
    detected: &Detected,
    path: &str,
) -> fmt::Result {
    let Some(release) = detected.releases.get(path) else { return Ok(()) };
    let release = scalar(release);
    write!(f, "{indent}release: {release}\n{indent}namespace: {release}\n")
}

fn write_selected(
    f: &mut fmt::Formatter<'_>,
    selection: &Selection,
    detected: &Detected,
) -> fmt::Result {
    f.write_str(
        "\n  # Manifests of this cluster: its overlays, and everything that belongs to no overlay.\n  \
         sources:\n",
    )?;
    let mut write = |sign: &str, SelectedSource { path, render }: &SelectedSource| {
        let path = if path.is_empty() { "." } else { path.as_str() };
        writeln!(f, "  {sign}  - path: {}", scalar(path))?;
        render.map_or(Ok(()), |render| writeln!(f, "  {sign}    render: {render}"))?;
        write_release(f, &format!("  {sign}    "), detected, path)
    };
    selection.sources.iter().try_for_each(|source| write("", source))?;
    selection.other_overlays.iter().take(SOURCES_MAX).try_for_each(|source| write("# ", source))
}

fn write_destinations(f: &mut fmt::Formatter<'_>, own: &[String], other: &[String]) -> fmt::Result {
    f.write_str(
        "\n  # Destinations of Argo CD that are this cluster, and those that are not.\n  delivery:\n",
    )?;
    for (key, names) in [("clusters", own), ("otherClusters", other)] {
        writeln!(f, "    {key}:")?;
        for name in names {
            writeln!(f, "      - {}", scalar(name))?;
        }
    }
    Ok(())
}

/// Returns a YAML scalar, in quotes unless it is plain text.
fn scalar(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic()) || text == ".";
    let is_word = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"]
        .contains(&text.to_lowercase().as_str());
    if starts && !is_word && text.chars().all(is_plain) {
        return text.to_owned();
    }
    serde_json::Value::from(text).to_string()
}

const REST: &str = r#"
  # Cluster state that plans are compared with: empty, live, FILE or sim:DIR. Default: empty.
  # world: live

  # Directories with Rego policies that judge each plan.
  # policies: [policies]

  # Replicas to assume for autoscaled workloads: floor, live or ceiling.
  # demand:
  #   autoscaled: live

  # Times at which plans may be applied. Default: always.
  # apply:
  #   windows:
  #     - days: [mon, tue, wed, thu]
  #       from: "09:00"
  #       to: "16:00"
  #       zone: UTC

  # What `fleetwright run` may do: observe, additive or full. Default: observe.
  # controller:
  #   mode: observe
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;
    use crate::cli::tests::run_command;

    #[test]
    fn schema_is_a_file_of_the_repository() {
        let (before, path) = SCHEMA.split_once("/main/").expect("a branch");
        assert!(before.ends_with("fleetwright/fleetwright"));
        assert!(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path).is_file());
    }

    #[test]
    fn file_is_valid_with_and_without_its_comments() {
        let tree = tempfile::tempdir().expect("a directory");
        let root = tree.path().join("a: b");
        std::fs::create_dir_all(root.join("policies")).expect("created");
        std::fs::write(
            root.join("policies/a.rego"),
            "package main\nimport rego.v1\ndeny contains \"no\" if false\n",
        )
        .expect("written");
        std::fs::write(
            root.join("a.yaml"),
            "{kind: Pod, apiVersion: v1, metadata: {name: a}, spec: {containers: [{name: a, image: a}]}}",
        )
        .expect("written");
        let path = root.to_str().expect("UTF-8");
        let ran = run_command(&["init", path]);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        assert_eq!(run_command(&["validate", path]).exit, Exit::Done);
        let file = root.join("fleetwright.yaml");
        let text = std::fs::read_to_string(&file).expect("readable");
        // Settings are indented after the sign; sentences begin with a capital letter.
        let is_setting = |line: &str| {
            let rest = line.trim_start().strip_prefix("# ");
            rest.is_some_and(|rest| {
                !rest.starts_with(|c: char| c.is_uppercase())
                    && rest.contains([':', '-'])
                    && !rest.starts_with("yaml-language-server")
            })
        };
        let all: Vec<String> = text
            .lines()
            .map(|line| if is_setting(line) { line.replacen("# ", "", 1) } else { line.to_owned() })
            .collect();
        let all = all.join("\n");
        assert!(all.contains("\n  world: live\n") && all.contains("\n    - path: .\n"), "{all}");
        std::fs::write(&file, all + "\n").expect("written");
        let ran = run_command(&["validate", path]);
        assert_eq!(ran.exit, Exit::Done, "{}{}", ran.out, ran.err);
    }
}
