//! Parses YAML and JSON text into a tree in which every value has its line.
//!
//! This module knows YAML: documents, anchors and aliases, merge keys, tags and plain scalars. It
//! knows nothing of Kubernetes. Invariants: no input causes a panic or recursion deeper than
//! [`DEPTH_MAX`], and the size of the result is at most [`NODES_MAX`], regardless of aliases. ADR
//! 0001 explains why it uses parser events instead of a deserializer.

mod json;
mod lenient_indentation;
mod loader;
mod scalar;
mod text_encoding;

pub(super) use json::to_json;
pub(crate) use json::yaml_to_json;
pub(super) use lenient_indentation::indent_continuations;
pub(super) use loader::load;
pub(super) use scalar::{Scalar, resolve};
pub(super) use text_encoding::{decode, join_surrogates};

use std::borrow::Cow;

use crate::model::code::Code;

/// Maximum nesting of collections. Kubernetes objects stay below 30; later stages may recurse.
pub(super) const DEPTH_MAX: usize = 128;

/// Maximum number of nodes of one document, aliases included; limits memory and time.
pub(super) const NODES_MAX: usize = 1_000_000;

/// Maximum number of nodes that the aliases and merge keys of one document may repeat.
pub(super) const ALIAS_NODES_MAX: usize = 100_000;

/// Maximum number of documents of one file.
pub(super) const DOCUMENTS_MAX: usize = 100_000;

/// A value, and its first line (counted from 1).
#[derive(Debug, Clone, PartialEq)]
pub(super) struct YamlNode<'t> {
    pub(super) line: u32,
    pub(super) value: YamlValue<'t>,
}

/// The value of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum YamlValue<'t> {
    /// A plain scalar; [`resolve`] returns its meaning (null, boolean, number, text).
    Plain(Cow<'t, str>),
    /// A quoted or block scalar: always text.
    Quoted(Cow<'t, str>),
    /// A sequence.
    Seq(Vec<YamlNode<'t>>),
    /// A mapping in the order of the file, with merge keys applied.
    Map(Vec<YamlEntry<'t>>),
    /// A value with an application-specific tag, such as `!Ref`.
    Tagged(Box<str>, Box<YamlNode<'t>>),
}

/// A key with its line, and its value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct YamlEntry<'t> {
    pub(super) key: Cow<'t, str>,
    pub(super) line: u32,
    pub(super) value: YamlNode<'t>,
}

impl<'t> YamlNode<'t> {
    /// Returns whether the node is `null`, `~` or empty.
    pub(super) fn is_null(&self) -> bool {
        match &self.value {
            YamlValue::Plain(text) => matches!(&**text, "" | "~" | "null" | "Null" | "NULL"),
            YamlValue::Quoted(_)
            | YamlValue::Seq(_)
            | YamlValue::Map(_)
            | YamlValue::Tagged(..) => false,
        }
    }

    /// Returns the value of `key`, if the node is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&YamlNode<'t>> {
        let YamlValue::Map(entries) = &self.value else { return None };
        entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Returns the text of a scalar as written.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Plain(text) | YamlValue::Quoted(text) => Some(text),
            YamlValue::Seq(_) | YamlValue::Map(_) | YamlValue::Tagged(..) => None,
        }
    }

    /// Returns the type of the node, for messages.
    pub(super) fn noun(&self) -> &'static str {
        match &self.value {
            YamlValue::Plain(text) => resolve(text).noun(),
            YamlValue::Quoted(_) => "a string",
            YamlValue::Seq(_) => "a list",
            YamlValue::Map(_) => "a mapping",
            YamlValue::Tagged(..) => "a tagged value",
        }
    }
}

/// One document of a file.
#[derive(Debug)]
pub(super) struct YamlDocument<'t> {
    /// Its root.
    pub(super) root: YamlNode<'t>,
    /// Problems in a document that parses, such as a duplicate key.
    pub(super) faults: Vec<YamlFault>,
}

/// A problem at a line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct YamlFault {
    pub(super) line: u32,
    pub(super) message: String,
    pub(super) hint: Option<String>,
    pub(super) code: Option<Code>,
    /// Whether an object is lost, because another one follows it without `---` between them.
    pub(super) loses_object: bool,
}

/// The documents of a file up to its end, or up to the first fault.
#[derive(Debug)]
pub(super) struct YamlStream<'t> {
    pub(super) documents: Vec<YamlDocument<'t>>,
    pub(super) fault: Option<YamlFault>,
}

#[cfg(test)]
mod tests;
