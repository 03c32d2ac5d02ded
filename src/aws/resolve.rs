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

/// What is asked: the words, and what they are about.
type Question = (Part, String);

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
}

/// When something was asked, and for which version of Kubernetes.
#[derive(Debug, Clone)]
struct When {
    at: Instant,
    /// The same as a time of day, which launches are told by.
    time: Timestamp,
    kubernetes: String,
}

impl When {
    fn now(kubernetes: &str) -> Self {
        let kubernetes = kubernetes.to_owned();
        Self { at: Instant::now(), time: Timestamp::now(), kubernetes }
    }

    fn is_within(&self, time: Duration, now: Instant) -> bool {
        now.duration_since(self.at) < time
    }
}

impl Asked {
    fn is_due(&self, kubernetes: &str, now: Instant) -> bool {
        let lately = |when: &When, time| when.kubernetes == kubernetes && when.is_within(time, now);
        let counts = self.answer.as_ref().is_some_and(|(when, _)| lately(when, COUNTS_FOR));
        let rests = self.failed.as_ref().is_some_and(|(when, _)| lately(when, ASKED_AGAIN_AFTER));
        !(counts || rests)
    }

    /// Returns what is still told of it, and when that was asked.
    fn told(&self, now: Instant) -> Option<(&When, Result<&Answer, &str>)> {
        let answer = self.answer.as_ref().map(|(when, answer)| (when, Ok(answer)));
        let failed = self.failed.as_ref().map(|(when, why)| (when, Err(why.as_str())));
        let told = |told: &(&When, Result<&Answer, &str>)| told.0.is_within(TOLD_FOR, now);
        answer.filter(told).or_else(|| failed.filter(told))
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

    fn is_due(&self, question: &Question, kubernetes: &str, now: Instant) -> bool {
        self.with(|all| all.get(question).is_none_or(|asked| asked.is_due(kubernetes, now)))
    }

    /// Notes how a question ended that was asked then.
    fn note(&self, question: Question, when: When, end: Result<Answer, AwsError>) {
        self.with(|all| {
            let asked = all.entry(question).or_default();
            match end {
                Ok(answer) => (asked.answer, asked.failed) = (Some((when, answer)), None),
                Err(error) => asked.failed = Some((when, error.to_string())),
            }
        });
    }

    /// Returns what a question came to for that version of Kubernetes, as far as it is told.
    fn answer(&self, question: &Question, kubernetes: &str) -> Option<Answer> {
        let now = Instant::now();
        self.with(|all| {
            let (when, told) = all.get(question)?.told(now)?;
            told.ok().filter(|_| when.kubernetes == kubernetes).cloned()
        })
    }

    /// Returns what is known, and what is known not to be; what nobody asks any more is forgotten.
    pub(super) fn resolved(&self, now: Instant) -> Resolved {
        let mut resolved = Resolved::default();
        self.with(|all| {
            all.retain(|_, asked| asked.told(now).is_some());
            for ((part, words), asked) in all.iter() {
                let Some((when, told)) = asked.told(now) else { continue };
                let words = words.clone();
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
                        let (part, reason) = (*part, why.to_owned());
                        resolved.unread.insert(Unread { part, words, reason });
                    }
                }
            }
        });
        resolved
    }
}

/// What is asked of a class.
fn questions(class: &NodeClass) -> [Question; 3] {
    let machine = &class.machine;
    [
        (Part::Image, class.image.clone()),
        (Part::Subnets, in_words(&machine.subnets)),
        (Part::SecurityGroups, in_words(&machine.security_groups)),
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
        let Ok(_alone) = self.answers.asking.try_lock() else { return };
        let begun = Instant::now();
        // What a group's machines are like, whoever made the group decides.
        let ours = classes.iter().filter(|class| class.generation != Generation::Eksctl);
        for (class, question) in ours.flat_map(|class| questions(class).map(|asked| (class, asked)))
        {
            let version = kubernetes.unwrap_or_default();
            if !selects(class, question.0)
                || !self.answers.is_due(&question, version, Instant::now())
            {
                continue;
            }
            let when = When::now(version);
            let end = if begun.elapsed() < ASKS_FOR {
                self.ask(question.0, class, kubernetes).await
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
        let [question, _, _] = questions(class);
        if let Some(Answer::Images(known)) = self.answers.answer(&question, &machines.kubernetes)
            && let Some(choice) = known.iter().find(|choice| choice.hardware == hardware)
        {
            return Ok(choice.id.to_string());
        }
        // Of this hardware alone: the pod that waits for it needs no other, and those after it do not ask again.
        let key = (class.name.clone(), hardware);
        if let Some(known) = machines.recall(|known| known.images.get(&key).cloned()) {
            return Ok(known);
        }
        let image = self.image(&class.machine.images, hardware, &machines.kubernetes).await?;
        machines.keep(|known| {
            known.images.insert(key, image.clone());
        });
        Ok(image)
    }

    /// Returns where machines of a class may be put.
    pub(super) async fn subnets_of(
        &self,
        machines: &Machines,
        class: &NodeClass,
    ) -> Result<Subnets, AwsError> {
        let ([_, question, _], version) = (questions(class), machines.kubernetes.as_str());
        if let Some(Answer::Subnets(known)) = self.answers.answer(&question, version) {
            return Ok(known);
        }
        let when = When::now(version);
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
        let ([_, _, question], version) = (questions(class), machines.kubernetes.as_str());
        if let Some(Answer::SecurityGroups(known)) = self.answers.answer(&question, version) {
            return Ok(known);
        }
        let when = When::now(version);
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

    fn question() -> Question {
        (Part::SecurityGroups, "tag a=b".to_owned())
    }

    fn found(id: &str) -> Answer {
        Answer::SecurityGroups(vec![id.to_owned()])
    }

    fn failed() -> AwsError {
        AwsError::Missing("nobody answers".to_owned())
    }

    #[test]
    fn an_answer_counts_for_a_while_stands_in_for_longer_and_then_none_is_known() {
        let (answers, begun) = (Answers::default(), When::now("1.33"));
        let at = |minutes| begun.at + Duration::from_mins(minutes);
        let when = |minutes| When { at: at(minutes), ..begun.clone() };
        let is_due = |minutes| answers.is_due(&question(), "1.33", at(minutes));
        let note = |end, minutes| answers.note(question(), when(minutes), end);
        let known = |minutes| answers.resolved(at(minutes)).security_groups.remove("tag a=b");
        assert!(is_due(0) && answers.resolved(at(0)).is_empty());
        note(Ok(found("sg-1")), 0);
        assert!(!is_due(4) && is_due(5), "it counts for a while");
        assert!(answers.is_due(&question(), "1.34", at(4)), "and for one version of Kubernetes");
        note(Err(failed()), 5);
        assert!(!answers.is_due(&question(), "1.33", at(5) + Duration::from_secs(29)));
        assert!(is_due(6), "it is asked again, and not at once");
        assert_eq!(known(14), Some(["sg-1".into()].into()), "what was known stands in");
        assert!(answers.resolved(at(14)).unread.is_empty());
        note(Err(failed()), 14);
        assert_eq!(known(15), None, "and not for ever");
        let unread = answers.resolved(at(15)).unread.pop_first().expect("it is told");
        assert_eq!((unread.part, unread.reason.as_str()), (Part::SecurityGroups, "nobody answers"));
        note(Ok(found("sg-2")), 16);
        assert_eq!(known(16), Some(["sg-2".into()].into()));
        assert!(answers.resolved(at(31)).is_empty(), "nobody asks any more");
    }

    #[test]
    fn what_failed_for_another_version_makes_no_answer_of_that_version() {
        let (answers, before, now) = (Answers::default(), When::now("1.33"), When::now("1.34"));
        answers.note(question(), before, Ok(found("sg-1")));
        answers.note(question(), now.clone(), Err(failed()));
        assert!(answers.answer(&question(), "1.33").is_some());
        assert!(answers.answer(&question(), "1.34").is_none(), "launches ask for themselves");
        let later = now.at + ASKED_AGAIN_AFTER;
        assert!(answers.is_due(&question(), "1.34", later), "it is asked again before long");
    }

    #[test]
    fn what_is_known_is_as_old_as_the_oldest_of_it() {
        let (answers, newer) = (Answers::default(), When::now("1.33"));
        let older = When { time: newer.time - SignedDuration::from_mins(4), ..newer.clone() };
        answers.note(
            (Part::SecurityGroups, "tag c=d".to_owned()),
            newer.clone(),
            Ok(found("sg-2")),
        );
        answers.note(question(), older.clone(), Ok(found("sg-1")));
        assert_eq!(answers.resolved(newer.at).asked_at, Some(older.time));
    }
}
