//! Parser for requirements, in kubectl's selector syntax with Karpenter's bounds.
//!
//! The forms are `KEY=VALUE`, `KEY!=VALUE`, `KEY in (A,B)`, `KEY notin (A,B)`, `KEY>4`, `KEY>=4`,
//! `KEY<8`, `KEY<=8`, `KEY` (is present) and `!KEY` (is absent), separated by commas.

use std::str::FromStr;

use thiserror::Error;

use super::{LabelSet, Operator, RequirementError, Requirements, normalize_key};
use crate::model::ids::LabelKey;
use crate::model::text::shorten;

/// Maximum length of a key or value in Kubernetes, including the prefix, in bytes.
const NAME_MAX: usize = 317;

/// Maximum length of a quotation in an error message, in characters.
const SHOWN_MAX: usize = 80;

/// Error of parsing a list of requirements.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{piece}` is not a requirement: {problem}")]
pub struct ParseRequirementsError {
    /// The invalid item as written, shortened if long.
    pub piece: String,
    /// Problem of the item.
    pub problem: ParseProblem,
}

impl ParseRequirementsError {
    /// Returns the accepted forms.
    pub fn hint(&self) -> &'static str {
        "write KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), KEY>4, KEY>=4, KEY and !KEY, \
         separated by commas"
    }
}

/// Problem of an item in a list of requirements.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ParseProblem {
    /// The item is empty.
    #[error("it is empty")]
    Empty,
    /// The key is invalid.
    #[error("`{0}` is not a label key")]
    Key(String),
    /// A value is invalid.
    #[error("`{0}` is not a label value")]
    Value(String),
    /// The list of values lacks parentheses.
    #[error("its values are not in parentheses")]
    Parentheses,
    /// The operator is unknown.
    #[error("`{0}` is not an operator")]
    Operator(String),
    /// The values are invalid for the operator.
    #[error("{0}")]
    Requirement(#[from] RequirementError),
}

impl FromStr for Requirements {
    type Err = ParseRequirementsError;

    /// Parses requirements separated by commas. A blank text means no requirements.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        split_pieces(text).into_iter().map(parse_piece).collect()
    }
}

/// Splits at commas outside parentheses.
fn split_pieces(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(move |c| {
        inside = match c {
            '(' => true,
            ')' => false,
            _ => inside,
        };
        c == ',' && !inside
    })
    .map(str::trim)
    .collect()
}

fn parse_piece(piece: &str) -> Result<(LabelKey, LabelSet), ParseRequirementsError> {
    let error = |problem| ParseRequirementsError { piece: shorten(piece, SHOWN_MAX), problem };
    let (key, operator, values) = split(piece).map_err(error)?;
    if !is_key(key) {
        return Err(error(ParseProblem::Key(shorten(key, SHOWN_MAX))));
    }
    if let Some(bad) = values.iter().find(|value| !is_value(value)) {
        return Err(error(ParseProblem::Value(shorten(bad, SHOWN_MAX))));
    }
    let set = LabelSet::from_operator(operator, &values)
        .map_err(|problem| error(ParseProblem::Requirement(problem)))?;
    Ok((normalize_key(key).into(), set))
}

type Split<'a> = (&'a str, Operator, Vec<&'a str>);

fn split(piece: &str) -> Result<Split<'_>, ParseProblem> {
    if piece.is_empty() {
        return Err(ParseProblem::Empty);
    }
    if let Some(at) = piece.find(['=', '!', '<', '>']).filter(|at| *at > 0) {
        let (key, rest) = piece.split_at(at);
        return parse_symbol_operator(key.trim(), rest);
    }
    if let Some(key) = piece.strip_prefix('!') {
        return Ok((key.trim(), Operator::DoesNotExist, Vec::new()));
    }
    match piece.split_once(|c: char| c.is_whitespace() || c == '(') {
        None => Ok((piece, Operator::Exists, Vec::new())),
        Some((key, _)) => parse_word_operator(key, piece[key.len()..].trim()),
    }
}

/// Parses an operator of one or two characters, and its value.
fn parse_symbol_operator<'a>(key: &'a str, rest: &'a str) -> Result<Split<'a>, ParseProblem> {
    // Longer operators first, so that `>=4` is not parsed as `>` with the value `=4`.
    let (sign, operator) = [
        ("!=", Operator::NotIn),
        ("==", Operator::In),
        (">=", Operator::Gte),
        ("<=", Operator::Lte),
        ("=", Operator::In),
        (">", Operator::Gt),
        ("<", Operator::Lt),
    ]
    .into_iter()
    .find(|(sign, _)| rest.starts_with(sign))
    .ok_or_else(|| ParseProblem::Operator(shorten(rest, SHOWN_MAX)))?;
    Ok((key, operator, vec![rest[sign.len()..].trim()]))
}

/// Parses `in` or `notin`, with its list of values.
fn parse_word_operator<'a>(key: &'a str, rest: &'a str) -> Result<Split<'a>, ParseProblem> {
    let (name, list) = rest.split_at(rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len()));
    let operator = match name.to_lowercase().as_str() {
        "in" => Operator::In,
        "notin" => Operator::NotIn,
        _ => {
            let shown = if name.is_empty() { rest } else { name };
            return Err(ParseProblem::Operator(shorten(shown, SHOWN_MAX)));
        }
    };
    let list = list.trim();
    let values = list.strip_prefix('(').and_then(|list| list.strip_suffix(')'));
    let values = values.ok_or(ParseProblem::Parentheses)?.trim();
    let values = if values.is_empty() { Vec::new() } else { values.split(',').collect() };
    Ok((key, operator, values.into_iter().map(str::trim).collect()))
}

fn is_key(key: &str) -> bool {
    let name = key.split_once('/').map_or(key, |(_, name)| name);
    !name.is_empty() && !name.contains('/') && is_value(&key.replacen('/', "-", 1))
}

/// Returns true for a valid label value: empty, or with a letter or digit at both ends.
fn is_value(value: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    value.len() <= NAME_MAX
        && value.chars().all(inner)
        && edge(value.chars().next())
        && edge(value.chars().next_back())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::requirement::{key, label};

    fn parse(text: &str) -> Result<Requirements, ParseRequirementsError> {
        text.parse()
    }

    #[test]
    fn each_form_parses_to_its_operator() {
        for (text, operator, values) in [
            ("k=v", Operator::In, &["v"][..]),
            ("k==v", Operator::In, &["v"]),
            (" k = v ", Operator::In, &["v"]),
            ("k=", Operator::In, &[""]),
            ("k!=v", Operator::NotIn, &["v"]),
            ("k in (a,b)", Operator::In, &["a", "b"]),
            ("k in(a)", Operator::In, &["a"]),
            ("k In ( a , b )", Operator::In, &["a", "b"]),
            ("k notin (a,b)", Operator::NotIn, &["a", "b"]),
            ("k NotIn (a)", Operator::NotIn, &["a"]),
            ("k>4", Operator::Gt, &["4"]),
            ("k >= 4", Operator::Gte, &["4"]),
            ("k<4", Operator::Lt, &["4"]),
            ("k<=4", Operator::Lte, &["4"]),
            ("k", Operator::Exists, &[]),
            ("!k", Operator::DoesNotExist, &[]),
            ("! k", Operator::DoesNotExist, &[]),
        ] {
            let set = LabelSet::from_operator(operator, values).expect("valid");
            let expected: Requirements = [("k".into(), set)].into_iter().collect();
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn items_are_joined_and_equal_keys_intersect() {
        let joined = parse("a in (1,2,3),b!=x, a>1 ,!c").expect("valid");
        for (labels, expected) in [
            (vec![label("a", "2")], true),
            (vec![label("a", "1")], false),
            (vec![label("a", "3"), label("b", "x")], false),
            (vec![label("a", "3"), label("c", "")], false),
        ] {
            assert_eq!(joined.matches_labels(&labels.into_iter().collect()), expected);
        }
        assert_eq!(parse("  "), Ok(Requirements::default()));
    }

    #[test]
    fn deprecated_keys_are_normalized() {
        let requirements = parse("beta.kubernetes.io/arch=arm64").expect("valid");
        assert!(requirements.get(key::ARCH).is_some());
    }

    #[test]
    fn error_quotes_the_invalid_item() {
        for (text, piece, problem) in [
            ("a=b,,c", "", "it is empty"),
            ("a=b,", "", "it is empty"),
            ("=b", "=b", "`=b` is not a label key"),
            ("!", "!", "`` is not a label key"),
            ("a/b/c=d", "a/b/c=d", "`a/b/c` is not a label key"),
            ("a=b c", "a=b c", "`b c` is not a label value"),
            ("a=-b", "a=-b", "`-b` is not a label value"),
            ("a=b=c", "a=b=c", "`b=c` is not a label value"),
            ("a in b", "a in b", "its values are not in parentheses"),
            ("a in (b", "a in (b", "its values are not in parentheses"),
            ("a in ()", "a in ()", "operator In needs at least one value"),
            ("a of (b)", "a of (b)", "`of` is not an operator"),
            ("a (b)", "a (b)", "`(b)` is not an operator"),
            ("a!b", "a!b", "`!b` is not an operator"),
            ("ok,a>x", "a>x", "operator Gt takes exactly one integer"),
            ("ok,a<", "a<", "operator Lt takes exactly one integer"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(
                (error.piece.as_str(), error.problem.to_string().as_str()),
                (piece, problem)
            );
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "[a-z0-9/=!<>(), ½.-]{0,40}") {
            let _ = parse(&text);
        }
    }
}
