//! What the words of node classes come to, looked up ahead: launches find it, and looks at the account tell of it.
//!
//! Invariants: an answer counts for some minutes, and stands in for a while where no newer one can be had; what could
//! not be found out is told as that, with the reason. Nobody who looks at the account waits for an answer.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::client::{Aws, AwsError};
use super::machine::Machines;
use super::network::Subnets;
use crate::fleet::{Hardware, ImageChoice, Part, Resolved, Unread};
use crate::manifest::{Generation, NodeClass, in_words};

/// How long an answer counts. Images are released by the week; Karpenter asks every five minutes as well.
const COUNTS_FOR: Duration = Duration::from_mins(5);

/// How long after a question was not answered it is asked again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How long an answer is told where no newer one can be had.
const TOLD_FOR: Duration = Duration::from_mins(15);

/// How long one who asks goes on: what is left then is told as not known, and asked for by the next.
const ASKS_FOR: Duration = Duration::from_mins(1);

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    /// What the words are about.
    part: Part,
    words: String,
    /// The version of Kubernetes that it is asked for; empty where none is known, and where it makes no difference.
    kubernetes: String,
}

/// What words come to.
#[derive(Debug, Clone)]
enum Answer {
    Images(Vec<ImageChoice>),
    Subnets(Subnets),
    SecurityGroups(Vec<String>),
}

/// What became of a question.
#[derive(Debug, Clone, Default)]
struct Asked {
    answer: Option<(When, Answer)>,
    /// Why it was not answered since, or ever.
    failed: Option<(When, String)>,
    /// Since when it is to be asked, where nothing has come of that yet.
    pending: Option<When>,
}

/// When something was asked.
#[derive(Debug, Clone, Copy)]
struct When {
    at: Instant,
    /// The same as a time of day, which launches are told by.
    time: Timestamp,
}

impl When {
    fn now() -> Self {
        Self { at: Instant::now(), time: Timestamp::now() }
    }

    fn is_within(self, time: Duration, now: Instant) -> bool {
        now.duration_since(self.at) < time
    }
}

impl Asked {
    fn is_due(&self, now: Instant) -> bool {
        let counts = self.answer.as_ref().is_some_and(|(when, _)| when.is_within(COUNTS_FOR, now));
        let rests =
            self.failed.as_ref().is_some_and(|(when, _)| when.is_within(ASKED_AGAIN_AFTER, now));
        !(counts || rests)
    }

    /// Returns what is still told of it, and when that was asked.
    fn told(&self, now: Instant) -> Option<(When, Result<&Answer, &str>)> {
        let answer = self.answer.as_ref().map(|(when, answer)| (*when, Ok(answer)));
        let failed = self.failed.as_ref().map(|(when, why)| (*when, Err(why.as_str())));
        let pending = self.pending.map(|when| (when, Err("it was not looked up yet")));
        let told = |told: &(When, Result<&Answer, &str>)| told.0.is_within(TOLD_FOR, now);
        answer.filter(told).or_else(|| failed.filter(told)).or_else(|| pending.filter(told))
    }
}

/// All that was asked lately.
#[derive(Debug, Default)]
pub(super) struct Answers {
    asked: Mutex<BTreeMap<Question, Asked>>,
    /// Held by whoever asks.
    asking: tokio::sync::Mutex<()>,
}

impl Answers {
    fn with<T>(&self, does: impl FnOnce(&mut BTreeMap<Question, Asked>) -> T) -> T {
        does(&mut self.asked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_due(&self, question: &Question, now: Instant) -> bool {
        self.with(|all| all.get(question).is_none_or(|asked| asked.is_due(now)))
    }

    /// Notes that a question is to be asked: until something has come of that nobody takes it for one that nobody asks.
    fn note_pending(&self, question: &Question, when: When) {
        self.with(|all| {
            let known = all.get(question).is_some_and(|asked| asked.told(when.at).is_some());
            if !known {
                all.entry(question.clone()).or_default().pending = Some(when);
            }
        });
    }

    /// Notes how a question ended that was asked then.
    fn note(&self, question: Question, when: When, end: Result<Answer, AwsError>) {
        self.with(|all| {
            let asked = all.entry(question).or_default();
            asked.pending = None;
            match end {
                Ok(answer) => (asked.answer, asked.failed) = (Some((when, answer)), None),
                Err(error) => asked.failed = Some((when, error.to_string())),
            }
        });
    }

    /// Returns what a question came to, as far as it is told.
    fn answer(&self, question: &Question) -> Option<Answer> {
        let now = Instant::now();
        self.with(|all| all.get(question)?.told(now)?.1.ok().cloned())
    }

    /// Returns what is known, and what is known not to be, for machines that join that version of Kubernetes, or of
    /// whatever was asked; what nobody asks any more is forgotten.
    pub(super) fn resolved(&self, kubernetes: Option<&str>, now: Instant) -> Resolved {
        let is_of = |question: &Question| {
            question.part != Part::Image
                || kubernetes.is_none_or(|version| question.kubernetes == version)
        };
        let mut resolved = Resolved::default();
        self.with(|all| {
            all.retain(|_, asked| asked.told(now).is_some());
            for (question, asked) in all.iter().filter(|(question, _)| is_of(question)) {
                let Some((when, told)) = asked.told(now) else { continue };
                let words = question.words.clone();
                if told.is_ok() {
                    let oldest = resolved.asked_at.map_or(when.time, |time| time.min(when.time));
                    resolved.asked_at = Some(oldest);
                }
                match told {
                    Ok(Answer::Images(choices)) => {
                        resolved.images.insert(words, choices.clone());
                    }
                    Ok(Answer::Subnets(subnets)) => {
                        let ids =
                            subnets.values().flatten().map(|subnet| subnet.id.as_str().into());
                        resolved.subnets.insert(words, ids.collect());
                    }
                    Ok(Answer::SecurityGroups(ids)) => {
                        let ids = ids.iter().map(|id| id.as_str().into());
                        resolved.security_groups.insert(words, ids.collect());
                    }
                    Err(why) => {
                        let (part, reason) = (question.part, why.to_owned());
                        resolved.unread.insert(Unread { part, words, reason });
                    }
                }
            }
        });
        resolved
    }
}

/// What is asked of a class, for machines that join such a version of Kubernetes.
fn questions(class: &NodeClass, kubernetes: &str) -> [Question; 3] {
    let machine = &class.machine;
    let asked = |part, words, kubernetes: &str| {
        let kubernetes = kubernetes.to_owned();
        Question { part, words, kubernetes }
    };
    [
        asked(Part::Image, class.image.clone(), kubernetes),
        asked(Part::Subnets, in_words(&machine.subnets), ""),
        asked(Part::SecurityGroups, in_words(&machine.security_groups), ""),
    ]
}

/// Returns whether a class says anything of a part.
fn selects(class: &NodeClass, part: Part) -> bool {
    let machine = &class.machine;
    match part {
        Part::Image => !machine.images.is_empty(),
        Part::Subnets => !machine.subnets.is_empty(),
        Part::SecurityGroups => !machine.security_groups.is_empty(),
    }
}

impl Aws {
    /// Looks up what classes come to, as far as that is not known from lately; `kubernetes` is the version, or why it is
    /// not known. What cannot be found out [`crate::port::Holdings::resolved`] tells. Where somebody asks already, nothing
    /// is asked.
    pub async fn resolve(&self, classes: &[&NodeClass], kubernetes: Result<&str, &str>) {
        // What a group's machines are like, whoever made the group decides.
        let ours = classes.iter().filter(|class| class.generation != Generation::Eksctl);
        let version = kubernetes.unwrap_or_default();
        let asked = ours.flat_map(|class| questions(class, version).map(|asked| (class, asked)));
        let asked: Vec<_> =
            asked.filter(|(class, question)| selects(class, question.part)).collect();
        for (_, question) in &asked {
            self.answers.note_pending(question, When::now());
        }
        let Ok(_alone) = self.answers.asking.try_lock() else { return };
        let begun = Instant::now();
        for (class, question) in asked {
            if !self.answers.is_due(&question, Instant::now()) {
                continue;
            }
            let when = When::now();
            let end = if begun.elapsed() < ASKS_FOR {
                self.ask(question.part, class, kubernetes).await
            } else {
                Err(AwsError::Missing("looking up other node classes took too long".to_owned()))
            };
            self.answers.note(question, when, end);
        }
    }

    async fn ask(
        &self,
        part: Part,
        class: &NodeClass,
        kubernetes: Result<&str, &str>,
    ) -> Result<Answer, AwsError> {
        let machine = &class.machine;
        match part {
            Part::Image => self.images_of(&machine.images, kubernetes).await.map(Answer::Images),
            Part::Subnets => self.subnets(&machine.subnets).await.map(Answer::Subnets),
            Part::SecurityGroups => {
                self.security_groups(&machine.security_groups).await.map(Answer::SecurityGroups)
            }
        }
    }

    /// Does the same for the classes of `machines`: launches take what is known then, and are held to it afterwards.
    pub async fn look_up(&self, machines: &Machines) {
        let classes: Vec<&NodeClass> = machines.classes().collect();
        self.resolve(&classes, Ok(&machines.kubernetes)).await;
    }

    /// Returns the image that machines of such hardware are launched from.
    pub(super) async fn image_of(
        &self,
        machines: &Machines,
        (class, hardware): (&NodeClass, Hardware),
    ) -> Result<String, AwsError> {
        let [question, _, _] = questions(class, &machines.kubernetes);
        if let Some(Answer::Images(known)) = self.answers.answer(&question)
            && let Some(choice) = known.iter().find(|choice| choice.hardware == hardware)
        {
            return Ok(choice.id.to_string());
        }
        // Of this hardware alone: the pod that waits for it needs no other, and those after it do not ask again.
        let key = (class.name.clone(), hardware);
        let now = Instant::now();
        let known = machines.recall(|known| known.images.get(&key).cloned());
        if let Some((_, known)) = known.filter(|(at, _)| now.duration_since(*at) < COUNTS_FOR) {
            return Ok(known);
        }
        let image = self.image(&class.machine.images, hardware, &machines.kubernetes).await?;
        machines.keep(|known| {
            known.images.insert(key, (now, image.clone()));
        });
        Ok(image)
    }

    /// Returns where machines of a class may be put.
    pub(super) async fn subnets_of(
        &self,
        machines: &Machines,
        class: &NodeClass,
    ) -> Result<Subnets, AwsError> {
        let [_, question, _] = questions(class, &machines.kubernetes);
        if let Some(Answer::Subnets(known)) = self.answers.answer(&question) {
            return Ok(known);
        }
        let when = When::now();
        let found = self.subnets(&class.machine.subnets).await?;
        self.answers.note(question, when, Ok(Answer::Subnets(found.clone())));
        Ok(found)
    }

    /// Returns the security groups of machines of a class.
    pub(super) async fn groups_of(
        &self,
        machines: &Machines,
        class: &NodeClass,
    ) -> Result<Vec<String>, AwsError> {
        let [_, _, question] = questions(class, &machines.kubernetes);
        if let Some(Answer::SecurityGroups(known)) = self.answers.answer(&question) {
            return Ok(known);
        }
        let when = When::now();
        let found = self.security_groups(&class.machine.security_groups).await?;
        self.answers.note(question, when, Ok(Answer::SecurityGroups(found.clone())));
        Ok(found)
    }

    /// Looks up what launches of every pool need, so that the first pods of each need not wait for that. What cannot be
    /// found is looked for again by the launch, which says so.
    pub async fn warm(&self, machines: &Machines) {
        self.look_up(machines).await;
        for class in machines.classes() {
            let _alone = machines.looking.lock().await;
            if let Err(error) = self.profile_of(machines, class).await {
                tracing::debug!(%error, class = %class.name, "a node class was not looked up ahead");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    fn asked(part: Part, words: &str, kubernetes: &str) -> Question {
        Question { part, words: words.to_owned(), kubernetes: kubernetes.to_owned() }
    }

    fn question() -> Question {
        asked(Part::SecurityGroups, "tag a=b", "")
    }

    fn found(id: &str) -> Answer {
        Answer::SecurityGroups(vec![id.to_owned()])
    }

    fn failed() -> AwsError {
        AwsError::Missing("nobody answers".to_owned())
    }

    #[test]
    fn an_answer_counts_for_a_while_stands_in_for_longer_and_then_none_is_known() {
        let (answers, begun) = (Answers::default(), When::now());
        let at = |minutes| begun.at + Duration::from_mins(minutes);
        let when = |minutes| When { at: at(minutes), ..begun };
        let is_due = |minutes| answers.is_due(&question(), at(minutes));
        let note = |end, minutes| answers.note(question(), when(minutes), end);
        let resolved = |minutes| answers.resolved(Some("1.33"), at(minutes));
        let known = |minutes| resolved(minutes).security_groups.remove("tag a=b");
        assert!(is_due(0) && resolved(0).is_empty());
        note(Ok(found("sg-1")), 0);
        assert!(!is_due(4) && is_due(5), "it counts for a while");
        note(Err(failed()), 5);
        assert!(!answers.is_due(&question(), at(5) + Duration::from_secs(29)));
        assert!(is_due(6), "it is asked again, and not at once");
        assert_eq!(known(14), Some(["sg-1".into()].into()), "what was known stands in");
        assert!(resolved(14).unread.is_empty());
        note(Err(failed()), 14);
        assert_eq!(known(15), None, "and not for ever");
        let unread = resolved(15).unread.pop_first().expect("it is told");
        assert_eq!((unread.part, unread.reason.as_str()), (Part::SecurityGroups, "nobody answers"));
        note(Ok(found("sg-2")), 16);
        assert_eq!(known(16), Some(["sg-2".into()].into()));
        assert!(resolved(31).is_empty(), "nobody asks any more");
    }

    #[test]
    fn what_is_to_be_asked_is_told_as_not_known_until_something_came_of_it_and_is_asked_at_once() {
        let (answers, when) = (Answers::default(), When::now());
        let unread = || answers.resolved(None, when.at).unread.len();
        answers.note_pending(&question(), when);
        assert_eq!(unread(), 1);
        assert!(answers.is_due(&question(), when.at));
        answers.note(question(), when, Ok(found("sg-1")));
        answers.note_pending(&question(), when);
        assert_eq!((unread(), answers.answer(&question()).is_some()), (0, true));
    }

    #[test]
    fn images_are_those_of_the_version_that_machines_join_and_two_are_known_side_by_side() {
        let (answers, when) = (Answers::default(), When::now());
        let images = |id: &str| {
            let [hardware, ..] = Hardware::ALL;
            Answer::Images(vec![ImageChoice { id: id.into(), hardware }])
        };
        for (version, id) in [("1.33", "ami-33"), ("1.34", "ami-34")] {
            answers.note(asked(Part::Image, "al2023@latest", version), when, Ok(images(id)));
        }
        answers.note(asked(Part::Image, "al2023@latest", "1.35"), when, Err(failed()));
        answers.note(question(), when, Ok(found("sg-1")));
        for (version, id) in [("1.33", "ami-33"), ("1.34", "ami-34")] {
            assert!(!answers.is_due(&asked(Part::Image, "al2023@latest", version), when.at));
            let resolved = answers.resolved(Some(version), when.at);
            let known = resolved.images["al2023@latest"].iter().map(|choice| choice.id.as_str());
            assert_eq!(known.collect::<Vec<_>>(), [id]);
            assert!(resolved.unread.is_empty(), "what failed, failed for another version");
            assert_eq!(resolved.security_groups.len(), 1, "which are the same for all");
        }
        let resolved = answers.resolved(Some("1.35"), when.at);
        assert_eq!((resolved.images.len(), resolved.unread.len()), (0, 1));
        assert_eq!(
            answers.resolved(None, when.at).unread.len(),
            1,
            "who knows none is told of all"
        );
    }

    #[test]
    fn what_is_known_is_as_old_as_the_oldest_of_it() {
        let (answers, newer) = (Answers::default(), When::now());
        let older = When { time: newer.time - SignedDuration::from_mins(4), ..newer };
        answers.note(asked(Part::SecurityGroups, "tag c=d", ""), newer, Ok(found("sg-2")));
        answers.note(question(), older, Ok(found("sg-1")));
        assert_eq!(answers.resolved(None, newer.at).asked_at, Some(older.time));
    }
}
