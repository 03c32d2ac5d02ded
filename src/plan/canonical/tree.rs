//! Converts a value to a tree in which every number is an integer and every object is sorted.
//!
//! `serde_json::Value` is unsuitable: it turns NaN and infinity into `null` without an error.

use std::borrow::Cow;
use std::fmt;

use serde::ser::{self, Serialize, Serializer};

use super::CanonicalError;

/// A key of an object. Keys of structs are borrowed.
pub(super) type JsonKey = Cow<'static, str>;

/// A JSON value without floats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Integer(i128),
    Text(String),
    List(Vec<Json>),
    /// Sorted by key, without duplicates.
    Object(Vec<(JsonKey, Json)>),
}

impl Json {
    /// Converts `value`.
    pub(super) fn from_value<T: Serialize + ?Sized>(value: &T) -> Result<Self, CanonicalError> {
        value.serialize(ToTree)
    }

    /// Returns an object with the one entry `name`, the form of enum variants with contents.
    fn variant(name: &'static str, content: Self) -> Self {
        Self::Object(vec![(JsonKey::Borrowed(name), content)])
    }
}

impl ser::Error for CanonicalError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Refused(message.to_string())
    }
}

struct ToTree;

/// Items of a list, and the enum variant that contains the list.
struct ListWriter {
    variant: Option<&'static str>,
    items: Vec<Json>,
}

impl ListWriter {
    fn new(variant: Option<&'static str>) -> Self {
        Self { variant, items: Vec::new() }
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CanonicalError> {
        self.items.push(Json::from_value(value)?);
        Ok(())
    }

    fn finish(self) -> Json {
        let list = Json::List(self.items);
        match self.variant {
            Some(name) => Json::variant(name, list),
            None => list,
        }
    }
}

/// Entries of an object, and the enum variant that contains the object.
struct ObjectWriter {
    variant: Option<&'static str>,
    key: Option<JsonKey>,
    entries: Vec<(JsonKey, Json)>,
}

impl ObjectWriter {
    fn new(variant: Option<&'static str>) -> Self {
        Self { variant, key: None, entries: Vec::new() }
    }

    fn insert<T: Serialize + ?Sized>(
        &mut self,
        key: JsonKey,
        value: &T,
    ) -> Result<(), CanonicalError> {
        self.entries.push((key, Json::from_value(value)?));
        Ok(())
    }

    fn finish(mut self) -> Result<Json, CanonicalError> {
        self.entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        let twice = self.entries.windows(2).find(|pair| pair[0].0 == pair[1].0);
        if let Some(pair) = twice {
            return Err(CanonicalError::DuplicateKey(pair[0].0.to_string()));
        }
        let object = Json::Object(self.entries);
        Ok(match self.variant {
            Some(name) => Json::variant(name, object),
            None => object,
        })
    }
}

/// Defines the methods for integers that fit into 64 bits.
macro_rules! integers {
    ($($method:ident($type:ty)),+ $(,)?) => {$(
        fn $method(self, value: $type) -> Result<Json, CanonicalError> {
            Ok(Json::Integer(i128::from(value)))
        }
    )+};
}

impl Serializer for ToTree {
    type Ok = Json;
    type Error = CanonicalError;
    type SerializeSeq = ListWriter;
    type SerializeTuple = ListWriter;
    type SerializeTupleStruct = ListWriter;
    type SerializeTupleVariant = ListWriter;
    type SerializeMap = ObjectWriter;
    type SerializeStruct = ObjectWriter;
    type SerializeStructVariant = ObjectWriter;

    integers! {
        serialize_i8(i8), serialize_i16(i16), serialize_i32(i32), serialize_i64(i64),
        serialize_u8(u8), serialize_u16(u16), serialize_u32(u32), serialize_u64(u64),
    }

    fn serialize_i128(self, value: i128) -> Result<Json, CanonicalError> {
        let fits = (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&value);
        if fits { Ok(Json::Integer(value)) } else { Err(CanonicalError::Wide(value.to_string())) }
    }

    fn serialize_u128(self, value: u128) -> Result<Json, CanonicalError> {
        i128::try_from(value)
            .map_err(|_| CanonicalError::Wide(value.to_string()))
            .and_then(|value| self.serialize_i128(value))
    }

    fn serialize_bool(self, value: bool) -> Result<Json, CanonicalError> {
        Ok(Json::Bool(value))
    }

    fn serialize_f32(self, value: f32) -> Result<Json, CanonicalError> {
        Err(CanonicalError::Float(value.to_string()))
    }

    fn serialize_f64(self, value: f64) -> Result<Json, CanonicalError> {
        Err(CanonicalError::Float(value.to_string()))
    }

    fn serialize_char(self, value: char) -> Result<Json, CanonicalError> {
        Ok(Json::Text(value.to_string()))
    }

    fn serialize_str(self, value: &str) -> Result<Json, CanonicalError> {
        Ok(Json::Text(value.to_owned()))
    }

    fn serialize_bytes(self, _: &[u8]) -> Result<Json, CanonicalError> {
        Err(CanonicalError::Bytes)
    }

    fn serialize_none(self) -> Result<Json, CanonicalError> {
        Ok(Json::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Json, CanonicalError> {
        Json::from_value(value)
    }

    fn serialize_unit(self) -> Result<Json, CanonicalError> {
        Ok(Json::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Json, CanonicalError> {
        Ok(Json::Null)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Json, CanonicalError> {
        Ok(Json::Text(variant.to_owned()))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Json, CanonicalError> {
        Json::from_value(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Json, CanonicalError> {
        Ok(Json::variant(variant, Json::from_value(value)?))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<ListWriter, CanonicalError> {
        Ok(ListWriter::new(None))
    }

    fn serialize_tuple(self, _: usize) -> Result<ListWriter, CanonicalError> {
        Ok(ListWriter::new(None))
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<ListWriter, CanonicalError> {
        Ok(ListWriter::new(None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<ListWriter, CanonicalError> {
        Ok(ListWriter::new(Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<ObjectWriter, CanonicalError> {
        Ok(ObjectWriter::new(None))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<ObjectWriter, CanonicalError> {
        Ok(ObjectWriter::new(None))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<ObjectWriter, CanonicalError> {
        Ok(ObjectWriter::new(Some(variant)))
    }
}

impl ser::SerializeSeq for ListWriter {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.finish())
    }
}

impl ser::SerializeTuple for ListWriter {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.finish())
    }
}

impl ser::SerializeTupleStruct for ListWriter {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.finish())
    }
}

impl ser::SerializeTupleVariant for ListWriter {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.finish())
    }
}

impl ser::SerializeMap for ObjectWriter {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Self::Error> {
        self.key = Some(match Json::from_value(key)? {
            Json::Text(text) => JsonKey::Owned(text),
            Json::Integer(n) => JsonKey::Owned(n.to_string()),
            Json::Null | Json::Bool(_) | Json::List(_) | Json::Object(_) => {
                return Err(CanonicalError::Key);
            }
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        let key = self.key.take().ok_or(CanonicalError::Key)?;
        self.insert(key, value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        self.finish()
    }
}

impl ser::SerializeStruct for ObjectWriter {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Self::Error> {
        self.insert(JsonKey::Borrowed(key), value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        self.finish()
    }
}

impl ser::SerializeStructVariant for ObjectWriter {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Self::Error> {
        self.insert(JsonKey::Borrowed(key), value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        self.finish()
    }
}
