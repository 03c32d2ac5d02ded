//! Parser events → documents.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::{
    ALIAS_NODES_MAX, DEPTH_MAX, DOCUMENTS_MAX, Document, Entry, Fault, Loaded, NODES_MAX, Node,
    Scalar, Value, resolve,
};

/// Longest piece of a key that a message repeats.
const SHOWN_MAX: usize = 60;

/// Mappings with more keys than this are searched for duplicates by sorting.
const SMALL_MAP_MAX: usize = 16;

/// Reads every document of `text`, up to its end or the first fault.
pub(in super::super) fn load(text: &str) -> Loaded<'_> {
    let mut loader = Loader::default();
    for event in Parser::new_from_str(text) {
        let outcome = match event {
            Ok((event, span)) => loader.take(event, line_of(span)),
            Err(error) => Err(scan_fault(&error)),
        };
        if let Err(fault) = outcome {
            return Loaded { documents: loader.documents, fault: Some(fault) };
        }
    }
    Loaded { documents: loader.documents, fault: None }
}

fn line_of(span: Span) -> u32 {
    u32::try_from(span.start.line()).unwrap_or(u32::MAX)
}

fn scan_fault(error: &ScanError) -> Fault {
    let line = u32::try_from(error.marker().line()).unwrap_or(u32::MAX);
    Fault { line, message: format!("is not YAML: {}", error.info().replace('\n', " ")), hint: None }
}

fn fault<T>(line: u32, message: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { line, message: message.into(), hint: None })
}

/// A finished node, with what aliases to it would cost.
#[derive(Debug, Clone)]
struct Built<'t> {
    node: Node<'t>,
    /// Nodes in it, itself included.
    size: usize,
    /// Collections nested in it, itself included.
    height: usize,
}

/// A collection that has started and not ended.
struct Open<'t> {
    line: u32,
    anchor: usize,
    tag: Option<Box<str>>,
    size: usize,
    height: usize,
    kind: Kind<'t>,
}

enum Kind<'t> {
    Seq(Vec<Node<'t>>),
    Map {
        entries: Vec<Entry<'t>>,
        /// Values of merge keys, with their lines.
        merges: Vec<(u32, Node<'t>)>,
        key: Option<Key<'t>>,
    },
}

struct Key<'t> {
    text: Cow<'t, str>,
    line: u32,
    merge: bool,
}

#[derive(Default)]
struct Loader<'t> {
    documents: Vec<Document<'t>>,
    faults: Vec<Fault>,
    open: Vec<Open<'t>>,
    anchors: BTreeMap<usize, Built<'t>>,
    /// Nodes of the current document.
    nodes: usize,
    /// Nodes of the current document that aliases and merges repeated.
    repeated: usize,
}

impl<'t> Loader<'t> {
    fn take(&mut self, event: Event<'t>, line: u32) -> Result<(), Fault> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => self.start_document(line),
            Event::Alias(id) => self.alias(id, line),
            Event::Scalar(text, style, anchor, tag) => {
                let value = match (style, tag.as_deref()) {
                    (_, Some(tag)) if is_text_tag(tag) => Value::Quoted(text),
                    (_, Some(tag)) if tag.is_yaml_core_schema() && is_plain_tag(&tag.suffix) => {
                        Value::Plain(text)
                    }
                    (ScalarStyle::Plain, _) => Value::Plain(text),
                    (_, _) => Value::Quoted(text),
                };
                let node = tagged(Node { line, value }, own_tag(tag.as_deref()));
                self.finish(Built { node, size: 1, height: 0 }, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                self.start(line, anchor, own_tag(tag.as_deref()), Kind::Seq(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                let kind = Kind::Map { entries: Vec::new(), merges: Vec::new(), key: None };
                self.start(line, anchor, own_tag(tag.as_deref()), kind)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
        }
    }

    fn start_document(&mut self, line: u32) -> Result<(), Fault> {
        if self.documents.len() >= DOCUMENTS_MAX {
            return fault(line, format!("holds more than {DOCUMENTS_MAX} documents"));
        }
        // The parser keeps names across documents; YAML does not.
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
        kind: Kind<'t>,
    ) -> Result<(), Fault> {
        if self.open.len() >= DEPTH_MAX {
            return fault(line, format!("nests deeper than {DEPTH_MAX} levels"));
        }
        if let Some(Open { kind: Kind::Map { key: None, .. }, .. }) = self.open.last() {
            return Err(Fault {
                line,
                message: "a key is a list or a mapping, not a text".to_owned(),
                hint: Some("quote the key, or render the template that it comes from".to_owned()),
            });
        }
        self.open.push(Open { line, anchor, tag, size: 1, height: 1, kind });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let Some(Open { line, anchor, tag, size, height, kind }) = self.open.pop() else {
            return fault(0, "is not YAML: a collection ends that never started");
        };
        let value = match kind {
            Kind::Seq(items) => Value::Seq(items),
            Kind::Map { mut entries, merges, .. } => {
                duplicates(&mut entries, &mut self.faults);
                merge(&mut entries, merges, &mut self.faults);
                Value::Map(entries)
            }
        };
        let node = tagged(Node { line, value }, tag);
        self.finish(Built { node, size, height }, anchor)
    }

    fn alias(&mut self, id: usize, line: u32) -> Result<(), Fault> {
        let Some(anchored) = self.anchors.get(&id) else {
            return fault(line, "an alias refers to an anchor that is not defined before it");
        };
        self.repeated += anchored.size;
        if self.repeated > ALIAS_NODES_MAX {
            return fault(line, format!("aliases repeat more than {ALIAS_NODES_MAX} values"));
        }
        if self.open.len() + anchored.height > DEPTH_MAX {
            return fault(line, format!("nests deeper than {DEPTH_MAX} levels"));
        }
        let built = anchored.clone();
        self.finish(built, 0)
    }

    /// Puts a finished node where it belongs: into the collection around it, or a document.
    fn finish(&mut self, built: Built<'t>, anchor: usize) -> Result<(), Fault> {
        self.nodes += 1;
        if anchor != 0 {
            // The copy kept for aliases counts: anchors nested in each other copy repeatedly.
            self.nodes += built.size;
            self.anchors.insert(anchor, built.clone());
        }
        let line = built.node.line;
        if self.nodes + self.repeated > NODES_MAX {
            return fault(line, format!("a document holds more than {NODES_MAX} values"));
        }
        let Some(open) = self.open.last_mut() else {
            let faults = std::mem::take(&mut self.faults);
            self.documents.push(Document { root: built.node, faults });
            return Ok(());
        };
        open.size += built.size;
        open.height = open.height.max(built.height + 1);
        match &mut open.kind {
            Kind::Seq(items) => items.push(built.node),
            Kind::Map { entries, merges, key } => match key.take() {
                None => *key = Some(read_key(built.node)?),
                Some(Key { line, merge: true, .. }) => merges.push((line, built.node)),
                Some(Key { text, line, .. }) => {
                    entries.push(Entry { key: text, line, value: built.node });
                }
            },
        }
        Ok(())
    }
}

/// Adds what the sources of merge keys hold and `entries` does not; of several sources the first
/// wins.
fn merge<'t>(entries: &mut Vec<Entry<'t>>, merges: Vec<(u32, Node<'t>)>, faults: &mut Vec<Fault>) {
    if merges.is_empty() {
        return;
    }
    let mut held: BTreeSet<Cow<'t, str>> = entries.iter().map(|own| own.key.clone()).collect();
    for (line, source) in merges {
        let sources = match source.value {
            Value::Seq(sources) => sources,
            Value::Map(_) | Value::Plain(_) | Value::Quoted(_) | Value::Tagged(..) => vec![source],
        };
        for source in sources {
            let Value::Map(pairs) = source.value else {
                faults.push(merge_fault(line));
                continue;
            };
            entries.extend(pairs.into_iter().filter(|entry| held.insert(entry.key.clone())));
        }
    }
}

fn merge_fault(line: u32) -> Fault {
    Fault {
        line,
        message: "merge key `<<` has a value that is no mapping".to_owned(),
        hint: Some("give it an alias to a mapping, or quote the key".to_owned()),
    }
}

/// Returns the key that `node` is. Booleans and numbers become text, as in JSON.
fn read_key(node: Node<'_>) -> Result<Key<'_>, Fault> {
    let line = node.line;
    match node.value {
        Value::Quoted(text) => Ok(Key { text, line, merge: false }),
        Value::Plain(text) => {
            let merge = text == "<<";
            let text = match resolve(&text) {
                Scalar::Bool(true) => "true".into(),
                Scalar::Bool(false) => "false".into(),
                Scalar::Null => return fault(line, "a key is empty"),
                Scalar::Int(_) | Scalar::Number(_) | Scalar::Text(_) => text,
            };
            Ok(Key { text, line, merge })
        }
        Value::Seq(_) | Value::Map(_) | Value::Tagged(..) => {
            fault(line, "a key is a list, a mapping or a tagged value, not a text")
        }
    }
}

/// Reports keys given twice; the later value stays, as JSON readers do.
fn duplicates(entries: &mut Vec<Entry<'_>>, faults: &mut Vec<Fault>) {
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
    let mut stays = vec![true; entries.len()];
    for (earlier, later) in again {
        stays[earlier] = false;
        let (first, second) = (&entries[earlier], &entries[later]);
        let key = shorten(&first.key);
        faults.push(Fault {
            line: second.line,
            message: format!(
                "key `{key}` is given twice, at lines {} and {}",
                first.line, second.line
            ),
            hint: Some("remove one of the two".to_owned()),
        });
    }
    let mut stays = stays.into_iter();
    entries.retain(|_| stays.next().unwrap_or(true));
}

fn shorten(text: &str) -> Cow<'_, str> {
    if text.chars().count() <= SHOWN_MAX {
        return text.into();
    }
    text.chars().take(SHOWN_MAX).chain(['…']).collect::<String>().into()
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

fn tagged(node: Node<'_>, tag: Option<Box<str>>) -> Node<'_> {
    match tag {
        None => node,
        Some(tag) => Node { line: node.line, value: Value::Tagged(tag, Box::new(node)) },
    }
}
