//! Lines of a case: words, `KEY=VALUE` options, and the indented lines below.

use std::collections::BTreeMap;

/// First words of expectation lines.
const EXPECTATIONS: [&str; 20] = [
    "launch",
    "terminate",
    "place",
    "unschedulable",
    "served",
    "advice",
    "notes",
    "evict",
    "displace",
    "spread",
    "put",
    "fargate",
    "resize",
    "keep",
    "cost",
    "problem",
    "counts",
    "next",
    "requests",
    "decided",
];

/// One line.
#[derive(Debug, Default)]
pub(crate) struct CaseLine {
    pub(crate) number: usize,
    pub(crate) text: String,
    pub(crate) words: Vec<String>,
    pub(crate) options: BTreeMap<String, String>,
    /// Indented lines below it, without two spaces of indent.
    pub(crate) body: Vec<String>,
}

/// Parses the lines of a case whose fence is on line `first`. Empty lines are skipped.
pub(crate) fn lines(first: usize, text: &str) -> Vec<CaseLine> {
    let mut lines: Vec<CaseLine> = Vec::new();
    for (index, text) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match (text.strip_prefix("  "), lines.last_mut()) {
            (Some(body), Some(line)) => line.body.push(body.to_owned()),
            _ => lines.push(CaseLine::read(first + 1 + index, text)),
        }
    }
    lines
}

impl CaseLine {
    pub(crate) fn read(number: usize, text: &str) -> Self {
        let mut line = Self { number, text: text.to_owned(), ..Self::default() };
        for word in text.split_whitespace() {
            match word.split_once('=').filter(|(key, _)| !key.contains('<')) {
                Some((key, value)) => {
                    line.options.insert(key.to_owned(), value.to_owned());
                }
                None => line.words.push(word.to_owned()),
            }
        }
        line
    }

    pub(crate) fn word(&self, index: usize) -> Result<&str, String> {
        self.words.get(index).map(String::as_str).ok_or_else(|| format!("has no word {index}"))
    }

    pub(crate) fn count(&self, index: usize) -> Result<u32, String> {
        let word = self.word(index)?;
        word.parse().map_err(|_| format!("`{word}` is not a count"))
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|found| found == word)
    }

    pub(crate) fn option(&self, key: &str) -> Option<&str> {
        self.options.get(key).map(String::as_str)
    }

    /// Returns the text after the first ` for `.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.text.split_once(" for ").map(|(_, reason)| reason)
    }

    pub(crate) fn is_expectation(&self) -> bool {
        self.words.first().is_some_and(|word| EXPECTATIONS.contains(&word.as_str()))
    }

    /// Checks that all options are in `known`.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), String> {
        let unknown = self.options.keys().find(|key| !known.contains(&key.as_str()));
        unknown.map_or(Ok(()), |key| Err(format!("option `{key}` is unknown here")))
    }
}

/// Parses `a=x,b=y` to pairs, with separator `between`.
pub(crate) fn pairs(text: &str, between: char) -> Vec<(&str, &str)> {
    text.split(',').map(|pair| pair.split_once(between).unwrap_or((pair, ""))).collect()
}
