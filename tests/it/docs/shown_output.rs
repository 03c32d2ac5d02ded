//! Compares the lines that a page shows with an output.

/// Replaces the characters after each marker, if there are at least `least` of them.
fn mask_after(text: &str, marker: &str, least: usize, is_masked: fn(char) -> bool) -> String {
    let mut parts = text.split(marker);
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str(marker);
        let rest = part.trim_start_matches(is_masked);
        let is_long = part.len() - rest.len() >= least;
        masked.push_str(if is_long { "?" } else { "" });
        masked.push_str(if is_long { rest } else { part });
    }
    masked
}

/// Returns a text without what differs in each run: hashes of commits, ports, random names.
pub(super) fn masked(text: &str) -> String {
    let mut text = text.to_owned();
    for marker in ["base ", "commit ", "against main, "] {
        text = mask_after(&text, marker, 7, |c| c.is_ascii_hexdigit());
    }
    text = mask_after(&text, "127.0.0.1:", 1, |c| c.is_ascii_digit());
    mask_after(&text, "/.tmp", 6, |c| c.is_ascii_alphanumeric())
}

/// How much of an output a page shows.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Extent {
    /// Lines that follow each other.
    Part,
    /// All lines, but for those that `…` stands for.
    Whole,
}

/// Compares lines that a page shows with an output. `Err` has the first line that differs.
pub(super) fn find_output(shown: &str, output: &str, extent: Extent) -> Result<(), String> {
    let shown: Vec<&str> = shown.trim_end().lines().map(str::trim_end).collect();
    let output: Vec<&str> = output.trim_end().lines().map(str::trim_end).collect();
    let segments: Vec<&[&str]> = shown.split(|line| line.trim() == "…").collect();
    let mut position = 0;
    for (index, segment) in segments.iter().enumerate() {
        let Some(first) = segment.first() else { continue };
        let starts = position..=output.len().saturating_sub(segment.len());
        let starts: Vec<usize> = match (extent, index) {
            (Extent::Whole, 0) => vec![0],
            _ => starts.collect(),
        };
        let found = starts.iter().find(|start| output[**start..].starts_with(segment));
        let Some(start) = found else {
            let near = output[position..].iter().position(|line| line == first);
            let near = near.map_or(position, |near| position + near);
            let differs = |(line, actual): &(&&str, Option<&&str>)| Some(*line) != *actual;
            let actual = (near..).map(|at| output.get(at));
            return Err(match segment.iter().zip(actual).find(differs) {
                Some((line, actual)) => format!(
                    "the page shows a line that is not in the output\n  shown: {line}\n  is:    {}",
                    actual.unwrap_or(&"(no line)")
                ),
                None => format!("the page shows lines that are not in the output: {first}"),
            });
        };
        position = start + segment.len();
    }
    let is_open = segments.last().is_some_and(|last| last.is_empty() && !shown.is_empty());
    match output.get(position) {
        Some(line) if extent == Extent::Whole && !is_open => {
            Err(format!("the output has more lines than the page shows: {line}"))
        }
        _ => Ok(()),
    }
}

/// Returns the lines of an output in place of those that a page shows. Lines that the page elides
/// stay elided. Each part begins and ends at the lines most similar to its first and last ones.
pub(super) fn refit(shown: &str, output: &str, extent: Extent) -> String {
    let shown: Vec<&str> = shown.trim_end().lines().map(str::trim_end).collect();
    let output: Vec<&str> = output.trim_end().lines().map(str::trim_end).collect();
    let mut fitted: Vec<&str> = Vec::new();
    let mut position = 0;
    let mut segments = shown.split(|line| line.trim() == "…").peekable();
    let elided: Vec<&&str> = shown.iter().filter(|line| line.trim() == "…").collect();
    let mut elided = elided.into_iter();
    while let Some(segment) = segments.next() {
        let is_first = fitted.is_empty() && extent == Extent::Whole;
        if let (Some(first), Some(last)) = (segment.first(), segment.last()) {
            let start = if is_first { 0 } else { most_similar(first, &output, position, position) };
            let is_end = segments.peek().is_none() && extent == Extent::Whole;
            let end = if is_end {
                output.len().saturating_sub(1)
            } else {
                most_similar(last, &output, start, start + segment.len() - 1)
            };
            fitted.extend(output.get(start..=end).unwrap_or_default());
            position = end + 1;
        }
        fitted.extend(segments.peek().and_then(|_| elided.next()));
    }
    fitted.join("\n")
}

/// Returns the index of the line from `least` on that is most similar; of equal ones, the nearest to
/// `near`.
fn most_similar(line: &str, output: &[&str], least: usize, near: usize) -> usize {
    let mut best = (0.0, least);
    for (index, candidate) in output.iter().enumerate().skip(least) {
        let similarity = strsim::normalized_levenshtein(line, candidate);
        let is_nearer = similarity >= best.0 && near.abs_diff(index) < near.abs_diff(best.1);
        if similarity > best.0 || is_nearer {
            best = (similarity, index);
        }
    }
    best.1
}

#[test]
fn output_is_compared_line_by_line() {
    let output = "one\ntwo\nthree\nfour\n";
    let part = |shown| find_output(shown, output, Extent::Part);
    let whole = |shown| find_output(shown, output, Extent::Whole);
    for shown in ["two\nthree", "one\n…\nfour", "…\nfour", "one\n…", "one\ntwo\nthree\nfour"]
    {
        assert_eq!(part(shown), Ok(()), "{shown}");
    }
    for shown in ["one\nthree", "three\n…\none", "five", "one\ntwo\nthree\nfour\nfive"] {
        assert!(part(shown).is_err(), "{shown}");
    }
    assert_eq!(whole("…\nthree\nfour"), Ok(()));
    assert_eq!(whole("one\n…"), Ok(()));
    assert!(whole("two\nthree\nfour").is_err());
    assert!(whole("one\ntwo\nthree").is_err());
    assert!(whole("").is_err());
}

#[test]
fn random_parts_of_outputs_are_masked() {
    let text =
        "base 182ffa4   plan sha256:d9fe5fd1fe53 at http://127.0.0.1:18443 in /tmp/.tmpHoW1y1/x";
    let expected = "base ?   plan sha256:d9fe5fd1fe53 at http://127.0.0.1:? in /tmp/.tmp?/x";
    assert_eq!(masked(text), expected);
    assert_eq!(masked("base examples/quickstart"), "base examples/quickstart");
}

#[test]
fn shown_lines_follow_the_output() {
    let output = "head 2\nfirst\nnew\nlast 7\nfoot";
    let part = |shown| refit(shown, output, Extent::Part);
    assert_eq!(part("first\nlast 5"), "first\nnew\nlast 7");
    assert_eq!(part("head 1\n  …\nlast 5\nfoot"), "head 2\n  …\nlast 7\nfoot");
    assert_eq!(refit("…\nfoot", output, Extent::Whole), "…\nfoot");
    assert_eq!(refit("head 1\nold", output, Extent::Whole), output);
}
