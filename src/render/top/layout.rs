//! The table of nodes: one line a node on a wide terminal, two lines on a narrow one.

use super::{TopNode, TopView, Usage};
use crate::render::amount::{dollars, span};
use crate::render::text_page::{LineBreaks, StyledText, TableColumn, TextPage, TextStyle, plain};

/// Cells of the bars of a node.
const BAR_MIN: usize = 4;
const BAR_MAX: usize = 20;
/// Cells that a bar has before the names of nodes get a column.
const BAR_BEFORE_NAMES: usize = 10;
/// Columns of the share beside a bar.
const SHARE: usize = " 100%".len();
/// Spaces before a line, and between two columns.
const GUTTER: usize = 2;
/// Columns of a line in the narrow layout beside its first column and its bar.
const BESIDE_NARROW: usize = 50;
/// Columns of addresses and types in the narrow layout.
const NARROW_NAME_MIN: usize = 9;
const NARROW_NAME_MAX: usize = 23;

/// The lines of a table.
pub(super) struct NodeTable {
    /// Line of titles.
    pub(super) titles: Vec<String>,
    /// Lines of nodes.
    pub(super) nodes: Vec<String>,
    /// Lines of each node.
    pub(super) node_height: usize,
}

/// Returns the table of the nodes of `view`.
pub(super) fn nodes(view: &TopView, style: &TextStyle) -> NodeTable {
    if view.nodes.is_empty() {
        return NodeTable { titles: Vec::new(), nodes: Vec::new(), node_height: 1 };
    }
    // The layout fits the width: each node has the same number of lines.
    let mut page = TextPage::new(&TextStyle { breaks: LineBreaks::Keep, ..*style });
    let node_height = if let Some(layout) = WideLayout::fit(view, style.width) {
        let rows: Vec<_> = view.nodes.iter().map(|node| layout.cells(node)).collect();
        page.table(&layout.columns(), &rows);
        1
    } else {
        narrow(&mut page, view, style.width);
        2
    };
    let text = page.finish();
    let mut lines = text.lines().map(str::to_owned);
    NodeTable { titles: lines.next().into_iter().collect(), nodes: lines.collect(), node_height }
}

/// The layout of a wide terminal.
struct WideLayout {
    /// Cells of a bar.
    bar: usize,
    has_names: bool,
}

impl WideLayout {
    /// Returns the layout if each node fits on one line.
    fn fit(view: &TopView, width: usize) -> Option<Self> {
        let widest = |text: &dyn Fn(&TopNode) -> String, title: &str| {
            let cells = view.nodes.iter().map(|node| plain(text(node)).width());
            cells.chain([title.len()]).max().unwrap_or(0) + GUTTER
        };
        let texts = widest(&|node| node.address.clone(), "node")
            + widest(&|node| or_dash(node.instance_type.as_ref()), "type")
            + widest(&|node| or_dash(node.capacity_type.as_ref()), "capacity type")
            + widest(&|node| or_dash(node.zone.as_ref()), "zone")
            + widest(&pods, "pods")
            + widest(&price, "$/h")
            + widest(&age, "age")
            + widest(&|node| node.state.as_str().to_owned(), "state");
        let bars = |cells: usize| 2 * (cells + SHARE + GUTTER);
        let free = width.checked_sub(texts + bars(BAR_MIN))?;
        let names = widest(&name, "name");
        let has_names = free >= names + bars(BAR_BEFORE_NAMES) - bars(BAR_MIN);
        let free = if has_names { free - names } else { free };
        let bar = (BAR_MIN + free / 2).min(BAR_MAX);
        // Short bars are hard to compare; two lines have room for longer ones.
        (bar >= 6).then_some(Self { bar, has_names })
    }

    fn columns(&self) -> Vec<TableColumn> {
        let mut columns = vec![
            TableColumn::left("node", usize::MAX),
            TableColumn::left("type", usize::MAX),
            TableColumn::left("capacity type", usize::MAX),
            TableColumn::left("zone", usize::MAX),
            TableColumn::left("cpu", usize::MAX),
            TableColumn::left("memory", usize::MAX),
            TableColumn::right("pods"),
            TableColumn::right("$/h"),
            TableColumn::right("age"),
            TableColumn::last("state"),
        ];
        if self.has_names {
            columns.insert(1, TableColumn::left("name", usize::MAX));
        }
        columns
    }

    fn cells(&self, node: &TopNode) -> Vec<StyledText> {
        let bar = |usage: Usage| StyledText::new(&usage.bar(self.bar), usage.tone());
        let mut cells = vec![
            plain(&node.address),
            plain(or_dash(node.instance_type.as_ref())),
            plain(or_dash(node.capacity_type.as_ref())),
            plain(or_dash(node.zone.as_ref())),
            bar(node.cpu()),
            bar(node.memory()),
            plain(pods(node)),
            plain(price(node)),
            plain(age(node)),
            node.state.span(),
        ];
        if self.has_names {
            cells.insert(1, plain(name(node)));
        }
        cells
    }
}

/// Writes two lines a node.
fn narrow(page: &mut TextPage, view: &TopView, width: usize) {
    let beside = |bar: usize| BESIDE_NARROW + bar;
    let name_width = width.saturating_sub(beside(BAR_MIN)).clamp(NARROW_NAME_MIN, NARROW_NAME_MAX);
    let bar = width.saturating_sub(beside(0) + name_width).clamp(BAR_MIN, BAR_MAX);
    let columns = [
        TableColumn::left("node", name_width),
        TableColumn::left("requested", usize::MAX),
        TableColumn::right("pods/age"),
        TableColumn::right("$/h"),
        TableColumn::last("state"),
    ];
    let mut rows = Vec::new();
    for node in &view.nodes {
        let usage = |name: &str, usage: Usage| {
            StyledText::new(&format!("{name} {}", usage.bar(bar)), usage.tone())
        };
        let place = format!("{} {}", or_dash(node.instance_type.as_ref()), zone(node));
        rows.push(vec![
            plain(&node.address),
            usage("cpu", node.cpu()),
            plain(pods(node)),
            plain(price(node)),
            node.state.span(),
        ]);
        // The first label of the name of a node: the rest is the domain of the network.
        let name = name(node).split('.').next().unwrap_or_default().to_owned();
        rows.push(vec![
            plain(format!("  {place}")),
            usage("mem", node.memory()),
            plain(age(node)),
            plain(or_dash(node.capacity_type.as_ref())),
            plain(name),
        ]);
    }
    page.table(&columns, &rows);
}

fn or_dash(text: Option<&String>) -> String {
    text.map_or_else(|| "-".to_owned(), Clone::clone)
}

fn zone(node: &TopNode) -> String {
    node.zone.clone().unwrap_or_default()
}

fn name(node: &TopNode) -> String {
    node.name.clone().unwrap_or_default()
}

/// Returns the pods on the node, of the pods that it may hold.
fn pods(node: &TopNode) -> String {
    format!("{}/{}", node.requested.pods, node.allocatable.pods)
}

fn price(node: &TopNode) -> String {
    node.hourly.map_or_else(|| "?".to_owned(), |price| dollars(price, 4).replace('$', ""))
}

fn age(node: &TopNode) -> String {
    node.age.map_or_else(|| "-".to_owned(), span)
}
