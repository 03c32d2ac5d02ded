//! The live view of nodes: requested of allocatable resources, price, age and planned change.
//!
//! A view becomes a frame: lines of the head, and lines of the nodes, which a terminal may scroll.

mod layout;
#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};

use super::amount::{count, dollars, gib, hourly};
use super::text_page::{StyledText, TextPage, TextStyle, Tone, plain};
use crate::model::units::MicroUsd;
use crate::plan::wire::Amount;

/// Cells of a bar in the head, at most.
const HEAD_BAR_MAX: usize = 40;
/// Columns of a line of the head beside its bar.
const HEAD_BESIDE_BAR: usize = 44;

/// The nodes of a cluster at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopView {
    /// Name of the cluster.
    pub cluster: String,
    /// Region of the cluster.
    pub region: String,
    /// Name of the world.
    pub world: String,
    /// Time of the observation.
    pub taken_at: Timestamp,
    /// Pools to which the nodes are restricted; empty for all nodes.
    pub pools: Vec<String>,
    /// The nodes.
    pub nodes: Vec<TopNode>,
    /// Pods of the cluster without a node.
    pub pending: u32,
    /// Limitations of the view, one sentence each.
    pub notes: Vec<String>,
}

/// A node, or a node to launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopNode {
    /// Address in the plan, without the type of instances.
    pub address: String,
    /// Name of the node, if it has one.
    pub name: Option<String>,
    /// Pool, if the node has one.
    pub pool: Option<String>,
    /// Instance type, if known.
    pub instance_type: Option<String>,
    /// Capacity type, if known.
    pub capacity_type: Option<String>,
    /// Zone, if known.
    pub zone: Option<String>,
    /// Requests of the pods on the node, and their number.
    pub requested: Amount,
    /// Allocatable resources and pods of the node.
    pub allocatable: Amount,
    /// Price per hour, if known.
    pub hourly: Option<MicroUsd>,
    /// Time since the launch.
    pub age: Option<SignedDuration>,
    /// State.
    pub state: TopState,
}

/// State of a node: what happens to it now, else what the plan changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopState {
    /// The instance shuts down.
    Terminating,
    /// The node is cordoned, and its pods are evicted.
    Draining,
    /// The plan removes the node.
    ToRemove,
    /// The plan replaces the node.
    ToReplace,
    /// The plan launches the node.
    ToLaunch,
    /// The instance runs, and its node is not ready yet.
    Starting,
    /// The node is not ready.
    NotReady,
    /// A change of the node is blocked.
    Blocked,
    /// An operator cordoned the node.
    Cordoned,
    /// The plan does not change the node.
    Unchanged,
}

impl TopState {
    const ALL: [Self; 10] = [
        Self::Terminating,
        Self::Draining,
        Self::ToRemove,
        Self::ToReplace,
        Self::ToLaunch,
        Self::Starting,
        Self::NotReady,
        Self::Blocked,
        Self::Cordoned,
        Self::Unchanged,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Terminating => "terminating",
            Self::Draining => "draining",
            Self::ToRemove => "to be removed",
            Self::ToReplace => "to be replaced",
            Self::ToLaunch => "to be launched",
            Self::Starting => "starting",
            Self::NotReady => "not ready",
            Self::Blocked => "change blocked",
            Self::Cordoned => "cordoned",
            Self::Unchanged => "unchanged",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Terminating | Self::Draining | Self::ToRemove => Tone::Delete,
            Self::ToReplace => Tone::Replace,
            Self::ToLaunch | Self::Starting => Tone::Create,
            Self::NotReady | Self::Blocked | Self::Cordoned => Tone::Warning,
            Self::Unchanged => Tone::Faint,
        }
    }

    fn span(self) -> StyledText {
        StyledText::new(self.as_str(), self.tone())
    }
}

/// Order of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopSort {
    /// By pool and key.
    Name,
    /// Highest share of requested CPU first.
    Cpu,
    /// Highest share of requested memory first.
    Memory,
    /// Most pods first.
    Pods,
    /// Highest price first.
    Price,
    /// Oldest first.
    Age,
    /// Changes first.
    State,
}

impl TopSort {
    /// All orders.
    pub const ALL: [Self; 7] =
        [Self::Name, Self::Cpu, Self::Memory, Self::Pods, Self::Price, Self::Age, Self::State];

    /// Returns the description of the order, for help.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Name => "By pool and key",
            Self::Cpu => "Highest share of requested CPU first",
            Self::Memory => "Highest share of requested memory first",
            Self::Pods => "Most pods first",
            Self::Price => "Highest price first",
            Self::Age => "Oldest first",
            Self::State => "Changes first",
        }
    }

    /// Returns the word of the order.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Pods => "pods",
            Self::Price => "price",
            Self::Age => "age",
            Self::State => "state",
        }
    }

    /// Returns the next order, the first after the last.
    #[must_use]
    pub fn next(self) -> Self {
        let mut after = Self::ALL.into_iter().skip_while(|order| *order != self).skip(1);
        after.next().unwrap_or(Self::ALL[0])
    }
}

impl TopView {
    /// Sorts the nodes. Equal nodes stay in the order of their names.
    pub fn sort(&mut self, order: TopSort) {
        self.nodes.sort_by(|a, b| name_order(a).cmp(&name_order(b)));
        match order {
            TopSort::Name => {}
            TopSort::Cpu => self.descending(|node| node.cpu().permille()),
            TopSort::Memory => self.descending(|node| node.memory().permille()),
            TopSort::Pods => self.descending(|node| node.requested.pods),
            TopSort::Price => self.descending(|node| node.hourly),
            TopSort::Age => self.descending(|node| node.age),
            TopSort::State => self.nodes.sort_by_key(|node| node.state),
        }
    }

    fn descending<K: Ord>(&mut self, key: impl Fn(&TopNode) -> K) {
        self.nodes.sort_by_key(|node| std::cmp::Reverse(key(node)));
    }
}

/// Numeric keys sort as numbers, so that `10` comes after `9`.
fn name_order(node: &TopNode) -> (&str, usize, &str) {
    let pool = node.pool.as_deref().unwrap_or(&node.address);
    (pool, node.address.len(), &node.address)
}

/// A requested and an allocatable amount.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    requested: i64,
    allocatable: i64,
}

impl Usage {
    /// Returns the requested share in thousandths; zero if nothing is allocatable.
    fn permille(self) -> i64 {
        let share = i128::from(self.requested) * 1000 / i128::from(self.allocatable.max(1));
        if self.allocatable <= 0 { 0 } else { i64::try_from(share).unwrap_or(i64::MAX) }
    }

    /// Returns a bar of `cells` cells and the share in percent.
    fn bar(self, cells: usize) -> String {
        let permille = usize::try_from(self.permille().clamp(0, 1000)).unwrap_or(0);
        // A cell is full if at least half of it is requested.
        let full = (permille * cells * 2 + 1000) / 2000;
        let percent = self.permille().saturating_add(5) / 10;
        format!("{}{} {percent:>3}%", "█".repeat(full), "░".repeat(cells - full))
    }

    /// Returns the tone of a bar. Full nodes are cheap, so only an empty or overfull one stands out.
    fn tone(self) -> Tone {
        match self.permille() {
            ..300 => Tone::Change,
            300..=1000 => Tone::Create,
            _ => Tone::Delete,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            requested: self.requested.saturating_add(other.requested),
            allocatable: self.allocatable.saturating_add(other.allocatable),
        }
    }
}

impl TopNode {
    fn cpu(&self) -> Usage {
        let (requested, allocatable) = (self.requested.cpu_milli, self.allocatable.cpu_milli);
        Usage { requested, allocatable }
    }

    fn memory(&self) -> Usage {
        let (requested, allocatable) = (self.requested.memory_bytes, self.allocatable.memory_bytes);
        Usage { requested, allocatable }
    }

    /// Returns whether the node exists now.
    fn exists(&self) -> bool {
        self.state != TopState::ToLaunch
    }

    /// Returns whether the node exists after the plan is applied.
    fn remains(&self) -> bool {
        use TopState::{Draining, Terminating, ToRemove, ToReplace};
        !matches!(self.state, Terminating | Draining | ToRemove | ToReplace)
    }
}

/// A frame of the live view, without line ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopFrame {
    /// Totals and titles.
    pub head: Vec<String>,
    /// Lines of nodes, in the order of the view.
    pub nodes: Vec<String>,
    /// Lines of each node.
    pub node_height: usize,
}

impl TopFrame {
    /// Returns all lines, each with a line end.
    pub fn to_text(&self) -> String {
        self.head.iter().chain(&self.nodes).flat_map(|line| [line, "\n"]).collect()
    }
}

/// Returns the frame of a view.
pub fn top(view: &TopView, style: &TextStyle) -> TopFrame {
    let mut page = TextPage::new(style);
    page.items(0, title(view));
    if !view.nodes.is_empty() {
        write_totals(&mut page, view, style.width);
    }
    for note in &view.notes {
        page.line([StyledText::new(note, Tone::Warning)]);
    }
    page.gap();
    if view.nodes.is_empty() {
        let pools = view.pools.join(", ");
        page.text(if pools.is_empty() {
            "No nodes.".into()
        } else {
            format!("No nodes of {pools}.")
        });
    }
    let mut head = lines(page);
    let layout::NodeTable { titles, nodes, node_height } = layout::nodes(view, style);
    head.extend(titles);
    TopFrame { head, nodes, node_height }
}

fn lines(page: TextPage) -> Vec<String> {
    page.finish().lines().map(str::to_owned).collect()
}

fn title(view: &TopView) -> Vec<StyledText> {
    let region = if view.region.is_empty() { String::new() } else { format!(" ({})", view.region) };
    let existing = || view.nodes.iter().filter(|node| node.exists());
    let pods = existing().fold(0_i64, |pods, node| pods.saturating_add(node.requested.pods));
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let mut items = vec![
        StyledText::new(&format!("Cluster {}{region}", view.cluster), Tone::Strong),
        plain(format!("world {}", view.world)),
        plain(format!("{:.0}", view.taken_at)),
    ];
    if !view.pools.is_empty() {
        items.push(plain(format!("only {}", view.pools.join(", "))));
    }
    items.push(plain(count(number(existing().count()), "node")));
    items.push(plain(count(u32::try_from(pods).unwrap_or(u32::MAX), "pod")));
    if view.pending > 0 {
        items.push(StyledText::new(&format!("{} pending", view.pending), Tone::Warning));
    }
    items
}

fn write_totals(page: &mut TextPage, view: &TopView, width: usize) {
    let total = |usage: fn(&TopNode) -> Usage| {
        let existing = view.nodes.iter().filter(|node| node.exists());
        existing.map(usage).fold(Usage::default(), Usage::plus)
    };
    let (cpu, memory) = (total(TopNode::cpu), total(TopNode::memory));
    let cells = width.saturating_sub(HEAD_BESIDE_BAR).clamp(8, HEAD_BAR_MAX);
    let mut write = |name: &str, usage: Usage, text: String| {
        let bar = StyledText::new(&usage.bar(cells), usage.tone());
        page.line([plain(format!("  {name:<8}")), bar, plain(format!("   {text}"))]);
    };
    let cores = |milli: i64| format!("{}.{}", milli / 1000, milli % 1000 / 100);
    let text = format!("{} of {} cores", cores(cpu.requested), cores(cpu.allocatable));
    write("cpu", cpu, text);
    let text = format!("{} of {} GiB", gib(memory.requested), gib(memory.allocatable));
    write("memory", memory, text);
    page.items(2, price(view));
    let states = TopState::ALL.into_iter().filter_map(|state| {
        let n = view.nodes.iter().filter(|node| node.state == state).count();
        let text = format!("{n} {}", state.as_str());
        (n > 0 && state != TopState::Unchanged).then(|| StyledText::new(&text, state.tone()))
    });
    let states: Vec<StyledText> = states.collect();
    if !states.is_empty() {
        page.items(2, std::iter::once(plain("plan ")).chain(states).collect());
    }
}

/// Returns the price of the nodes, and the price after the plan where it differs.
fn price(view: &TopView) -> Vec<StyledText> {
    let (before, after) =
        (TotalPrice::new(view, TopNode::exists), TotalPrice::new(view, TopNode::remains));
    let mut items = vec![plain("price"), before.span("")];
    if before != after {
        items.push(after.span("after the plan "));
    }
    items
}

/// The known prices of several nodes, and the number of nodes without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TotalPrice {
    hourly: MicroUsd,
    unpriced: usize,
}

impl TotalPrice {
    fn new(view: &TopView, counts: fn(&TopNode) -> bool) -> Self {
        let mut total = Self { hourly: MicroUsd::ZERO, unpriced: 0 };
        for node in view.nodes.iter().filter(|node| counts(node)) {
            match node.hourly {
                Some(price) => total.hourly += price,
                None => total.unpriced += 1,
            }
        }
        total
    }

    /// Returns the total after `prefix`. Nodes without a price are a part of it.
    fn span(self, prefix: &str) -> StyledText {
        let Self { hourly: price, unpriced } = self;
        let text = format!("{prefix}{}, {}/mo", hourly(price), dollars(price.per_month(), 2));
        match unpriced {
            0 => plain(text),
            n => StyledText::new(&format!("{text} + {n} without a price"), Tone::Warning),
        }
    }
}
