//! Hostile repositories: bounded time and memory, clear errors, and no terminal controls in the
//! output.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::binary::{CommandResult, Workspace};

/// Limit of the address space of the program, in KiB.
const MEMORY_KIB: u32 = 1_500_000;

/// Time limit of a run, ten times the duration on an idle computer.
const TIME_MAX: Duration = Duration::from_mins(1);

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\n\
                   spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}\n";

/// Runs the program with a memory limit, and checks its duration and output.
fn run(workspace: &Workspace, arguments: &[&str]) -> CommandResult {
    let started = Instant::now();
    let limited = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
    let output = Command::new("/bin/sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_fleetwright")])
        .args(arguments)
        .current_dir(workspace.root())
        .env_clear()
        .env("HOME", workspace.root())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    assert!(started.elapsed() < TIME_MAX, "{arguments:?} took {:?}", started.elapsed());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let result = CommandResult {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    };
    for text in [&result.out, &result.err] {
        let is_control =
            |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!text.contains(is_control), "{arguments:?}: {text:?}");
    }
    result
}

/// Validates a repository with a valid pod and `file`. Returns the exit code and the first line of
/// output.
fn validate_file(file: &str, content: &[u8]) -> String {
    let workspace = Workspace::empty();
    workspace.write("good.yaml", POD);
    fs::write(workspace.path(file), content).expect("written");
    let result = run(&workspace, &["validate"]);
    assert!(
        result.out.contains("1 workload"),
        "the valid file is read: {}{}",
        result.out,
        result.err
    );
    let planned = run(&workspace, &["plan", "--at", "2026-09-01T10:00:00Z"]);
    assert_eq!(planned.code, result.code, "{}{}", planned.out, planned.err);
    let code = result.code.expect("the program exits without a signal");
    format!("{code} {}", result.out.lines().next().unwrap_or_default())
}

#[test]
fn hostile_manifests_are_errors_with_line() {
    let level = |n: usize| {
        let below = n.checked_sub(1).map_or("x".to_owned(), |below| format!("*a{below}"));
        format!("a{n}: &a{n} [{}]\n", vec![below; 10].join(", "))
    };
    let bomb = (0..12).map(level).collect::<Vec<_>>().concat();
    let merge = "a: &a {x: 1}\n".to_owned()
        + "b: &b {<<: [*a, *a, *a, *a]}\n"
        + &format!("c: [{}]\n", vec!["{<<: *b}"; 60_000].join(", "));
    let deep = |open: &str| open.repeat(10_000);
    let line = |n: usize| format!("{}a:\n", " ".repeat(n % 2_000));
    let indented = (0..10_000).map(line).collect::<Vec<_>>().concat();
    let utf16: Vec<u8> =
        [0xFF, 0xFE].into_iter().chain("a: [".encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let twice =
        b"apiVersion: v1\nkind: Pod\nkind: Pod\nmetadata: {name: x}\nspec: {containers: []}\n";
    for (content, expected) in [
        (bomb.into_bytes(), "1 error: bad.yaml:5: aliases repeat more than 100000 values"),
        (merge.into_bytes(), "1 error: bad.yaml:3: aliases repeat more than 100000 values"),
        (deep("[").into_bytes(), "1 error: bad.yaml:1: is not YAML: recursion limit exceeded"),
        (deep("{a: ").into_bytes(), "1 error: bad.yaml:1: is not YAML: recursion limit exceeded"),
        (deep("- ").into_bytes(), "1 error: bad.yaml:1: nests deeper than 128 levels"),
        (indented.into_bytes(), "1 error: bad.yaml:129: nests deeper than 128 levels"),
        (b"a: \0\n".to_vec(), "1 error: bad.yaml:1: contains a NUL byte, so it is not a text file"),
        (vec![0; 1 << 20], "1 error: bad.yaml:1: contains a NUL byte, so it is not a text file"),
        (utf16, "1 error: bad.yaml:2: is not YAML: "),
        (b"\xff\xff\xff".to_vec(), "1 error: bad.yaml:1: is not UTF-8 text"),
        (twice.to_vec(), "1 error: bad.yaml:3: key `kind` is given twice, at lines 2 and 3"),
        (
            "---\n".repeat(200_000).into_bytes(),
            "1 error: bad.yaml:100001: contains more than 100000",
        ),
        (vec![b'x'; 15 << 20], "0 "),
        (
            b"version https://git-lfs.github.com/spec/v1\n".to_vec(),
            "1 error: bad.yaml: cannot be \
          read: it is a pointer of Git LFS",
        ),
    ] {
        let text = validate_file("bad.yaml", &content);
        let start: String = String::from_utf8_lossy(&content).chars().take(30).collect();
        assert!(text.starts_with(expected), "{start}…\n{text}");
    }
}

#[test]
fn gigabyte_file_is_reported_and_not_read() {
    let workspace = Workspace::empty();
    workspace.write("good.yaml", POD);
    let file = File::create(workspace.path("huge.yaml")).expect("made");
    file.set_len(1 << 30).expect("sparse");
    let result = run(&workspace, &["validate"]);
    assert!(
        result
            .out
            .contains("huge.yaml: cannot be read: it has 1073741824 bytes, and at most 16777216"),
        "{}",
        result.out
    );
    assert_eq!(result.code, Some(1));
}

#[test]
fn links_stay_inside_and_hostile_names_are_escaped() {
    let workspace = Workspace::empty();
    workspace.write("outside/secret.yaml", "secret: token-4711");
    workspace.write("tree/good.yaml", POD);
    let tree = workspace.path("tree");
    symlink("../outside/secret.yaml", tree.join("link.yaml")).expect("made");
    symlink("/etc/passwd", tree.join("passwd.yaml")).expect("made");
    symlink("../outside", tree.join("directory")).expect("made");
    symlink("circle.yaml", tree.join("circle.yaml")).expect("made");
    symlink(".", tree.join("self")).expect("made");
    for name in ["new\nline.yaml", "esc\u{1b}[2J.yaml", "right\u{202e}left.yaml", "tab\t.yaml"] {
        fs::write(tree.join(name), "a: [").expect("written");
    }
    let made = Command::new("mkfifo").arg(tree.join("pipe.yaml")).status();
    assert!(made.expect("mkfifo is there").success());
    let result = run(&workspace, &["validate", "tree"]);
    assert_eq!(result.code, Some(1));
    for expected in [
        "link.yaml: cannot be read: it is a link to a file outside the directory that is read",
        "passwd.yaml: cannot be read: it is a link to a file outside the directory that is read",
        "circle.yaml: cannot be read: it is a broken link",
        "pipe.yaml: cannot be read: it is not a regular file",
        "new\\nline.yaml:2: is not YAML",
        "1 workload",
    ] {
        assert!(result.out.contains(expected), "{expected}\n{}", result.out);
    }
    assert!(!result.out.contains("4711") && !result.out.contains("root:"), "{}", result.out);
    assert_eq!(result.out.lines().filter(|line| line.contains("is not YAML")).count(), 4);
    run(&workspace, &["plan", "tree", "--at", "2026-09-01T10:00:00Z"]);
    run(&workspace, &["validate", "tree", "--format", "json"]);
}

/// The engine has no memory limit within a step of a rule, so it has a process of its own.
#[test]
fn policy_that_takes_all_memory_denies_the_plan() {
    let workspace = Workspace::empty();
    workspace.write("good.yaml", POD);
    let fleet = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nmetadata: { name: t }\n\
                 spec: { cluster: { name: t, region: us-east-1 }, policies: [policies] }\n";
    workspace.write("fleetwright.yaml", fleet);
    let policy = "package a\nimport rego.v1\n\
                  long := concat(\"\", [x | some i in numbers.range(1, 1000); x := \"aaaaaaaaaa\"])\n\
                  longer := replace(long, \"a\", long)\n\
                  longest := replace(longer, \"a\", long)\n\
                  deny contains msg if { msg := sprintf(\"%d\", [count(longest)]) }\n";
    workspace.write("policies/a.rego", policy);
    let result = run(&workspace, &["plan"]);
    assert_eq!(result.code, Some(6), "{}{}", result.out, result.err);
    let why = "the policies need more memory than they may use, at most ";
    assert!(result.out.contains(why), "{}{}", result.out, result.err);
}

#[test]
fn deeply_nested_directories_are_bounded() {
    let workspace = Workspace::empty();
    workspace.write("good.yaml", POD);
    workspace.write(&format!("{}deep.yaml", "d/".repeat(200)), POD);
    let result = run(&workspace, &["validate"]);
    assert!(result.out.contains("directories nest deeper than 64 levels"), "{}", result.out);
    assert_eq!(result.code, Some(1), "an unread directory is an error");
}

/// Returns `count` Deployments of 20 pods in one namespace. Each keeps apart from nearly all others,
/// and all are spread over zones together.
fn deployments_that_exclude_each_other(count: usize) -> String {
    let one = |n: usize| {
        let allowed: Vec<String> = (0..30).map(|k| format!("w{}", (n + k) % count)).collect();
        format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w{n}, namespace: evil}}\n\
             spec:\n  replicas: 20\n  selector: {{matchLabels: {{app: w{n}}}}}\n  template:\n    \
             metadata: {{labels: {{app: w{n}, all: evil}}}}\n    spec:\n      \
             containers: [{{name: c, resources: {{requests: {{cpu: 100m, memory: 128Mi}}}}}}]\n      \
             topologySpreadConstraints: [{{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, \
             whenUnsatisfiable: DoNotSchedule, labelSelector: {{matchLabels: {{all: evil}}}}}}]\n      \
             affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [\
             {{topologyKey: kubernetes.io/hostname, labelSelector: {{matchExpressions: [\
             {{key: app, operator: NotIn, values: [{}]}}]}}}}]}}}}\n",
            allowed.join(", ")
        )
    };
    (0..count).map(one).collect()
}

/// Returns `groups` times `count` Deployments of one pod, which exclude the pods of their group.
fn exclusive_groups(groups: usize, count: usize) -> String {
    let one = |n: usize| {
        let (group, cpu, memory) = (n / count, 10 + n * 13 % 500, 10 + n * 37 % 900);
        format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w{n}, namespace: evil{group}}}\n\
             spec:\n  replicas: 1\n  selector: {{matchLabels: {{app: w{n}}}}}\n  template:\n    \
             metadata: {{labels: {{app: w{n}, group: g{group}}}}}\n    spec:\n      \
             containers: [{{name: c, resources: {{requests: {{cpu: {cpu}m, memory: {memory}Mi}}}}}}]\n      \
             affinity: {{podAntiAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: [\
             {{topologyKey: kubernetes.io/hostname, labelSelector: {{matchLabels: {{group: g{group}}}}}}}]}}}}\n"
        )
    };
    (0..groups * count).map(one).collect()
}

/// Few workloads are below the limit of rules. Without a limit of the look-ahead, two groups of 50
/// took a minute, and three of 60 more than five.
#[test]
fn groups_that_exclude_their_own_pods_are_placed() {
    for (groups, count) in [(1, 40), (2, 40)] {
        let workspace = Workspace::example("quickstart");
        workspace.write("evil.yaml", &exclusive_groups(groups, count));
        let result = run(&workspace, &["plan", "--world", "empty", "--format", "json"]);
        assert_eq!(result.code, Some(0), "{}", result.err);
        let plan: serde_json::Value = serde_json::from_str(&result.out).expect("JSON");
        let rows = plan["capacity"]["unschedulable"].as_array().expect("rows");
        let is_evil = |row: &&serde_json::Value| row["workload"]["namespace"] != "shop";
        assert_eq!(rows.iter().filter(is_evil).count(), 0, "{groups} x {count}");
    }
}

/// Each key was a further property by which offers differ: 600 of them took 38 s.
#[test]
fn topology_keys_that_no_node_has_are_planned() {
    let one = |n: usize| {
        format!(
            "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: w{n}, namespace: evil}}\n\
             spec:\n  replicas: 1\n  selector: {{matchLabels: {{app: w{n}}}}}\n  template:\n    \
             metadata: {{labels: {{app: w{n}}}}}\n    spec:\n      \
             containers: [{{name: c, resources: {{requests: {{cpu: 100m}}}}}}]\n      \
             topologySpreadConstraints: [{{maxSkew: 1, minDomains: 9, topologyKey: key{n}, \
             whenUnsatisfiable: DoNotSchedule, labelSelector: {{}}}}]\n"
        )
    };
    let workspace = Workspace::example("quickstart");
    workspace.write("evil.yaml", &(0..400).map(one).collect::<String>());
    let result = run(&workspace, &["plan", "--world", "empty", "--format", "json"]);
    assert_eq!(result.code, Some(0), "{}", result.err);
    let plan: serde_json::Value = serde_json::from_str(&result.out).expect("JSON");
    let rows = plan["capacity"]["unschedulable"].as_array().expect("rows");
    let is_evil = |row: &&serde_json::Value| row["workload"]["namespace"] == "evil";
    assert_eq!(rows.iter().filter(is_evil).count(), 400);
}

#[test]
fn pods_that_exclude_each_other_take_bounded_time() {
    let workspace = Workspace::example("quickstart");
    workspace.write("evil.yaml", &deployments_that_exclude_each_other(1_000));
    let good = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: good, namespace: shop}\n\
                spec:\n  replicas: 2\n  selector: {matchLabels: {app: good}}\n  template:\n    \
                metadata: {labels: {app: good}}\n    \
                spec: {containers: [{name: c, resources: {requests: {cpu: 100m}}}]}\n";
    workspace.write("good.yaml", good);
    let result = run(&workspace, &["plan", "--world", "empty", "--format", "json"]);
    assert_eq!(result.code, Some(0), "{}", result.err);
    let plan: serde_json::Value = serde_json::from_str(&result.out).expect("JSON");
    let rows = plan["capacity"]["unschedulable"].as_array().expect("rows");
    let texts: Vec<String> = rows.iter().map(ToString::to_string).collect();
    assert!(texts.iter().any(|row| row.contains("too-many-pod-rules")), "{}", texts.len());
    assert!(!texts.iter().any(|row| row.contains("\"good\"")), "other namespaces are not affected");
}
