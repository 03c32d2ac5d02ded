//! The packages of a release: archives, Homebrew formula, Krew manifest, and the metadata of
//! cargo-binstall. The scripts of the release workflow run offline, over stand-ins for the binaries.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};

use crate::binary::Workspace;

/// Operating system and architecture of each binary, as Krew names them.
const PLATFORMS: [(&str, &str); 4] =
    [("darwin", "amd64"), ("darwin", "arm64"), ("linux", "amd64"), ("linux", "arm64")];

const RELEASE: &str = "https://github.com/fleetwright/fleetwright/releases/download/v9.8.7";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Runs a script of `.github` at the root of the repository.
fn run_script(name: &str, argument: &Path) -> Output {
    let ran = Command::new("bash")
        .arg(root().join(".github").join(name))
        .arg(argument)
        .current_dir(root())
        .envs([("GITHUB_REF_NAME", "v9.8.7"), ("GITHUB_REPOSITORY", "fleetwright/fleetwright")])
        .output();
    ran.expect("bash runs")
}

/// Returns a directory with the archives of all platforms, as the build jobs make them.
fn archives() -> Workspace {
    let workspace = Workspace::empty();
    for (os, arch) in PLATFORMS {
        let name = format!("fleetwright-{os}-{arch}");
        workspace.write(&name, &format!("#!/bin/sh\necho {os} {arch}\n"));
        let ran = run_script("archive.sh", &workspace.path(&name));
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    }
    workspace
}

/// Returns URL and SHA-256 of the archive of a platform.
fn archive(workspace: &Workspace, os: &str, arch: &str) -> (String, String) {
    let name = format!("fleetwright-{os}-{arch}.tar.gz");
    let bytes = fs::read(workspace.path(&name)).expect("an archive");
    (format!("{RELEASE}/{name}"), hex::encode(Sha256::digest(bytes)))
}

/// Returns an archive as the formula names it, below its blocks for operating system and processor.
fn formula_archive(formula: &str, os: &str, processor: &str) -> (String, String) {
    let (_, rest) = formula.split_once(&format!("\n  on_{os} do\n")).expect("a block");
    let (_, rest) = rest.split_once(&format!("    on_{processor} do\n")).expect("a processor");
    let quoted = |key: &str| {
        let (_, rest) = rest.split_once(&format!("{key} \"")).expect("a key");
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    (quoted("url"), quoted("sha256"))
}

#[test]
fn formula_names_the_archives_with_their_checksums() {
    let workspace = archives();
    let ran = run_script("packages.sh", workspace.root());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let path = workspace.path("fleetwright.rb");
    let formula = fs::read_to_string(&path).expect("a formula");
    for (os, arch) in PLATFORMS {
        let on_os = if os == "darwin" { "macos" } else { os };
        let processor = if arch == "amd64" { "intel" } else { "arm" };
        let named = formula_archive(&formula, on_os, processor);
        assert_eq!(named, archive(&workspace, os, arch), "{os} {arch}");
    }
    // Homebrew limits the description, and wants no article and no name in it.
    let (_, rest) = formula.split_once("\n  desc \"").expect("a description");
    let about = rest.split('"').next().unwrap_or_default();
    assert!(about.len() <= 80 && !about.ends_with('.') && !about.contains("Fleetwright"));
    assert!(formula.contains("\n  version \"9.8.7\"\n  license \"Apache-2.0\"\n"), "{formula}");
    let words = |word: &str| formula.lines().filter(|line| line.trim().ends_with(word)).count();
    let opened = words(" do") + words("def install") + words("< Formula");
    assert_eq!(opened, words("end"), "each block is closed");
    // The commands that the formula calls exist.
    for (command, expected) in [(&["completions", "bash"][..], "complete"), (&["man"], ".TH")] {
        assert!(Workspace::empty().run(command).out.contains(expected), "{command:?}");
    }
    // A syntax check by Ruby, if it is installed.
    if let Ok(checked) = Command::new("ruby").arg("-c").arg(&path).output() {
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn krew_manifest_names_the_archives_with_their_checksums() {
    let workspace = archives();
    let ran = run_script("packages.sh", workspace.root());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = fs::read_to_string(workspace.path("krew.yaml")).expect("a manifest");
    let manifest: Json = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!(manifest["kind"], "Plugin");
    assert_eq!(manifest["metadata"]["name"], "fleetwright");
    assert_eq!(manifest["spec"]["version"], "v9.8.7");
    let short = manifest["spec"]["shortDescription"].as_str().expect("a description");
    assert!(short.len() <= 50 && !short.ends_with('.'), "Krew shows it in a table: {short}");
    let platforms = manifest["spec"]["platforms"].as_array().expect("platforms");
    assert_eq!(platforms.len(), PLATFORMS.len());
    for (platform, (os, arch)) in platforms.iter().zip(PLATFORMS) {
        let labels = serde_json::json!({ "os": os, "arch": arch });
        assert_eq!(platform["selector"]["matchLabels"], labels);
        let (url, checksum) = archive(&workspace, os, arch);
        assert_eq!(platform["uri"], url);
        assert_eq!(platform["sha256"], checksum);
        assert_eq!(platform["bin"], "fleetwright");
    }
}

#[test]
fn archive_holds_the_binary_and_the_license() {
    let workspace = archives();
    let path = workspace.path("fleetwright-linux-arm64.tar.gz");
    let bytes = fs::read(path).expect("an archive");
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
    let entry = |entry: std::io::Result<tar::Entry<'_, _>>| {
        let entry = entry.expect("an entry");
        let name = entry.path().expect("a path").display().to_string();
        (name, entry.header().mode().expect("a mode") & 0o777)
    };
    let entries: Vec<(String, u32)> = archive.entries().expect("entries").map(entry).collect();
    assert_eq!(entries, [("fleetwright".to_owned(), 0o755), ("LICENSE".to_owned(), 0o644)]);
}

#[test]
fn missing_archive_leaves_no_package() {
    let workspace = archives();
    fs::remove_file(workspace.path("fleetwright-linux-arm64.tar.gz")).expect("removed");
    let ran = run_script("packages.sh", workspace.root());
    assert!(!ran.status.success());
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(error.contains("fleetwright-linux-arm64.tar.gz"), "{error}");
    for name in ["fleetwright.rb", "krew.yaml"] {
        assert!(!workspace.path(name).exists(), "{name}");
    }
}

#[test]
fn release_publishes_what_the_installers_download() {
    let (build, release) = (".github/workflows/build.yml", ".github/workflows/release.yml");
    let (build, release, publish) = (read(build), read(release), read(".github/publish.sh"));
    assert!(release.contains("run: .github/packages.sh built\n"));
    for name in ["fleetwright.rb", "krew.yaml", "fleetwright-linux-*", "fleetwright-darwin-*"] {
        assert!(publish.contains(&format!(" built/{name} ")), "{name}");
    }
    let manifest = read("Cargo.toml");
    for (os, arch) in PLATFORMS {
        let name = format!("fleetwright-{os}-{arch}");
        // The build jobs name the architecture in a matrix.
        assert!(build.contains(&format!("fleetwright-{os}-${{{{ matrix.arch }}}}.tar.gz")));
        assert!(build.contains(&format!("          - {{ arch: {arch}, runner: ")), "{arch}");
        assert!(build.contains(&format!("built/fleetwright-{os}-*\n")), "{os} is attested");
        let architecture = if arch == "amd64" { "x86_64" } else { "aarch64" };
        let targets = match os {
            "darwin" => vec!["apple-darwin"],
            _ => vec!["unknown-linux-gnu", "unknown-linux-musl"],
        };
        for target in targets {
            let entry = format!(
                "[package.metadata.binstall.overrides.{architecture}-{target}]\n\
                 pkg-url = \"{{ repo }}/releases/download/v{{ version }}/{name}\"\n"
            );
            assert!(manifest.contains(&entry), "{entry}");
        }
    }
    assert!(manifest.contains("[package.metadata.binstall]\npkg-fmt = \"bin\"\n"));
}

#[test]
fn default_build_has_all_features_and_pages_name_all_packages() {
    let manifest = read("Cargo.toml");
    let (_, features) = manifest.split_once("\n[features]\n").expect("features");
    let default = "default = [\"cluster\", \"live\", \"page\", \"policy\", \"sandbox\"]\n";
    assert!(features.starts_with(default), "{features}");
    let install = read("docs/src/operations/install.md");
    for page in [read("README.md"), install] {
        for way in [
            "brew install fleetwright/tap/fleetwright",
            "kubectl krew install",
            "cargo binstall --git https://github.com/fleetwright/fleetwright fleetwright",
            "cargo install --locked --path .",
            "fleetwright-linux-amd64",
            "-darwin-arm64",
        ] {
            assert!(page.contains(way), "{way}");
        }
    }
}
