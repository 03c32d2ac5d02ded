//! Checks the signatures of commits, if the settings list signers.
//!
//! A commit counts if a signer from the list of each of its parents signed it, and the same holds
//! for each commit before it. Checking one commit alone would let a pusher add their own key in a
//! first commit. The chain starts at the trusted commits: the guarding revision or the last verified
//! commit, and their ancestors. Without either it starts at the first commit, whose list is
//! accepted: a forged history cannot be detected from within a repository. Uncommitted files have
//! no signature.
//!
//! Invariant: where signers are listed, a chain that reaches neither a trusted commit nor a first
//! commit is an error. Otherwise enough commits would push the listed signers out of sight.
//!
//! Signers from outside of the repository replace its lists. One of them must have signed the
//! newest commit, and so vouches for its history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::adapters::git::{
    ParentCommit, RepositoryTree, SignedCommit, SignedHistory, names_signers,
};
use crate::manifest::read_fleet;
use crate::model::code::Code;
use crate::model::commit::CommitSignature;
use crate::model::desired::{Fleet, Problem, Severity, Signer, Tree, TreeFile};
use crate::model::ids::Origin;

/// A problem and its hint.
type SignatureProblem = (String, &'static str);

/// What the chain of signatures starts from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SignatureTrust {
    /// Commits that count with any signer: the guarding revision and its ancestors.
    pub(super) commits: BTreeSet<String>,
    /// The last verified commit. It and its ancestors count with any signer.
    pub(super) anchor: Option<String>,
    /// True if the guarding revision or the last verified commit lists signers.
    pub(super) lists_signers: bool,
    /// Signers from outside of the repository.
    pub(super) signers: Option<Vec<Signer>>,
}

impl SignatureTrust {
    /// Returns true if the chain must reach a trusted commit, and the clone lacks commits on the
    /// way.
    pub(super) fn needs_more_of(&self, tree: &RepositoryTree) -> bool {
        let Some(proof) = &tree.signed_history else { return false };
        let is_trusted =
            |id: &String| self.commits.contains(id) || self.anchor.as_ref() == Some(id);
        let is_newest = proof.commits.first().is_some_and(|commit| is_trusted(&commit.id));
        self.lists_signers && self.signers.is_none() && proof.is_shallow() && !is_newest
    }

    /// Returns the trusted commits, with the ancestors that `proof` contains.
    fn trusted_in(&self, proof: &SignedHistory) -> BTreeSet<String> {
        let mut trusted = self.commits.clone();
        trusted.extend(self.anchor.clone());
        let commits: BTreeMap<&str, &SignedCommit> =
            proof.commits.iter().map(|commit| (&*commit.id, commit)).collect();
        let mut pending: Vec<String> = trusted.iter().cloned().collect();
        while let Some(id) = pending.pop() {
            let parents = commits.get(&*id).map_or(&[][..], |commit| &commit.parents);
            for parent in parents {
                if let ParentCommit::Present(parent, _) = parent
                    && trusted.insert(parent.clone())
                {
                    pending.push(parent.clone());
                }
            }
        }
        trusted
    }
}

/// Checks the signatures of `tree`. `dirty` is true if the files differ from the commit.
pub(super) fn check_signatures(
    fleet: &Fleet,
    tree: &RepositoryTree,
    trust: &SignatureTrust,
    dirty: bool,
) -> (CommitSignature, Option<Problem>) {
    let checked = match &tree.signed_history {
        None if fleet.signers.is_empty() && trust.signers.is_none() && !trust.lists_signers => {
            Ok(CommitSignature::NotRequired)
        }
        None => {
            let none = "the files are not committed, so they have no signature".to_owned();
            Err((none, "commit and sign them"))
        }
        Some(proof) => {
            let verify = |commit: &SignedCommit, signers: &[Signer]| {
                commit.verify_signer(signers).map(|_| ())
            };
            CommitChain::new(trust, proof, &verify).check(&fleet.signers, dirty)
        }
    };
    let (message, hint) = match checked {
        Ok(signature) => return (signature, None),
        Err(problem) => problem,
    };
    let problem = Problem::error(
        fleet.origin.clone().unwrap_or_else(|| Origin::new("fleetwright.yaml", 0)),
        "spec.signers",
        message,
    )
    .hint(hint)
    .code(Code::CommitNotTrusted);
    (CommitSignature::Refused, Some(problem))
}

/// Verifies one signature.
type VerifySignature<'a> = &'a dyn Fn(&SignedCommit, &[Signer]) -> Result<(), String>;

/// The state of checking the commits of a proof.
struct CommitChain<'a> {
    trust: &'a SignatureTrust,
    trusted: BTreeSet<String>,
    proof: &'a SignedHistory,
    commits: BTreeMap<&'a str, &'a SignedCommit>,
    verify: VerifySignature<'a>,
    /// Signers by the text of their settings; `None` if the text cannot be read.
    lists: BTreeMap<Arc<[u8]>, Option<Vec<Signer>>>,
}

impl<'a> CommitChain<'a> {
    fn new(
        trust: &'a SignatureTrust,
        proof: &'a SignedHistory,
        verify: VerifySignature<'a>,
    ) -> Self {
        let commits = proof.commits.iter().map(|commit| (&*commit.id, commit)).collect();
        let trusted = trust.trusted_in(proof);
        Self { trust, trusted, proof, commits, verify, lists: BTreeMap::new() }
    }

    /// Returns whether the commits count, or the problem of the first one that does not, from the
    /// newest on. `own` are the signers that the newest commit lists.
    fn check(&mut self, own: &[Signer], dirty: bool) -> Result<CommitSignature, SignatureProblem> {
        let Some(newest) = self.proof.commits.first() else {
            return Ok(CommitSignature::NotRequired);
        };
        let is_listed = self.lists_signers(own);
        if dirty && (is_listed || self.trust.signers.is_some()) {
            let message = "the files differ from the commit, so they have no signature".to_owned();
            return Err((message, "commit and sign them, or plan the commit with --ref HEAD"));
        }
        if let Some(signers) = &self.trust.signers {
            let verified = (self.verify)(newest, signers);
            return verified.map(|()| CommitSignature::Verified).map_err(|why| {
                let message = format!("commit {} does not count: {why}", short(&newest.id));
                (message, "have it signed by one of the signers of --signers")
            });
        }
        if !is_listed {
            return Ok(CommitSignature::NotRequired);
        }
        for commit in &self.proof.commits {
            if self.trusted.contains(&commit.id) {
                continue;
            }
            // The commit that introduces a list of signers must be signed by one of them. Older
            // introductions are accepted.
            let first = if commit.id == newest.id { own } else { &[] };
            self.check_commit(commit, first)?;
            self.check_parents(commit)?;
        }
        Ok(CommitSignature::Verified)
    }

    /// Returns whether any commit of the chain, or a commit right before it, lists signers.
    fn lists_signers(&mut self, own: &[Signer]) -> bool {
        let proof = self.proof;
        let untrusted = proof.commits.iter().filter(|commit| !self.trusted.contains(&commit.id));
        let mut settings: Vec<&Option<Arc<[u8]>>> = Vec::new();
        for commit in untrusted {
            settings.push(&commit.settings);
            settings.extend(commit.parents.iter().filter_map(|parent| match parent {
                ParentCommit::Present(_, settings) => Some(settings),
                ParentCommit::Absent => None,
            }));
        }
        let newest = proof.commits.first().map(|commit| &commit.settings);
        settings.extend(newest);
        self.trust.lists_signers
            || !own.is_empty()
            || settings.into_iter().any(|settings| {
                self.signers(settings.as_ref()).is_none_or(|signers| !signers.is_empty())
            })
    }

    /// Refuses a commit whose parent is neither trusted nor in the proof.
    fn check_parents(&self, commit: &SignedCommit) -> Result<(), SignatureProblem> {
        let is_open = |parent: &ParentCommit| match parent {
            ParentCommit::Present(id, _) => {
                !self.commits.contains_key(&**id) && !self.trusted.contains(id)
            }
            ParentCommit::Absent => true,
        };
        // A new first commit is no way round a trusted one.
        let is_orphan = commit.parents.is_empty() && !self.trusted.is_empty();
        if !is_orphan && !commit.parents.iter().any(is_open) {
            return Ok(());
        }
        let (id, count) = (short(&commit.id), self.proof.commits.len());
        if !self.trusted.is_empty() {
            let message = format!(
                "commit {id} does not lead back to a trusted commit within {count} commits"
            );
            return Err((message, "fetch its history, or name a nearer commit by --guard-ref"));
        }
        let message = format!(
            "the chain of signatures is open: commit {id} does not lead back to the first commit \
             within {count} commits"
        );
        Err((message, "name a commit that you have verified by --guard-ref"))
    }

    fn check_commit(
        &mut self,
        commit: &SignedCommit,
        first: &[Signer],
    ) -> Result<(), SignatureProblem> {
        let mut lists: Vec<Vec<Signer>> = Vec::new();
        // Settings that cannot be read keep the signers of the commits before them.
        let mut pending: Vec<&SignedCommit> = vec![commit];
        let mut seen = BTreeSet::new();
        while let Some(next) = pending.pop() {
            for parent in &next.parents {
                let ParentCommit::Present(id, settings) = parent else {
                    let message = format!(
                        "a commit before {}, whose signers count, is not in this clone",
                        short(&commit.id)
                    );
                    return Err((message, "fetch it: `git fetch --unshallow`"));
                };
                let Some(signers) = self.signers(settings.as_ref()) else {
                    let before = self.commits.get(&**id).filter(|_| seen.insert(id.clone()));
                    pending.extend(before);
                    continue;
                };
                if !signers.is_empty() && !lists.contains(&signers) {
                    lists.push(signers);
                }
            }
        }
        if lists.is_empty() && !first.is_empty() {
            lists.push(first.to_vec());
        }
        let why = lists.iter().find_map(|signers| (self.verify)(commit, signers).err());
        let Some(why) = why else { return Ok(()) };
        let message = format!("commit {} does not count: {why}", short(&commit.id));
        Err((message, "have it signed by one of the signers that the commits before it list"))
    }

    /// Returns the signers of settings, or `None` if they cannot be read.
    fn signers(&mut self, settings: Option<&Arc<[u8]>>) -> Option<Vec<Signer>> {
        let Some(settings) = settings else { return Some(Vec::new()) };
        let read = || {
            let file = TreeFile { path: "fleetwright.yaml".into(), content: Ok(settings.clone()) };
            let (fleet, problems) = read_fleet(&Tree { files: vec![file] });
            let is_broken = problems.iter().any(|problem| problem.severity == Severity::Error);
            let is_unknown = is_broken && names_signers(&Some(settings.clone()));
            (!fleet.signers.is_empty() || !is_unknown).then_some(fleet.signers)
        };
        self.lists.entry(Arc::clone(settings)).or_insert_with(read).clone()
    }
}

fn short(id: &str) -> String {
    id.chars().take(12).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A commit: id, signer, listed signers, and parents.
    type CommitCase<'a> = (&'a str, &'a str, &'a str, &'a [&'a str]);

    fn settings(list: &str) -> Option<Arc<[u8]>> {
        let signer = |name: &str| format!("{{name: {name}, ssh: 'ssh-ed25519 {name}'}}");
        let signers: Vec<String> = list.split_whitespace().map(signer).collect();
        let text = format!(
            "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec: {{signers: [{}]}}\n",
            signers.join(", ")
        );
        (!list.is_empty()).then(|| text.into_bytes().into())
    }

    /// Checks commits, newest first. A signature is the name of the signer.
    fn check(rows: &[CommitCase<'_>], trusted: &[&str], dirty: bool) -> Option<String> {
        let trust = SignatureTrust {
            commits: trusted.iter().map(|id| (*id).to_owned()).collect(),
            lists_signers: !trusted.is_empty(),
            ..SignatureTrust::default()
        };
        check_from(rows, &trust, dirty).err()
    }

    fn check_from(
        rows: &[CommitCase<'_>],
        trust: &SignatureTrust,
        dirty: bool,
    ) -> Result<CommitSignature, String> {
        let parent = |id: &&str| match rows.iter().find(|row| row.0 == *id) {
            Some(row) => ParentCommit::Present((*id).to_owned(), settings(row.2)),
            None => ParentCommit::Absent,
        };
        let commit = |(id, by, list, parents): &CommitCase<'_>| SignedCommit {
            id: (*id).to_owned(),
            signature: Some((by.as_bytes().to_vec(), Vec::new())),
            settings: settings(list),
            parents: parents.iter().map(parent).collect(),
        };
        let proof = SignedHistory { commits: rows.iter().map(commit).collect() };
        let verify = |commit: &SignedCommit, signers: &[Signer]| {
            let by = commit.signature.as_ref().map(|(by, _)| by.as_slice()).unwrap_or_default();
            let own = |signer: &Signer| signer.name.as_bytes() == by;
            if signers.iter().any(own) { Ok(()) } else { Err("it is of none of them".to_owned()) }
        };
        let mut chain = CommitChain::new(trust, &proof, &verify);
        let own = settings(rows[0].2);
        let own = chain.signers(own.as_ref()).unwrap_or_default();
        chain.check(&own, dirty).map_err(|(message, _)| message)
    }

    #[test]
    fn commit_needs_a_signer_from_each_parent_list() {
        let of = |id: &str| Some(format!("commit {id} does not count: it is of none of them"));
        for (rule, rows, expected) in [
            ("no signers are listed", &[("b", "x", "", &["a"][..]), ("a", "x", "", &[])][..], None),
            (
                "the first list signs itself",
                &[("b", "ann", "ann", &["a"]), ("a", "x", "", &[])],
                None,
            ),
            ("another signer", &[("b", "x", "ann", &["a"]), ("a", "x", "", &[])], of("b")),
            ("a signed chain", &[("b", "ann", "ann", &["a"]), ("a", "x", "ann", &[])], None),
            (
                "a signer who is not listed",
                &[("b", "eve", "ann", &["a"]), ("a", "x", "ann", &[])],
                of("b"),
            ),
            (
                "two commits: the first lists the signer of the second",
                &[
                    ("c", "eve", "eve", &["b"]),
                    ("b", "eve", "eve", &["a"]),
                    ("a", "ann", "ann", &[]),
                ],
                of("b"),
            ),
            (
                "two commits: the first removes the list",
                &[("c", "eve", "", &["b"]), ("b", "eve", "", &["a"]), ("a", "ann", "ann", &[])],
                of("b"),
            ),
            (
                "a merge whose first parent lists its signer",
                &[
                    ("m", "eve", "eve", &["e", "a"]),
                    ("e", "eve", "eve", &[]),
                    ("a", "ann", "ann", &[]),
                ],
                of("m"),
            ),
            (
                "a merge of an unsigned commit",
                &[
                    ("m", "ann", "ann", &["b", "s"]),
                    ("b", "ann", "ann", &["a"]),
                    ("s", "eve", "ann", &["a"]),
                    ("a", "ann", "ann", &[]),
                ],
                of("s"),
            ),
            (
                "a new signer, let in by an old one",
                &[
                    ("c", "bob", "ann bob", &["b"]),
                    ("b", "ann", "ann bob", &["a"]),
                    ("a", "ann", "ann", &[]),
                ],
                None,
            ),
        ] {
            assert_eq!(check(rows, &[], false), expected, "{rule}");
        }
    }

    #[test]
    fn signature_chain_must_reach_a_trusted_commit() {
        let rows = [
            ("c", "ann", "ann", &["b"][..]),
            ("b", "eve", "ann", &["a"]),
            ("a", "eve", "ann", &[]),
        ];
        assert_eq!(check(&rows, &["b", "a"], false), None, "what came before is trusted");
        assert!(check(&rows, &["a"], false).is_some_and(|why| why.contains("commit b")));
        let elsewhere = check(&rows[..1], &["z"], false).expect("it is not reached");
        assert!(elsewhere.contains("not in this clone"), "{elsewhere}");
        let made_up = [("c", "eve", "eve", &["b"][..]), ("b", "eve", "eve", &[])];
        assert_eq!(check(&made_up, &[], false), None, "the limit without anything trusted");
        let far = check(&[("c", "eve", "", &["b"])], &["z"], false).expect("it is not reached");
        assert!(far.contains("not in this clone"), "{far}");
    }

    /// A push of more commits than are read, all of them by a signer who is not listed before.
    fn long_push(list: &str) -> Vec<(String, Vec<String>)> {
        let id = |at: usize| format!("e{at}");
        let row = |at: usize| (id(at), vec![id(at + 1)]);
        let mut rows: Vec<(String, Vec<String>)> = (0..5).map(row).collect();
        // The parent of the last commit is in the clone, but not in the proof.
        rows.push((id(5), vec![format!("before {list}")]));
        rows
    }

    #[test]
    fn open_chain_is_an_error_where_signers_are_listed() {
        for (list, refused) in [("eve", true), ("", false)] {
            let rows = long_push(list);
            let commits = rows.iter().map(|(id, parents)| SignedCommit {
                id: id.clone(),
                signature: Some((b"eve".to_vec(), Vec::new())),
                settings: settings(list),
                parents: parents
                    .iter()
                    .map(|id| ParentCommit::Present(id.clone(), settings(list)))
                    .collect(),
            });
            let proof = SignedHistory { commits: commits.collect() };
            let verify = |_: &SignedCommit, _: &[Signer]| Ok(());
            for (trust, what) in [
                (SignatureTrust::default(), "is open"),
                (
                    SignatureTrust {
                        anchor: Some("a".to_owned()),
                        lists_signers: !list.is_empty(),
                        ..SignatureTrust::default()
                    },
                    "does not lead back to a trusted commit",
                ),
            ] {
                let mut chain = CommitChain::new(&trust, &proof, &verify);
                let own = chain.signers(settings(list).as_ref()).unwrap_or_default();
                let checked = chain.check(&own, false);
                assert_eq!(checked.is_err(), refused, "{list}");
                if let Err((message, _)) = checked {
                    assert!(message.contains(what), "{message}");
                }
            }
        }
    }

    #[test]
    fn chain_from_the_last_verified_commit_passes() {
        let rows = [
            ("c", "ann", "ann", &["b"][..]),
            ("b", "ann", "ann", &["a"]),
            ("a", "x", "ann", &["z"]),
            ("z", "x", "ann", &[]),
        ];
        let anchor = |id: &str| SignatureTrust {
            anchor: Some(id.to_owned()),
            lists_signers: true,
            ..SignatureTrust::default()
        };
        assert_eq!(check_from(&rows, &anchor("a"), false), Ok(CommitSignature::Verified));
        assert!(check_from(&rows, &anchor("q"), false).is_err(), "it is not reached");
        let orphans = [("x", "ann", "ann", &["y"][..]), ("y", "ann", "ann", &[])];
        assert!(check_from(&orphans, &anchor("a"), false).is_err(), "a new first commit");
        let guard =
            SignatureTrust { commits: ["a".to_owned()].into(), ..SignatureTrust::default() };
        assert!(check_from(&orphans, &guard, false).is_err(), "beside the guarding revision");
        assert_eq!(
            check_from(&orphans, &SignatureTrust::default(), false),
            Ok(CommitSignature::Verified),
            "nothing was trusted before"
        );
        assert_eq!(
            check_from(&rows[2..], &anchor("a"), false),
            Ok(CommitSignature::Verified),
            "it is the newest itself"
        );
    }

    #[test]
    fn unreadable_settings_keep_the_signers_before_them() {
        // A listed signer breaks the file; the next commit lists its own author.
        let rows = [
            ("c", "eve", "eve", &["b"][..]),
            ("b", "ann", "ann: [", &["a"]),
            ("a", "ann", "ann", &[]),
        ];
        let refused = check(&rows, &[], false).expect("eve is not listed");
        assert!(refused.contains("commit c does not count"), "{refused}");
    }

    #[test]
    fn outside_signers_replace_the_lists_of_the_repository() {
        let signer = Signer {
            name: "ops".to_owned(),
            key: crate::model::desired::SignerKey::Ssh("ssh-ed25519 ops".to_owned()),
        };
        let trust = SignatureTrust { signers: Some(vec![signer]), ..SignatureTrust::default() };
        let rows = [("b", "ops", "eve", &["a"][..]), ("a", "eve", "eve", &["z"])];
        assert_eq!(check_from(&rows, &trust, false), Ok(CommitSignature::Verified));
        assert!(check_from(&rows[1..], &trust, false).is_err());
        assert!(check_from(&rows, &trust, true).is_err(), "changed files have no signature");
    }

    #[test]
    fn missing_or_uncommitted_history_is_unsigned() {
        let cut = check(&[("b", "ann", "ann", &["a"])], &[], false).expect("cut");
        assert_eq!(cut, "a commit before b, whose signers count, is not in this clone");
        assert_eq!(check(&[("b", "x", "", &["a"])], &[], false), None);
        let rows = [("b", "ann", "ann", &["a"][..]), ("a", "ann", "ann", &[])];
        let dirty = check(&rows, &[], true).expect("dirty");
        assert_eq!(dirty, "the files differ from the commit, so they have no signature");
    }
}
