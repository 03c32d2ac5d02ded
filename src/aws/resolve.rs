//! What the words of node classes come to, looked up ahead: launches find it, and looks at the account tell of it.
//!
//! Invariants: an answer counts for some minutes, and stands in for a while where no newer one can be had; what could
//! not be found out is told as that, with the reason. Nobody who looks at the account waits for an answer.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

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
    /// The version of Kubernetes for which it was asked last.
    kubernetes: String,
    answer: Option<(Instant, Answer)>,
    /// Why it was not answered since, or ever.
    failed: Option<(Instant, String)>,
}

impl Asked {
    fn is_due(&self, kubernetes: &str, now: Instant) -> bool {
        let within = |at: &Instant, time: Duration| now.duration_since(*at) < time;
        let counts = self.answer.as_ref().is_some_and(|(at, _)| within(at, COUNTS_FOR));
        let rests = self.failed.as_ref().is_some_and(|(at, _)| within(at, ASKED_AGAIN_AFTER));
        self.kubernetes != kubernetes || !(counts || rests)
    }

    /// Returns what is still told of it.
    fn told(&self, now: Instant) -> Option<Result<&Answer, &str>> {
        let fresh = |at: &Instant| now.duration_since(*at) < TOLD_FOR;
        let answer = self.answer.as_ref().filter(|(at, _)| fresh(at)).map(|(_, answer)| Ok(answer));
        let failed = self.failed.as_ref().filter(|(at, _)| fresh(at));
        answer.or_else(|| failed.map(|(_, why)| Err(why.as_str())))
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

    /// Notes how a question ended at a moment.
    fn note(
        &self,
        (question, kubernetes): (Question, &str),
        end: Result<Answer, AwsError>,
        now: Instant,
    ) {
        self.with(|all| {
            let asked = all.entry(question).or_default();
            kubernetes.clone_into(&mut asked.kubernetes);
            match end {
                Ok(answer) => (asked.answer, asked.failed) = (Some((now, answer)), None),
                Err(error) => asked.failed = Some((now, error.to_string())),
            }
        });
    }

    /// Returns what is told of a question, where it was asked for that version of Kubernetes.
    fn answer(&self, question: &Question, kubernetes: &str) -> Option<Answer> {
        let now = Instant::now();
        self.with(|all| {
            let asked = all.get(question).filter(|asked| asked.kubernetes == kubernetes)?;
            asked.told(now)?.ok().cloned()
        })
    }

    /// Returns what is known, and what is known not to be; what nobody asks any more is forgotten.
    pub(super) fn resolved(&self, now: Instant) -> Resolved {
        let mut resolved = Resolved::default();
        self.with(|all| {
            all.retain(|_, asked| asked.told(now).is_some());
            for ((part, words), asked) in all.iter() {
                let words = words.clone();
                match asked.told(now) {
                    Some(Ok(Answer::Images(choices))) => {
                        resolved.images.insert(words, choices.clone());
                    }
                    Some(Ok(Answer::Subnets(subnets))) => {
                        let ids =
                            subnets.values().flatten().map(|subnet| subnet.id.as_str().into());
                        resolved.subnets.insert(words, ids.collect());
                    }
                    Some(Ok(Answer::SecurityGroups(ids))) => {
                        let ids = ids.iter().map(|id| id.as_str().into());
                        resolved.security_groups.insert(words, ids.collect());
                    }
                    Some(Err(why)) => {
                        let (part, reason) = (*part, why.to_owned());
                        resolved.unread.insert(Unread { part, words, reason });
                    }
                    None => {}
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
            let end = if begun.elapsed() < ASKS_FOR {
                self.ask(question.0, class, kubernetes).await
            } else {
                Err(AwsError::Missing("looking up other node classes took too long".to_owned()))
            };
            self.answers.note((question, version), end, Instant::now());
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
        // Of this hardware alone: the pod that waits for it needs no other.
        self.image(&class.machine.images, hardware, &machines.kubernetes).await
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
        let found = self.subnets(&class.machine.subnets).await?;
        let answer = Answer::Subnets(found.clone());
        self.answers.note((question, version), Ok(answer), Instant::now());
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
        let found = self.security_groups(&class.machine.security_groups).await?;
        let answer = Answer::SecurityGroups(found.clone());
        self.answers.note((question, version), Ok(answer), Instant::now());
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
    use super::*;

    #[test]
    fn an_answer_counts_for_a_while_stands_in_for_longer_and_then_none_is_known() {
        let (answers, begun) = (Answers::default(), Instant::now());
        let at = |minutes| begun + Duration::from_mins(minutes);
        let question = || (Part::SecurityGroups, "tag a=b".to_owned());
        let found = |id: &str| Ok(Answer::SecurityGroups(vec![id.to_owned()]));
        let failed = || Err(AwsError::Missing("nobody answers".to_owned()));
        let is_due = |minutes| answers.is_due(&question(), "1.33", at(minutes));
        let note = |end, minutes| answers.note((question(), "1.33"), end, at(minutes));
        let known = |minutes| answers.resolved(at(minutes)).security_groups.remove("tag a=b");
        assert!(is_due(0) && answers.resolved(at(0)).is_empty());
        note(found("sg-1"), 0);
        assert!(!is_due(4) && is_due(5), "it counts for a while");
        assert!(answers.is_due(&question(), "1.34", at(4)), "and for one version of Kubernetes");
        note(failed(), 5);
        assert!(!answers.is_due(&question(), "1.33", at(5) + Duration::from_secs(29)));
        assert!(is_due(6), "it is asked again, and not at once");
        assert_eq!(known(14), Some(["sg-1".into()].into()), "what was known stands in");
        assert!(answers.resolved(at(14)).unread.is_empty());
        note(failed(), 14);
        assert_eq!(known(15), None, "and not for ever");
        let unread = answers.resolved(at(15)).unread.pop_first().expect("it is told");
        assert_eq!((unread.part, unread.reason.as_str()), (Part::SecurityGroups, "nobody answers"));
        note(found("sg-2"), 16);
        assert_eq!(known(16), Some(["sg-2".into()].into()));
        assert!(answers.resolved(at(31)).is_empty(), "nobody asks any more");
    }
}
