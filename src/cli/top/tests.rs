use super::*;

#[test]
fn keys_of_terminals_are_understood() {
    for (bytes, key) in [
        (&b"q"[..], Some(Key::Quit)),
        (b"\x03", Some(Key::Interrupt)),
        (b"j\x03", Some(Key::Interrupt)),
        (b"\x04", Some(Key::Quit)),
        (b"\x1b[A", Some(Key::Up)),
        (b"\x1bOB", Some(Key::Down)),
        (b"\x1b[5~", Some(Key::PageUp)),
        (b" ", Some(Key::PageDown)),
        (b"s", Some(Key::Sort)),
        (b"jjq", Some(Key::Quit)),
        (b"\x1b", None),
        (b"", None),
        (b"x", None),
    ] {
        assert_eq!(Key::from_bytes(bytes), key, "{bytes:?}");
    }
}

#[test]
fn live_view_scrolls_within_the_nodes() {
    let view = crate::testing::top::view(30);
    let style = TextStyle::default();
    let mut live = LiveView { view, order: TopSort::Name, top: 0, failure: None, style };
    let size = Size { columns: 160, lines: 20 };
    let first = live.lines(size, 3);
    assert_eq!(first.len(), 20);
    assert!(first[19].contains("observed 3s ago") && first[19].contains("more lines below"));
    for _ in 0..10 {
        live.press(Key::PageDown, size);
    }
    let last = live.lines(size, 3);
    assert!(!last[19].contains("more lines"), "{}", last[19]);
    assert!(last[18].contains("web[\"29\"]"), "{}", last[18]);
    live.press(Key::PageUp, size);
    assert_ne!(live.lines(size, 3), last);
    live.press(Key::Sort, size);
    assert!(live.lines(size, 3)[19].contains("sort: cpu"));
}

#[test]
fn failed_observation_keeps_the_previous_view() {
    let view = crate::testing::top::view(3);
    let style = TextStyle::default();
    let failure = Some("cannot use the cluster\u{1b}[2J".to_owned());
    let mut live = LiveView { view, order: TopSort::Name, top: 0, failure, style };
    let lines = live.lines(Size { columns: 100, lines: 24 }, 9);
    assert_eq!(lines[1], "The latest observation failed: cannot use the cluster\\u{1b}[2J");
    assert!(lines.iter().any(|line| line.contains("web[\"2\"]")));
    // A terminal with few lines still shows the status.
    let small = live.lines(Size { columns: 100, lines: 3 }, 9);
    assert_eq!(small.len(), 3);
    assert!(small[2].starts_with("q quit"));
}
