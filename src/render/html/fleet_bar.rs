//! Bars of a node: their length is its size on the scale of the page, and their fill is requested.

use std::fmt::Write as _;

/// Units of the width of a bar.
const WIDTH: i64 = 1_000;
/// Smallest visible width.
const WIDTH_MIN: i64 = 6;

/// The amounts of the longest bars of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scale {
    /// CPU in thousandths of a core.
    pub(super) cpu: i64,
    /// Memory in bytes.
    pub(super) memory: i64,
}

impl Scale {
    /// Returns the scale that fits nodes with these amounts of CPU and memory.
    pub(super) fn of(nodes: impl Iterator<Item = (i64, i64)>) -> Self {
        let most = |scale: Self, (cpu, memory): (i64, i64)| Self {
            cpu: scale.cpu.max(cpu),
            memory: scale.memory.max(memory),
        };
        nodes.fold(Self { cpu: 1, memory: 1 }, most)
    }
}

/// An allocatable amount and its requested parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Gauge {
    /// Allocatable amount.
    pub(super) whole: i64,
    /// Requested by pods, without those of DaemonSets.
    pub(super) pods: i64,
    /// Requested by pods of DaemonSets.
    pub(super) daemons: i64,
}

impl Gauge {
    pub(super) fn sum(gauges: impl Iterator<Item = Self>) -> Self {
        gauges.fold(Self::default(), |sum, one| Self {
            whole: sum.whole.saturating_add(one.whole),
            pods: sum.pods.saturating_add(one.pods),
            daemons: sum.daemons.saturating_add(one.daemons),
        })
    }

    pub(super) fn mean(gauges: impl Iterator<Item = Self> + Clone) -> Self {
        let n = i64::try_from(gauges.clone().count()).unwrap_or(i64::MAX).max(1);
        let sum = Self::sum(gauges);
        Self { whole: sum.whole / n, pods: sum.pods / n, daemons: sum.daemons / n }
    }

    /// Returns the requested amount.
    pub(super) fn used(&self) -> i64 {
        self.pods.saturating_add(self.daemons)
    }

    /// Returns the requested part of the allocatable amount in percent.
    pub(super) fn percent(&self) -> i64 {
        scaled(self.used(), self.whole, 100)
    }

    /// Renders the bar, where `longest` has the full width.
    pub(super) fn bar(&self, longest: i64) -> String {
        let length = scaled(self.whole, longest, WIDTH).clamp(WIDTH_MIN, WIDTH);
        let daemons = scaled(self.daemons, longest, WIDTH).min(length);
        let used = scaled(self.used(), longest, WIDTH).min(length);
        let mut paths = format!("<path class=\"size\" d=\"M0 5H{length}\"/>");
        for (class, from, to) in [("pods", daemons, used), ("ds", 0, daemons)] {
            if to > from {
                // Writing to a string cannot fail.
                let _ = write!(paths, "<path class=\"{class}\" d=\"M{from} 5H{to}\"/>");
            }
        }
        format!(
            "<svg class=\"bar\" viewBox=\"0 0 {WIDTH} 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{paths}</svg>"
        )
    }
}

/// Returns `part` of `whole` on a scale up to `most`, and more if it exceeds the whole.
fn scaled(part: i64, whole: i64, most: i64) -> i64 {
    let value = i128::from(part.max(0)) * i128::from(most) / i128::from(whole.max(1));
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_share_one_scale() {
        let scale = Scale::of([(2_000, 8), (96_000, 4)].into_iter());
        assert_eq!(scale, Scale { cpu: 96_000, memory: 8 });
        let half = Gauge { whole: 48_000, pods: 12_000, daemons: 12_000 };
        assert_eq!(half.percent(), 50);
        let bar = half.bar(scale.cpu);
        for path in ["size\" d=\"M0 5H500\"", "ds\" d=\"M0 5H125\"", "pods\" d=\"M125 5H250\""] {
            assert!(bar.contains(path), "{path} is not in {bar}");
        }
    }

    #[test]
    fn overcommitted_node_fills_its_bar() {
        let over = Gauge { whole: 1_000, pods: 3_000, daemons: 0 };
        assert_eq!(over.percent(), 300);
        assert!(over.bar(1_000).contains("pods\" d=\"M0 5H1000\""));
        assert_eq!(Gauge::default().percent(), 0);
    }
}
