//! Pods that want room, and nodes that can be had: what bounds, prices and patterns follow from.
//!
//! Knows amounts and prices alone, neither pools nor labels nor zones. Work is per class of alike
//! pods and per column of alike nodes. Floats only guide: they choose the prices of pods
//! (`generate`, `master`) and which fillings to look at; what is claimed of them, a bound or a filling,
//! is worked out in integers (`certificate`, `knapsack`). No function here reads a clock: work is
//! counted, so that the same market gives the same answer everywhere.

mod blank;
pub(super) mod bought;
mod certificate;
mod cluster;
mod dive;
pub(super) mod exact;
pub(super) mod generate;
mod grown;
mod guided;
mod knapsack;
mod master;
mod number;
pub(super) mod purchase;
mod quota;
mod relaxation;
mod seeded;
mod table;
mod tabled;

/// Amounts by resource; all vectors of a market have the same length.
pub(super) type Amounts = Vec<i64>;

/// Alike pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ware {
    /// What each pod asks for.
    pub ask: Amounts,
}

/// Alike nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    /// Price per hour in micro-USD.
    pub price: i64,
    /// What a node holds.
    pub room: Amounts,
    /// For each class, whether its pods may run there.
    pub takes: Vec<bool>,
}

/// Alike nodes of which there are only so many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Single {
    /// The node; its price is nothing where it is paid for anyhow.
    pub kind: Kind,
    /// How many there are.
    pub count: u32,
}

/// A limit to how many pods of some classes share a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cap {
    /// Classes.
    pub members: Vec<usize>,
    /// Pods of all of them together on one node.
    pub most: u32,
}

/// The problem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Market {
    /// The pods.
    pub wares: Vec<Ware>,
    /// Nodes, of which there are as many as are paid for.
    pub kinds: Vec<Kind>,
    /// Nodes of which there are only so many. Caps do not hold on them: what runs there may have
    /// come before its rules.
    pub singles: Vec<Single>,
    /// Limits of every node of the kinds.
    pub caps: Vec<Cap>,
    /// For each class, its caps.
    pub caps_of: Vec<Vec<usize>>,
}

impl Market {
    /// Returns the market of these.
    pub(super) fn new(
        wares: Vec<Ware>,
        kinds: Vec<Kind>,
        singles: Vec<Single>,
        caps: Vec<Cap>,
    ) -> Self {
        let mut caps_of = vec![Vec::new(); wares.len()];
        for (index, cap) in caps.iter().enumerate() {
            cap.members.iter().for_each(|class| caps_of[*class].push(index));
        }
        Self { wares, kinds, singles, caps, caps_of }
    }

    /// Returns how many resources there are.
    fn resources(&self) -> usize {
        self.wares.first().map_or(0, |ware| ware.ask.len())
    }
}

/// Pods on one node of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pattern {
    /// Index of the kind.
    pub kind: usize,
    /// Classes with how many of their pods, by class.
    pub pods: Vec<(usize, u32)>,
}
