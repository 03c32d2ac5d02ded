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
use crate::fleet::{ImageChoice, Part, Resolved, Unread};
use crate::manifest::{Generation, NodeClass, in_words};

/// How long an answer counts. Images are released by the week; Karpenter asks every five minutes as well.
const COUNTS_FOR: Duration = Duration::from_mins(5);

/// How long after a question was not answered it is asked again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(30);

/// How long an answer is told where no newer one can be had.
const TOLD_FOR: Duration = Duration::from_mins(15);

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

    fn answer(&self, question: &Question) -> Option<Answer> {
        let now = Instant::now();
        self.with(|all| all.get(question)?.told(now)?.ok().cloned())
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

impl Aws {
    /// Looks up what classes come to, as far as that is not known from lately; `kubernetes` is the version, or why it is
    /// not known. What cannot be found out [`crate::port::Holdings::resolved`] tells.
    pub async fn resolve(&self, classes: &[&NodeClass], kubernetes: Result<&str, &str>) {
        let answers = &self.answers;
        let _alone = answers.asking.lock().await;
        let version = kubernetes.unwrap_or_default();
        // What a group's machines are like, whoever made the group decides.
        let ours = classes.iter().filter(|class| class.generation != Generation::Eksctl);
        for class in ours {
            let machine = &class.machine;
            let [image, subnets, groups] = questions(class);
            let is_due = |asked: &Question| answers.is_due(asked, version, Instant::now());
            if !machine.images.is_empty() && is_due(&image) {
                let end = self.images_of(&machine.images, kubernetes).await.map(Answer::Images);
                answers.note((image, version), end, Instant::now());
            }
            if !machine.subnets.is_empty() && is_due(&subnets) {
                let end = self.subnets(&machine.subnets).await.map(Answer::Subnets);
                answers.note((subnets, version), end, Instant::now());
            }
            if !machine.security_groups.is_empty() && is_due(&groups) {
                let found = self.security_groups(&machine.security_groups).await;
                answers.note((groups, version), found.map(Answer::SecurityGroups), Instant::now());
            }
        }
    }

    /// Does the same for the classes of `machines`, whose launches find it.
    pub async fn look_up(&self, machines: &Machines) {
        let classes: Vec<&NodeClass> = machines.classes().collect();
        self.resolve(&classes, Ok(&machines.kubernetes)).await;
        for class in classes {
            let name = &class.name;
            for answer in questions(class).iter().filter_map(|asked| self.answers.answer(asked)) {
                machines.keep(|known| match answer {
                    Answer::Images(choices) => known.images.extend(
                        choices.iter().map(|c| ((name.clone(), c.hardware), c.id.to_string())),
                    ),
                    Answer::Subnets(subnets) => {
                        known.subnets.insert(name.clone(), subnets);
                    }
                    Answer::SecurityGroups(groups) => {
                        known.groups.insert(name.clone(), groups);
                    }
                });
            }
        }
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
