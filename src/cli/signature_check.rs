//! Checks the signatures of commits, if the settings list signers.
//!
//! A commit counts if a signer from the list of each of its parents signed it, and the same holds
//! for each commit before it. Checking one commit alone would let a pusher add their own key in a
//! first commit. The chain starts at the trusted commits: the guarding revision and its ancestors.
//! Without a guarding revision it starts at the oldest commit in the clone, whose list is accepted:
//! a forged history cannot be detected from within a repository. Uncommitted files have no
//! signature.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::adapters::git::{ParentCommit, RepositoryTree, SignedCommit, SignedHistory};
use crate::manifest::read_fleet;
use crate::model::code::Code;
use crate::model::desired::{Fleet, Problem, Signer, Tree, TreeFile};
use crate::model::ids::Origin;

/// A problem and its hint.
type SignatureProblem = (String, &'static str);

/// The facts about a tree that its commits do not show.
pub(super) struct SignatureContext<'a> {
    /// Commits that count with any signer.
    pub(super) trusted: &'a BTreeSet<String>,
    /// True if the files differ from the commit.
    pub(super) dirty: bool,
}

/// Returns the signature problem of `tree`, if any.
pub(super) fn signature_problem(
    fleet: &Fleet,
    tree: &RepositoryTree,
    context: &SignatureContext<'_>,
) -> Option<Problem> {
    let SignatureContext { trusted, dirty } = *context;
    let problem = match &tree.signed_history {
        None if fleet.signers.is_empty() => None,
        None => {
            let none = "the files are not committed, so they have no signature".to_owned();
            Some((none, "commit and sign them"))
        }
        Some(proof) => {
            let verify = |commit: &SignedCommit, signers: &[Signer]| {
                commit.verify_signer(signers).map(|_| ())
            };
            let mut chain = CommitChain { trusted, verify: &verify, lists: BTreeMap::new() };
            chain.first_problem(proof, &fleet.signers, dirty)
        }
    };
    problem.map(|(message, hint)| {
        Problem::error(
            fleet.origin.clone().unwrap_or_else(|| Origin::new("fleetwright.yaml", 0)),
            "spec.signers",
            message,
        )
        .hint(hint)
        .code(Code::CommitNotTrusted)
    })
}

/// Verifies one signature.
type VerifySignature<'a> = &'a dyn Fn(&SignedCommit, &[Signer]) -> Result<(), String>;

/// The state of checking the commits of a proof.
struct CommitChain<'a> {
    trusted: &'a BTreeSet<String>,
    verify: VerifySignature<'a>,
    /// Signers by the text of their settings.
    lists: BTreeMap<Arc<[u8]>, Vec<Signer>>,
}

impl CommitChain<'_> {
    /// Returns the problem of the first commit that does not count, from the newest on.
    fn first_problem(
        &mut self,
        proof: &SignedHistory,
        own: &[Signer],
        dirty: bool,
    ) -> Option<SignatureProblem> {
        let newest = proof.commits.first()?;
        let governed = !own.is_empty()
            || newest.parents.iter().any(|parent| match parent {
                ParentCommit::Present(_, settings) => !self.signers(settings.as_ref()).is_empty(),
                ParentCommit::Absent => false,
            });
        if governed && dirty {
            let message = "the files differ from the commit, so they have no signature".to_owned();
            return Some((message, "commit and sign them, or plan the commit with --ref HEAD"));
        }
        let known: BTreeSet<&str> = proof.commits.iter().map(|commit| &*commit.id).collect();
        for commit in proof.commits.iter().filter(|commit| !self.trusted.contains(&commit.id)) {
            // The commit that introduces a list of signers must be signed by one of them. Older
            // introductions are accepted.
            let first = if commit.id == newest.id { own } else { &[] };
            if let Some(problem) = self.commit_problem(commit, first) {
                return Some(problem);
            }
            let is_open = |parent: &ParentCommit| match parent {
                ParentCommit::Present(id, _) => {
                    !known.contains(&**id) && !self.trusted.contains(id)
                }
                ParentCommit::Absent => true,
            };
            if !self.trusted.is_empty() && commit.parents.iter().any(is_open) {
                let message = format!(
                    "commit {} does not lead back to the revision that guards within {} commits",
                    short(&commit.id),
                    proof.commits.len()
                );
                return Some((message, "fetch its history, or name a nearer one by --guard-ref"));
            }
        }
        None
    }

    fn commit_problem(
        &mut self,
        commit: &SignedCommit,
        first: &[Signer],
    ) -> Option<SignatureProblem> {
        let mut lists: Vec<Vec<Signer>> = Vec::new();
        for parent in &commit.parents {
            let ParentCommit::Present(_, settings) = parent else {
                if self.signers(commit.settings.as_ref()).is_empty() {
                    continue;
                }
                let message = format!(
                    "a commit before {}, whose signers count, is not in this clone",
                    short(&commit.id)
                );
                return Some((message, "fetch it: `git fetch --unshallow`"));
            };
            let signers = self.signers(settings.as_ref());
            if !signers.is_empty() && !lists.contains(&signers) {
                lists.push(signers);
            }
        }
        if lists.is_empty() && !first.is_empty() {
            lists.push(first.to_vec());
        }
        let why = lists.iter().find_map(|signers| (self.verify)(commit, signers).err())?;
        let message = format!("commit {} does not count: {why}", short(&commit.id));
        Some((message, "have it signed by one of the signers that the commits before it list"))
    }

    /// Returns the signers of settings.
    fn signers(&mut self, settings: Option<&Arc<[u8]>>) -> Vec<Signer> {
        let Some(settings) = settings else { return Vec::new() };
        let read = || {
            let file = TreeFile { path: "fleetwright.yaml".into(), content: Ok(settings.clone()) };
            read_fleet(&Tree { files: vec![file] }).0.signers
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
        let trusted = trusted.iter().map(|id| (*id).to_owned()).collect();
        let mut chain = CommitChain { trusted: &trusted, verify: &verify, lists: BTreeMap::new() };
        let own = settings(rows[0].2);
        let own = chain.signers(own.as_ref());
        chain.first_problem(&proof, &own, dirty).map(|(message, _)| message)
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
                "two commits: the first lists whom the second is signed by",
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
        assert!(far.contains("does not lead back to the revision that guards"), "{far}");
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
