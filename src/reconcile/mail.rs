//! Messages that were taken over, and are not taken off their queue yet.
//!
//! Invariants: a message is taken off once every machine that it names is dealt with, that is cordoned and
//! kept in the record, or known to be none of ours that runs. What a step costs does not grow with the
//! messages that wait. What is more than [`MESSAGES_MAX`] is left to the queue, which shows it again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::event::Effect;
use super::kept::Leaving;
use crate::ids::InstanceId;

/// Most messages that are held at once; a receipt of SQS has about half a kilobyte.
pub(super) const MESSAGES_MAX: usize = 5_000;
/// Most messages that were received and have not come here yet.
const COMING_MAX: usize = 1_000;
/// Most messages that are being taken off at the same time.
const AT_ONCE: usize = 100;

/// Messages that wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Mail {
    /// How many machines are not dealt with yet, by receipt.
    open: BTreeMap<String, usize>,
    /// The messages that wait for a machine.
    about: BTreeMap<InstanceId, Vec<String>>,
    /// Machines that the last look did not show, what was said of them, and the first look that may tell
    /// whose they are.
    strangers: BTreeMap<InstanceId, (Leaving, u64)>,
    /// Messages that are to be taken off.
    done: VecDeque<String>,
    /// How many are being taken off.
    under_way: usize,
}

impl Mail {
    /// Returns whether a message waits already.
    pub(super) fn holds(&self, receipt: &str) -> bool {
        self.open.contains_key(receipt)
    }

    /// Returns how many messages are held.
    pub(super) fn len(&self) -> usize {
        self.open.len() + self.done.len() + self.under_way
    }

    /// Returns whether more may be received: what is on its way still has room then.
    pub(super) fn has_room(&self) -> bool {
        self.len() < MESSAGES_MAX - COMING_MAX
    }

    /// Has a message wait until all of `machines` are dealt with.
    pub(super) fn wait(&mut self, receipt: String, machines: BTreeSet<InstanceId>) {
        if machines.is_empty() {
            self.done.push_back(receipt);
            return;
        }
        self.open.insert(receipt.clone(), machines.len());
        for machine in machines {
            self.about.entry(machine).or_default().push(receipt.clone());
        }
    }

    /// Notes a machine that the last look did not show. Of two messages the nearer deadline counts; but one that
    /// takes the machine away is not held for a hint because a hint came before it, and a hint sets no deadline.
    pub(super) fn strange(&mut self, leaving: Leaving, from: u64) {
        match self.strangers.entry(leaving.instance.clone()) {
            Entry::Vacant(place) => {
                place.insert((leaving, from));
            }
            Entry::Occupied(mut place) if place.get().0.is_hint() => {
                if !leaving.is_hint() {
                    place.insert((leaving, from));
                }
            }
            Entry::Occupied(mut place) => {
                let deadline = leaving.deadline.filter(|_| !leaving.is_hint());
                let known = &mut place.get_mut().0;
                known.deadline = [known.deadline, deadline].into_iter().flatten().min();
            }
        }
    }

    /// Returns the machines that look `number` tells whose they are, and forgets them.
    pub(super) fn told_by(&mut self, number: u64) -> Vec<Leaving> {
        let told = |_: &InstanceId, (_, from): &mut (Leaving, u64)| *from <= number;
        self.strangers.extract_if(.., told).map(|(_, (leaving, _))| leaving).collect()
    }

    /// Notes that nothing has to be done for a machine any more before its messages are taken off.
    pub(super) fn dealt_with(&mut self, machine: &InstanceId) {
        for receipt in self.about.remove(machine).unwrap_or_default() {
            let Some(left) = self.open.get_mut(&receipt) else { continue };
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.open.remove(&receipt);
                self.done.push_back(receipt);
            }
        }
    }

    /// Has messages taken off, a bounded number at a time.
    pub(super) fn acknowledge(&mut self, effects: &mut Vec<Effect>) {
        while self.under_way < AT_ONCE {
            let Some(receipt) = self.done.pop_front() else { return };
            self.under_way += 1;
            effects.push(Effect::Acknowledge { receipt });
        }
    }

    /// Notes that a message was taken off, or could not be: then the queue shows it again.
    pub(super) fn was_acknowledged(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Forgets all of it: somebody else leads, and the queue shows it to them.
    pub(super) fn clear(&mut self) {
        let under_way = self.under_way;
        *self = Self { under_way, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::Kind;
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<InstanceId> {
        names.iter().copied().map(InstanceId::from).collect()
    }

    fn taken_off(mail: &mut Mail) -> Vec<String> {
        let mut effects = Vec::new();
        mail.acknowledge(&mut effects);
        let receipt = |effect: &Effect| {
            let Effect::Acknowledge { receipt } = effect else { panic!("{effect:?}") };
            receipt.clone()
        };
        effects.iter().map(receipt).collect()
    }

    #[test]
    fn a_message_is_taken_off_once_the_last_of_its_machines_is_dealt_with() {
        let mut mail = Mail::default();
        mail.wait("a".to_owned(), ids(&["i-1", "i-2"]));
        mail.wait("b".to_owned(), ids(&["i-2"]));
        mail.wait("nothing".to_owned(), ids(&[]));
        assert_eq!(taken_off(&mut mail), ["nothing"]);
        mail.dealt_with(&"i-2".into());
        assert_eq!(taken_off(&mut mail), ["b"]);
        assert!(mail.holds("a") && !mail.holds("b"));
        mail.dealt_with(&"i-2".into());
        assert_eq!(taken_off(&mut mail), [""; 0], "the same machine counts once");
        mail.dealt_with(&"i-1".into());
        assert_eq!(taken_off(&mut mail), ["a"]);
    }

    #[test]
    fn so_many_are_taken_off_at_a_time_and_the_others_after_them() {
        let mut mail = Mail::default();
        for n in 0..AT_ONCE + 5 {
            mail.wait(n.to_string(), ids(&[]));
        }
        assert_eq!(taken_off(&mut mail).len(), AT_ONCE);
        assert_eq!((taken_off(&mut mail).len(), mail.len()), (0, AT_ONCE + 5));
        mail.was_acknowledged();
        assert_eq!((taken_off(&mut mail).len(), mail.len()), (1, AT_ONCE + 4));
    }

    #[test]
    fn a_stranger_is_told_by_a_look_that_was_begun_after_the_message() {
        let leaving = |deadline: Option<i64>| Leaving {
            instance: "i-1".into(),
            why: "health".to_owned(),
            since: jiff::Timestamp::UNIX_EPOCH,
            deadline: deadline.map(|at| jiff::Timestamp::from_second(at).expect("a time")),
            member: false,
        };
        let mut mail = Mail::default();
        mail.strange(leaving(None), 4);
        mail.strange(leaving(Some(9)), 5);
        assert_eq!(mail.told_by(3), []);
        assert_eq!(mail.told_by(4), [leaving(Some(9))]);
        assert_eq!(mail.told_by(9), []);
    }

    #[test]
    fn a_stranger_that_is_taken_away_is_so_whatever_was_hinted_before_and_after() {
        let says = |kind: Kind, deadline: Option<i64>| Leaving {
            instance: "i-1".into(),
            why: kind.to_string(),
            since: jiff::Timestamp::UNIX_EPOCH,
            deadline: deadline.map(|at| jiff::Timestamp::from_second(at).expect("a time")),
            member: false,
        };
        let hint = || says(Kind::StateChange, Some(2));
        for (told, from, found) in [
            (vec![hint(), says(Kind::Health, None), hint()], 2, says(Kind::Health, None)),
            (vec![says(Kind::Health, Some(9)), hint()], 1, says(Kind::Health, Some(9))),
            (vec![hint(), hint()], 1, hint()),
        ] {
            let mut mail = Mail::default();
            for (leaving, look) in told.into_iter().zip(1..) {
                mail.strange(leaving, look);
            }
            assert_eq!(mail.told_by(from - 1), []);
            assert_eq!(mail.told_by(from), [found]);
        }
    }
}
