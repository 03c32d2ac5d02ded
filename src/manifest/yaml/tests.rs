use proptest::prelude::*;

use super::*;

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect::<Vec<_>>().concat()
}

fn one(text: &str) -> YamlNode<'_> {
    let mut loaded = load(text);
    assert_eq!(loaded.fault, None, "{text}");
    assert_eq!(loaded.documents.len(), 1, "{text}");
    loaded.documents.remove(0).root
}

fn fault_of(text: &str) -> YamlFault {
    load(text).fault.unwrap_or_else(|| panic!("no fault in {text}"))
}

/// Writes a node as a line, to compare trees by eye.
fn to_line(node: &YamlNode<'_>) -> String {
    match &node.value {
        YamlValue::Plain(text) => text.to_string(),
        YamlValue::Quoted(text) => format!("{text:?}"),
        YamlValue::Seq(items) => {
            format!("[{}]", items.iter().map(to_line).collect::<Vec<_>>().join(", "))
        }
        YamlValue::Map(entries) => {
            let pairs = entries.iter().map(|e| format!("{}: {}", e.key, to_line(&e.value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        YamlValue::Tagged(tag, inner) => format!("{tag} {}", to_line(inner)),
    }
}

#[test]
fn yaml_trees_are_read() {
    for (text, expected) in [
        ("a: 1\nb: [x, 'y']", "{a: 1, b: [x, \"y\"]}"),
        ("a:\n- b\n- c: d", "{a: [b, {c: d}]}"),
        ("a: |\n  x\n  y\n", "{a: \"x\\ny\\n\"}"),
        ("a: =", "{a: =}"),
        ("yes: 1\non: 2", "{true: 2}"),
        ("a: &x {b: 1}\nc: *x", "{a: {b: 1}, c: {b: 1}}"),
        ("a: &x 1\nb: &x 2\nc: *x", "{a: 1, b: 2, c: 2}"),
        ("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}", "{a: {p: 1, q: 2}, b: {q: 3, p: 1}}"),
        ("b: {<<: [{p: 1}, {p: 2, r: 4}]}", "{b: {p: 1, r: 4}}"),
        ("a: !Ref x\nb: !Join [a]", "{a: !Ref x, b: !Join [a]}"),
        ("a: !!str 5\nb: !!int \"5\"\nc: !!map {}", "{a: \"5\", b: 5, c: {}}"),
        ("a: 1\r\nb: 2\r\n", "{a: 1, b: 2}"),
        (
            "{\n\t\"a\": [1, true, null],\n\t\"b\": \"\\u00e9\\/\"\n}",
            "{a: [1, true, null], b: \"é/\"}",
        ),
        ("# only a comment\n---\na: 1\n...\n", "{a: 1}"),
        ("a: |\n  x\n  \ty\n", "{a: \"x\\n\\ty\\n\"}"),
    ] {
        assert_eq!(to_line(&one(text)), expected, "{text}");
    }
}

#[test]
fn every_value_has_its_line() {
    let root = one("a: 1\n\nb:\n  c:\n    - x\n    - y\n");
    let items = root.get("b").and_then(|b| b.get("c")).expect("there");
    let YamlValue::Seq(items) = &items.value else { panic!("a list") };
    assert_eq!(items.iter().map(|item| item.line).collect::<Vec<_>>(), [5, 6]);
    let YamlValue::Map(entries) = &root.value else { panic!("a mapping") };
    assert_eq!(entries.iter().map(|e| e.line).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn a_file_holds_many_documents_and_empty_ones() {
    let loaded = load("---\n---\na: 1\n---\n# nothing\n---\nb: 2\n");
    let to_line: Vec<String> = loaded.documents.iter().map(|d| to_line(&d.root)).collect();
    assert_eq!(to_line, ["", "{a: 1}", "", "{b: 2}"]);
    assert_eq!(load("").documents.len(), 0);
}

#[test]
fn anchors_end_with_their_document() {
    let fault = fault_of("a: &x 1\n---\nb: *x\n");
    assert_eq!((fault.line, fault.message.contains("anchor")), (3, true));
}

#[test]
fn a_duplicate_key_is_a_fault_with_both_lines() {
    let loaded = load("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n");
    assert_eq!(to_line(&loaded.documents[0].root), "{a: 1, b: {d: 2, c: 3}}");
    assert_eq!(loaded.documents[0].faults[0].message, "key `c` is given twice, at lines 3 and 5");
    let many = lines(40, |n| format!("k{}: {n}\n", n % 39));
    let faults = &load(&many).documents[0].faults;
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].message, "key `k0` is given twice, at lines 1 and 40");
}

#[test]
fn invalid_yaml_is_a_fault_with_its_line() {
    for (text, line) in [
        ("b: 1\na: 'x\n", 2),
        ("a:\n\tb: 1\n", 2),
        ("a: [1, 2\nb: 3\n", 2),
        ("a: 1\n  b: 2\n", 2),
        ("a: {{ .Values.x }}\n", 1),
        ("? [a]\n: b\n", 1),
        (": x", 1),
        ("a: *x", 1),
        ("a: &x [*x]", 1),
        ("{{- if .Values.x }}\na: 1\n{{- end }}\n", 1),
    ] {
        let fault = fault_of(text);
        assert_eq!(fault.line, line, "{text}: {}", fault.message);
    }
    assert_eq!(load("a: 1\n---\nb: 'x\n").documents.len(), 1, "what came before stays");
}

#[test]
fn aliases_cannot_multiply_without_bound() {
    let bomb = lines(12, |n| {
        let item = if n == 0 { "x, ".to_owned() } else { format!("*a{}, ", n - 1) };
        format!("a{n}: &a{n} [{}]\n", item.repeat(9))
    });
    assert!(fault_of(&bomb).message.contains("aliases repeat more than"));

    let deep = lines(300, |n| match n {
        0 => "a0: &a0 [x]\n".to_owned(),
        n => format!("a{n}: &a{n} [*a{}]\n", n - 1),
    });
    assert!(fault_of(&deep).message.contains("nests deeper"));
}

#[test]
fn nesting_ends_in_a_fault_not_in_a_crash() {
    for text in [
        "[".repeat(10_000),
        "{a: ".repeat(10_000),
        "- ".repeat(10_000),
        lines(10_000, |n| format!("{}a:\n", " ".repeat(n))),
    ] {
        let fault = fault_of(&text);
        assert!(fault.line > 0, "{}", fault.message);
    }
}

#[test]
fn long_and_wide_input_takes_linear_time() {
    let long = "x".repeat(1 << 20);
    assert_eq!(one(&format!("a: {long}")).get("a").and_then(YamlNode::text), Some(&*long));
    assert_eq!(one(&format!("a: '{long}'")).get("a").and_then(YamlNode::text), Some(&*long));
    let wide = lines(50_000, |n| format!("k{n}: {n}\n"));
    assert!(load(&wide).documents[0].faults.is_empty());
    let same = "k: 1\n".repeat(50_000);
    assert_eq!(load(&same).documents[0].faults.len(), 49_999);
    let merged = lines(20_000, |n| format!("  - {{k{n}: 1}}\n"));
    let merged = format!("a:\n <<:\n{merged}");
    let root = one(&merged);
    assert!(root.get("a").and_then(|a| a.get("k19999")).is_some());
    assert!(load(&"---\n".repeat(DOCUMENTS_MAX + 2)).fault.is_some());
}

/// Texts that libyaml accepts and YAML 1.2 forbids.
const LOOSE: [(&str, &str); 9] = [
    ("x:\n- a: 'b\n  c'\n", "{x: [{a: \"b c\"}]}"),
    ("x:\n  a: \"b \\\n  c\"\n  d: 1", "{x: {a: \"b c\", d: 1}}"),
    ("a: \"x\n\n\ny\"\n", "{a: \"x\\n\\ny\"}"),
    ("x:\n  - a: [\n    1,\n    ]\n    b: 1\n", "{x: [{a: [1], b: 1}]}"),
    ("x:\n  a: [\nb # ]\n  ]\n", "{x: {a: [b]}}"),
    ("x:\n  a: {b: [1,\n  2], c: {\n  d: 1 }}\n", "{x: {a: {b: [1, 2], c: {d: 1}}}}"),
    ("a: |\n  'x\nb:\n- c: 'y\n  z'\n", "{a: \"'x\\n\", b: [{c: \"y z\"}]}"),
    ("# it's\na: it's [\nb:\n- c: 'y''\n  z'\n", "{a: it's [, b: [{c: \"y' z\"}]}"),
    ("- - >-\n    'x\n  - k: &a !t 'y\n    z'\n", "[[\"'x\", {k: !t \"y z\"}]]"),
];

#[test]
fn continuation_lines_may_start_at_the_column_of_their_key() {
    for (text, expected) in LOOSE {
        assert!(load(text).fault.is_some(), "{text} needs no loosening");
        let loose = indent_continuations(text).unwrap_or_else(|| panic!("{text} is not changed"));
        assert_eq!(to_line(&one(&loose)), expected, "{text}");
        assert_eq!(loose.lines().count(), text.lines().count());
    }
}

#[test]
fn a_bracket_in_a_continued_plain_scalar_opens_nothing() {
    let text = "b: it's\n  [\nc: [1,\n2]\n";
    assert_eq!(indent_continuations(text).as_deref(), Some("b: it's\n  [\nc: [1,\n 2]\n"));
}

#[test]
fn indentation_growth_is_bounded() {
    let text = format!("{}b: [\n{}]", "- ".repeat(2_000), "x,\n".repeat(100_000));
    assert_eq!(indent_continuations(&text), None);
}

proptest! {
    #[test]
    fn indentation_changes_no_text_that_parses(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "a", "b: ", "- ", "\n", "\n  ", "\n    ", "[", "]", "{", "}", ", ", "'", "\"", " # ",
                "|\n", ">-\n", "\n\n", "it's", "\\", "x: 'y'", "c: [1,\n", "d: \"e\n", "&f ", "!g ",
            ]),
            0..24,
        ),
    ) {
        let text = parts.concat();
        let loaded = load(&text);
        if let (None, Some(loose)) = (&loaded.fault, indent_continuations(&text)) {
            let again = load(&loose);
            prop_assert_eq!(&again.fault, &None, "{}", loose);
            for (before, after) in loaded.documents.iter().zip(&again.documents) {
                prop_assert_eq!(&before.root, &after.root, "{}", loose);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(text) = decode(&bytes) {
            let _ = load(&text);
        }
    }

    #[test]
    fn random_yaml_like_text_never_panics(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "a", ": ", "- ", "\n", "  ", "[", "]", "{", "}", ",", "&x ", "*x", "!t ", "'", "\"",
                "|", ">", "#", "%", "---\n", "...\n", "<<", "? ", "\t", "=", "\u{FEFF}", "0", "\r",
                "!!str ", "\\", "%TAG ! x\n", "é",
            ]),
            0..60,
        ),
    ) {
        let text = parts.concat();
        let _ = load(&text);
        let _ = indent_continuations(&text).map(|loose| load(&loose).documents.len());
    }
}
