//! Builds documents from parser events.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::super::decode::shorten;
use super::{
    ALIAS_NODES_MAX, DEPTH_MAX, DOCUMENTS_MAX, NODES_MAX, Scalar, YamlDocument, YamlEntry,
    YamlFault, YamlNode, YamlStream, YamlValue, resolve,
};
use crate::model::code::Code;

/// Mappings with more keys than this are searched for duplicates with a map.
const SMALL_MAP_MAX: usize = 16;

/// Reads every document of `text`, up to its end or the first fault.
pub(in super::super) fn load(text: &str) -> YamlStream<'_> {
    let mut loader = Loader::default();
    for event in Parser::new_from_str(text) {
        let outcome = match event {
            Ok((event, span)) => loader.take(event, line_of(span)),
            Err(error) => Err(scan_fault(&error)),
        };
        if let Err(fault) = outcome {
            return YamlStream { documents: loader.documents, fault: Some(fault) };
        }
    }
    YamlStream { documents: loader.documents, fault: None }
}

fn line_of(span: Span) -> u32 {
    u32::try_from(span.start.line()).unwrap_or(u32::MAX)
}

fn scan_fault(error: &ScanError) -> YamlFault {
    let line = u32::try_from(error.marker().line()).unwrap_or(u32::MAX);
    YamlFault {
        line,
        message: format!("is not YAML: {}", error.info().replace('\n', " ")),
        hint: None,
        code: Some(Code::InvalidYaml),
        loses_object: false,
    }
}

fn fault_at<T>(line: u32, message: impl Into<String>) -> Result<T, YamlFault> {
    Err(YamlFault {
        line,
        message: message.into(),
        hint: None,
        code: Some(Code::InvalidYaml),
        loses_object: false,
    })
}

/// A finished node, with the cost of an alias to it.
#[derive(Debug, Clone)]
struct BuiltNode<'t> {
    node: YamlNode<'t>,
    /// Nodes in it, itself included.
    size: usize,
    /// Collections nested in it, itself included.
    height: usize,
}

/// A collection that is still open.
struct OpenCollection<'t> {
    line: u32,
    anchor: usize,
    tag: Option<Box<str>>,
    size: usize,
    height: usize,
    kind: CollectionKind<'t>,
}

enum CollectionKind<'t> {
    Seq(Vec<YamlNode<'t>>),
    Map {
        entries: Vec<YamlEntry<'t>>,
        /// Values of merge keys, with their lines.
        merges: Vec<(u32, YamlNode<'t>)>,
        key: Option<MappingKey<'t>>,
    },
}

struct MappingKey<'t> {
    text: Cow<'t, str>,
    line: u32,
    merge: bool,
}

#[derive(Default)]
struct Loader<'t> {
    documents: Vec<YamlDocument<'t>>,
    faults: Vec<YamlFault>,
    open: Vec<OpenCollection<'t>>,
    anchors: BTreeMap<usize, BuiltNode<'t>>,
    /// Nodes of the current document.
    nodes: usize,
    /// Nodes of the current document that aliases and merges repeated.
    repeated: usize,
}

impl<'t> Loader<'t> {
    fn take(&mut self, event: Event<'t>, line: u32) -> Result<(), YamlFault> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => self.start_document(line),
            Event::Alias(id) => self.alias(id, line),
            Event::Scalar(text, style, anchor, tag) => {
                let value = match (style, tag.as_deref()) {
                    (_, Some(tag)) if is_text_tag(tag) => YamlValue::Quoted(text),
                    (_, Some(tag)) if tag.is_yaml_core_schema() && is_plain_tag(&tag.suffix) => {
                        YamlValue::Plain(text)
                    }
                    (ScalarStyle::Plain, _) => YamlValue::Plain(text),
                    (_, _) => YamlValue::Quoted(text),
                };
                let node = tagged(YamlNode { line, value }, own_tag(tag.as_deref()));
                self.finish(BuiltNode { node, size: 1, height: 0 }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.start(line, anchor, own_tag(tag.as_deref()), CollectionKind::Seq(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                let kind =
                    CollectionKind::Map { entries: Vec::new(), merges: Vec::new(), key: None };
                self.start(line, anchor, own_tag(tag.as_deref()), kind)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
        }
    }

    fn start_document(&mut self, line: u32) -> Result<(), YamlFault> {
        if self.documents.len() >= DOCUMENTS_MAX {
            return fault_at(line, format!("contains more than {DOCUMENTS_MAX} documents"));
        }
        // The parser keeps anchors across documents; YAML does not.
        self.anchors.clear();
        self.nodes = 0;
        self.repeated = 0;
        Ok(())
    }

    fn start(
        &mut self,
        line: u32,
        anchor: usize,
        tag: Option<Box<str>>,
        kind: CollectionKind<'t>,
    ) -> Result<(), YamlFault> {
        if self.open.len() >= DEPTH_MAX {
            return fault_at(line, format!("nests deeper than {DEPTH_MAX} levels"));
        }
        if let Some(OpenCollection { kind: CollectionKind::Map { key: None, .. }, .. }) =
            self.open.last()
        {
            return Err(YamlFault {
                line,
                message: "a key is a list or a mapping, not a string".to_owned(),
                hint: Some("quote the key, or render the template that it comes from".to_owned()),
                code: Some(Code::InvalidYaml),
                loses_object: false,
            });
        }
        self.open.push(OpenCollection { line, anchor, tag, size: 1, height: 1, kind });
        Ok(())
    }

    fn end(&mut self) -> Result<(), YamlFault> {
        let Some(OpenCollection { line, anchor, tag, size, height, kind }) = self.open.pop() else {
            return fault_at(0, "is not YAML: a collection ends that never started");
        };
        let value = match kind {
            CollectionKind::Seq(items) => YamlValue::Seq(items),
            CollectionKind::Map { mut entries, merges, .. } => {
                duplicates(&mut entries, self.open.is_empty(), &mut self.faults);
                merge(&mut entries, merges, &mut self.faults);
                YamlValue::Map(entries)
            }
        };
        let node = tagged(YamlNode { line, value }, tag);
        self.finish(BuiltNode { node, size, height }, anchor)
    }

    fn alias(&mut self, id: usize, line: u32) -> Result<(), YamlFault> {
        let Some(anchored) = self.anchors.get(&id) else {
            return fault_at(line, "an alias refers to an anchor that is not defined before it");
        };
        self.repeated += anchored.size;
        if self.repeated > ALIAS_NODES_MAX {
            return fault_at(line, format!("aliases repeat more than {ALIAS_NODES_MAX} values"));
        }
        if self.open.len() + anchored.height > DEPTH_MAX {
            return fault_at(line, format!("nests deeper than {DEPTH_MAX} levels"));
        }
        let built = anchored.clone();
        self.finish(built, 0)
    }

    /// Adds a finished node to the collection around it, or to the documents.
    fn finish(&mut self, built: BuiltNode<'t>, anchor: usize) -> Result<(), YamlFault> {
        self.nodes += 1;
        if anchor != 0 {
            // The copy for aliases counts, because nested anchors are copied repeatedly.
            self.nodes += built.size;
            self.anchors.insert(anchor, built.clone());
        }
        let line = built.node.line;
        if self.nodes + self.repeated > NODES_MAX {
            return fault_at(line, format!("a document contains more than {NODES_MAX} values"));
        }
        let Some(open) = self.open.last_mut() else {
            let faults = std::mem::take(&mut self.faults);
            self.documents.push(YamlDocument { root: built.node, faults });
            return Ok(());
        };
        open.size += built.size;
        open.height = open.height.max(built.height + 1);
        match &mut open.kind {
            CollectionKind::Seq(items) => items.push(built.node),
            CollectionKind::Map { entries, merges, key } => match key.take() {
                None => *key = Some(read_key(built.node)?),
                Some(MappingKey { line, merge: true, .. }) => merges.push((line, built.node)),
                Some(MappingKey { text, line, .. }) => {
                    entries.push(YamlEntry { key: text, line, value: built.node });
                }
            },
        }
        Ok(())
    }
}

/// Adds the entries of merge sources that `entries` lacks. Of several sources, the first wins.
fn merge<'t>(
    entries: &mut Vec<YamlEntry<'t>>,
    merges: Vec<(u32, YamlNode<'t>)>,
    faults: &mut Vec<YamlFault>,
) {
    if merges.is_empty() {
        return;
    }
    let mut keys: BTreeSet<Cow<'t, str>> = entries.iter().map(|own| own.key.clone()).collect();
    for (line, source) in merges {
        let sources = match source.value {
            YamlValue::Seq(sources) => sources,
            YamlValue::Map(_)
            | YamlValue::Plain(_)
            | YamlValue::Quoted(_)
            | YamlValue::Tagged(..) => vec![source],
        };
        for source in sources {
            let YamlValue::Map(pairs) = source.value else {
                faults.push(merge_fault(line));
                continue;
            };
            entries.extend(pairs.into_iter().filter(|entry| keys.insert(entry.key.clone())));
        }
    }
}

fn merge_fault(line: u32) -> YamlFault {
    YamlFault {
        line,
        message: "merge key `<<` has a value that is not a mapping".to_owned(),
        hint: Some("give it an alias to a mapping, or quote the key".to_owned()),
        code: Some(Code::InvalidYaml),
        loses_object: false,
    }
}

/// Returns `node` as a key. Booleans and numbers become text, as in JSON.
fn read_key(node: YamlNode<'_>) -> Result<MappingKey<'_>, YamlFault> {
    let line = node.line;
    match node.value {
        YamlValue::Quoted(text) => Ok(MappingKey { text, line, merge: false }),
        YamlValue::Plain(text) => {
            let merge = text == "<<";
            let text = match resolve(&text) {
                Scalar::Bool(true) => "true".into(),
                Scalar::Bool(false) => "false".into(),
                Scalar::Null => return fault_at(line, "a key is empty"),
                Scalar::Int(_) | Scalar::Number(_) | Scalar::Text(_) => text,
            };
            Ok(MappingKey { text, line, merge })
        }
        YamlValue::Seq(_) | YamlValue::Map(_) | YamlValue::Tagged(..) => {
            fault_at(line, "a key is a list, a mapping or a tagged value, not a string")
        }
    }
}

/// Reports duplicate keys. The later value stays, as in JSON readers. Two objects without `---`
/// between them have the same keys at the root; the first of them is lost, which is one fault.
fn duplicates(entries: &mut Vec<YamlEntry<'_>>, at_root: bool, faults: &mut Vec<YamlFault>) {
    let again = if entries.len() <= SMALL_MAP_MAX {
        let earlier = |later: usize| {
            entries[..later].iter().rposition(|other| other.key == entries[later].key)
        };
        (1..entries.len()).filter_map(|later| Some((earlier(later)?, later))).collect()
    } else {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let places = entries.iter().enumerate();
        places
            .filter_map(|(at, entry)| Some((seen.insert(&entry.key, at)?, at)))
            .collect::<Vec<_>>()
    };
    if again.is_empty() {
        return;
    }
    let is_kind = |later: usize| entries[later].key == "kind";
    let loses_object = at_root && again.iter().any(|(_, later)| is_kind(*later));
    let hint = if loses_object {
        "write `---` between two objects, or remove one of the two"
    } else {
        "remove one of the two"
    };
    let mut stays = vec![true; entries.len()];
    for (earlier, later) in again {
        stays[earlier] = false;
        if loses_object && !is_kind(later) {
            continue;
        }
        let (first, second) = (&entries[earlier], &entries[later]);
        let key = shorten(&first.key);
        faults.push(YamlFault {
            line: second.line,
            message: format!(
                "key `{key}` is given twice, at lines {} and {}",
                first.line, second.line
            ),
            hint: Some(hint.to_owned()),
            code: Some(Code::DuplicateKey),
            loses_object,
        });
    }
    let mut stays = stays.into_iter();
    entries.retain(|_| stays.next().unwrap_or(true));
}

fn is_text_tag(tag: &Tag) -> bool {
    let non_specific = (tag.handle.is_empty() && tag.suffix == "!")
        || (tag.handle == "!" && tag.suffix.is_empty());
    non_specific || (tag.is_yaml_core_schema() && tag.suffix == "str")
}

fn is_plain_tag(suffix: &str) -> bool {
    matches!(suffix, "int" | "float" | "bool" | "null")
}

/// Returns the tag as written, unless it is one of YAML's own.
fn own_tag(tag: Option<&Tag>) -> Option<Box<str>> {
    let tag = tag?;
    let core = tag.is_yaml_core_schema()
        && (is_plain_tag(&tag.suffix) || matches!(&*tag.suffix, "str" | "map" | "seq"));
    let own = !core && !is_text_tag(tag);
    own.then(|| match &*tag.handle {
        "!" => format!("!{}", tag.suffix).into(),
        "tag:yaml.org,2002:" => format!("!!{}", tag.suffix).into(),
        handle => format!("{handle}{}", tag.suffix).into(),
    })
}

fn tagged(node: YamlNode<'_>, tag: Option<Box<str>>) -> YamlNode<'_> {
    match tag {
        None => node,
        Some(tag) => YamlNode { line: node.line, value: YamlValue::Tagged(tag, Box::new(node)) },
    }
}
