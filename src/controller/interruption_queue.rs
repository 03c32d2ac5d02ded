//! Received interruption messages that are not acknowledged yet.
//!
//! Invariants: a message is acknowledged once every instance that it names is handled. An instance
//! is handled once it is cordoned and persisted, or known not to be ours and running. The cost of a
//! step does not grow with the pending messages. Messages beyond [`MESSAGES_MAX`] stay on the
//! queue, which delivers them again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::event::Effect;
use super::persisted_state::InterruptionRecord;
use crate::model::ids::InstanceId;

/// Most messages held at once; a receipt of SQS has about half a kilobyte.
pub(super) const MESSAGES_MAX: usize = 5_000;
/// Most messages that were received and have not arrived here yet.
const IN_TRANSIT_MAX: usize = 1_000;
/// Most messages that are acknowledged at the same time.
const ACKNOWLEDGEMENTS_MAX: usize = 100;

/// Messages that are not acknowledged yet.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingMessages {
    /// Number of unhandled instances, by receipt.
    unhandled: BTreeMap<String, usize>,
    /// Receipts of the messages that name an instance.
    by_instance: BTreeMap<InstanceId, Vec<String>>,
    /// Instances that the last observation did not show, their interruption, and the number of the
    /// first observation that may determine their owner.
    unknown_instances: BTreeMap<InstanceId, (InterruptionRecord, u64)>,
    /// Receipts to acknowledge.
    handled: VecDeque<String>,
    /// Number of acknowledgements in progress.
    acknowledging: usize,
}

impl PendingMessages {
    /// Returns whether a message is pending.
    pub(super) fn contains(&self, receipt: &str) -> bool {
        self.unhandled.contains_key(receipt)
    }

    /// Returns the number of held messages.
    pub(super) fn len(&self) -> usize {
        self.unhandled.len() + self.handled.len() + self.acknowledging
    }

    /// Returns whether more messages may be received, with room left for those in transit.
    pub(super) fn has_room(&self) -> bool {
        self.len() < MESSAGES_MAX - IN_TRANSIT_MAX
    }

    /// Holds a message until all `instances` are handled.
    pub(super) fn add(&mut self, receipt: String, instances: BTreeSet<InstanceId>) {
        if instances.is_empty() {
            self.handled.push_back(receipt);
            return;
        }
        self.unhandled.insert(receipt.clone(), instances.len());
        for instance in instances {
            self.by_instance.entry(instance).or_default().push(receipt.clone());
        }
    }

    /// Holds an instance that the last observation did not show. Two messages count as one
    /// interruption ([`InterruptionRecord::absorb`]). A hint changes no termination.
    pub(super) fn hold_unknown_instance(&mut self, record: InterruptionRecord, from: u64) {
        match self.unknown_instances.entry(record.instance.clone()) {
            Entry::Vacant(entry) => {
                entry.insert((record, from));
            }
            Entry::Occupied(mut entry) if entry.get().0.is_hint() => {
                if !record.is_hint() {
                    entry.insert((record, from));
                }
            }
            Entry::Occupied(mut entry) => {
                if !record.is_hint() {
                    entry.get_mut().0.absorb(&record);
                }
            }
        }
    }

    /// Removes and returns the instances whose owner observation `number` determines.
    pub(super) fn resolve_at(&mut self, number: u64) -> Vec<InterruptionRecord> {
        let due = |_: &InstanceId, (_, from): &mut (InterruptionRecord, u64)| *from <= number;
        self.unknown_instances.extract_if(.., due).map(|(_, (record, _))| record).collect()
    }

    /// Records that an instance no longer delays its messages.
    pub(super) fn mark_handled(&mut self, instance: &InstanceId) {
        for receipt in self.by_instance.remove(instance).unwrap_or_default() {
            let Some(left) = self.unhandled.get_mut(&receipt) else { continue };
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.unhandled.remove(&receipt);
                self.handled.push_back(receipt);
            }
        }
    }

    /// Acknowledges handled messages, a bounded number at a time.
    pub(super) fn acknowledge(&mut self, effects: &mut Vec<Effect>) {
        while self.acknowledging < ACKNOWLEDGEMENTS_MAX {
            let Some(receipt) = self.handled.pop_front() else { return };
            self.acknowledging += 1;
            effects.push(Effect::Acknowledge { receipt });
        }
    }

    /// Records the end of an acknowledgement. After a failure the queue delivers the message again.
    pub(super) fn finish_acknowledgement(&mut self) {
        self.acknowledging = self.acknowledging.saturating_sub(1);
    }

    /// Forgets all messages: another process leads, and the queue delivers them to it.
    pub(super) fn clear(&mut self) {
        let acknowledging = self.acknowledging;
        *self = Self { acknowledging, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::super::interruption_message::MessageKind;
    use super::super::persisted_state::Announcement;
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<InstanceId> {
        names.iter().copied().map(InstanceId::from).collect()
    }

    fn acknowledged(pending: &mut PendingMessages) -> Vec<String> {
        let mut effects = Vec::new();
        pending.acknowledge(&mut effects);
        let receipt = |effect: &Effect| {
            let Effect::Acknowledge { receipt } = effect else { panic!("{effect:?}") };
            receipt.clone()
        };
        effects.iter().map(receipt).collect()
    }

    #[test]
    fn message_is_acknowledged_once_all_instances_are_handled() {
        let mut pending = PendingMessages::default();
        pending.add("a".to_owned(), ids(&["i-1", "i-2"]));
        pending.add("b".to_owned(), ids(&["i-2"]));
        pending.add("nothing".to_owned(), ids(&[]));
        assert_eq!(acknowledged(&mut pending), ["nothing"]);
        pending.mark_handled(&"i-2".into());
        assert_eq!(acknowledged(&mut pending), ["b"]);
        assert!(pending.contains("a") && !pending.contains("b"));
        pending.mark_handled(&"i-2".into());
        assert_eq!(acknowledged(&mut pending), [""; 0], "the same instance counts once");
        pending.mark_handled(&"i-1".into());
        assert_eq!(acknowledged(&mut pending), ["a"]);
    }

    #[test]
    fn acknowledgements_are_sent_in_bounded_batches() {
        let mut pending = PendingMessages::default();
        for n in 0..ACKNOWLEDGEMENTS_MAX + 5 {
            pending.add(n.to_string(), ids(&[]));
        }
        assert_eq!(acknowledged(&mut pending).len(), ACKNOWLEDGEMENTS_MAX);
        assert_eq!(
            (acknowledged(&mut pending).len(), pending.len()),
            (0, ACKNOWLEDGEMENTS_MAX + 5)
        );
        pending.finish_acknowledgement();
        assert_eq!(
            (acknowledged(&mut pending).len(), pending.len()),
            (1, ACKNOWLEDGEMENTS_MAX + 4)
        );
    }

    #[test]
    fn unknown_instance_resolves_at_a_later_observation() {
        let record = |deadline: Option<i64>| InterruptionRecord {
            instance: "i-1".into(),
            why: "health".to_owned(),
            since: jiff::Timestamp::UNIX_EPOCH,
            deadline: deadline.map(|at| jiff::Timestamp::from_second(at).expect("a time")),
            member: false,
            announced: None,
        };
        let mut pending = PendingMessages::default();
        pending.hold_unknown_instance(record(None), 4);
        pending.hold_unknown_instance(record(Some(9)), 5);
        assert_eq!(pending.resolve_at(3), []);
        assert_eq!(pending.resolve_at(4), [record(Some(9))]);
        assert_eq!(pending.resolve_at(9), []);
    }

    #[test]
    fn termination_of_unknown_instance_outranks_hints() {
        let says = |kind: MessageKind, deadline: Option<i64>| InterruptionRecord {
            instance: "i-1".into(),
            why: kind.to_string(),
            since: jiff::Timestamp::UNIX_EPOCH,
            deadline: deadline.map(|at| jiff::Timestamp::from_second(at).expect("a time")),
            member: false,
            announced: None,
        };
        let hint = || says(MessageKind::StateChange, Some(2));
        let deadline = jiff::Timestamp::from_second(9).expect("a time");
        let announced = Some(Announcement { since: jiff::Timestamp::UNIX_EPOCH, deadline });
        for (records, from, found) in [
            (
                vec![hint(), says(MessageKind::Health, None), hint()],
                2,
                says(MessageKind::Health, None),
            ),
            (
                vec![says(MessageKind::Health, Some(9)), hint()],
                1,
                says(MessageKind::Health, Some(9)),
            ),
            (vec![hint(), hint()], 1, hint()),
            // A message that nothing confirms sets no deadline for another one.
            (
                vec![says(MessageKind::Reservation, Some(900)), says(MessageKind::Health, Some(9))],
                1,
                InterruptionRecord { announced, ..says(MessageKind::Reservation, Some(900)) },
            ),
            (
                vec![
                    says(MessageKind::Health, Some(9)),
                    says(MessageKind::SpotInterruption, Some(12)),
                ],
                1,
                InterruptionRecord { announced, ..says(MessageKind::SpotInterruption, Some(12)) },
            ),
        ] {
            let mut pending = PendingMessages::default();
            for (record, observation) in records.into_iter().zip(1..) {
                pending.hold_unknown_instance(record, observation);
            }
            assert_eq!(pending.resolve_at(from - 1), []);
            assert_eq!(pending.resolve_at(from), [found]);
        }
    }
}
