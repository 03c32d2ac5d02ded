//! `init --matrix`: the clusters below a directory, for a matrix of CI jobs.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::catalog::Catalog;
use crate::cli::error::CliError;
use crate::cli::settings::SourceSettings;
use crate::cli::{Console, Exit, source_tree};
use crate::manifest::read_fleet;
use crate::model::desired::{FLEET_FILE, Fleet, Skipped, Tree, TreeFile};

/// Longest name of an EKS cluster.
const NAME_MAX: usize = 100;

/// A cluster of the repository. CI uses the values as arguments and as names, so they are checked.
#[derive(Debug, Serialize)]
struct MatrixCluster {
    name: String,
    path: String,
    region: String,
}

/// Prints the clusters as a JSON list on one line, in the order of their settings files.
pub(in crate::cli) fn print(path: &Path, console: &mut Console) -> Result<Exit, CliError> {
    let source = SourceSettings { path: path.to_owned(), revision: None };
    let read = source_tree::read_alone(&source)?;
    if let Some((directory, reason)) = unread_directory(&read.tree) {
        let text = format!("`{directory}` cannot be read, and may have clusters: {reason}");
        return Err(CliError::text(text).hint("make it readable"));
    }
    for skipped in read.skipped.iter().filter(|skipped| skipped.reason != "plan or world") {
        let Skipped { origin, reason } = skipped;
        console.report(&format!("warning: no cluster below {origin} is listed: it is {reason}"));
    }
    let mut clusters: Vec<MatrixCluster> = Vec::new();
    for file in &read.tree.files {
        let Some(directory) = file.path.strip_suffix(FLEET_FILE) else { continue };
        if !directory.is_empty() && !directory.ends_with('/') {
            continue;
        }
        let cluster = read_cluster(&path.join(directory), file)
            .map_err(|error| error.context(format!("`{}` cannot be listed", file.path)))?;
        if let Some(other) = clusters.iter().find(|other| other.name == cluster.name) {
            let MatrixCluster { name, path, .. } = &cluster;
            let text =
                format!("`{}` and `{path}` have the same name of a cluster: {name}", other.path);
            return Err(CliError::text(text).hint("set metadata.name in one of them"));
        }
        clusters.push(cluster);
    }
    if clusters.is_empty() {
        let text = format!("no directory below `{}` has a {FLEET_FILE}", path.display());
        return Err(CliError::text(text).hint("write one: fleetwright init DIRECTORY"));
    }
    let json = serde_json::to_string(&clusters).map_err(CliError::new)?;
    console.print(&format!("{json}\n"))?;
    Ok(Exit::Done)
}

/// Returns a directory that cannot be read, with the reason. Manifests that cannot be read declare no
/// cluster.
fn unread_directory(tree: &Tree) -> Option<(&str, &str)> {
    let is_manifest = |path: &str| [".yaml", ".yml", ".json"].iter().any(|end| path.ends_with(end));
    let mut others = tree.files.iter().filter(|file| !file.is_sparse() && !is_manifest(&file.path));
    others.find_map(|file| Some((&*file.path, file.content.as_ref().err()?.as_str())))
}

/// Reads the cluster of a settings file.
fn read_cluster(directory: &Path, file: &TreeFile) -> Result<MatrixCluster, CliError> {
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let settings = TreeFile { path: FLEET_FILE.into(), ..file.clone() };
    let (fleet, _) = read_fleet(&Tree { files: vec![settings] });
    let (name, region) = (fleet.cluster.name, fleet.cluster.region);
    if name == Fleet::default().cluster.name {
        return Err(CliError::text("the settings cannot be read, or name no cluster")
            .hint("set metadata.name; `fleetwright validate` reports further problems"));
    }
    let is_name = name.len() <= NAME_MAX
        && name.starts_with(is_word)
        && name.chars().all(|c| is_word(c) || "-_".contains(c));
    if !is_name {
        return Err(CliError::text(format!("`{name}` is not the name of an EKS cluster")));
    }
    Catalog::load(&region, &[])?;
    // `./clusters/prod` and `clusters/prod/` are `clusters/prod`.
    let directory: PathBuf = directory.components().collect();
    let inner = directory.strip_prefix(".").unwrap_or(&directory);
    let path = if inner.as_os_str().is_empty() { Path::new(".") } else { inner };
    let path = path.display().to_string();
    if path.starts_with('-') || !path.chars().all(|c| is_word(c) || "-_./".contains(c)) {
        return Err(CliError::text(format!("`{path}` is not a plain path"))
            .hint("rename the directory: it may have letters, digits, `.`, `_` and `-`"));
    }
    Ok(MatrixCluster { name, path, region: region.to_string() })
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::run_command;

    /// Writes the settings of clusters below a directory, and runs `init --matrix` there. Returns
    /// its output without the path of the directory, or its error.
    fn matrix(clusters: &[(&str, &str)]) -> Result<String, String> {
        let root = tempfile::tempdir().expect("a directory");
        for (directory, text) in clusters {
            let directory = root.path().join(directory);
            std::fs::create_dir_all(&directory).expect("made");
            std::fs::write(directory.join(super::FLEET_FILE), text).expect("written");
        }
        let path = root.path().to_str().expect("UTF-8");
        let ran = run_command(&["init", "--matrix", path]);
        if ran.exit == Exit::Done { Ok(ran.out.replace(path, "ROOT")) } else { Err(ran.err) }
    }

    /// Returns settings with a name and with `spec.cluster`, which may be empty.
    fn settings(name: &str, cluster: &str) -> String {
        format!(
            "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: {{name: {name}}}\n\
             spec: {{cluster: {cluster}}}\n"
        )
    }

    #[test]
    fn matrix_lists_clusters_with_path_and_region() {
        let eu = settings("prod", "{name: eu, region: eu-west-1}");
        let us = settings("prod-us1", "{}");
        let listed = matrix(&[("prod-us1", us.as_str()), ("prod-eu1", eu.as_str())]);
        let rows = [
            r#"{"name":"eu","path":"ROOT/prod-eu1","region":"eu-west-1"}"#,
            r#"{"name":"prod-us1","path":"ROOT/prod-us1","region":"us-east-1"}"#,
        ];
        assert_eq!(listed, Ok(format!("[{}]\n", rows.join(","))));
        // A directory with settings of its own is a cluster.
        let own = "[{\"name\":\"prod-us1\",\"path\":\"ROOT\",\"region\":\"us-east-1\"}]\n";
        assert_eq!(matrix(&[("", us.as_str())]).as_deref(), Ok(own));
    }

    #[test]
    fn values_that_ci_cannot_use_are_rejected() {
        let eu = settings("eu", "{}");
        for (directory, text, message) in [
            (
                "us",
                settings("\"a; rm -rf b\"", "{}"),
                "`a; rm -rf b` is not the name of an EKS cluster",
            ),
            ("us", settings("\"us\\n::add-mask::x\"", "{}"), "is not the name of an EKS cluster"),
            (
                "us",
                settings("us", "{region: \"us-east-1\\nX=1\"}"),
                "`us/fleetwright.yaml` cannot be",
            ),
            ("us", "spec: {}\n".to_owned(), "name no cluster"),
            ("us", "{".to_owned(), "name no cluster"),
            ("us", eu.clone(), "have the same name of a cluster: eu"),
            ("u s", settings("us", "{}"), "rename the directory"),
        ] {
            let refused =
                matrix(&[("eu", eu.as_str()), (directory, text.as_str())]).expect_err("an error");
            assert!(refused.contains(message), "{refused}");
            assert!(refused.lines().all(|line| !line.starts_with("::")), "{refused}");
        }
    }

    #[test]
    fn links_to_directories_are_reported() {
        let root = tempfile::tempdir().expect("a directory");
        let eu = root.path().join("eu");
        std::fs::create_dir(&eu).expect("made");
        std::fs::write(eu.join(super::FLEET_FILE), settings("eu", "{}")).expect("written");
        std::os::unix::fs::symlink(&eu, root.path().join("us")).expect("linked");
        let ran = run_command(&["init", "--matrix", root.path().to_str().expect("UTF-8")]);
        assert!(ran.err.contains("warning: no cluster below us is listed"), "{}", ran.err);
        assert_eq!(ran.exit, Exit::Done);
    }

    #[test]
    fn directory_without_settings_is_an_error() {
        let root = tempfile::tempdir().expect("a directory");
        let other = root.path().join("a-fleetwright.yaml");
        std::fs::write(other, settings("eu", "{}")).expect("written");
        let ran = run_command(&["init", "--matrix", root.path().to_str().expect("UTF-8")]);
        assert!(ran.err.contains("has a fleetwright.yaml"), "{}", ran.err);
        assert_eq!((ran.exit, &*ran.out), (Exit::Failed, ""));
    }
}
