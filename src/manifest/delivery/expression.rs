//! Expressions in the templates of an `ApplicationSet`: parameters, and the functions of Go templates
//! that names are usually made of.
//!
//! Conditions and loops are not evaluated: an expression that needs them is an error.

use std::borrow::Cow;

use super::generators::{APPLICATION_BYTES_MAX, Params};

/// Maximum nesting of parentheses.
const DEPTH_MAX: usize = 16;

/// Maximum number of tokens of one expression.
const TOKENS_MAX: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Open,
    Close,
    Pipe,
    Text(String),
    /// A parameter, such as `.path.basename`, without the dot.
    Field(String),
    /// The name of a function, or a number.
    Word(String),
}

/// A value: a text, or a parameter that may have no value.
#[derive(Debug, Clone)]
enum Operand {
    Text(String),
    Field(String),
}

/// Returns the text of the expression between `{{` and `}}`.
pub(super) fn evaluate(expression: &str, params: &Params) -> Result<String, String> {
    let name = expression.trim();
    if let Some(value) = params.get(name) {
        return Ok(value.clone());
    }
    let tokens = tokens(name)?;
    // Without Go templates, a parameter has no dot.
    if let [Token::Word(_)] = &tokens[..] {
        return Err(missing(name));
    }
    let mut parser = Parser { tokens: &tokens, at: 0, params };
    let value = parser.pipeline(0)?;
    if parser.at < tokens.len() {
        return Err(unsupported(name));
    }
    parser.text(&value)
}

fn missing(name: &str) -> String {
    let name = super::super::decode::shorten(name);
    format!("its template needs `{name}`, which its generators do not give")
}

fn unsupported(name: &str) -> String {
    let name = super::super::decode::shorten(name);
    format!("its template has the expression `{name}`, which is not supported")
}

fn tokens(expression: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '(' | ')' | '|' => 1,
            '"' | '`' | '\'' => {
                closing_quote(rest, first).ok_or_else(|| unsupported(expression))?
            }
            _ => {
                let is_end = |c: char| c.is_whitespace() || "()|\"`".contains(c);
                rest.find(is_end).unwrap_or(rest.len()).max(1)
            }
        };
        let (word, after) = rest.split_at(length);
        tokens.push(match first {
            '(' => Token::Open,
            ')' => Token::Close,
            '|' => Token::Pipe,
            '"' => Token::Text(serde_json::from_str(word).map_err(|_| unsupported(expression))?),
            '`' | '\'' => Token::Text(word[1..length - 1].to_owned()),
            '.' | '$' => Token::Field(word.trim_start_matches('$').trim_start_matches('.').into()),
            _ => Token::Word(word.to_owned()),
        });
        if tokens.len() > TOKENS_MAX {
            return Err(unsupported(expression));
        }
        rest = after.trim_start();
    }
    Ok(tokens)
}

/// Returns the length of the quoted text at the beginning of `rest`, with its quotes.
fn closing_quote(rest: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, letter) in rest.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if letter == '\\' && quote == '"' {
            is_escaped = true;
        } else if letter == quote {
            return Some(at + 1);
        }
    }
    None
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    params: &'a Params,
}

impl Parser<'_> {
    fn next(&mut self) -> Option<&Token> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(token)
    }

    /// Evaluates commands that are joined by `|`: each result is the last argument of the next.
    fn pipeline(&mut self, depth: usize) -> Result<Operand, String> {
        if depth > DEPTH_MAX {
            return Err(unsupported("("));
        }
        let mut value = self.command(None, depth)?;
        while self.tokens.get(self.at) == Some(&Token::Pipe) {
            self.at += 1;
            value = self.command(Some(value), depth)?;
        }
        Ok(value)
    }

    fn command(&mut self, piped: Option<Operand>, depth: usize) -> Result<Operand, String> {
        let mut function = None;
        let mut arguments = Vec::new();
        while let Some(token) = self.tokens.get(self.at) {
            if matches!(token, Token::Pipe | Token::Close) {
                break;
            }
            let is_first = function.is_none() && arguments.is_empty();
            match self.next() {
                Some(Token::Open) => {
                    arguments.push(self.pipeline(depth + 1)?);
                    if self.next() != Some(&Token::Close) {
                        return Err(unsupported("("));
                    }
                }
                Some(Token::Text(text)) => arguments.push(Operand::Text(text.clone())),
                Some(Token::Field(name)) => arguments.push(Operand::Field(name.clone())),
                Some(Token::Word(word)) if word.parse::<i64>().is_ok() => {
                    arguments.push(Operand::Text(word.clone()));
                }
                Some(Token::Word(word)) if is_first => function = Some(word.clone()),
                Some(Token::Word(word)) => return Err(unsupported(word)),
                Some(Token::Pipe | Token::Close) | None => break,
            }
        }
        arguments.extend(piped);
        match (function, arguments.len()) {
            (Some(function), _) => self.call(&function, &arguments),
            (None, 1) => arguments.pop().ok_or_else(|| unsupported("|")),
            (None, _) => Err(unsupported("|")),
        }
    }

    /// Returns the text of a value.
    fn text(&self, operand: &Operand) -> Result<String, String> {
        match operand {
            Operand::Text(text) => Ok(text.clone()),
            Operand::Field(name) => {
                self.params.get(name).cloned().ok_or_else(|| missing(&format!(".{name}")))
            }
        }
    }

    fn call(&self, function: &str, arguments: &[Operand]) -> Result<Operand, String> {
        if function == "index" {
            return self.index(arguments);
        }
        if let ("default", [fallback, value]) = (function, arguments) {
            let given = match value {
                Operand::Text(text) => Some(text),
                Operand::Field(name) => self.params.get(name),
            };
            return match given.filter(|text| !text.is_empty()) {
                Some(text) => Ok(Operand::Text(text.clone())),
                None => self.text(fallback).map(Operand::Text),
            };
        }
        let texts = arguments.iter().map(|one| self.text(one)).collect::<Result<Vec<_>, _>>()?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        check_bytes(texts.iter().map(|text| text.len()).sum())?;
        let text: Cow<'_, str> = match (function, &texts[..]) {
            ("lower", [text]) => text.to_lowercase().into(),
            ("upper", [text]) => text.to_uppercase().into(),
            ("trim", [text]) => text.trim().into(),
            ("toString", [text]) => (*text).into(),
            ("quote", [text]) => format!("\"{text}\"").into(),
            ("squote", [text]) => format!("'{text}'").into(),
            ("normalize", [text]) => normalize(text).into(),
            ("trimPrefix", [prefix, text]) => text.strip_prefix(prefix).unwrap_or(text).into(),
            ("trimSuffix", [suffix, text]) => text.strip_suffix(suffix).unwrap_or(text).into(),
            ("replace", [from, to, text]) => {
                let added = text.matches(from).count().saturating_mul(to.len());
                check_bytes(added.saturating_add(text.len()))?;
                text.replace(from, to).into()
            }
            ("trunc", [count, text]) => {
                let count: usize = count.parse().map_err(|_| unsupported("trunc"))?;
                text.chars().take(count).collect::<String>().into()
            }
            ("printf", [format, values @ ..]) => print_format(format, values)?.into(),
            _ => return Err(unsupported(function)),
        };
        Ok(Operand::Text(text.into_owned()))
    }

    /// Returns the parameter at keys below another one. Parameters are known by their whole path.
    fn index(&self, arguments: &[Operand]) -> Result<Operand, String> {
        let Some((Operand::Field(base), keys)) = arguments.split_first() else {
            return Err(unsupported("index"));
        };
        let mut path = base.clone();
        for key in keys {
            let key = self.text(key)?;
            path = match key.parse::<usize>() {
                // The parts of a path are parameters such as `path[0]`.
                Ok(at) => format!("{}[{at}]", path.trim_end_matches(".segments")),
                Err(_) => format!("{path}.{key}"),
            };
        }
        Ok(Operand::Field(path))
    }
}

/// Checks the bytes of a value against the limit, before they are allocated.
fn check_bytes(bytes: usize) -> Result<(), String> {
    if bytes <= APPLICATION_BYTES_MAX {
        return Ok(());
    }
    Err(format!("it makes more than {APPLICATION_BYTES_MAX} bytes at once"))
}

/// Returns a name that is valid in DNS, as the function `normalize` of Argo CD.
fn normalize(text: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '-' };
    let name: String = text.to_ascii_lowercase().chars().map(plain).take(253).collect();
    name.trim_matches(['-', '.']).to_owned()
}

/// Formats texts with `%s`, `%v` and `%d`.
fn print_format(format: &str, values: &[&str]) -> Result<String, String> {
    let mut out = String::new();
    let mut values = values.iter();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('%') => out.push('%'),
            Some('s' | 'v' | 'd') => {
                out.push_str(values.next().ok_or_else(|| unsupported(format))?);
            }
            Some(_) | None => return Err(unsupported(format)),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_expressions_are_evaluated_and_others_refused() {
        let pairs = [
            ("name", "Prod_EU"),
            ("path", "apps/web"),
            ("path.basename", "web"),
            ("path[0]", "apps"),
            ("metadata.labels.env", "prod"),
            ("empty", ""),
        ];
        let params = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        for (expression, expected) in [
            ("name", "Prod_EU"),
            (" .name ", "Prod_EU"),
            ("$.path.basename", "web"),
            ("index .path.segments 0", "apps"),
            ("index .metadata.labels \"env\"", "prod"),
            (".name | lower | replace \"_\" \"-\"", "prod-eu"),
            ("normalize .name", "prod-eu"),
            ("default \"x\" .empty", "x"),
            (".other | default `y`", "y"),
            ("printf \"%s-%s\" .path.basename (index .metadata.labels \"env\")", "web-prod"),
            ("trunc 4 .name", "Prod"),
            (".name | trimPrefix \"Prod_\" | quote", "\"EU\""),
        ] {
            assert_eq!(evaluate(expression, &params).as_deref(), Ok(expected), "{expression}");
        }
        for (expression, expected) in [
            ("what", "needs `what`"),
            (".what", "needs `.what`"),
            ("if .name", "expression `if`"),
            ("end", "needs `end`"),
            ("range .path", "expression `range`"),
            (".name .path", "is not supported"),
            ("\"open", "is not supported"),
            ("printf \"%q\" .name", "is not supported"),
            ("(((((((((((((((((((.name", "is not supported"),
        ] {
            let error = evaluate(expression, &params).expect_err(expression);
            assert!(error.contains(expected), "{expression}: {error}");
        }
    }

    #[test]
    fn a_replacement_has_a_bounded_length() {
        let params = [("many", "a"), ("long", "b")];
        let params = params.map(|(key, value)| (key.to_owned(), value.repeat(2_000))).into();
        let error = evaluate("replace \"a\" .long .many", &params).expect_err("4 MB");
        assert!(error.contains("bytes at once"), "{error}");
    }
}
