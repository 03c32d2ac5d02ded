//! The meaning of plain scalars: null, a boolean, a number or a text.
//!
//! The rules are those of `sigs.k8s.io/yaml`, which every Kubernetes tool uses to read YAML: `yes`,
//! `no`, `on` and `off` are booleans, `010` is eight, `1_000` is a thousand.

/// The meaning of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Scalar<'a> {
    /// Null.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A fraction, or an integer that is too large; as written, `_` included.
    Number(&'a str),
    /// A text.
    Text(&'a str),
}

impl Scalar<'_> {
    pub(in super::super) fn is_number(self) -> bool {
        matches!(self, Self::Int(_) | Self::Number(_))
    }

    /// Returns the type of the scalar, for messages.
    pub(in super::super) fn noun(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Int(_) | Self::Number(_) => "a number",
            Self::Text(_) => "a string",
        }
    }
}

/// Returns the meaning of the plain scalar `text`.
pub(in super::super) fn resolve(text: &str) -> Scalar<'_> {
    match text.as_bytes().first() {
        None => Scalar::Null,
        Some(b'0'..=b'9' | b'+' | b'-' | b'.') => number(text).unwrap_or(Scalar::Text(text)),
        Some(b'~' | b'n' | b'N' | b't' | b'T' | b'f' | b'F' | b'y' | b'Y' | b'o' | b'O') => {
            word(text)
        }
        Some(_) => Scalar::Text(text),
    }
}

fn word(text: &str) -> Scalar<'_> {
    match text {
        "~" | "null" | "Null" | "NULL" => Scalar::Null,
        "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
            Scalar::Bool(true)
        }
        "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
            Scalar::Bool(false)
        }
        _ => Scalar::Text(text),
    }
}

fn number(text: &str) -> Option<Scalar<'_>> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if let Some(magnitude) = integer(digits) {
        return Some(match i64::try_from(if negative { -magnitude } else { magnitude }) {
            Ok(int) => Scalar::Int(int),
            Err(_) => Scalar::Number(text),
        });
    }
    is_float(digits).then_some(Scalar::Number(text))
}

fn integer(digits: &str) -> Option<i128> {
    let clean: std::borrow::Cow<'_, str> =
        if digits.contains('_') { digits.replace('_', "").into() } else { digits.into() };
    let parse = |digits: &str, radix| {
        let plain = digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        plain.then(|| i128::from_str_radix(digits, radix).ok())?
    };
    match clean.as_bytes() {
        [b'0', b'x' | b'X', ..] => parse(&clean[2..], 16),
        [b'0', b'o' | b'O', ..] => parse(&clean[2..], 8),
        [b'0', b'b' | b'B', ..] => parse(&clean[2..], 2),
        [b'0', _, ..] => parse(&clean[1..], 8),
        _ => parse(&clean, 10),
    }
}

/// Returns whether `digits` is `1`, `1.`, `.5` or `1.5`, with or without an exponent.
fn is_float(digits: &str) -> bool {
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], Some(&digits[at + 1..])),
        None => (digits, None),
    };
    let all_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let has_digit = mantissa.bytes().any(|b| b.is_ascii_digit());
    let exponent_ok = exponent.is_none_or(|text| {
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    });
    has_digit && all_digits(whole) && all_digits(fraction) && exponent_ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_resolve_as_in_kubernetes_tools() {
        for (text, expected) in [
            ("", Scalar::Null),
            ("~", Scalar::Null),
            ("null", Scalar::Null),
            ("nullable", Scalar::Text("nullable")),
            ("yes", Scalar::Bool(true)),
            ("Off", Scalar::Bool(false)),
            ("y", Scalar::Bool(true)),
            ("yEs", Scalar::Text("yEs")),
            ("3", Scalar::Int(3)),
            ("-3", Scalar::Int(-3)),
            ("+3", Scalar::Int(3)),
            ("1_000", Scalar::Int(1000)),
            ("010", Scalar::Int(8)),
            ("0x10", Scalar::Int(16)),
            ("0b11", Scalar::Int(3)),
            ("0o17", Scalar::Int(15)),
            ("08", Scalar::Number("08")),
            ("1.5", Scalar::Number("1.5")),
            (".5", Scalar::Number(".5")),
            ("1e3", Scalar::Number("1e3")),
            ("99999999999999999999", Scalar::Number("99999999999999999999")),
            ("1.2.3", Scalar::Text("1.2.3")),
            ("10%", Scalar::Text("10%")),
            ("100m", Scalar::Text("100m")),
            ("1e", Scalar::Text("1e")),
            ("-", Scalar::Text("-")),
            (".", Scalar::Text(".")),
            ("--1", Scalar::Text("--1")),
            ("0x", Scalar::Text("0x")),
            ("=", Scalar::Text("=")),
            ("2001-01-01", Scalar::Text("2001-01-01")),
            ("12:30:45", Scalar::Text("12:30:45")),
        ] {
            assert_eq!(resolve(text), expected, "{text}");
        }
    }
}
