//! YAML and JSON text → a tree in which every value remembers its line.
//!
//! This module knows YAML: documents, anchors and aliases, merge keys, tags, what a plain word
//! means. It knows nothing of Kubernetes. Invariants: no input makes it panic or recurse deeper
//! than [`DEPTH_MAX`], and what it builds is bounded by [`NODES_MAX`], however often aliases
//! repeat. Why it is built on parser events instead of a deserializer: ADR 0001.

mod json;
mod load;
mod loosen;
mod scalar;
mod text;

pub(super) use json::to_json;
pub(super) use load::load;
pub(super) use loosen::loosen;
pub(super) use scalar::{Scalar, resolve};
pub(super) use text::{decode, join_surrogates};

use std::borrow::Cow;

/// Deepest nesting of collections. Kubernetes objects stay below 30; later stages may recurse.
pub(super) const DEPTH_MAX: usize = 128;

/// Most nodes of one document, those repeated by aliases included: bounds memory and time.
pub(super) const NODES_MAX: usize = 1_000_000;

/// Most nodes that the aliases and merge keys of one document may repeat in all.
pub(super) const ALIAS_NODES_MAX: usize = 100_000;

/// Most documents of one file.
pub(super) const DOCUMENTS_MAX: usize = 100_000;

/// A value, and the line it starts at (counted from 1).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node<'t> {
    pub(super) line: u32,
    pub(super) value: Value<'t>,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'t> {
    /// A text whose meaning (null, boolean, number, text) [`resolve`] tells.
    Plain(Cow<'t, str>),
    /// A quoted or block scalar: always text.
    Quoted(Cow<'t, str>),
    /// A sequence.
    Seq(Vec<Node<'t>>),
    /// A mapping, in the order of the file, merge keys already applied.
    Map(Vec<Entry<'t>>),
    /// A value with an application's own tag, such as `!Ref`.
    Tagged(Box<str>, Box<Node<'t>>),
}

/// A key with its line, and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry<'t> {
    pub(super) key: Cow<'t, str>,
    pub(super) line: u32,
    pub(super) value: Node<'t>,
}

impl<'t> Node<'t> {
    /// Returns whether the node is `null`, `~` or empty.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            Value::Plain(text) => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            Value::Quoted(_) | Value::Seq(_) | Value::Map(_) | Value::Tagged(..) => false,
        }
    }

    /// Returns the value of `key`, where the node is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node<'t>> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Returns the text of a scalar as written.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Plain(text) | Value::Quoted(text) => Some(text),
            Value::Seq(_) | Value::Map(_) | Value::Tagged(..) => None,
        }
    }

    /// Returns what the node is, for messages.
    pub(super) fn noun(&self) -> &'static str {
        match &self.value {
            Value::Plain(text) => resolve(text).noun(),
            Value::Quoted(_) => "a text",
            Value::Seq(_) => "a list",
            Value::Map(_) => "a mapping",
            Value::Tagged(..) => "a tagged value",
        }
    }
}

/// One document of a file.
#[derive(Debug)]
pub(super) struct Document<'t> {
    /// Its root.
    pub(super) root: Node<'t>,
    /// What is wrong inside it although it parses, such as a key given twice.
    pub(super) faults: Vec<Fault>,
}

/// Something wrong at a line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) line: u32,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

/// The documents of a file up to its end, or up to the fault that ends it.
#[derive(Debug)]
pub(super) struct Loaded<'t> {
    pub(super) documents: Vec<Document<'t>>,
    pub(super) fault: Option<Fault>,
}

#[cfg(test)]
mod tests;
