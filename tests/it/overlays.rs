//! Sources that renderers produce, with fake renderers that print recorded output of `tools/`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::binary::Workspace;

const PLAN: [&str; 3] = ["plan", "--at", "2026-09-01T10:00:00Z"];

/// Returns the directory of the fake renderers. Each prints its recording from its own text, because
/// a renderer cannot read other files.
pub(crate) fn fake_tools() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let made = DIRECTORY.get_or_init(|| {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tools");
        let process = std::process::id();
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-tools-{process}"));
        std::fs::create_dir_all(&to).expect("a directory");
        let read = |name: &str| std::fs::read_to_string(from.join(name)).expect("a file");
        for name in ["helm", "kubectl", "unshare"] {
            let mut script = read(name);
            for recording in ["overlays-prod.yaml", "worker.yaml"] {
                let text = format!("<<'RECORDING'\n{}RECORDING", read(recording));
                script = script.replace(&format!("<\"$here/{recording}\""), &text);
            }
            std::fs::write(to.join(name), script).expect("written");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(to.join(name), mode).expect("allowed");
        }
        to
    });
    made.clone()
}

/// Returns the example, with `path` as the only directory of programs.
fn example(path: &Path) -> Workspace {
    let mut workspace = Workspace::example("overlays");
    workspace.variables.insert("PATH".to_owned(), path.display().to_string());
    workspace
        .variables
        .insert("XDG_CACHE_HOME".to_owned(), workspace.path("cache").display().to_string());
    workspace
}

fn program(workspace: &Workspace, name: &str, script: &str) {
    workspace.write(&format!("bin/{name}"), &format!("#!/bin/sh\n{script}\n"));
    let path = workspace.path(&format!("bin/{name}"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("allowed");
}

#[test]
fn rendered_manifests_are_planned_and_renderers_recorded() {
    let workspace = example(&fake_tools());
    let ran = workspace.run(&[&PLAN[..], &["--format", "json"]].concat());
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    let plan: Value = serde_json::from_str(&ran.out).expect("a plan");
    let capacity = &plan["capacity"];
    assert_eq!(capacity["pods"]["total"], 13, "{}", capacity["demand"]);
    assert_eq!(capacity["pods"]["unresolved"], 0);
    let rendered = capacity["base"]["rendered"].as_array().expect("rows");
    let row = |row: &Value| format!("{} {}", row["path"], row["tool"]).replace('"', "");
    assert_eq!(
        rendered.iter().map(row).collect::<Vec<_>>(),
        ["apps/overlays/prod kustomize v5.8.1 (kubectl)", "charts/worker helm v4.2.3"]
    );
    let demand = capacity["demand"].as_array().expect("rows");
    let files: Vec<&str> = demand.iter().filter_map(|row| row["origin"]["file"].as_str()).collect();
    assert_eq!(
        files,
        [
            "cluster/import.yaml",
            "charts/worker/templates/deployment.yaml",
            "charts/worker/templates/migrate.yaml",
            "apps/base/web.yaml"
        ]
    );
    let again = workspace.run(&[&PLAN[..], &["--format", "json"]].concat());
    assert_eq!(again.out, ran.out, "the cached result is equal");
}

#[test]
fn failed_renderer_leaves_source_unresolved_and_nodes_kept() {
    let workspace = example(&fake_tools());
    let world = ["--world", "sim:world"];
    let applied =
        workspace.run(&[&["apply", ".", "--auto-approve"][..], &PLAN[1..], &world].concat());
    assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);

    let mut absent = workspace;
    absent.write("empty/none", "");
    let nowhere = absent.path("empty").display().to_string();
    absent.variables.insert("PATH".to_owned(), nowhere);
    let validated = absent.run(&["validate"]);
    assert_eq!(validated.code, Some(1), "{}", validated.out);
    assert!(validated.out.contains(
        "error: fleetwright.yaml:10: source apps/overlays/prod: is not counted: neither \
         `kustomize` nor `kubectl` is on the PATH; install one of them"
    ));
    assert!(validated.out.contains("2 sources not read"), "{}", validated.out);
    let plan = |workspace: &Workspace| {
        let ran = workspace.run(&[&["plan", "--format", "json"][..], &world].concat());
        serde_json::from_str::<Value>(&ran.out).unwrap_or_else(|_| panic!("{}", ran.err))
    };
    let unknown = plan(&absent);
    assert_eq!(unknown["capacity"]["pods"]["unresolved"], 2);
    // The 12 running pods keep their capacity, also those of the sources.
    assert_eq!(unknown["capacity"]["pods"]["placed"], 12);

    program(&absent, "kubectl", "echo 'Error: \u{1b}[31mno' >&2; exit 1");
    program(&absent, "helm", "echo v4.0.0; [ \"$1\" = version ] || exit 3");
    let bin = absent.path("bin").display().to_string();
    absent.variables.insert("PATH".to_owned(), bin);
    let failing = absent.run(&["validate"]);
    assert!(failing.out.contains("`kubectl version` failed (exit status: 1)"), "{}", failing.out);
    assert!(failing.out.contains("helm failed (exit status: 3): no error output"));
    assert!(!failing.out.contains('\u{1b}'), "the output of a tool is escaped");
    assert_eq!(plan(&absent)["capacity"]["pods"]["placed"], 12);
}

#[test]
fn commit_is_rendered_without_changing_the_work_tree() {
    let workspace = example(&fake_tools());
    let repository = git2::Repository::init(workspace.root()).expect("made");
    let mut index = repository.index().expect("an index");
    index.add_all(["*"], git2::IndexAddOption::DEFAULT, None).expect("added");
    let tree = repository.find_tree(index.write_tree().expect("written")).expect("a tree");
    let author = git2::Signature::new("a", "a@b", &git2::Time::new(0, 0)).expect("a signature");
    repository.commit(Some("HEAD"), &author, &author, "first", &tree, &[]).expect("committed");
    std::fs::remove_dir_all(workspace.path("apps")).expect("removed");
    std::fs::remove_dir_all(workspace.path("charts")).expect("removed");
    let ran = workspace.run(&[&PLAN[..], &["--ref", "HEAD", "--format", "json"]].concat());
    let plan: Value = serde_json::from_str(&ran.out).expect("a plan");
    assert_eq!(plan["capacity"]["pods"]["total"], 13, "{}", ran.err);
    assert!(!workspace.path("apps").exists());
}

#[test]
fn destination_of_a_rendered_application_can_be_chosen() {
    let mut workspace = Workspace::empty();
    let url = "https://git.example.com/fleet.git";
    let application = |name: &str, server: &str| {
        format!(
            "{{apiVersion: argoproj.io/v1alpha1, kind: Application, metadata: {{name: {name}}}, \
             spec: {{source: {{repoURL: {url}, path: {name}}}, destination: {{server: {server}}}}}}}"
        )
    };
    let server = "https://0123456789ABCDEF0123456789ABCDEF.gr7.us-west-2.eks.amazonaws.com";
    workspace.write("root.yaml", &application("apps", "https://kubernetes.default.svc"));
    workspace.write("apps/Chart.yaml", "{apiVersion: v2, name: apps, version: 1.0.0}\n");
    workspace.write("apps/templates/web.yaml", "{{ .Values.text }}\n");
    workspace.write("web/a.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n");
    let output = format!("# Source: apps/templates/web.yaml\n{}", application("web", server));
    let script = format!("[ \"$1\" = version ] && echo v4.2.3 || echo '---\n{output}'");
    program(&workspace, "helm", &script);
    for (name, directory) in [("PATH", "bin"), ("XDG_CACHE_HOME", "cache")] {
        let directory = workspace.path(directory).display().to_string();
        workspace.variables.insert(name.to_owned(), directory);
    }
    let repository = git2::Repository::init(workspace.root()).expect("made");
    repository.remote("origin", url).expect("a remote");

    let validated = workspace.run(&["validate"]);
    let unknown = format!("it is unknown whether its destination `{server}` is this cluster");
    assert!(validated.out.contains(&unknown), "{}", validated.out);
    let hint = format!("fleetwright init --destination {server}");
    assert!(validated.out.contains(&hint), "{}", validated.out);
    let ran = workspace.run(&["init", "--destination", server]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let settings = workspace.read("fleetwright.yaml");
    assert!(settings.contains(&format!("    clusters:\n      - \"{server}\"\n")), "{settings}");
}
