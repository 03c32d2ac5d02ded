//! Whether everybody who changed a repository may, where its settings list whose signatures count.
//!
//! A commit counts where one of the signers that each of the commits before it lists has signed it,
//! and so does every commit that led to it: with one alone, whoever can push twice could list
//! himself first. The chain begins at what is trusted: the revision whose settings guard, with all
//! before it. Without one it begins with the oldest commit at hand, whose list is taken at its
//! word: nothing in a repository can tell that all of its history was made up. Files in no commit
//! are signed by nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::git::{Parent, Proof, SignedCommit, TreeRead};
use crate::ids::Origin;
use crate::manifest::{Fleet, Problem, Severity, Signer, Tree, TreeFile, read_fleet};

/// What is wrong with a commit, and what to do.
type Wrong = (String, &'static str);

/// Returns what is wrong with who signed the files of `tree`; `trusted` are commits by name that
/// count whoever signed them.
pub(super) fn unsigned(
    fleet: &Fleet,
    tree: &TreeRead,
    (trusted, dirty): (&BTreeSet<String>, bool),
) -> Option<Problem> {
    let wrong = match &tree.proof {
        None if fleet.signers.is_empty() => None,
        None => {
            let none = "the files are in no commit, so nobody signed them".to_owned();
            Some((none, "commit and sign them"))
        }
        Some(proof) => {
            let signed_by =
                |commit: &SignedCommit, signers: &[Signer]| commit.signer(signers).map(|_| ());
            let mut chain = Chain { trusted, signed_by: &signed_by, lists: BTreeMap::new() };
            chain.wrong(proof, &fleet.signers, dirty)
        }
    };
    wrong.map(|(message, hint)| Problem {
        origin: fleet.origin.clone().unwrap_or_else(|| Origin::new("fleetwright.yaml", 0)),
        severity: Severity::Error,
        object: "spec.signers".to_owned(),
        message,
        hint: Some(hint.to_owned()),
    })
}

/// Checks one signature.
type SignedBy<'a> = &'a dyn Fn(&SignedCommit, &[Signer]) -> Result<(), String>;

/// What the commits of a proof are checked with.
struct Chain<'a> {
    trusted: &'a BTreeSet<String>,
    signed_by: SignedBy<'a>,
    /// The signers of settings, by their text.
    lists: BTreeMap<Arc<[u8]>, Vec<Signer>>,
}

impl Chain<'_> {
    /// Returns what is wrong with the first commit that does not count, from the newest on.
    fn wrong(&mut self, proof: &Proof, own: &[Signer], dirty: bool) -> Option<Wrong> {
        let newest = proof.commits.first()?;
        let governed = !own.is_empty()
            || newest.parents.iter().any(|parent| match parent {
                Parent::Present(_, settings) => !self.signers(settings.as_ref()).is_empty(),
                Parent::Absent => false,
            });
        if governed && dirty {
            let message = "the files differ from the commit, so nobody signed them".to_owned();
            return Some((message, "commit and sign them, or plan the commit with --ref HEAD"));
        }
        let known: BTreeSet<&str> = proof.commits.iter().map(|commit| &*commit.id).collect();
        for commit in proof.commits.iter().filter(|commit| !self.trusted.contains(&commit.id)) {
            // Who lists the first signers signs with one of them; later that is taken at its word.
            let first = if commit.id == newest.id { own } else { &[] };
            if let Some(wrong) = self.of_commit(commit, first) {
                return Some(wrong);
            }
            let is_open = |parent: &Parent| match parent {
                Parent::Present(id, _) => !known.contains(&**id) && !self.trusted.contains(id),
                Parent::Absent => true,
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

    fn of_commit(&mut self, commit: &SignedCommit, first: &[Signer]) -> Option<Wrong> {
        let mut lists: Vec<Vec<Signer>> = Vec::new();
        for parent in &commit.parents {
            let Parent::Present(_, settings) = parent else {
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
        let why = lists.iter().find_map(|signers| (self.signed_by)(commit, signers).err())?;
        let message = format!("commit {} does not count: {why}", short(&commit.id));
        Some((message, "have it signed by one of the signers that the commits before it list"))
    }

    /// Returns the signers that settings list.
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

    /// A commit: its name, who signed it, who its settings list, and the commits before it.
    type Row<'a> = (&'a str, &'a str, &'a str, &'a [&'a str]);

    fn settings(list: &str) -> Option<Arc<[u8]>> {
        let signer = |name: &str| format!("{{name: {name}, ssh: 'ssh-ed25519 {name}'}}");
        let signers: Vec<String> = list.split_whitespace().map(signer).collect();
        let text = format!(
            "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec: {{signers: [{}]}}\n",
            signers.join(", ")
        );
        (!list.is_empty()).then(|| text.into_bytes().into())
    }

    /// Checks commits, the newest first; the signature of each is the name of who signed it.
    fn check(rows: &[Row<'_>], trusted: &[&str], dirty: bool) -> Option<String> {
        let parent = |id: &&str| match rows.iter().find(|row| row.0 == *id) {
            Some(row) => Parent::Present((*id).to_owned(), settings(row.2)),
            None => Parent::Absent,
        };
        let commit = |(id, by, list, parents): &Row<'_>| SignedCommit {
            id: (*id).to_owned(),
            signature: Some((by.as_bytes().to_vec(), Vec::new())),
            settings: settings(list),
            parents: parents.iter().map(parent).collect(),
        };
        let proof = Proof { commits: rows.iter().map(commit).collect() };
        let signed_by = |commit: &SignedCommit, signers: &[Signer]| {
            let by = commit.signature.as_ref().map(|(by, _)| by.as_slice()).unwrap_or_default();
            let own = |signer: &Signer| signer.name.as_bytes() == by;
            if signers.iter().any(own) { Ok(()) } else { Err("it is of none of them".to_owned()) }
        };
        let trusted = trusted.iter().map(|id| (*id).to_owned()).collect();
        let mut chain = Chain { trusted: &trusted, signed_by: &signed_by, lists: BTreeMap::new() };
        let own = settings(rows[0].2);
        let own = chain.signers(own.as_ref());
        chain.wrong(&proof, &own, dirty).map(|(message, _)| message)
    }

    #[test]
    fn every_commit_counts_by_the_lists_of_all_commits_that_it_was_made_from() {
        let of = |id: &str| Some(format!("commit {id} does not count: it is of none of them"));
        for (rule, rows, expected) in [
            ("nobody lists anybody", &[("b", "x", "", &["a"][..]), ("a", "x", "", &[])][..], None),
            (
                "the first list signs itself",
                &[("b", "ann", "ann", &["a"]), ("a", "x", "", &[])],
                None,
            ),
            ("and nobody else", &[("b", "x", "ann", &["a"]), ("a", "x", "", &[])], of("b")),
            ("a signed chain", &[("b", "ann", "ann", &["a"]), ("a", "x", "ann", &[])], None),
            ("by somebody else", &[("b", "eve", "ann", &["a"]), ("a", "x", "ann", &[])], of("b")),
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
                "two commits: the first takes the list away",
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
                "a merge of what nobody signed",
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
    fn a_chain_begins_at_what_is_trusted_and_must_reach_it() {
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
    fn what_is_not_at_hand_or_not_committed_is_signed_by_nobody() {
        let cut = check(&[("b", "ann", "ann", &["a"])], &[], false).expect("cut");
        assert_eq!(cut, "a commit before b, whose signers count, is not in this clone");
        assert_eq!(check(&[("b", "x", "", &["a"])], &[], false), None);
        let rows = [("b", "ann", "ann", &["a"][..]), ("a", "ann", "ann", &[])];
        let dirty = check(&rows, &[], true).expect("dirty");
        assert_eq!(dirty, "the files differ from the commit, so nobody signed them");
    }
}
