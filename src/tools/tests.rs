//! Stand-ins for the tools that do what a tool must not do, and what comes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;
use crate::manifest::{Layer, SetValue, Values};

/// Files by path.
struct Files(BTreeMap<String, Vec<u8>>, BTreeSet<String>);

impl Files {
    fn of(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| ((*path).to_owned(), text.as_bytes().to_vec());
        let paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        Self(files.iter().map(file).collect(), paths)
    }
}

impl Repo for Files {
    fn paths(&self) -> &BTreeSet<String> {
        &self.1
    }

    fn content(&self, path: &str) -> Result<std::sync::Arc<[u8]>, String> {
        self.0.get(path).map(|bytes| bytes.as_slice().into()).ok_or("no such file".to_owned())
    }

    fn is_changed(&self, _: &str) -> bool {
        false
    }
}

/// A machine with these programs, each a script of the shell.
struct Machine {
    folder: TempDir,
    limits: Limits,
}

impl Machine {
    fn new(programs: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("bin")).expect("made");
        let machine =
            Self { folder, limits: Limits { run: Duration::from_secs(20), ..Limits::DEFAULT } };
        for (name, script) in programs {
            machine.program(name, script);
        }
        machine
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.folder.path().join("bin").join(name);
        // Stand-ins find the programs of the shell by their own names only.
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("allowed");
    }

    fn toolbox(&self) -> Toolbox {
        let cache = self.folder.path().join("cache");
        Toolbox::new(vec![self.folder.path().join("bin")], Some(cache), self.limits)
    }

    fn render(&self, files: &[(&str, &str)], order: &Order) -> Result<String, String> {
        let mut made = self.toolbox().render(&Files::of(files), std::slice::from_ref(order));
        let made = made.pop().expect("one answer")?;
        Ok(String::from_utf8_lossy(&made.output).into_owned())
    }
}

fn overlay(path: &str) -> Order {
    Order { path: path.to_owned(), recipe: Recipe::Kustomize(Layer::default()) }
}

fn chart(release: Release) -> Order {
    Order { path: "charts/shop".to_owned(), recipe: Recipe::Helm(release) }
}

const OVERLAY: [(&str, &str); 4] = [
    ("base/kustomization.yaml", "resources: [a.yaml]"),
    ("base/a.yaml", "kind: A"),
    ("prod/kustomization.yaml", "resources: [../base]\npatches: [{path: p.yaml}]"),
    ("prod/p.yaml", "kind: P"),
];

const KUSTOMIZE: &str = "case $1 in version) echo v5.9.9; exit;; esac\n";

#[test]
fn a_missing_tool_is_named() {
    let machine = Machine::new(&[]);
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("there is none");
    assert_eq!(why, "neither `kustomize` nor `kubectl` is on the PATH; install one of them");
    let files = [("charts/shop/Chart.yaml", "name: shop")];
    let why = machine.render(&files, &chart(Release::default())).expect_err("there is none");
    assert_eq!(why, "`helm` is not on the PATH; install it");
}

#[test]
fn a_tool_that_fails_says_why_on_one_line_without_its_folder() {
    let script = format!(
        "{KUSTOMIZE}printf 'Error: accumulating\\n  %s: no such file\\n' \"$PWD/../tree/prod\" >&2; exit 3"
    );
    let machine = Machine::new(&[("kustomize", &script)]);
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it fails");
    assert_eq!(why, "kustomize failed (exit status: 3): accumulating /top/prod: no such file");
    let long = format!("{KUSTOMIZE}head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1");
    machine.program("kustomize", &long);
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it fails");
    assert!(why.len() < 400, "{why}");
}

#[test]
fn a_tool_that_hangs_is_ended_with_all_that_it_started() {
    let mut machine = Machine::new(&[]);
    let mark = machine.folder.path().join("alive");
    let script = format!("{KUSTOMIZE}(sleep 2; touch '{}') & sleep 60 & sleep 60", mark.display());
    machine.program("kustomize", &script);
    machine.limits.run = Duration::from_millis(500);
    let began = Instant::now();
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it hangs");
    assert_eq!(why, "kustomize did not end within 1 s");
    assert!(began.elapsed() < Duration::from_secs(10));
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(!mark.exists(), "what it started is ended too");
}

#[test]
fn a_tool_whose_version_hangs_or_fails_is_no_tool() {
    let mut machine = Machine::new(&[("kubectl", "sleep 60")]);
    machine.limits.run = Duration::from_millis(300);
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it hangs");
    assert_eq!(why, "`kubectl version` did not end within 1 s");
    machine.program("kubectl", "echo no >&2; exit 1");
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it fails");
    assert_eq!(why, "`kubectl version` failed (exit status: 1): no");
    machine.program("kubectl", "echo what");
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it says nothing of use");
    assert_eq!(why, "`kubectl version` does not say its version");
}

#[test]
fn a_tool_that_writes_without_end_is_ended() {
    let mut machine = Machine::new(&[("kustomize", &format!("{KUSTOMIZE}yes"))]);
    machine.limits.output_bytes = 100_000;
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it does not end");
    assert_eq!(why, "kustomize writes more than 100000 bytes");
}

#[cfg(target_os = "linux")]
#[test]
fn a_tool_cannot_take_all_memory() {
    let script =
        format!("{KUSTOMIZE}sleep 1; x=$(head -c 400000000 /dev/zero | tr '\\0' x); echo got");
    let mut machine = Machine::new(&[("kustomize", &script)]);
    machine.limits.memory_bytes = 64 << 20;
    let why = machine.render(&OVERLAY, &overlay("prod")).expect_err("it gets no more");
    assert!(why.starts_with("kustomize failed ("), "{why}");
}

#[test]
fn a_tool_sees_the_files_that_it_needs_and_nothing_else() {
    let script =
        format!("{KUSTOMIZE}env | cut -d= -f1 | sort | tr '\\n' ' '; cd ..; find . -type f | sort");
    let machine = Machine::new(&[("kustomize", &script)]);
    let secret =
        [("prod/unused.yaml", "kind: X"), ("secret.txt", "s"), ("other/kustomization.yaml", "")];
    let seen = machine.render(&[&OVERLAY[..], &secret].concat(), &overlay("prod")).expect("seen");
    let (variables, files) = seen.split_once("./").expect("both");
    assert_eq!(
        format!("./{files}"),
        "./top/kustomization.yaml\n./tree/base/a.yaml\n./tree/base/kustomization.yaml\n\
         ./tree/prod/kustomization.yaml\n./tree/prod/p.yaml\n"
    );
    for name in ["AWS_ACCESS_KEY_ID", "CARGO", "USER", "SSH_AUTH_SOCK", "GITHUB_TOKEN"] {
        assert!(!variables.split(' ').any(|seen| seen == name), "{variables}");
    }
    for name in ["HOME", "HTTPS_PROXY", "KUBECONFIG"] {
        assert!(variables.split(' ').any(|seen| seen == name), "{variables}");
    }
}

#[test]
fn a_result_is_kept_until_a_file_the_order_or_the_tool_changes() {
    let machine = Machine::new(&[]);
    let count = machine.folder.path().join("count");
    let script = format!("echo x >> '{}'; echo kind: A", count.display());
    machine.program("kustomize", &format!("{KUSTOMIZE}{script}"));
    let runs = || fs::read_to_string(&count).unwrap_or_default().lines().count();
    let render = |files: &[(&str, &str)], order: &Order| {
        assert_eq!(machine.render(files, order).as_deref(), Ok("kind: A\n"));
        runs()
    };
    assert_eq!(render(&OVERLAY, &overlay("prod")), 1);
    assert_eq!(render(&OVERLAY, &overlay("prod")), 1, "kept");
    let mut other = OVERLAY;
    other[1].1 = "kind: B";
    assert_eq!(render(&other, &overlay("prod")), 2, "a base changed");
    let unrelated = [&OVERLAY[..], &[("prod/readme.txt", "x")]].concat();
    assert_eq!(render(&unrelated, &overlay("prod")), 2, "what it cannot see does not count");
    let layer = Layer { namespace: Some("x".to_owned()), ..Layer::default() };
    let order = Order { path: "prod".to_owned(), recipe: Recipe::Kustomize(layer) };
    assert_eq!(render(&OVERLAY, &order), 3, "another order");
    for entry in fs::read_dir(machine.folder.path().join("cache")).expect("listed") {
        let path = entry.expect("listed").path();
        fs::write(&path, "cut off").expect("written");
    }
    assert_eq!(render(&OVERLAY, &overlay("prod")), 4, "an altered entry counts as absent");
    machine
        .program("kustomize", &format!("case $1 in version) echo v6.0.0; exit;; esac\n{script}"));
    assert_eq!(render(&OVERLAY, &overlay("prod")), 5, "another version");
}

#[test]
fn what_failed_is_not_kept() {
    let machine = Machine::new(&[("kustomize", &format!("{KUSTOMIZE}exit 1"))]);
    assert!(machine.render(&OVERLAY, &overlay("prod")).is_err());
    machine.program("kustomize", &format!("{KUSTOMIZE}echo kind: A"));
    assert!(machine.render(&OVERLAY, &overlay("prod")).is_ok());
}

#[test]
fn helm_gets_release_namespace_and_values_as_words_of_their_own() {
    let script = "case $1 in version) echo v4.0.0; exit;; esac\n\
                  for word; do echo \"[$word]\"; done; cat values-*.yaml";
    let machine = Machine::new(&[("helm", script)]);
    let files = [
        ("charts/shop/Chart.yaml", "name: shop"),
        ("charts/shop/prod,eu.yaml", "a: 1\n"),
        ("charts/shop/templates/_x.tpl", ""),
    ];
    let release = Release {
        name: "--post-renderer=/bin/sh".to_owned(),
        namespace: "web".to_owned(),
        values: vec![
            Values::File("charts/shop/prod,eu.yaml".to_owned()),
            Values::OptionalFile("charts/shop/none.yaml".to_owned()),
            Values::Text("{\"b\":2}\n".to_owned()),
        ],
        replaces_values: false,
        set: vec![SetValue { name: "c".to_owned(), value: "x\\,d=y".to_owned(), is_text: true }],
    };
    assert_eq!(
        machine.render(&files, &chart(release)).as_deref(),
        Ok("[template]\n[--namespace=web]\n[--skip-tests]\n[--values=values-0.yaml]\n\
            [--values=values-2.yaml]\n[--set-string=c=x\\,d=y]\n[--]\n[--post-renderer=/bin/sh]\n\
            [../tree/charts/shop]\na: 1\n{\"b\":2}\n")
    );
    let missing = Release {
        values: vec![Values::File("charts/shop/none.yaml".to_owned())],
        ..Release::default()
    };
    let why = machine.render(&files, &chart(missing)).expect_err("no such file");
    assert_eq!(why, "there is no values file `charts/shop/none.yaml`");
}

#[test]
fn many_orders_are_answered_in_their_order_and_all_together_have_an_end() {
    let mut machine = Machine::new(&[("kustomize", &format!("{KUSTOMIZE}cat kustomization.yaml"))]);
    let names: Vec<String> = (0..20).map(|n| format!("o{n}/kustomization.yaml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let orders: Vec<Order> = (0..20).map(|n| overlay(&format!("o{n}"))).collect();
    let made = machine.toolbox().render(&Files::of(&files), &orders);
    for (n, made) in made.into_iter().enumerate() {
        let text = String::from_utf8(made.expect("made").output.to_vec()).expect("text");
        assert!(text.contains(&format!("../tree/o{n}\"")), "{text}");
    }
    machine.program("kustomize", "case $1 in version) echo v9.0.0; exit;; esac\nsleep 60");
    machine.limits.total = Duration::from_millis(600);
    let began = Instant::now();
    let made = machine.toolbox().render(&Files::of(&files), &orders);
    assert!(made.iter().all(Result::is_err) && began.elapsed() < Duration::from_secs(20));
    let last = made.last().expect("many").as_ref().expect_err("late");
    assert!(last.starts_with("not rendered: all tools together took over"), "{last}");
}

#[test]
fn what_leads_out_of_the_repository_or_to_elsewhere_is_refused_before_any_tool_runs() {
    let machine = Machine::new(&[("kustomize", &format!("{KUSTOMIZE}echo it ran"))]);
    let overlay_of = |text: &str| {
        let files = [("prod/kustomization.yaml", text), ("base/kustomization.yaml", "")];
        machine.render(&files, &overlay("prod"))
    };
    for (text, expected) in [
        ("resources: [../../../etc]", "leads to `../../../etc`, outside the directory"),
        ("bases: [/etc]", "leads to `/etc`, outside the directory"),
        ("components: [../../x]", "leads to `../../x`, outside the directory"),
        ("generators: [../base, ../../x]", "leads to `../../x`, outside the directory"),
        ("resources: ['https://x.y/z']", "takes `https://x.y/z` from elsewhere"),
        ("resources: [github.com/x/y]", "takes `github.com/x/y` from elsewhere"),
        ("resources: ['git@x.y:a/b']", "takes `git@x.y:a/b` from elsewhere"),
        ("bases: ['x.y/a/b?ref=v1']", "takes `x.y/a/b?ref=v1` from elsewhere"),
        ("patches: [{path: 'https://x.y/p'}]", "takes `https://x.y/p` from elsewhere"),
        ("configMapGenerator: [{files: ['k=https://x.y/p']}]", "takes `k=https://x.y/p` from"),
        ("openapi: {path: 'http://x.y/p'}", "takes `http://x.y/p` from elsewhere"),
        ("helmCharts: [{name: x}]", "takes `helmCharts` from elsewhere"),
    ] {
        let why = overlay_of(text).expect_err("refused");
        assert!(why.starts_with("prod/kustomization.yaml ") && why.contains(expected), "{why}");
    }
    // What is no path is no way out.
    let harmless = "resources: [../base]\ncommonAnnotations: {a: 'https://x.y/z'}\n\
                    configMapGenerator: [{literals: ['a=https://x.y']}]\npatches: [{patch: 'a: ../../x'}]";
    assert_eq!(overlay_of(harmless).as_deref(), Ok("it ran\n"));
    // Nor does it help to have the kustomization taken for a file first.
    let files = [
        ("base/kustomization.yaml", "resources: [../../../etc]"),
        ("prod/kustomization.yaml", "x: ../base/kustomization.yaml\nresources: [../base]"),
    ];
    assert!(machine.render(&files, &overlay("prod")).is_err());
}

#[test]
fn a_tool_that_ran_with_a_network_says_so_in_what_it_made() {
    let machine = Machine::new(&[("kustomize", &format!("{KUSTOMIZE}echo kind: A"))]);
    for (cage, tool) in [
        (Cage::open(), "kustomize v5.9.9, with a network"),
        (Cage::find(&[PathBuf::from("/usr/bin")]), "kustomize v5.9.9"),
    ] {
        let is_closed = cage.is_closed();
        let toolbox = machine.toolbox();
        toolbox.cage.set(cage).expect("not set before");
        assert_eq!(toolbox.is_confined(), is_closed);
        let made = toolbox.render(&Files::of(&OVERLAY), &[overlay("prod")]).remove(0);
        let expected = if is_closed { tool } else { "kustomize v5.9.9, with a network" };
        assert_eq!(made.expect("made").tool, expected);
    }
}

#[test]
fn values_that_take_the_place_of_the_charts_own_leave_none_of_it() {
    let script = "case $1 in version) echo v4.0.0; exit;; esac\n\
                  cat ../tree/charts/shop/values.yaml; echo -; cat values-*.yaml";
    let machine = Machine::new(&[("helm", script)]);
    let files = [("charts/shop/Chart.yaml", "name: shop"), ("charts/shop/values.yaml", "a: 1\n")];
    for (replaces_values, expected) in [(false, "a: 1\n-\na: 1\n"), (true, "-\na: 1\n")] {
        let values = vec![Values::File("charts/shop/values.yaml".to_owned())];
        let release = Release { replaces_values, values, ..Release::default() };
        assert_eq!(machine.render(&files, &chart(release)).as_deref(), Ok(expected));
    }
}

#[test]
fn a_tool_of_unknown_version_is_run_each_time() {
    let machine = Machine::new(&[]);
    let count = machine.folder.path().join("count");
    let script = format!("echo x >> '{}'; echo kind: A", count.display());
    machine.program("kustomize", &format!("case $1 in version) echo what; exit;; esac\n{script}"));
    for runs in 1..=2 {
        assert!(machine.render(&OVERLAY, &overlay("prod")).is_ok());
        assert_eq!(fs::read_to_string(&count).expect("run").lines().count(), runs);
    }
}

#[test]
fn all_runs_together_write_no_more_than_they_may() {
    let mut machine = Machine::new(&[("kustomize", &format!("{KUSTOMIZE}head -c 900 /dev/zero"))]);
    machine.limits.total_output_bytes = 2_000;
    let names: Vec<String> = (0..4).map(|n| format!("o{n}/kustomization.yaml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let orders: Vec<Order> = (0..4).map(|n| overlay(&format!("o{n}"))).collect();
    let toolbox = machine.toolbox();
    assert!(toolbox.render(&Files::of(&files), &orders[..2]).iter().all(Result::is_ok));
    for made in toolbox.render(&Files::of(&files), &orders) {
        assert_eq!(made, Err(toolbox.too_much()), "whichever came first");
    }
}

#[test]
fn what_kubectl_logs_is_the_same_text_on_each_run() {
    for (said, kept) in [
        ("E1102 12:00:00.123456    4711 main.go:47] it broke", "it broke"),
        ("W0101 00:00:00.000000       1 x/y.go:1] a] b\nplain", "a] b\nplain"),
        ("Error: E1102 is no such thing", "Error: E1102 is no such thing"),
        (
            "E1102 12:00 47 main.go:1] too short a time",
            "E1102 12:00 47 main.go:1] too short a time",
        ),
    ] {
        assert_eq!(without_log_heads(said), kept);
    }
}
