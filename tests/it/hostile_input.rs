//! Trees made to hurt: bounded time and memory, clear errors, nothing that a terminal would obey.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::binary::{CommandResult, Workspace};

/// Address space that the program may use on a hostile tree, in KiB.
const MEMORY_KIB: u32 = 1_500_000;

/// The longest that a run may take; ten times what it takes on an instance at rest.
const TIME_MAX: Duration = Duration::from_mins(1);

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: good}\n\
                   spec: {containers: [{name: c, resources: {requests: {cpu: 1}}}]}\n";

/// Runs the program with an end to its memory, and holds it to its time.
fn run(place: &Workspace, arguments: &[&str]) -> CommandResult {
    let began = Instant::now();
    let limited = format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"");
    let output = Command::new("/bin/sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_fleetwright")])
        .args(arguments)
        .current_dir(place.root())
        .env_clear()
        .env("HOME", place.root())
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    assert!(began.elapsed() < TIME_MAX, "{arguments:?} took {:?}", began.elapsed());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let ran = CommandResult {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    };
    for said in [&ran.out, &ran.err] {
        let obeyed =
            |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!said.contains(obeyed), "{arguments:?}: {said:?}");
    }
    ran
}

/// Reads a tree of a good pod and `file`; returns what `validate` says of that file.
fn said_of(file: &str, content: &[u8]) -> String {
    let place = Workspace::empty();
    place.write("good.yaml", POD);
    fs::write(place.path(file), content).expect("written");
    let ran = run(&place, &["validate"]);
    assert!(ran.out.contains("1 workload"), "the good file is read: {}{}", ran.out, ran.err);
    let planned = run(&place, &["plan", "--at", "2026-09-01T10:00:00Z"]);
    assert_eq!(planned.code, ran.code, "{}{}", planned.out, planned.err);
    let code = ran.code.expect("it ends by itself");
    format!("{code} {}", ran.out.lines().next().unwrap_or_default())
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
        let said = said_of("bad.yaml", &content);
        let start: String = String::from_utf8_lossy(&content).chars().take(30).collect();
        assert!(said.starts_with(expected), "{start}…\n{said}");
    }
}

#[test]
fn gigabyte_file_is_reported_and_not_read() {
    let place = Workspace::empty();
    place.write("good.yaml", POD);
    let file = File::create(place.path("huge.yaml")).expect("made");
    file.set_len(1 << 30).expect("sparse");
    let ran = run(&place, &["validate"]);
    assert!(
        ran.out
            .contains("huge.yaml: cannot be read: it has 1073741824 bytes, and at most 16777216"),
        "{}",
        ran.out
    );
    assert_eq!(ran.code, Some(1));
}

#[test]
fn links_stay_inside_and_hostile_names_are_escaped() {
    let place = Workspace::empty();
    place.write("outside/secret.yaml", "secret: token-4711");
    place.write("tree/good.yaml", POD);
    let tree = place.path("tree");
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
    let ran = run(&place, &["validate", "tree"]);
    assert_eq!(ran.code, Some(1));
    for expected in [
        "link.yaml: cannot be read: it is a link to a file outside the directory that is read",
        "passwd.yaml: cannot be read: it is a link to a file outside the directory that is read",
        "circle.yaml: cannot be read: it is a broken link",
        "pipe.yaml: cannot be read: it is not a regular file",
        "new\\nline.yaml:2: is not YAML",
        "1 workload",
    ] {
        assert!(ran.out.contains(expected), "{expected}\n{}", ran.out);
    }
    assert!(!ran.out.contains("4711") && !ran.out.contains("root:"), "{}", ran.out);
    assert_eq!(ran.out.lines().filter(|line| line.contains("is not YAML")).count(), 4);
    run(&place, &["plan", "tree", "--at", "2026-09-01T10:00:00Z"]);
    run(&place, &["validate", "tree", "--format", "json"]);
}

#[test]
fn deeply_nested_directories_are_bounded() {
    let place = Workspace::empty();
    place.write("good.yaml", POD);
    place.write(&format!("{}deep.yaml", "d/".repeat(200)), POD);
    let ran = run(&place, &["validate"]);
    assert!(ran.out.contains("directories nest deeper than 64 levels"), "{}", ran.out);
    assert_eq!(ran.code, Some(1), "what is not read is an error, not less");
}
