//! Lengths of the sentences of README and book, and the terms of the help texts.

use super::{is_list_item, pages_below, read, subcommands, without_code_blocks};

/// Nine of ten sentences of a page have at most this many words.
const WORDS_P90: usize = 22;

/// No sentence has more words.
const WORDS_MAX: usize = 25;

/// Abbreviations that end with a period within a sentence.
const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "vs.", "etc.", "cf.", "no."];

/// Returns a page without comments.
pub(super) fn without_comments(page: &str) -> String {
    let mut parts = page.split("<!--");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once("-->").map_or("", |(_, rest)| rest));
    }
    text
}

/// Returns the paragraphs and the items of lists. Headings and tables are left out.
fn paragraphs(page: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    for line in without_code_blocks(&without_comments(page)).lines() {
        let line = line.trim();
        let is_other = line.is_empty() || line.starts_with(['#', '|']);
        if is_other || is_list_item(line) {
            paragraphs.push(String::new());
        }
        if is_other {
            continue;
        }
        let item = is_list_item(line).then(|| line.split_once(' ')).flatten();
        if let Some(paragraph) = paragraphs.last_mut() {
            paragraph.push_str(item.map_or(line, |(_, text)| text));
            paragraph.push(' ');
        }
    }
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs
}

/// Returns a text with one word in place of each code span, and without targets of links.
fn spoken(text: &str) -> String {
    let spans = text.split('`').enumerate();
    let text: String =
        spans.map(|(index, part)| if index % 2 == 0 { part } else { "CODE" }).collect();
    let mut parts = text.split("](");
    let mut spoken = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        spoken.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    spoken.replace(['[', ']', '*'], "")
}

/// Returns the sentences of a page. A sentence ends with a period, a question mark or an
/// exclamation mark before a word that begins with a capital letter or a digit. A colon ends none.
fn sentences(page: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    for paragraph in paragraphs(page) {
        let spoken = spoken(&paragraph);
        let mut words = spoken.split_whitespace().peekable();
        let mut sentence: Vec<&str> = Vec::new();
        while let Some(word) = words.next() {
            sentence.push(word);
            let ends = word.trim_end_matches(['"', '\'', ')']).ends_with(['.', '?', '!'])
                && !ABBREVIATIONS.contains(&word.to_lowercase().as_str());
            let begins = |next: &&str| {
                let next = next.trim_start_matches(['"', '\'', '(']);
                next.starts_with(|c: char| c.is_uppercase() || c.is_ascii_digit())
            };
            if words.peek().is_none_or(|next| ends && begins(next)) {
                sentences.push(sentence.join(" "));
                sentence.clear();
            }
        }
    }
    sentences
}

fn count_words(sentence: &str) -> usize {
    sentence.split(' ').filter(|word| word.contains(char::is_alphanumeric)).count()
}

#[test]
fn sentences_are_short() {
    let mut pages = pages_below("docs/src");
    pages.push("README.md".to_owned());
    let (mut all, mut long) = (Vec::new(), Vec::new());
    for page in &pages {
        let sentences = sentences(&read(page));
        let mut counts: Vec<usize> = sentences.iter().map(|text| count_words(text)).collect();
        for (sentence, count) in sentences.iter().zip(&counts) {
            if *count > WORDS_MAX {
                long.push(format!("{page}: {count} words: {sentence}"));
            }
        }
        counts.sort_unstable();
        let p90 = percentile(&counts);
        if p90 > WORDS_P90 {
            long.push(format!("{page}: nine of ten sentences have at most {p90} words"));
        }
        all.extend(counts);
    }
    all.sort_unstable();
    let (count, p90) = (all.len(), percentile(&all));
    println!("{count} sentences, nine of ten with at most {p90} words");
    assert!(count > 500, "only {count} sentences");
    assert!(long.is_empty(), "{}", long.join("\n"));
}

/// Returns the value that nine of ten sorted values do not exceed.
fn percentile(sorted: &[usize]) -> usize {
    let index = (sorted.len() * 9).div_ceil(10).saturating_sub(1);
    sorted.get(index).copied().unwrap_or(0)
}

#[test]
fn sentences_are_split_at_their_ends() {
    let page = "\
# A heading. It is left out.

<!-- A comment. -->
One of version 1.5 costs 0.5 USD, e.g. in `us. East. One` or
a [link. With a period](https://example.com/a.b). Two ends (here.) Is this three? 4 nodes stay.

| a table | with. Two |
|---|---|
1. An item without a period
2. A second *item*: `code`

    fleetwright plan. A command.
";
    let expected = [
        "One of version 1.5 costs 0.5 USD, e.g. in CODE or a link.",
        "With a period.",
        "Two ends (here.)",
        "Is this three?",
        "4 nodes stay.",
        "An item without a period",
        "A second item: CODE",
    ];
    assert_eq!(sentences(page), expected);
    assert_eq!(count_words("One - two: CODE."), 3);
    assert_eq!(percentile(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), 9);
}

#[test]
fn help_uses_the_terms_of_the_glossary() {
    let mut pending = vec![String::new()];
    let (mut checked, mut found) = (0, Vec::new());
    while let Some(command) = pending.pop() {
        let text = super::help(&command);
        // Indented lines of a page would be code.
        let prose = text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
        let nested = subcommands(&text).into_iter();
        pending.extend(nested.map(|name| format!("{command} {name}").trim().to_owned()));
        checked += 1;
        found.extend(super::avoided_terms(&format!("`fleetwright {command} --help`"), &prose));
    }
    assert!(checked > 15, "only {checked} commands");
    assert!(found.is_empty(), "{}", found.join("\n"));
}
