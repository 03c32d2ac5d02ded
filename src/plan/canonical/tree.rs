//! From a value to a tree in which every number is an integer and every object is sorted.
//!
//! `serde_json::Value` would not do: it turns a float that is no number into `null` without a word.

use std::borrow::Cow;
use std::fmt;

use serde::ser::{self, Serialize, Serializer};

use super::CanonicalError;

/// A key of an object; those of structs are there already.
pub(super) type Key = Cow<'static, str>;

/// A JSON value without floats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Integer(i128),
    Text(String),
    List(Vec<Json>),
    /// Sorted by key, and no key twice.
    Object(Vec<(Key, Json)>),
}

impl Json {
    /// Converts `value`.
    pub(super) fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, CanonicalError> {
        value.serialize(ToTree)
    }

    /// Returns an object of the one entry `name`, as variants with contents are written.
    fn variant(name: &'static str, content: Self) -> Self {
        Self::Object(vec![(Key::Borrowed(name), content)])
    }
}

impl ser::Error for CanonicalError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Refused(message.to_string())
    }
}

struct ToTree;

/// The items of a list, and the variant they belong to.
struct Items {
    variant: Option<&'static str>,
    items: Vec<Json>,
}

impl Items {
    fn new(variant: Option<&'static str>) -> Self {
        Self { variant, items: Vec::new() }
    }

    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), CanonicalError> {
        self.items.push(Json::of(value)?);
        Ok(())
    }

    fn close(self) -> Json {
        let list = Json::List(self.items);
        match self.variant {
            Some(name) => Json::variant(name, list),
            None => list,
        }
    }
}

/// The entries of an object, and the variant they belong to.
struct Entries {
    variant: Option<&'static str>,
    key: Option<Key>,
    held: Vec<(Key, Json)>,
}

impl Entries {
    fn new(variant: Option<&'static str>) -> Self {
        Self { variant, key: None, held: Vec::new() }
    }

    fn put<T: Serialize + ?Sized>(&mut self, key: Key, value: &T) -> Result<(), CanonicalError> {
        self.held.push((key, Json::of(value)?));
        Ok(())
    }

    fn close(mut self) -> Result<Json, CanonicalError> {
        self.held.sort_by(|(a, _), (b, _)| a.cmp(b));
        let twice = self.held.windows(2).find(|pair| pair[0].0 == pair[1].0);
        if let Some(pair) = twice {
            return Err(CanonicalError::DuplicateKey(pair[0].0.to_string()));
        }
        let object = Json::Object(self.held);
        Ok(match self.variant {
            Some(name) => Json::variant(name, object),
            None => object,
        })
    }
}

/// Writes the methods for integers that fit into 64 bits.
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
    type SerializeSeq = Items;
    type SerializeTuple = Items;
    type SerializeTupleStruct = Items;
    type SerializeTupleVariant = Items;
    type SerializeMap = Entries;
    type SerializeStruct = Entries;
    type SerializeStructVariant = Entries;

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
        Json::of(value)
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
        Json::of(value)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Json, CanonicalError> {
        Ok(Json::variant(variant, Json::of(value)?))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items, CanonicalError> {
        Ok(Items::new(None))
    }

    fn serialize_tuple(self, _: usize) -> Result<Items, CanonicalError> {
        Ok(Items::new(None))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items, CanonicalError> {
        Ok(Items::new(None))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Items, CanonicalError> {
        Ok(Items::new(Some(variant)))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries, CanonicalError> {
        Ok(Entries::new(None))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries, CanonicalError> {
        Ok(Entries::new(None))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Entries, CanonicalError> {
        Ok(Entries::new(Some(variant)))
    }
}

impl ser::SerializeSeq for Items {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.close())
    }
}

impl ser::SerializeTuple for Items {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.close())
    }
}

impl ser::SerializeTupleStruct for Items {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.close())
    }
}

impl ser::SerializeTupleVariant for Items {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        self.push(value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        Ok(self.close())
    }
}

impl ser::SerializeMap for Entries {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Self::Error> {
        self.key = Some(match Json::of(key)? {
            Json::Text(text) => Key::Owned(text),
            Json::Integer(n) => Key::Owned(n.to_string()),
            Json::Null | Json::Bool(_) | Json::List(_) | Json::Object(_) => {
                return Err(CanonicalError::Key);
            }
        });
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Self::Error> {
        let key = self.key.take().ok_or(CanonicalError::Key)?;
        self.put(key, value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        self.close()
    }
}

impl ser::SerializeStruct for Entries {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Self::Error> {
        self.put(Key::Borrowed(key), value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        self.close()
    }
}

impl ser::SerializeStructVariant for Entries {
    type Ok = Json;
    type Error = CanonicalError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        key: &'static str,
        value: &T,
    ) -> Result<(), Self::Error> {
        self.put(Key::Borrowed(key), value)
    }

    fn end(self) -> Result<Json, CanonicalError> {
        self.close()
    }
}
