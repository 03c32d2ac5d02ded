//! Writes a value as canonical JSON while it is serialized, without a tree of it.
//!
//! Every entry of an object begins with a comma. When the object ends, its entries are sorted in
//! place, and the first comma becomes the opening brace. Only the bytes of an object whose keys
//! come unsorted are copied.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::ser::{self, Serialize, Serializer};

use super::{CanonicalError, INDENT, is_terminal_control};

/// A key of an object. Keys of structs are borrowed.
type JsonKey = Cow<'static, str>;

/// Spaces to copy indentation from.
const SPACES: &str = "                                ";

/// The two spellings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// No white space.
    Compact,
    /// One line for each item, and escapes for terminal control characters.
    Pretty,
}

/// Returns `value` in a spelling, without a final line feed.
pub(super) fn to_text<T: Serialize + ?Sized>(
    value: &T,
    spelling: Spelling,
) -> Result<String, CanonicalError> {
    let mut writer = JsonWriter { out: Vec::new(), spelling, level: 0 };
    value.serialize(&mut writer)?;
    // Only whole strings and ASCII are written.
    String::from_utf8(writer.out).map_err(|error| CanonicalError::Refused(error.to_string()))
}

pub(super) struct JsonWriter {
    out: Vec<u8>,
    spelling: Spelling,
    level: usize,
}

impl JsonWriter {
    fn push(&mut self, ascii: &str) {
        self.out.extend_from_slice(ascii.as_bytes());
    }

    /// Starts the line of an item.
    fn start_line(&mut self) {
        if self.spelling == Spelling::Compact {
            return;
        }
        self.out.push(b'\n');
        let mut left = self.level * INDENT;
        while left > 0 {
            let now = left.min(SPACES.len());
            self.push(&SPACES[..now]);
            left -= now;
        }
    }

    fn integer(&mut self, value: i128) {
        // Writing to a `Vec` cannot fail.
        let _ = write!(AsText(&mut self.out), "{value}");
    }

    fn key(&mut self, key: &str) {
        self.text(key);
        self.push(match self.spelling {
            Spelling::Compact => ":",
            Spelling::Pretty => ": ",
        });
    }

    /// Writes `text` with the escapes that JSON requires, in their short form where there is one,
    /// and with escapes for terminal controls in files.
    fn text(&mut self, text: &str) {
        self.out.push(b'"');
        let mut rest = text;
        while let Some(at) = rest.find(|c| self.is_escaped(c)) {
            let (plain, odd) = rest.split_at(at);
            self.push(plain);
            let mut chars = odd.chars();
            chars.by_ref().take(1).for_each(|c| self.escape(c));
            rest = chars.as_str();
        }
        self.push(rest);
        self.out.push(b'"');
    }

    fn is_escaped(&self, c: char) -> bool {
        let is_file = self.spelling == Spelling::Pretty;
        matches!(c, '"' | '\\' | '\0'..='\u{1f}')
            || is_file && !c.is_ascii() && is_terminal_control(c)
            || is_file && c == '\u{7f}'
    }

    fn escape(&mut self, c: char) {
        let short = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{8}' => "\\b",
            '\t' => "\\t",
            '\n' => "\\n",
            '\u{c}' => "\\f",
            '\r' => "\\r",
            c => {
                // Writing to a `Vec` cannot fail.
                let _ = write!(AsText(&mut self.out), "\\u{:04x}", u32::from(c));
                return;
            }
        };
        self.push(short);
    }

    fn list(&mut self, variant: Option<&'static str>) -> ListWriter<'_> {
        let variant = self.begin_variant(variant);
        let start = self.out.len();
        self.level += 1;
        ListWriter { writer: self, start, variant }
    }

    fn object(&mut self, variant: Option<&'static str>) -> ObjectWriter<'_> {
        let variant = self.begin_variant(variant);
        let start = self.out.len();
        self.level += 1;
        ObjectWriter { writer: self, start, variant, key: None, entries: Vec::new() }
    }

    /// Begins an object with one entry, the form of enum variants with contents.
    fn begin_variant(&mut self, name: Option<&'static str>) -> Variant {
        let Some(name) = name else { return Variant::None };
        self.level += 1;
        self.out.push(b'{');
        self.start_line();
        self.key(name);
        Variant::Open
    }

    fn end_variant(&mut self, variant: Variant) {
        match variant {
            Variant::None => {}
            Variant::Open => {
                self.level -= 1;
                self.start_line();
                self.out.push(b'}');
            }
        }
    }

    /// Ends a list or an object that begins at `start`. Each of its items begins with a comma.
    fn close(&mut self, start: usize, open: u8, close: u8) {
        self.level -= 1;
        if let Some(first) = self.out.get_mut(start) {
            *first = open;
            self.start_line();
        } else {
            self.out.push(open);
        }
        self.out.push(close);
    }
}

/// Whether a value is the only entry of the object of its enum variant.
#[derive(Clone, Copy)]
enum Variant {
    None,
    Open,
}

/// Formats into bytes.
struct AsText<'w>(&'w mut Vec<u8>);

impl fmt::Write for AsText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Items of a list.
pub(super) struct ListWriter<'w> {
    writer: &'w mut JsonWriter,
    start: usize,
    variant: Variant,
}

impl ListWriter<'_> {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CanonicalError> {
        self.writer.out.push(b',');
        self.writer.start_line();
        value.serialize(&mut *self.writer)
    }

    fn finish(self) {
        self.writer.close(self.start, b'[', b']');
        self.writer.end_variant(self.variant);
    }
}

/// Entries of an object.
pub(super) struct ObjectWriter<'w> {
    writer: &'w mut JsonWriter,
    start: usize,
    variant: Variant,
    key: Option<JsonKey>,
    /// Each key with the place of its entry, which ends where the next one begins.
    entries: Vec<(JsonKey, usize)>,
}

impl ObjectWriter<'_> {
    fn insert<T: Serialize + ?Sized>(
        &mut self,
        key: JsonKey,
        value: &T,
    ) -> Result<(), CanonicalError> {
        let at = self.writer.out.len();
        self.writer.out.push(b',');
        self.writer.start_line();
        self.writer.key(&key);
        self.entries.push((key, at));
        value.serialize(&mut *self.writer)
    }

    fn finish(mut self) -> Result<(), CanonicalError> {
        self.sort()?;
        self.writer.close(self.start, b'{', b'}');
        self.writer.end_variant(self.variant);
        Ok(())
    }

    fn sort(&mut self) -> Result<(), CanonicalError> {
        if self.entries.is_sorted_by(|(a, _), (b, _)| a < b) {
            return Ok(());
        }
        let out = &mut self.writer.out;
        let ends: Vec<usize> =
            self.entries.iter().skip(1).map(|(_, at)| *at).chain([out.len()]).collect();
        let mut entries: Vec<_> = self.entries.drain(..).zip(ends).collect();
        entries.sort_by(|((a, _), _), ((b, _), _)| a.cmp(b));
        let twice = entries.windows(2).find(|pair| pair[0].0.0 == pair[1].0.0);
        if let Some(pair) = twice {
            return Err(CanonicalError::DuplicateKey(pair[0].0.0.to_string()));
        }
        let unsorted = out.split_off(self.start);
        for ((_, at), end) in entries {
            out.extend_from_slice(&unsorted[at - self.start..end - self.start]);
        }
        Ok(())
    }
}

impl ser::Error for CanonicalError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Refused(message.to_string())
    }
}

/// Defines the methods for integers that fit into 64 bits.
macro_rules! integers {
    ($($method:ident($type:ty)),+ $(,)?) => {$(
        fn $method(self, value: $type) -> Result<(), CanonicalError> {
            self.integer(i128::from(value));
            Ok(())
        }
    )+};
}

impl<'w> Serializer for &'w mut JsonWriter {
    type Ok = ();
    type Error = CanonicalError;
    type SerializeSeq = ListWriter<'w>;
    type SerializeTuple = ListWriter<'w>;
    type SerializeTupleStruct = ListWriter<'w>;
    type SerializeTupleVariant = ListWriter<'w>;
    type SerializeMap = ObjectWriter<'w>;
    type SerializeStruct = ObjectWriter<'w>;
    type SerializeStructVariant = ObjectWriter<'w>;

    integers! {
        serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64),
        serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64),
    }

    fn serialize_i128(self, value: i128) -> Result<(), CanonicalError> {
        if !(i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value) {
            return Err(CanonicalError::Wide(value.to_string()));
        }
        self.integer(value);
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result<(), CanonicalError> {
        i128::try_from(value)
            .map_err(|_| CanonicalError::Wide(value.to_string()))
            .and_then(|value| self.serialize_i128(value))
    }

    fn serialize_bool(self, value: bool) -> Result<(), CanonicalError> {
        self.push(if value { "true" } else { "false" });
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), CanonicalError> {
        Err(CanonicalError::Float(value.to_string()))
    }

    fn serialize_f64(self, value: f64) -> Result<(), CanonicalError> {
        Err(CanonicalError::Float(value.to_string()))
    }

    fn serialize_char(self, value: char) -> Result<(), CanonicalError> {
        self.text(value.encode_utf8(&mut [0; 4]));
        Ok(())
    }

    fn serialize_str(self, value: &str) -> Result<(), CanonicalError> {
        self.text(value);
        Ok(())
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<(), CanonicalError> {
        Err(CanonicalError::Bytes)
    }

    fn serialize_none(self) -> Result<(), CanonicalError> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), CanonicalError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), CanonicalError> {
        self.push("null");
        Ok(())
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), CanonicalError> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), CanonicalError> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), CanonicalError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), CanonicalError> {
        let variant = self.begin_variant(Some(name));
        value.serialize(&mut *self)?;
        self.end_variant(variant);
        Ok(())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<ListWriter<'w>, CanonicalError> {
        Ok(self.list(None))
    }

    fn serialize_tuple(self, _: usize) -> Result<ListWriter<'w>, CanonicalError> {
        Ok(self.list(None))
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<ListWriter<'w>, CanonicalError> {
        Ok(self.list(None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<ListWriter<'w>, CanonicalError> {
        Ok(self.list(Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<ObjectWriter<'w>, CanonicalError> {
        Ok(self.object(None))
    }

    fn serialize_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<ObjectWriter<'w>, CanonicalError> {
        Ok(self.object(None))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<ObjectWriter<'w>, CanonicalError> {
        Ok(self.object(Some(variant)))
    }
}

/// Implements a trait for items of a list.
macro_rules! list_items {
    ($($of:ident::$method:ident),+ $(,)?) => {$(
        impl ser::$of for ListWriter<'_> {
            type Ok = ();
            type Error = CanonicalError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CanonicalError> {
                self.push(value)
            }

            fn end(self) -> Result<(), CanonicalError> {
                self.finish();
                Ok(())
            }
        }
    )+};
}

list_items! {
    SerializeSeq::serialize_element, SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field, SerializeTupleVariant::serialize_field,
}

/// Implements a trait for fields of an object.
macro_rules! object_fields {
    ($($of:ident),+ $(,)?) => {$(
        impl ser::$of for ObjectWriter<'_> {
            type Ok = ();
            type Error = CanonicalError;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), CanonicalError> {
                self.insert(JsonKey::Borrowed(key), value)
            }

            fn end(self) -> Result<(), CanonicalError> {
                self.finish()
            }
        }
    )+};
}

object_fields! { SerializeStruct, SerializeStructVariant }

impl ser::SerializeMap for ObjectWriter<'_> {
    type Ok = ();
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), CanonicalError> {
        use serde_json::Value;
        // A key is a string, or an integer, which becomes one.
        let key = serde_json::to_value(key).map_err(|_| CanonicalError::Key)?;
        self.key = Some(match key {
            Value::String(text) => JsonKey::Owned(text),
            Value::Number(n) if !n.is_f64() => JsonKey::Owned(n.to_string()),
            Value::Number(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Array(_)
            | Value::Object(_) => return Err(CanonicalError::Key),
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CanonicalError> {
        let key = self.key.take().ok_or(CanonicalError::Key)?;
        self.insert(key, value)
    }

    fn end(self) -> Result<(), CanonicalError> {
        self.finish()
    }
}
