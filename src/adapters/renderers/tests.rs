//! Tests with fake tools that misbehave.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use super::*;
use crate::model::desired::{ExternalSource, ExternalSources, Layer, SetValue, SourceKind, Values};

struct TestRepo(BTreeMap<String, Vec<u8>>, BTreeSet<String>, ExternalSources);

impl TestRepo {
    fn new(files: &[(&str, &str)]) -> Self {
        let file = |(path, text): &(&str, &str)| ((*path).to_owned(), text.as_bytes().to_vec());
        let paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        Self(files.iter().map(file).collect(), paths, ExternalSources::default())
    }
}

impl RepositoryFiles for TestRepo {
    fn paths(&self) -> &BTreeSet<String> {
        &self.1
    }

    fn content(&self, path: &str) -> Result<std::sync::Arc<[u8]>, String> {
        self.0.get(path).map(|bytes| bytes.as_slice().into()).ok_or("no such file".to_owned())
    }

    fn is_changed(&self, _: &str) -> bool {
        false
    }

    fn external_directory(&self, source: &ExternalSource) -> Result<String, String> {
        self.2.directory(source)
    }
}

/// A directory with fake tools, each a shell script.
struct TestTools {
    folder: TempDir,
    limits: RendererLimits,
    /// True to let tools write a mark outside of their directory.
    without_isolation: bool,
}

impl TestTools {
    fn new(programs: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("bin")).expect("made");
        let tools = Self {
            folder,
            limits: RendererLimits { run: Duration::from_secs(20), ..RendererLimits::DEFAULT },
            without_isolation: false,
        };
        for (name, script) in programs {
            tools.program(name, script);
        }
        tools
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.folder.path().join("bin").join(name);
        // Fake tools only find programs of the shell by name.
        fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("allowed");
    }

    fn toolbox(&self) -> Renderers {
        let cache = self.folder.path().join("cache");
        let tools = Renderers::new(vec![self.folder.path().join("bin")], Some(cache), self.limits);
        if self.without_isolation {
            let sandbox = ProcessSandbox::without_isolation();
            tools.sandbox.set(sandbox).expect("not set before");
        }
        tools
    }

    fn render(&self, files: &[(&str, &str)], order: &RenderRequest) -> Result<String, String> {
        let mut rendered =
            self.toolbox().render(&TestRepo::new(files), std::slice::from_ref(order));
        let rendered = rendered.pop().expect("one answer")?;
        Ok(String::from_utf8_lossy(&rendered.output).into_owned())
    }
}

fn overlay(path: &str) -> RenderRequest {
    RenderRequest { path: path.to_owned(), recipe: Recipe::Kustomize(Layer::default()) }
}

fn chart(release: Release) -> RenderRequest {
    RenderRequest { path: "charts/shop".to_owned(), recipe: Recipe::Helm(release) }
}

const OVERLAY: [(&str, &str); 4] = [
    ("base/kustomization.yaml", "resources: [a.yaml]"),
    ("base/a.yaml", "kind: A"),
    ("prod/kustomization.yaml", "resources: [../base]\npatches: [{path: p.yaml}]"),
    ("prod/p.yaml", "kind: P"),
];

const KUSTOMIZE: &str = "case $1 in version) echo v5.9.9; exit;; esac\n";

#[test]
fn missing_tool_is_named() {
    let tools = TestTools::new(&[]);
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("there is none");
    assert_eq!(why, "neither `kustomize` nor `kubectl` is on the PATH; install one of them");
    let files = [("charts/shop/Chart.yaml", "name: shop")];
    let why = tools.render(&files, &chart(Release::default())).expect_err("there is none");
    assert_eq!(why, "`helm` is not on the PATH; install it");
}

#[test]
fn tool_failure_is_one_line_without_its_directory() {
    let script = format!(
        "{KUSTOMIZE}printf 'Error: accumulating\\n  %s: no such file\\n' \"$PWD/../tree/prod\" >&2; exit 3"
    );
    let tools = TestTools::new(&[("kustomize", &script)]);
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it fails");
    assert_eq!(why, "kustomize failed (exit status: 3): accumulating /top/prod: no such file");
    let long = format!("{KUSTOMIZE}head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1");
    tools.program("kustomize", &long);
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it fails");
    assert!(why.len() < 400, "{why}");
}

#[test]
fn hanging_tool_is_killed_with_its_children() {
    let mut tools = TestTools::new(&[]);
    let mark = tools.folder.path().join("alive");
    let script = format!("{KUSTOMIZE}(sleep 2; touch '{}') & sleep 60 & sleep 60", mark.display());
    tools.program("kustomize", &script);
    tools.limits.run = Duration::from_millis(500);
    let began = Instant::now();
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it hangs");
    assert_eq!(why, "kustomize did not end within 1 s");
    assert!(began.elapsed() < Duration::from_secs(10));
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(!mark.exists(), "what it started is ended too");
}

#[test]
fn tool_with_failing_version_is_unusable() {
    let mut tools = TestTools::new(&[("kubectl", "sleep 60")]);
    tools.limits.run = Duration::from_millis(300);
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it hangs");
    assert_eq!(why, "`kubectl version` did not end within 1 s");
    tools.program("kubectl", "echo no >&2; exit 1");
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it fails");
    assert_eq!(why, "`kubectl version` failed (exit status: 1): no");
    tools.program("kubectl", "echo what");
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it says nothing of use");
    assert_eq!(why, "`kubectl version` printed no version");
}

#[test]
fn tool_output_is_limited() {
    let mut tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}yes"))]);
    tools.limits.output_bytes = 100_000;
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it does not end");
    assert_eq!(why, "kustomize writes more than 100000 bytes");
}

#[cfg(target_os = "linux")]
#[test]
fn tool_memory_is_limited() {
    let script =
        format!("{KUSTOMIZE}sleep 1; x=$(head -c 400000000 /dev/zero | tr '\\0' x); echo got");
    let mut tools = TestTools::new(&[("kustomize", &script)]);
    tools.limits.memory_bytes = 64 << 20;
    let why = tools.render(&OVERLAY, &overlay("prod")).expect_err("it gets no more");
    assert!(why.starts_with("kustomize failed ("), "{why}");
}

#[test]
fn tool_sees_only_required_files() {
    let script =
        format!("{KUSTOMIZE}env | cut -d= -f1 | sort | tr '\\n' ' '; cd ..; find . -type f | sort");
    let tools = TestTools::new(&[("kustomize", &script)]);
    let secret =
        [("prod/unused.yaml", "kind: X"), ("secret.txt", "s"), ("other/kustomization.yaml", "")];
    let seen = tools.render(&[&OVERLAY[..], &secret].concat(), &overlay("prod")).expect("seen");
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
fn result_is_cached_until_an_input_changes() {
    let tools = TestTools { without_isolation: true, ..TestTools::new(&[]) };
    let count = tools.folder.path().join("count");
    let script = format!("echo x >> '{}'; echo kind: A", count.display());
    tools.program("kustomize", &format!("{KUSTOMIZE}{script}"));
    let runs = || fs::read_to_string(&count).unwrap_or_default().lines().count();
    let render = |files: &[(&str, &str)], order: &RenderRequest| {
        assert_eq!(tools.render(files, order).as_deref(), Ok("kind: A\n"));
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
    let order = RenderRequest { path: "prod".to_owned(), recipe: Recipe::Kustomize(layer) };
    assert_eq!(render(&OVERLAY, &order), 3, "another order");
    for entry in fs::read_dir(tools.folder.path().join("cache")).expect("listed") {
        let path = entry.expect("listed").path();
        fs::write(&path, "cut off").expect("written");
    }
    assert_eq!(render(&OVERLAY, &overlay("prod")), 4, "an altered entry counts as absent");
    tools.program("kustomize", &format!("case $1 in version) echo v6.0.0; exit;; esac\n{script}"));
    assert_eq!(render(&OVERLAY, &overlay("prod")), 5, "another version");
}

#[test]
fn tools_without_cache_ignore_cached_results() {
    let tools = TestTools::new(&[]);
    tools.program("kustomize", &format!("{KUSTOMIZE}echo kind: A"));
    assert_eq!(tools.render(&OVERLAY, &overlay("prod")).as_deref(), Ok("kind: A\n"));
    // Another job writes its own result under the same inputs.
    for entry in fs::read_dir(tools.folder.path().join("cache")).expect("listed") {
        let forged = b"kind: Forged\n";
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(forged));
        let text = format!("{digest}\n{}", String::from_utf8_lossy(forged));
        fs::write(entry.expect("listed").path(), text).expect("written");
    }
    assert_eq!(tools.render(&OVERLAY, &overlay("prod")).as_deref(), Ok("kind: Forged\n"));
    let order = overlay("prod");
    let toolbox = tools.toolbox().without_cache();
    let mut rendered = toolbox.render(&TestRepo::new(&OVERLAY), std::slice::from_ref(&order));
    let rendered = rendered.pop().expect("one answer").expect("rendered");
    assert_eq!(String::from_utf8_lossy(&rendered.output), "kind: A\n");
}

#[test]
fn failures_are_not_cached() {
    let tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}exit 1"))]);
    assert!(tools.render(&OVERLAY, &overlay("prod")).is_err());
    tools.program("kustomize", &format!("{KUSTOMIZE}echo kind: A"));
    assert!(tools.render(&OVERLAY, &overlay("prod")).is_ok());
}

#[test]
fn helm_arguments_are_separate_words() {
    let script = "case $1 in version) echo v4.0.0; exit;; esac\n\
                  for word; do echo \"[$word]\"; done; cat values-*.yaml";
    let tools = TestTools::new(&[("helm", script)]);
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
        skips_schema: true,
    };
    assert_eq!(
        tools.render(&files, &chart(release)).as_deref(),
        Ok(
            "[template]\n[--namespace=web]\n[--skip-tests]\n[--skip-schema-validation]\n[--values=values-0.yaml]\n\
            [--values=values-2.yaml]\n[--set-string=c=x\\,d=y]\n[--]\n[--post-renderer=/bin/sh]\n\
            [../tree/charts/shop]\na: 1\n{\"b\":2}\n"
        )
    );
    let missing = Release {
        values: vec![Values::File("charts/shop/none.yaml".to_owned())],
        ..Release::default()
    };
    let why = tools.render(&files, &chart(missing)).expect_err("no such file");
    assert_eq!(why, "values file `charts/shop/none.yaml` does not exist");
}

#[test]
fn renderings_keep_order_and_share_a_deadline() {
    let mut tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}cat kustomization.yaml"))]);
    let names: Vec<String> = (0..20).map(|n| format!("o{n}/kustomization.yaml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let orders: Vec<RenderRequest> = (0..20).map(|n| overlay(&format!("o{n}"))).collect();
    let rendered = tools.toolbox().render(&TestRepo::new(&files), &orders);
    for (n, rendered) in rendered.into_iter().enumerate() {
        let text = String::from_utf8(rendered.expect("made").output.to_vec()).expect("text");
        assert!(text.contains(&format!("../tree/o{n}\"")), "{text}");
    }
    tools.program("kustomize", "case $1 in version) echo v9.0.0; exit;; esac\nsleep 60");
    tools.limits.total = Duration::from_millis(600);
    let began = Instant::now();
    let rendered = tools.toolbox().render(&TestRepo::new(&files), &orders);
    assert!(rendered.iter().all(Result::is_err) && began.elapsed() < Duration::from_secs(20));
    let last = rendered.last().expect("many").as_ref().expect_err("late");
    assert!(last.starts_with("not rendered: all tools together took more than"), "{last}");
}

#[test]
fn outside_and_remote_references_are_refused() {
    let tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}echo it ran"))]);
    let overlay_of = |text: &str| {
        let files = [("prod/kustomization.yaml", text), ("base/kustomization.yaml", "")];
        tools.render(&files, &overlay("prod"))
    };
    for (text, expected) in [
        ("resources: [../../../etc]", "loads `../../../etc`, outside the directory"),
        ("bases: [/etc]", "loads `/etc`, outside the directory"),
        ("components: [../../x]", "loads `../../x`, outside the directory"),
        ("generators: [../base, ../../x]", "loads `../../x`, outside the directory"),
        ("resources: ['https://u:p@x.y/z?t=p']", "loads `https://x.y/z`, which is neither a file"),
        ("bases: ['x.y/a/b?ref=v1']", "loads `x.y/a/b`, which is neither a file"),
        ("patches: [{path: 'https://x.y/p'}]", "loads `https://x.y/p`, which is neither a file"),
        ("configMapGenerator: [{files: ['k=https://x.y/p']}]", "loads `k=https://x.y/p`, which"),
        ("openapi: {path: 'http://x.y/p'}", "loads `http://x.y/p`, which is neither a file"),
        ("helmCharts: [{name: x}]", "uses the chart `prod/charts/x`, which is absent"),
        ("helmChartInflationGenerator: []", "write it as helmCharts"),
        // Kustomize compares keys without case.
        ("Resources: [../../../etc]", "loads `../../../etc`, outside the directory"),
        ("re\u{17f}ources: [../../../etc]", "loads `../../../etc`, outside the directory"),
        ("resources: []\nRESOURCES: ['https://x.y/z']", "loads `https://x.y/z`, which is neither"),
        ("Patches: [{Path: 'https://x.y/p'}]", "loads `https://x.y/p`, which is neither a file"),
        ("patches: ['https://x.y/p']", "loads `https://x.y/p`, which is neither a file"),
        ("HelmCharts: [{name: x}]", "uses the chart `prod/charts/x`, which is absent"),
        ("plugins: [x]", "has the key `plugins`, which kustomize does not know"),
        ("resources: [a\n", "cannot be parsed: line"),
    ] {
        let why = overlay_of(text).expect_err("refused");
        assert!(why.starts_with("prod/kustomization.yaml ") && why.contains(expected), "{why}");
    }
    for (text, expected) in [
        ("resources: [github.com/x/y]", "revision HEAD of https://github.com/x/y is not in"),
        ("resources: ['git@x.y:a/b']", "revision HEAD of git@x.y:a/b is not in"),
        ("helmCharts: [{name: x, repo: 'https://c.io', version: 1.0.0}]", "chart x 1.0.0 of"),
    ] {
        let why = overlay_of(text).expect_err("it is not locked");
        assert!(why.starts_with(expected) && why.contains("sources update"), "{why}");
    }
    // Texts that are not paths are harmless.
    let harmless = "resources: [../base]\ncommonAnnotations: {a: 'https://x.y/z'}\n\
                    configMapGenerator: [{literals: ['a=https://x.y']}]\npatches: [{patch: 'a: ../../x'}]";
    assert_eq!(overlay_of(harmless).as_deref(), Ok("it ran\n"));
    let other_case = "Resources: [../base]\nNamePrefix: a-";
    assert_eq!(overlay_of(other_case).as_deref(), Ok("it ran\n"), "the base is copied");
    // A kustomization that is first loaded as a file is checked as well.
    let files = [
        ("base/kustomization.yaml", "resources: [../../../etc]"),
        ("prod/kustomization.yaml", "crds: [../base/kustomization.yaml]\nresources: [../base]"),
    ];
    assert!(tools.render(&files, &overlay("prod")).is_err());
}

/// Shows the arguments and the named files of the copy.
const SHOW_COPY: &str = "echo \"$@\"; cd ../tree; for f in *.yaml */*.yaml */*/*/*.yaml; do \
                         [ -f $f ] && { echo \"== $f\"; cat $f; echo; }; done; true";

#[test]
fn external_sources_are_paths_in_the_copy() {
    let show = format!("{KUSTOMIZE}{SHOW_COPY}");
    let tools = TestTools::new(&[("kustomize", &show), ("helm", "echo v3.9.9")]);
    let files = [
        (".fleetwright/sources/base-1/deploy/kustomization.yaml", "namePrefix: x-"),
        (".fleetwright/sources/web-1/Chart.yaml", "name: web"),
        (
            "prod/kustomization.yaml",
            "resources: ['https://h/o/r//deploy?ref=v1', 'https://h/o/r//deploy']\n\
             helmCharts: [{name: web, repo: 'https://c.io', version: 1.0.0}]",
        ),
    ];
    let mut repo = TestRepo::new(&files);
    let source = |kind, url: &str, name: &str, version: &str| ExternalSource {
        kind,
        url: url.to_owned(),
        name: name.to_owned(),
        version: version.to_owned(),
    };
    for (source, directory) in [
        (source(SourceKind::Git, "https://h/o/r", "", "v1"), "base-1"),
        (source(SourceKind::Git, "https://h/o/r", "", "HEAD"), "base-1"),
        (source(SourceKind::Helm, "https://c.io", "web", "1.0.0"), "web-1"),
    ] {
        repo.2.states.insert(source, Ok(format!(".fleetwright/sources/{directory}")));
    }
    let rendered = tools.toolbox().render(&repo, &[overlay("prod")]).remove(0).expect("rendered");
    let output = String::from_utf8_lossy(&rendered.output).into_owned();
    let base = "'../.fleetwright/sources/base-1/deploy'";
    assert!(output.contains(&format!("resources: [{base}, {base}]")), "{output}");
    assert!(output.contains("--enable-helm --helm-command /"), "{output}");
    assert!(rendered.files.contains(&"prod/charts/web-1.0.0/web/Chart.yaml".to_owned()));
    assert!(rendered.tool.ends_with(", helm v3.9.9"), "{}", rendered.tool);
}

#[test]
fn dependencies_of_a_chart_are_added_where_absent() {
    let tools = TestTools::new(&[("helm", "case $1 in version) echo v3;; *) echo a: b;; esac")]);
    let chart = "dependencies: [{name: db, repository: 'https://c.io', version: 1.x}, \
                 {name: kept, repository: 'https://c.io'}, {name: own, repository: 'file://../own'}]";
    let files = [
        (".fleetwright/sources/db-1/Chart.yaml", "name: db"),
        (
            "app/Chart.lock",
            "dependencies: [{name: db, repository: 'https://c.io', version: 1.2.3}]",
        ),
        ("app/Chart.yaml", chart),
        ("app/charts/kept-2.0.0.tgz", ""),
        ("own/Chart.yaml", "name: own"),
    ];
    let mut repo = TestRepo::new(&files);
    let source = ExternalSource {
        kind: SourceKind::Helm,
        url: "https://c.io".to_owned(),
        name: "db".to_owned(),
        version: "1.2.3".to_owned(),
    };
    let request =
        RenderRequest { path: "app".to_owned(), recipe: Recipe::Helm(Release::default()) };
    let missing = tools.toolbox().render(&repo, std::slice::from_ref(&request)).remove(0);
    let missing = missing.expect_err("it is not locked");
    assert!(missing.starts_with("chart db 1.2.3 of https://c.io is not in"), "{missing}");
    repo.2.states.insert(source, Ok(".fleetwright/sources/db-1".to_owned()));
    let rendered = tools.toolbox().render(&repo, &[request]).remove(0).expect("rendered");
    for file in ["app/charts/db/Chart.yaml", "app/charts/own/Chart.yaml"] {
        assert!(rendered.files.contains(&file.to_owned()), "{:?}", rendered.files);
    }
    assert!(!rendered.files.iter().any(|file| file.starts_with("app/charts/kept/")));
}

#[test]
fn flux_may_load_files_anywhere_in_the_repository_only() {
    let tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}{SHOW_COPY}"))]);
    let flux = |path: &str| RenderRequest {
        path: path.to_owned(),
        recipe: Recipe::Kustomize(Layer { is_flux: true, ..Layer::default() }),
    };
    let none = "--load-restrictor=LoadRestrictionsNone";
    for (text, is_free) in [
        ("patches: [{path: ../other/p.yaml}]", true),
        ("patches: [{patch: \"- op: add\\n  path: /spec\"}]", true),
        ("configMapGenerator: [{name: a, files: [k=../../../../etc/passwd]}]", false),
        ("configMapGenerator: [{name: a, files: [/etc/passwd]}]", false),
        ("configMapGenerator: [{name: a, files: [\"k=a\\n/../../../x\"]}]", false),
        ("generators: [g.yaml]", false),
    ] {
        let files =
            [("prod/kustomization.yaml", text), ("other/p.yaml", "a: b"), ("prod/g.yaml", "")];
        let output = tools.render(&files, &flux("prod")).expect(text);
        assert_eq!(output.contains(none), is_free, "{text}: {output}");
    }
    let strict = tools.render(&[("prod/kustomization.yaml", "")], &overlay("prod"));
    assert!(!strict.expect("rendered").contains(none), "kustomize itself is strict");
    let files = [
        ("apps/a.yaml", "kind: A"),
        ("apps/inner/kustomization.yaml", "resources: [deep/b.yaml]"),
        ("apps/inner/deep/b.yaml", "kind: B"),
        ("apps/readme.md", ""),
    ];
    let generated = tools.render(&files, &flux("apps")).expect("rendered");
    assert!(generated.contains("\"resources\":[\"a.yaml\",\"inner\"]"), "{generated}");
    assert!(tools.render(&files, &overlay("apps")).is_err(), "kustomize generates none");
}

#[test]
fn tools_reach_no_other_file_and_no_port() {
    let outside = tempfile::tempdir().expect("a folder");
    let secret = outside.path().join("secret");
    fs::write(&secret, "it leaked").expect("written");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let attack = format!(
        "cat '{secret}' 2>&1; echo x 2>/dev/null >'{new}'; \
         bash -c 'echo >/dev/tcp/127.0.0.1/{port}' 2>/dev/null && echo connected; \
         echo own > ../tmp/own && cat ../tmp/own",
        secret = secret.display(),
        new = outside.path().join("new").display(),
    );
    let tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}{attack}"))]);
    for sandbox in
        [ProcessSandbox::without_namespace(), ProcessSandbox::detect(&[PathBuf::from("/usr/bin")])]
    {
        let rules = sandbox.rules();
        if !rules.files {
            // Nothing is tested on kernels without Landlock.
            return;
        }
        let is_network_isolated = sandbox.is_network_isolated();
        let toolbox = tools.toolbox().without_cache();
        toolbox.sandbox.set(sandbox).expect("not set before");
        let rendered = toolbox.render(&TestRepo::new(&OVERLAY), &[overlay("prod")]).remove(0);
        let output = String::from_utf8_lossy(&rendered.expect("it runs").output).into_owned();
        assert!(!output.contains("it leaked"), "{output}");
        assert!(output.ends_with("own\n"), "{output}");
        assert!(!outside.path().join("new").exists());
        assert_eq!(output.contains("connected"), !is_network_isolated, "{output}");
    }
}

#[test]
fn staged_files_stay_in_their_directory() {
    let outside = tempfile::tempdir().expect("a folder");
    let target = outside.path().join("written");
    for path in [format!("../../../../../../../..{}", target.display()), "a/../../b".to_owned()] {
        let mut staged = StagedFiles::default();
        staged.files.insert(path.clone(), b"x".as_slice().into());
        let folder = tempfile::tempdir().expect("a folder");
        let error = staged.write(folder.path()).expect_err("refused").to_string();
        assert!(error.contains("is not a path below the repository"), "{error}");
        assert!(!target.exists(), "{path}");
    }
}

#[test]
fn network_access_is_recorded_in_the_tool_version() {
    let tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}echo kind: A"))]);
    for (sandbox, tool) in [
        (ProcessSandbox::without_isolation(), "kustomize v5.9.9, with a network"),
        (ProcessSandbox::detect(&[PathBuf::from("/usr/bin")]), "kustomize v5.9.9"),
    ] {
        let is_network_isolated = sandbox.is_network_isolated();
        let toolbox = tools.toolbox();
        toolbox.sandbox.set(sandbox).expect("not set before");
        assert_eq!(toolbox.is_sandboxed(), is_network_isolated);
        let rendered = toolbox.render(&TestRepo::new(&OVERLAY), &[overlay("prod")]).remove(0);
        let expected = if is_network_isolated { tool } else { "kustomize v5.9.9, with a network" };
        assert_eq!(rendered.expect("made").tool, expected);
    }
}

#[test]
fn replaced_chart_values_are_dropped() {
    let script = "case $1 in version) echo v4.0.0; exit;; esac\n\
                  cat ../tree/charts/shop/values.yaml; echo -; cat values-*.yaml";
    let tools = TestTools::new(&[("helm", script)]);
    let files = [("charts/shop/Chart.yaml", "name: shop"), ("charts/shop/values.yaml", "a: 1\n")];
    for (replaces_values, expected) in [(false, "a: 1\n-\na: 1\n"), (true, "-\na: 1\n")] {
        let values = vec![Values::File("charts/shop/values.yaml".to_owned())];
        let release = Release { replaces_values, values, ..Release::default() };
        assert_eq!(tools.render(&files, &chart(release)).as_deref(), Ok(expected));
    }
}

#[test]
fn unknown_tool_version_is_not_cached() {
    let tools = TestTools { without_isolation: true, ..TestTools::new(&[]) };
    let count = tools.folder.path().join("count");
    let script = format!("echo x >> '{}'; echo kind: A", count.display());
    tools.program("kustomize", &format!("case $1 in version) echo what; exit;; esac\n{script}"));
    for runs in 1..=2 {
        assert!(tools.render(&OVERLAY, &overlay("prod")).is_ok());
        assert_eq!(fs::read_to_string(&count).expect("run").lines().count(), runs);
    }
}

#[test]
fn total_output_is_limited() {
    let mut tools = TestTools::new(&[("kustomize", &format!("{KUSTOMIZE}head -c 900 /dev/zero"))]);
    tools.limits.total_output_bytes = 2_000;
    let names: Vec<String> = (0..4).map(|n| format!("o{n}/kustomization.yaml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let orders: Vec<RenderRequest> = (0..4).map(|n| overlay(&format!("o{n}"))).collect();
    let toolbox = tools.toolbox();
    assert!(toolbox.render(&TestRepo::new(&files), &orders[..2]).iter().all(Result::is_ok));
    for rendered in toolbox.render(&TestRepo::new(&files), &orders) {
        assert_eq!(rendered, Err(toolbox.output_limit_error()), "whichever came first");
    }
}

#[test]
fn kubectl_log_headers_are_stripped() {
    for (logged, message) in [
        ("E1102 12:00:00.123456    4711 main.go:47] it broke", "it broke"),
        ("W0101 00:00:00.000000       1 x/y.go:1] a] b\nplain", "a] b\nplain"),
        ("Error: E1102 is no such thing", "Error: E1102 is no such thing"),
        (
            "E1102 12:00 47 main.go:1] too short a time",
            "E1102 12:00 47 main.go:1] too short a time",
        ),
    ] {
        assert_eq!(strip_log_headers(logged), message);
    }
}
