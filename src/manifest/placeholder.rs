//! `${NAME}` placeholders, as in Flux and envsubst.
//!
//! This module knows the notation, not the source of the values. `$${` is a literal `${`. A `${`
//! that starts no placeholder (such as `${{ … }}` or a shell expansion) is left unchanged, and is
//! an error where its value matters.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use super::decode::shorten;
use super::yaml::{YamlNode, YamlValue};

/// Maximum nesting of defaults (`${A:-${B:-c}}`).
const DEFAULT_DEPTH_MAX: usize = 8;

/// Maximum bytes of a pattern, and of a value that a pattern shortens. The time to match them is their
/// product.
const MATCHED_BYTES_MAX: usize = 1_024;

/// Values by name.
pub(super) type Vars = BTreeMap<String, String>;

/// The name below which [`Vars`] hold a source whose values were not read. No placeholder has it.
const UNREAD: &str = "";

/// Stands before and after the name of a placeholder that an unread source may give a value. Its
/// default does not count then. Files do not have these private characters.
const OPEN_MARK: &str = "\u{E000}\u{E001}";

/// Records that `source` may give values that are not known.
pub(super) fn add_unread_source(vars: &mut Vars, source: String) {
    vars.entry(UNREAD.to_owned()).or_insert(source);
}

/// Returns the source whose values are not known.
pub(super) fn unread_source(vars: &Vars) -> Option<&str> {
    vars.get(UNREAD).map(String::as_str)
}

/// Returns the values that are known. The defaults of placeholders then count.
pub(super) fn known_values(vars: &Vars) -> Cow<'_, Vars> {
    if !vars.contains_key(UNREAD) {
        return Cow::Borrowed(vars);
    }
    let mut vars = vars.clone();
    vars.remove(UNREAD);
    Cow::Owned(vars)
}

/// Returns the name of the first placeholder in a substituted text that an unread source may give a
/// value.
pub(super) fn open_name(substituted: &str) -> Option<&str> {
    substituted.split(OPEN_MARK).nth(1)
}

/// Returns whether an unread source may give a value to a part of a substituted text.
pub(super) fn is_open(substituted: &str) -> bool {
    open_name(substituted).is_some()
}

/// Returns a value as Flux substitutes it: without line breaks.
pub(super) fn one_line(value: &str) -> String {
    value.replace('\n', "")
}

/// Returns the name of the first placeholder below `node` that an unread source may give a value.
pub(super) fn open_placeholder(node: &YamlNode<'_>, vars: &Vars) -> Option<String> {
    match &node.value {
        YamlValue::Map(entries) => {
            entries.iter().find_map(|entry| open_placeholder(&entry.value, vars))
        }
        YamlValue::Seq(items) => items.iter().find_map(|item| open_placeholder(item, vars)),
        YamlValue::Tagged(_, inner) => open_placeholder(inner, vars),
        YamlValue::Plain(text) | YamlValue::Quoted(text) => {
            open_name(&substitute(text, vars).text).map(str::to_owned)
        }
    }
}

/// Text after substitution.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Substitution<'a> {
    pub(super) text: Cow<'a, str>,
    /// The first placeholder that was not replaced: its name if it lacks a value, else its text.
    pub(super) unresolved: Option<String>,
}

/// Returns the message and the hint for what [`Substitution::unresolved`] names.
pub(super) fn unresolved_problem(unresolved: &str) -> (String, String) {
    let what = shorten(unresolved);
    if unresolved.starts_with("${") {
        let hint = "write its result instead, or `$${` for a literal `${`".to_owned();
        return (format!("has `{what}`, which cannot be replaced"), hint);
    }
    let hint = format!("give `{what}` a value under `vars` of the source in fleetwright.yaml");
    (format!("needs `{what}`, which has no value"), hint)
}

/// Returns `text` with its placeholders replaced. Those without a value stay. The time is linear in
/// the length of the text.
pub(super) fn substitute<'a>(text: &'a str, vars: &Vars) -> Substitution<'a> {
    if !text.contains("${") {
        return Substitution { text: text.into(), unresolved: None };
    }
    let substitutor = Substitutor { text, ends: default_ends(text), vars };
    let mut output = Output { text: String::with_capacity(text.len()), unresolved: None };
    substitutor.substitute(0..text.len(), DEFAULT_DEPTH_MAX, &mut output);
    Substitution { text: output.text.into(), unresolved: output.unresolved }
}

/// Returns `text` with `$NAME` replaced where a value is known, as envsubst does. Flux leaves this
/// form as it is, so it is replaced only in fields where a `$` has no meaning.
pub(super) fn substitute_names<'a>(text: Cow<'a, str>, vars: &Vars) -> Cow<'a, str> {
    if !text.contains('$') {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = &*text;
    while let Some((before, from)) = rest.split_once('$') {
        out.push_str(before);
        let len = from.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        let (name, after) = from.split_at(len);
        if let Some(value) = vars.get(name).filter(|_| !name.is_empty()) {
            out.push_str(value);
        } else {
            out.push('$');
            out.push_str(name);
        }
        rest = after;
    }
    out.push_str(rest);
    out.into()
}

/// Returns for each `${` with a closing brace on its line the positions of both braces, in the
/// order of the text.
fn default_ends(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let (mut open, mut ends) = (Vec::new(), Vec::new());
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'{' => open.push(at),
            b'}' => ends.extend(open.pop().map(|from| (from, at))),
            b'\n' => open.clear(),
            _ => {}
        }
    }
    let is_placeholder = |(from, _): &(usize, usize)| {
        from.checked_sub(1).is_some_and(|at| bytes.get(at) == Some(&b'$'))
    };
    ends.retain(is_placeholder);
    ends.sort_unstable();
    ends
}

struct Output {
    text: String,
    unresolved: Option<String>,
}

struct Substitutor<'a> {
    text: &'a str,
    /// Result of [`default_ends`].
    ends: Vec<(usize, usize)>,
    vars: &'a Vars,
}

/// A placeholder, and the position after it.
struct Placeholder<'a> {
    name: &'a str,
    operation: Operation<'a>,
    end: usize,
}

/// What a placeholder does with its value.
enum Operation<'a> {
    /// Takes it as it is.
    Plain,
    /// Takes the default in this range if it is empty.
    Default(Range<usize>),
    /// Changes it, as [`apply`] does.
    Function(&'a str),
    /// Takes its number of bytes.
    Length,
}

impl Substitutor<'_> {
    /// Appends the substituted `range` of the text to `out`.
    fn substitute(&self, range: Range<usize>, depth: usize, out: &mut Output) {
        let mut at = range.start;
        let slice = |from: usize, to: usize| self.text.get(from..to).unwrap_or_default();
        while let Some(found) = slice(at, range.end).find("${") {
            let start = at + found;
            let before = slice(at, start);
            if let Some(escaped) = before.strip_suffix('$') {
                out.text.push_str(escaped);
                out.text.push_str("${");
                at = start + 2;
                continue;
            }
            out.text.push_str(before);
            let parsed = self.parse(start).filter(|parsed| parsed.end <= range.end);
            let Some(Placeholder { name, operation, end }) = parsed else {
                let rest = slice(start, range.end);
                out.unresolved.get_or_insert_with(|| rest.chars().take(20).collect());
                out.text.push_str("${");
                at = start + 2;
                continue;
            };
            at = end;
            let value = self.vars.get(name);
            let text = match (value, &operation) {
                (Some(value), Operation::Plain) => Some(value.clone()),
                (Some(value), Operation::Default(_)) => {
                    Some(value.clone()).filter(|value| !value.is_empty())
                }
                (Some(value), Operation::Function(body)) => apply(value, body),
                (Some(value), Operation::Length) => Some(value.len().to_string()),
                (None, _) => None,
            };
            match (text, operation) {
                (Some(text), _) => out.text.push_str(&text),
                (None, Operation::Default(_)) if self.vars.contains_key(UNREAD) => {
                    out.text.extend([OPEN_MARK, name, OPEN_MARK]);
                }
                (None, Operation::Default(default)) if depth > 0 => {
                    self.substitute(default, depth - 1, out);
                }
                (None, _) => {
                    out.text.push_str(slice(start, end));
                    let what = if value.is_some() { slice(start, end) } else { name };
                    out.unresolved.get_or_insert_with(|| what.to_owned());
                }
            }
        }
        out.text.push_str(slice(at, range.end));
    }

    /// Parses the placeholder that starts at `start` with `${`.
    fn parse(&self, start: usize) -> Option<Placeholder<'_>> {
        let is_length = self.text.get(start + 2..)?.starts_with('#');
        let inner = start + 2 + usize::from(is_length);
        let rest = self.text.get(inner..)?;
        let length = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        let (name, tail) = rest.split_at(length);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let after_name = inner + length;
        if tail.starts_with('}') {
            let operation = if is_length { Operation::Length } else { Operation::Plain };
            return Some(Placeholder { name, operation, end: after_name + 1 });
        }
        if is_length {
            return None;
        }
        let known = self.ends.binary_search_by_key(&(start + 1), |(from, _)| *from).ok()?;
        let (_, close) = *self.ends.get(known)?;
        let default = [":-", ":=", "="].into_iter().find(|sign| tail.starts_with(sign));
        let operation = if let Some(sign) = default {
            Operation::Default(after_name + sign.len()..close)
        } else {
            let body = self.text.get(after_name..close)?;
            // Reads the function only; its value is unknown here.
            apply("", body)?;
            Operation::Function(body)
        };
        Some(Placeholder { name, operation, end: close + 1 })
    }
}

/// Applies the function `body` of a placeholder to its value, as envsubst of Flux does; `None` if
/// it is none of those that are supported.
fn apply(value: &str, body: &str) -> Option<String> {
    if body.contains(['$', '{', '\\']) || body.starts_with(":?") || body.starts_with(":+") {
        return None;
    }
    if let Some(rest) = body.strip_prefix(':') {
        let (start, length) = match rest.split_once(':') {
            Some((start, length)) => (start, Some(length)),
            None => (rest, None),
        };
        return substring(value, start, length);
    }
    let first = |change: fn(char) -> String| {
        let mut letters = value.chars();
        letters.next().map(change).unwrap_or_default() + letters.as_str()
    };
    match body {
        ",," => return Some(value.to_lowercase()),
        "^^" => return Some(value.to_uppercase()),
        "," => return Some(first(|letter| letter.to_lowercase().collect())),
        "^" => return Some(first(|letter| letter.to_uppercase().collect())),
        _ => {}
    }
    match body.strip_prefix('/') {
        Some(body) => replaced(value, body),
        None => trimmed(value, body),
    }
}

/// Removes from `value` the beginning that matches a pattern (`#PATTERN`) or the end (`%PATTERN`):
/// the shortest one, or the longest one after a doubled sign. Without a match, the value stays.
fn trimmed(value: &str, body: &str) -> Option<String> {
    let sign = body.chars().next().filter(|sign| "#%".contains(*sign))?;
    let rest = body.strip_prefix(sign)?;
    let (pattern, is_longest) = match rest.strip_prefix(sign) {
        Some(pattern) => (pattern, true),
        None => (rest, false),
    };
    // Flux may split other characters, and reads the classes of a suffix backwards.
    let is_supported = |text: &str| text.is_ascii() && text.len() <= MATCHED_BYTES_MAX;
    let has_class = pattern.contains(['[', ']']);
    if pattern.is_empty() || has_class || !is_supported(pattern) || !is_supported(value) {
        return None;
    }
    if sign == '#' {
        let length = matched_length(value, pattern, is_longest);
        return value.get(length..).map(str::to_owned);
    }
    let reversed = |text: &str| text.chars().rev().collect::<String>();
    let length = matched_length(&reversed(value), &reversed(pattern), is_longest);
    value.get(..value.len().checked_sub(length)?).map(str::to_owned)
}

/// Returns the length of the shortest or longest beginning of `value` that matches `pattern`; zero
/// without a match. `*` matches any text, and `?` any character.
fn matched_length(value: &str, pattern: &str, is_longest: bool) -> usize {
    // For each length, whether the beginning matches the pattern up to the current sign.
    let mut matches = vec![false; value.len() + 1];
    matches[0] = true;
    for sign in pattern.bytes() {
        let mut next = vec![false; matches.len()];
        if sign == b'*' {
            let first = matches.iter().position(|matches| *matches).unwrap_or(matches.len());
            next.iter_mut().skip(first).for_each(|matches| *matches = true);
        } else {
            for (at, byte) in value.bytes().enumerate() {
                next[at + 1] = matches[at] && (sign == b'?' || sign == byte);
            }
        }
        matches = next;
    }
    let mut lengths = (1..matches.len()).filter(|length| matches[*length]);
    let found = if is_longest { lengths.next_back() } else { lengths.next() };
    found.unwrap_or(0)
}

/// Replaces parts of `value`: `PATTERN/TEXT` the first one, and after a sign all (`/`), that at the
/// start (`#`) or that at the end (`%`).
fn replaced(value: &str, body: &str) -> Option<String> {
    let sign = body.chars().next().filter(|sign| "/#%".contains(*sign));
    let (from, to) = body.get(usize::from(sign.is_some())..)?.split_once('/')?;
    if from.is_empty() {
        return None;
    }
    Some(match sign {
        Some('/') => value.replace(from, to),
        Some('%') => match value.strip_suffix(from) {
            Some(rest) => format!("{rest}{to}"),
            None => value.to_owned(),
        },
        Some('#') if !value.starts_with(from) => value.to_owned(),
        Some(_) | None => value.replacen(from, to, 1),
    })
}

/// Returns a part of `value`. A negative start counts from the end.
fn substring(value: &str, start: &str, length: Option<&str>) -> Option<String> {
    if start.is_empty() || length == Some("") {
        return None;
    }
    let Ok(start) = start.parse::<i32>() else { return Some(value.to_owned()) };
    let size = i32::try_from(value.len()).ok()?;
    let from = if start < 0 { (size + start).max(0) } else { start.min(size) };
    let to = match length.map(str::parse::<i32>) {
        Some(Ok(length)) => from.saturating_add(length).min(size),
        Some(Err(_)) => return Some(value.to_owned()),
        None => size,
    };
    let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
    value.get(range).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_by_values_and_defaults() {
        let vars = [
            ("A", "1"),
            ("B_2", "x"),
            ("E", ""),
            ("P", "/team/app"),
            ("U", "é"),
            ("V", "v1.29.3-eks"),
            ("W", "Web_App"),
        ];
        let vars: Vars = vars.map(|(k, v)| (k.into(), v.into())).into();
        for (text, expected, unresolved) in [
            ("plain $A $(A)", "plain $A $(A)", None),
            ("${A}", "1", None),
            ("a-${A}-${B_2}", "a-1-x", None),
            ("${A:-9}", "1", None),
            ("${C:-9}", "9", None),
            ("${C=9}", "9", None),
            ("${E:=7}", "7", None),
            ("${E}", "", None),
            ("${E:-${A}}", "1", None),
            ("${W:0:0}", "", None),
            ("${W:0:3}", "Web", None),
            ("${W:4}", "App", None),
            ("${W:9}", "", None),
            ("${W:-3}", "Web_App", None),
            ("${W:4:-2}", "${W:4:-2}", Some("${W:4:-2}")),
            ("${#W} ${#E} ${#U}", "7 0 2", None),
            ("${#C}", "${#C}", Some("C")),
            ("${#W:1}", "${#W:1}", Some("${#W:1}")),
            ("${V#v}", "1.29.3-eks", None),
            ("${V#x}", "v1.29.3-eks", None),
            ("${V#*.}", "29.3-eks", None),
            ("${V##*.}", "3-eks", None),
            ("${V%-*}", "v1.29.3", None),
            ("${V%.*}", "v1.29", None),
            ("${V%%.*}", "v1", None),
            ("${V%?}", "v1.29.3-ek", None),
            ("${V##?}", "1.29.3-eks", None),
            ("${V#?1?2}", "9.3-eks", None),
            ("${V##*}", "", None),
            ("${V#*}", "1.29.3-eks", None),
            ("${V%%v*-eks}", "", None),
            ("${P#*/}", "team/app", None),
            ("${P##*/}", "app", None),
            ("${P%/*}", "/team", None),
            ("${P%%/*}", "", None),
            ("${E#a}${E%%*}", "", None),
            ("${V#}", "${V#}", Some("${V#}")),
            ("${V%%}", "${V%%}", Some("${V%%}")),
            ("${V#[a-z]}", "${V#[a-z]}", Some("${V#[a-z]}")),
            ("${V%\\s}", "${V%\\s}", Some("${V%\\s}")),
            ("${V#${A}}", "${V#1}", Some("${V#${A}}")),
            ("${U#x}", "${U#x}", Some("${U#x}")),
            ("${D#x}", "${D#x}", Some("D")),
            ("${W:?x}", "${W:?x}", Some("${W:?x}")),
            ("${W:x}", "Web_App", None),
            ("${W//p/q}", "Web_Aqq", None),
            ("${W/p/q}", "Web_Aqp", None),
            ("${W/_/}", "WebApp", None),
            ("${W/#We/x}", "xb_App", None),
            ("${W/#Ap/x}", "Web_App", None),
            ("${W/%pp/x}", "Web_Ax", None),
            ("${W,}", "web_App", None),
            ("${W,,}", "web_app", None),
            ("${W^^}", "WEB_APP", None),
            ("${D//p/q}", "${D//p/q}", Some("D")),
            ("${W%%x}", "Web_App", None),
            ("${C:=9}", "9", None),
            ("${C:-}", "", None),
            ("${C:-${A}}", "1", None),
            ("${C:-${D}}", "${D}", Some("D")),
            ("${C}", "${C}", Some("C")),
            ("${C}${A}${D}", "${C}1${D}", Some("C")),
            ("$${A}", "${A}", None),
            ("${{ x }}", "${{ x }}", Some("${{ x }}")),
            ("${1}", "${1}", Some("${1}")),
            ("${A", "${A", Some("${A")),
            ("${A//x}", "${A//x}", Some("${A//x}")),
            ("${C:-${A:-x}", "${C:-1", Some("${C:-${A:-x}")),
            ("${C:-\n}${A}", "${C:-\n}1", Some("${C:-\n}${A}")),
            ("{${C:-{x}}}}", "{{x}}}", None),
        ] {
            let substituted = substitute(text, &vars);
            assert_eq!(substituted.text, expected, "{text}");
            assert_eq!(substituted.unresolved.as_deref(), unresolved, "{text}");
        }
    }

    #[test]
    fn a_default_does_not_count_if_an_unread_source_may_give_the_value() {
        let mut vars: Vars = [("A".to_owned(), "1".to_owned())].into();
        add_unread_source(&mut vars, "Secret x/y".to_owned());
        let open = |text| open_name(&substitute(text, &vars).text).map(str::to_owned);
        assert_eq!(open("a ${B:=2} ${C:-3}").as_deref(), Some("B"));
        assert_eq!((open("${A:=2}"), open("${B}"), open("$${B:=2}")), (None, None, None));
        assert_eq!(substitute_names("$ $A".into(), &vars), "$ 1");
        assert_eq!(substitute("${B:=2}", &known_values(&vars)).text, "2");
    }

    #[test]
    fn defaults_without_an_end_take_linear_time() {
        let text = "${A:-${B:-".repeat(400_000);
        // A scan to the end of the line for each of them would take hours.
        assert!(substitute(&text, &Vars::new()).unresolved.is_some());
    }

    #[test]
    fn names_without_braces_are_replaced_if_known() {
        let vars: Vars = [("A".to_owned(), "1".to_owned())].into();
        for (text, expected) in [
            ("$A", "1"),
            ("x-$A.y", "x-1.y"),
            ("$AB $B $ $$", "$AB $B $ $$"),
            ("$A$A", "11"),
            ("plain", "plain"),
        ] {
            assert_eq!(substitute_names(text.into(), &vars), expected, "{text}");
        }
    }

    #[test]
    fn nested_defaults_end() {
        let text = "${A:-".repeat(5_000) + &"}".repeat(5_000);
        assert!(substitute(&text, &Vars::new()).unresolved.is_some());
    }
}
