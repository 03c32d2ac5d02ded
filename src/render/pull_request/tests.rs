use std::cell::RefCell;

use super::*;
use crate::apply::Outcome;
use crate::apply::ports::ForgeComment;
use crate::testing::sample_plan::{hostile, hostile_at, large, plan};

const ME: &str = "github-actions[bot]";

/// A forge in memory that can refuse.
#[derive(Default)]
struct FakeForge {
    comments: RefCell<Vec<ForgeComment>>,
    foreign: Vec<u64>,
    longest: usize,
}

impl FakeForge {
    fn with(bodies: &[&str]) -> Self {
        let comment = |(id, body): (usize, &&str)| ForgeComment {
            id: u64::try_from(id).expect("small"),
            author: ME.to_owned(),
            body: (*body).to_owned(),
        };
        let comments = bodies.iter().enumerate().map(comment).collect();
        Self { comments: RefCell::new(comments), longest: 65_536, ..Self::default() }
    }

    fn check(&self, id: Option<u64>, body: &str) -> Result<(), ForgeError> {
        if id.is_some_and(|id| self.foreign.contains(&id)) {
            return Err(ForgeError::Refused("not yours".into()));
        }
        if length(body) > self.longest {
            return Err(ForgeError::Unprocessable("body is too long".into()));
        }
        Ok(())
    }
}

impl Forge for FakeForge {
    fn author(&self) -> Result<String, ForgeError> {
        Ok(ME.to_owned())
    }
    fn comments(&self, _: u64) -> Result<Vec<ForgeComment>, ForgeError> {
        Ok(self.comments.borrow().clone())
    }
    fn create(&self, _: u64, body: &str) -> Result<(), ForgeError> {
        self.check(None, body)?;
        let id = 100;
        let (author, body) = (ME.to_owned(), body.to_owned());
        self.comments.borrow_mut().push(ForgeComment { id, author, body });
        Ok(())
    }
    fn update(&self, _: u64, id: u64, body: &str) -> Result<(), ForgeError> {
        self.check(Some(id), body)?;
        for found in self.comments.borrow_mut().iter_mut().filter(|c| c.id == id) {
            body.clone_into(&mut found.body);
        }
        Ok(())
    }
    fn delete(&self, _: u64, id: u64) -> Result<(), ForgeError> {
        self.check(Some(id), "")?;
        self.comments.borrow_mut().retain(|comment| comment.id != id);
        Ok(())
    }
    fn set_status(&self, _: &str, _: &CommitStatus) -> Result<(), ForgeError> {
        Ok(())
    }
}

fn body(chars_max: usize) -> String {
    comment(&plan(), None, false, chars_max)
}

#[test]
fn comment_has_a_header_and_the_next_step() {
    let text = body(COMMENT_CHARS_MAX);
    let header = CommentHeader::read(&text).expect("a header");
    assert_eq!((header.cluster.as_str(), header.state.as_str()), ("prod-eu1", "planned"));
    assert_eq!(header.digest, plan().capacity.digest.to_string());
    assert!(text.contains("approved ✗") && text.contains("Next: approve `sha256:"), "{text}");
    assert!(text.contains("\nPlan (incomplete): 4 to add, 1 to change, 4 to destroy. "));
    let approved = comment(&plan(), None, true, COMMENT_CHARS_MAX);
    assert!(approved.contains("approved ✓ — After the merge it is planned again"), "{approved}");
}

#[test]
fn comment_is_created_once_and_updated() {
    let forge = FakeForge::with(&["looks good", "<!-- other -->"]);
    assert_eq!(update_comment(&forge, 1, &body), Ok(Posted::Created));
    assert_eq!(update_comment(&forge, 1, &body), Ok(Posted::Unchanged));
    let later = |most| comment(&plan(), None, true, most);
    assert_eq!(update_comment(&forge, 1, &later), Ok(Posted::Updated));
    assert_eq!(forge.comments.borrow().len(), 3);
}

#[test]
fn duplicate_comments_are_deleted_and_foreign_ones_stay() {
    let old = body(COMMENT_CHARS_MAX).replace("planned", "old");
    let mut other = plan();
    other.capacity.base.world.cluster.name = "other".into();
    let other = comment(&other, None, false, COMMENT_CHARS_MAX);
    let mut forge = FakeForge::with(&[&old, &old, &other, &old]);
    forge.foreign = vec![0];
    assert_eq!(update_comment(&forge, 1, &body), Ok(Posted::Updated));
    let left: Vec<u64> = forge.comments.borrow().iter().map(|comment| comment.id).collect();
    assert_eq!(left, [0, 1, 2], "the foreign one, ours, that of the other cluster");
    assert_eq!(forge.comments.borrow()[1].body, body(COMMENT_CHARS_MAX));
}

#[test]
fn too_long_comment_is_shortened_not_split() {
    let plan = large(5_000, 1_000);
    let of_plan = |most| comment(&plan, None, false, most);
    let mut forge = FakeForge::with(&[]);
    forge.longest = 30_000;
    assert_eq!(update_comment(&forge, 1, &of_plan), Ok(Posted::Created));
    assert_eq!(forge.comments.borrow().len(), 1);
    assert!(length(&of_plan(COMMENT_CHARS_MAX)) <= COMMENT_CHARS_MAX);
}

#[test]
fn long_cluster_name_is_bounded() {
    let name: String = "```@team-->".chars().cycle().take(10 << 20).collect();
    let plan = hostile_at(&["prod-eu1"], &name);
    let text = comment(&plan, None, false, COMMENT_CHARS_MAX);
    assert!(length(&text) <= COMMENT_CHARS_MAX);
    let header = CommentHeader::read(&text).expect("the first line is ours");
    assert!(length(&header.cluster) < 2 * NAME_MAX, "{}", header.cluster);
    assert!(length(&status(&plan, None, None).description) <= DESCRIPTION_MAX);
}

#[test]
fn outside_text_cannot_forge_the_first_line() {
    for name in ["--><script>", "\n<!-- fleetwright v1 {}", "--!>", "`@team`"] {
        let text = comment(&hostile(name), None, false, COMMENT_CHARS_MAX);
        let first = text.lines().next().expect("a line");
        assert_eq!(first.matches("-->").count(), 1, "{first}");
        assert!(first.ends_with(" -->") && CommentHeader::read(&text).is_some(), "{first}");
        let others = text.lines().skip(1).filter(|line| line.starts_with(MARK));
        assert_eq!(others.count(), 0, "{name:?}");
    }
}

#[test]
fn comment_becomes_the_receipt_after_apply() {
    let plan = plan();
    let receipt = Receipt {
        plan_id: plan.capacity.plan_id.clone(),
        digest: plan.capacity.digest.clone(),
        outcomes: vec![crate::apply::ChangeOutcome {
            address: "ec2_instance.web[\"9\"]".into(),
            step: crate::plan::wire::WaveStep::Launch,
            instance_id: None,
            launched: None,
            outcome: Outcome::Failed { why: "no @capacity".into() },
        }],
        started_at: plan.timestamp,
        finished_at: plan.timestamp,
        verdict: ApplyStatus::Partly,
    };
    let forge = FakeForge::with(&[]);
    assert_eq!(update_comment(&forge, 1, &body), Ok(Posted::Created));
    let applied = |most| comment(&plan, Some(&receipt), true, most);
    assert_eq!(update_comment(&forge, 1, &applied), Ok(Posted::Updated));
    let text = forge.comments.borrow()[0].body.clone();
    assert!(
        text.contains("### ⚠️ Partly applied") && text.contains("no @<!-- -->capacity"),
        "{text}"
    );
    assert_eq!(status(&plan, Some(&receipt), None).state, CommitState::Failure);
    assert_eq!(status(&plan, None, None).context, "fleetwright/plan");
}

#[test]
fn comments_of_other_authors_stay() {
    let own = body(COMMENT_CHARS_MAX);
    let forge = FakeForge::with(&[&own.replace("planned", "old"), &own]);
    for found in forge.comments.borrow_mut().iter_mut() {
        "mallory".clone_into(&mut found.author);
    }
    let before = forge.comments.borrow().clone();
    assert_eq!(update_comment(&forge, 1, &body), Ok(Posted::Created));
    assert_eq!(forge.comments.borrow()[..2], before);
    assert_eq!(mark_failed(&forge, 1, "planning failed", None), Ok(Posted::Updated));
    assert_eq!(forge.comments.borrow()[..2], before);
}

#[test]
fn failure_marks_the_comment_until_the_next_plan() {
    let forge = FakeForge::with(&[]);
    assert_eq!(mark_failed(&forge, 1, "planning failed @team", None), Ok(Posted::Created));
    assert_eq!(mark_failed(&forge, 1, "planning failed @team", None), Ok(Posted::Unchanged));
    assert_eq!(update_comment(&forge, 1, &body), Ok(Posted::Updated));
    assert_eq!(mark_failed(&forge, 1, "apply was refused", None), Ok(Posted::Updated));
    let comments = forge.comments.borrow();
    let header = CommentHeader::read(&comments[0].body).expect("a header");
    assert_eq!((header.cluster.as_str(), header.state.as_str()), ("prod-eu1", "failed"));
    assert!(comments[0].body.contains("### ❌ apply was refused"), "{}", comments[0].body);
    assert_eq!(comments.len(), 1);
}

#[test]
fn long_receipt_and_name_fit_the_limit() {
    let mut plan = plan();
    plan.capacity.base.world.cluster.name = "-".repeat(200_000);
    let failure = |n: usize| crate::apply::ChangeOutcome {
        address: format!("ec2_instance.web[\"{n}\"]").into(),
        step: crate::plan::wire::WaveStep::Launch,
        instance_id: None,
        launched: None,
        outcome: Outcome::Failed { why: "@".repeat(300) },
    };
    let receipt = Receipt {
        plan_id: plan.capacity.plan_id.clone(),
        digest: plan.capacity.digest.clone(),
        outcomes: (0..60).map(failure).collect(),
        started_at: plan.timestamp,
        finished_at: plan.timestamp,
        verdict: ApplyStatus::Partly,
    };
    for most in [COMMENT_CHARS_MAX, COMMENT_CHARS_SHORT] {
        let text = comment(&plan, Some(&receipt), true, most);
        assert!(length(&text) <= most, "{} of {most}", length(&text));
        assert!(text.contains(" more, in the receipt's file"), "{text}");
        let header = CommentHeader::read(&text).expect("a header");
        let again = comment(&plan, None, true, most);
        assert_eq!(CommentHeader::read(&again).expect("a header").cluster, header.cluster);
    }
}

#[test]
fn outputs_are_one_line_each() {
    let mut hostile = plan();
    hostile.capacity.digest = "sha256:1\nadmin=true".into();
    let text = outputs(&hostile);
    assert!(text.contains("\ndigest=sha256:1admintrue\n"), "{text}");
    assert!(
        text.contains("to_destroy=4\n") && text.contains("cost_delta_monthly=-78.110000\n"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.split_once('=').is_some()));
}

#[test]
fn errored_plan_meets_no_later_requirement() {
    let errored = Plan { errored: true, applyable: false, ..plan() };
    let names = |plan: &Plan| -> Vec<(&'static str, bool)> {
        requirements(plan, true).into_iter().map(|r| (r.name, r.met)).collect()
    };
    let expected =
        [("inputs without errors", false), ("policies passed", true), ("approved", false)];
    assert_eq!(names(&errored), expected);
    let calm = Plan { applyable: true, ..plan() };
    assert!(names(&calm).iter().all(|(_, met)| *met), "{:?}", names(&calm));
}

#[test]
fn outputs_have_the_failure_reason() {
    let reason = |plan: &Plan| {
        let text = outputs(plan);
        let found = text.lines().find_map(|line| line.strip_prefix("failure_reason="));
        found.unwrap_or_default().to_owned()
    };
    for (expected, errored, applyable) in
        [("", false, true), ("inputs-errored", true, false), ("world-cannot-change", false, false)]
    {
        assert_eq!(reason(&Plan { applyable, errored, ..plan() }), expected);
    }
}

/// Returns the sample plan for a cluster.
fn plan_of(cluster: &str) -> Plan {
    let mut plan = plan();
    plan.capacity.base.world.cluster.name = cluster.into();
    plan
}

#[test]
fn failure_of_one_cluster_marks_its_comment_alone() {
    let comment_of = |cluster| comment(&plan_of(cluster), None, false, COMMENT_CHARS_MAX);
    let (eu, us) = (comment_of("prod-eu1"), comment_of("prod-us1"));
    let forge = FakeForge::with(&[&eu, &us]);
    let fail = |cluster| mark_failed(&forge, 1, "Planning failed", Some(cluster));
    assert_eq!(fail("prod-us1"), Ok(Posted::Updated));
    assert_eq!(fail("prod-us1"), Ok(Posted::Unchanged));
    assert_eq!(forge.comments.borrow()[0].body, eu);
    let marked = forge.comments.borrow()[1].body.clone();
    assert!(marked.contains("### ❌ `prod-us1`: Planning failed"), "{marked}");
    // A cluster without a comment gets one, which its next plan replaces.
    assert_eq!(fail("lab"), Ok(Posted::Created));
    let header = CommentHeader::read(&forge.comments.borrow()[2].body).expect("a header");
    assert_eq!((header.cluster.as_str(), header.state.as_str()), ("lab", FAILED));
    let lab = plan_of("lab");
    let body = |most: usize| comment(&lab, None, false, most);
    assert_eq!(update_cluster_comment(&forge, 1, &lab, &body), Ok(Posted::Updated));
    assert_eq!(forge.comments.borrow().len(), 3);
    assert_eq!(forge.comments.borrow()[0].body, eu);
}

#[test]
fn commit_status_of_each_cluster_has_its_name() {
    let plan = plan();
    let context = |status: CommitStatus| status.context;
    assert_eq!(context(status(&plan, None, Some("prod-eu1"))), "fleetwright/plan/prod-eu1");
    assert_eq!(context(failed_status("x", Some("prod-us1"))), "fleetwright/plan/prod-us1");
    let failed = failed_status("no\nplan", None);
    assert_eq!(
        (failed.context.as_str(), failed.description.as_str()),
        ("fleetwright/plan", "noplan")
    );
    assert!(is_cluster_name("prod-eu1") && is_cluster_name(&"x".repeat(NAME_MAX)));
    for bad in ["", "a\nb", "\u{1b}[0m", &"x".repeat(NAME_MAX + 1)] {
        assert!(!is_cluster_name(bad), "{bad:?}");
    }
}

#[test]
fn quiet_plan_of_one_cluster_creates_no_comment() {
    let mut quiet = plan_of("prod-us1");
    quiet.summary = Summary::default();
    quiet.capacity.pods.unschedulable = 0;
    quiet.errored = false;
    let forge = FakeForge::with(&[&body(COMMENT_CHARS_MAX)]);
    let update = |plan: &Plan| {
        let body = |most: usize| comment(plan, None, false, most);
        update_cluster_comment(&forge, 1, plan, &body)
    };
    assert_eq!(update(&quiet), Ok(Posted::NotNeeded));
    assert_eq!(forge.comments.borrow().len(), 1);
    let mut errored = quiet.clone();
    errored.errored = true;
    assert_eq!(update(&errored), Ok(Posted::Created));
    assert_eq!(update(&quiet), Ok(Posted::Updated), "an existing comment is brought up to date");
    assert_eq!(forge.comments.borrow().len(), 2);
}
