//! Decodes bytes to text: byte order marks, UTF-16, and errors.

use std::borrow::Cow;

use thiserror::Error;

/// Maximum size of a file, in bytes; the largest known public manifests are 4 MB.
const FILE_BYTES_MAX: usize = 64 << 20;

/// The reason why bytes are not text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(in super::super) enum TextError {
    /// Longer than [`FILE_BYTES_MAX`].
    #[error("is larger than {} MiB", FILE_BYTES_MAX >> 20)]
    TooLarge,
    /// A NUL byte, at this line.
    #[error("contains a NUL byte, so it is not a text file")]
    Nul(u32),
    /// Bytes that are not UTF-8, at this line.
    #[error("is not UTF-8 text")]
    NotUtf8(u32),
    /// A UTF-16 byte order mark before something that is not UTF-16.
    #[error("starts as UTF-16 text but continues with other bytes")]
    NotUtf16,
}

impl TextError {
    /// Returns the line of the error; 0 for the file as a whole.
    pub(in super::super) fn line(self) -> u32 {
        match self {
            Self::TooLarge | Self::NotUtf16 => 0,
            Self::Nul(line) | Self::NotUtf8(line) => line,
        }
    }
}

/// Returns `bytes` as text, without a byte order mark. UTF-16 needs a byte order mark.
pub(in super::super) fn decode(bytes: &[u8]) -> Result<Cow<'_, str>, TextError> {
    if bytes.len() > FILE_BYTES_MAX {
        return Err(TextError::TooLarge);
    }
    let text = match bytes {
        [0xFF, 0xFE, rest @ ..] => Cow::Owned(utf16(rest, u16::from_le_bytes)?),
        [0xFE, 0xFF, rest @ ..] => Cow::Owned(utf16(rest, u16::from_be_bytes)?),
        [0xEF, 0xBB, 0xBF, rest @ ..] => Cow::Borrowed(utf8(rest)?),
        _ => Cow::Borrowed(utf8(bytes)?),
    };
    match text.bytes().position(|byte| byte == 0) {
        Some(at) => Err(TextError::Nul(line_of(&text.as_bytes()[..at]))),
        None => Ok(text),
    }
}

/// Returns `text` with JSON's escaped surrogate pairs (`\ud83d\ude00`) replaced by their
/// characters, which YAML cannot express; `None` if there are none.
pub(in super::super) fn join_surrogates(text: &str) -> Option<String> {
    let mut joined = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = text.get(at..).and_then(|rest| rest.find('\\')) {
        let escape = at + found;
        // Skipping the character after a backslash leaves `\\u…`, an escaped backslash, unchanged.
        at = escape + 2;
        let unit = |from: usize| {
            let digits = text.get(from..from + 6)?.strip_prefix("\\u")?;
            u16::from_str_radix(digits, 16).ok()
        };
        let (Some(high), Some(low)) = (unit(escape), unit(escape + 6)) else { continue };
        if let Some(Ok(character)) = char::decode_utf16([high, low]).next()
            && character.len_utf16() == 2
        {
            joined.push_str(&text[copied..escape]);
            joined.push(character);
            copied = escape + 12;
            at = copied;
        }
    }
    (copied > 0).then(|| joined + &text[copied..])
}

fn utf8(bytes: &[u8]) -> Result<&str, TextError> {
    std::str::from_utf8(bytes)
        .map_err(|error| TextError::NotUtf8(line_of(&bytes[..error.valid_up_to()])))
}

fn utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16) -> Result<String, TextError> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(TextError::NotUtf16);
    }
    let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
    String::from_utf16(&units).map_err(|_| TextError::NotUtf16)
}

fn line_of(before: &[u8]) -> u32 {
    u32::try_from(before.split(|byte| *byte == b'\n').count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_marks_are_removed_and_utf_16_is_read() {
        assert_eq!(decode(b"a: 1").as_deref(), Ok("a: 1"));
        assert_eq!(decode(b"\xEF\xBB\xBFa: 1").as_deref(), Ok("a: 1"));
        assert_eq!(decode(b"\xFF\xFEa\0:\0").as_deref(), Ok("a:"));
        assert_eq!(decode(b"\xFE\xFF\0a\0:").as_deref(), Ok("a:"));
    }

    #[test]
    fn escaped_surrogate_pairs_become_their_character() {
        let joined = join_surrogates(r#"{"a": "\ud83d\uDE00 \\ud83d\ude00 \u00e9"}"#);
        assert_eq!(joined.as_deref(), Some(r#"{"a": "😀 \\ud83d\ude00 \u00e9"}"#));
        for none in [r"\u00e9\u00e8", r"\ud83d", "\\", "é\\é", r"\ud83d\u"] {
            assert_eq!(join_surrogates(none), None, "{none}");
        }
    }

    #[test]
    fn binary_content_is_reported_with_its_line() {
        for (bytes, expected) in [
            (&b"a\nb\0"[..], TextError::Nul(2)),
            (b"a\n\n\xFF", TextError::NotUtf8(3)),
            (b"\xFF\xFEa", TextError::NotUtf16),
            (b"\xFF\xFE\0\xD8", TextError::NotUtf16),
            (b"\xFF\xFE\0\0", TextError::Nul(1)),
        ] {
            assert_eq!(decode(bytes), Err(expected));
        }
    }
}
