//! `${NAME}` placeholders, as in Flux and envsubst.
//!
//! This module knows the notation, not the source of the values. `$${` is a literal `${`. A `${`
//! that starts no placeholder (such as `${{ … }}` or a shell expansion) is left unchanged, and is
//! an error where its value matters.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// Maximum nesting of defaults (`${A:-${B:-c}}`).
const DEFAULT_DEPTH_MAX: usize = 8;

/// Values by name.
pub(super) type Vars = BTreeMap<String, String>;

/// Text after substitution.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Substitution<'a> {
    pub(super) text: Cow<'a, str>,
    /// The first placeholder without a value: its name, or its text if it has no name.
    pub(super) unresolved: Option<String>,
}

/// Returns `text` with its placeholders replaced. Those without a value stay.
pub(super) fn substitute<'a>(text: &'a str, vars: &Vars) -> Substitution<'a> {
    substitute_nested(text, vars, DEFAULT_DEPTH_MAX)
}

fn substitute_nested<'a>(text: &'a str, vars: &Vars, depth: usize) -> Substitution<'a> {
    if !text.contains("${") {
        return Substitution { text: text.into(), unresolved: None };
    }
    let mut out = String::with_capacity(text.len());
    let mut unresolved = None;
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(escaped) = before.strip_suffix('$') {
            out.push_str(escaped);
            out.push_str("${");
            rest = &from[2..];
            continue;
        }
        out.push_str(before);
        let Some((name, default, after)) = parse(from) else {
            unresolved.get_or_insert_with(|| from.chars().take(20).collect());
            out.push_str("${");
            rest = &from[2..];
            continue;
        };
        rest = after;
        match (vars.get(name), default) {
            (Some(value), _) => out.push_str(value),
            (None, Some(default)) if depth > 0 => {
                let inner = substitute_nested(default, vars, depth - 1);
                out.push_str(&inner.text);
                unresolved = unresolved.or(inner.unresolved);
            }
            (None, _) => {
                out.push_str(&from[..from.len() - after.len()]);
                unresolved.get_or_insert_with(|| name.to_owned());
            }
        }
    }
    out.push_str(rest);
    Substitution { text: out.into(), unresolved }
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
        if let Some(value) = vars.get(name) {
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

/// Splits `${NAME…}…` into name, default and remaining text.
fn parse(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let inner = text.strip_prefix("${")?;
    let name_len = inner.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
    let (name, tail) = inner.split_at(name_len);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Some(after) = tail.strip_prefix('}') {
        return Some((name, None, after));
    }
    let default = tail.strip_prefix(":-").or_else(|| tail.strip_prefix(":="))?;
    let mut open = 0_usize;
    for (at, byte) in default.bytes().enumerate() {
        match byte {
            b'{' => open += 1,
            b'}' if open == 0 => return Some((name, Some(&default[..at]), &default[at + 1..])),
            b'}' => open -= 1,
            b'\n' => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_by_values_and_defaults() {
        let vars: Vars = [("A", "1"), ("B_2", "x")].map(|(k, v)| (k.into(), v.into())).into();
        for (text, expected, unresolved) in [
            ("plain $A $(A)", "plain $A $(A)", None),
            ("${A}", "1", None),
            ("a-${A}-${B_2}", "a-1-x", None),
            ("${A:-9}", "1", None),
            ("${C:-9}", "9", None),
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
        ] {
            let substituted = substitute(text, &vars);
            assert_eq!(substituted.text, expected, "{text}");
            assert_eq!(substituted.unresolved.as_deref(), unresolved, "{text}");
        }
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
