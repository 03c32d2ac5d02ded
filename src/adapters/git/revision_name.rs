//! Names of revisions. A branch and a tag may have the same name, and Git prefers the tag.
//!
//! Branches can be protected while anybody with write access may create tags. So the name of a
//! protected branch must not find a tag. Neither must a full name, a whole ID, or the name of a
//! remote branch that is missing.

use git2::{ErrorCode, Object, ObjectType, Oid, Repository};

use super::{GitErrorKind, git_error};

/// Beginning and end of the full names that Git tries for a short name, in its order.
const FULL_NAMES: [(&str, &str); 5] = [
    ("refs/", ""),
    ("refs/tags/", ""),
    ("refs/heads/", ""),
    ("refs/remotes/", ""),
    ("refs/remotes/", "/HEAD"),
];

/// Fewest digits that Git writes of a commit ID. It reads four, but in a large repository some
/// commit begins with any year or short word.
const ABBREVIATED_MIN: usize = 7;

/// Length of a whole commit ID.
const COMMIT_ID_LENGTH: usize = 40;

/// Returns the object that `revision` names in a local repository.
///
/// # Errors
/// Returns an error if nothing has the name, or if it names two different objects.
pub(super) fn find_object<'r>(
    repository: &'r Repository,
    revision: &str,
) -> Result<Object<'r>, GitErrorKind> {
    let name = revision.split("@{").next().unwrap_or_default();
    let name = name.split(['~', '^', ':']).next().unwrap_or_default();
    let unknown = |error: git2::Error| {
        if error.code() == ErrorCode::GenericError {
            // A generic error does not reveal whether the commit exists.
            return git_error(error);
        }
        let (revision, reason) = (revision.to_owned(), error.message().to_owned());
        GitErrorKind::UnknownRevision { revision, reason }
    };
    // libgit2 reads `HEAD`, a full name and a whole ID as such. If one is missing, it looks for a
    // tag of this name.
    if name == "HEAD" || name.starts_with("refs/") {
        repository.refname_to_id(name).map_err(unknown)?;
    } else if ["heads/", "tags/", "remotes/"].iter().any(|start| name.starts_with(start)) {
        return find_object(repository, &format!("refs/{revision}"));
    } else if is_hex(name) && name.len() == COMMIT_ID_LENGTH {
        let id = Oid::from_str(name).map_err(git_error)?;
        repository.find_object(id, None).map_err(unknown)?;
    } else if !name.is_empty() {
        let found = named_objects(repository, name)?;
        if let [(first, object), rest @ ..] = found.as_slice()
            && let Some((second, _)) = rest.iter().find(|(_, other)| other != object)
        {
            let (revision, first, second) = (revision.to_owned(), first.clone(), second.clone());
            return Err(GitErrorKind::AmbiguousRevision { revision, first, second });
        }
        if let [(tag, _)] = found.as_slice()
            && tag.starts_with("refs/tags/")
            && let Some(branch) = remote_branch(repository, name)?
        {
            let reason = format!("{tag} is a tag, and {branch} may be meant");
            return Err(GitErrorKind::UnknownRevision { revision: revision.to_owned(), reason });
        }
    }
    repository.revparse_single(revision).map_err(unknown)
}

/// Returns the references, and the abbreviated commit, that a short name may mean. The object is
/// `None` if several objects have the abbreviation.
fn named_objects(
    repository: &Repository,
    name: &str,
) -> Result<Vec<(String, Option<Oid>)>, GitErrorKind> {
    let mut found = Vec::new();
    for (beginning, end) in FULL_NAMES {
        let full = format!("{beginning}{name}{end}");
        match repository.find_reference(&full).and_then(|reference| reference.resolve()) {
            Ok(reference) => {
                // A tag may name a tree, which has policies as well.
                let object = reference.peel(ObjectType::Any).map_err(git_error)?;
                found.push((full, Some(object.id())));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(git_error(error)),
        }
    }
    if is_hex(name) && (ABBREVIATED_MIN..COMMIT_ID_LENGTH).contains(&name.len()) {
        match repository.find_commit_by_prefix(name) {
            Ok(commit) => found.push((commit.id().to_string(), Some(commit.id()))),
            // One of them may be the commit. Anybody can push an object with its abbreviation.
            Err(error) if error.code() == ErrorCode::Ambiguous => {
                found.push(("several objects".to_owned(), None));
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(git_error(error)),
        }
    }
    Ok(found)
}

/// Returns the branch of a remote that a short name may mean: it begins with the remote, although
/// the branch may not have been fetched, or a remote has a branch of the name.
fn remote_branch(repository: &Repository, name: &str) -> Result<Option<String>, GitErrorKind> {
    for remote in &repository.remotes().map_err(git_error)? {
        let Some(remote) = remote.map_err(git_error)? else { continue };
        if name == remote || name.strip_prefix(remote).is_some_and(|rest| rest.starts_with('/')) {
            return Ok(Some(format!("refs/remotes/{name}")));
        }
        let branch = format!("refs/remotes/{remote}/{name}");
        if repository.find_reference(&branch).is_ok() {
            return Ok(Some(branch));
        }
    }
    Ok(None)
}

/// Returns true if nothing has the name, or if nothing can have it.
fn is_absent(error: &git2::Error) -> bool {
    matches!(error.code(), ErrorCode::NotFound | ErrorCode::InvalidSpec)
}

fn is_hex(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the full names that `revision` may have in a remote repository, in the order in which
/// they are tried. A branch is preferred to a tag, and a tag to a name such as `pull/1/head`.
pub(super) fn remote_names(revision: &str) -> Vec<String> {
    let is_commit = matches!(revision.len(), COMMIT_ID_LENGTH | 64) && is_hex(revision);
    if revision == "HEAD" || revision.starts_with("refs/") || is_commit {
        return vec![revision.to_owned()];
    }
    if revision.starts_with("heads/") || revision.starts_with("tags/") {
        return vec![format!("refs/{revision}")];
    }
    ["refs/heads/", "refs/tags/", "refs/"].map(|start| format!("{start}{revision}")).into()
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestRepository;
    use super::*;

    fn repository_of(directory: &TestRepository) -> Repository {
        Repository::open(directory.path("")).expect("a repository")
    }

    fn set_reference(repository: &Repository, name: &str, commit: &str) {
        let commit = commit.parse().expect("an id");
        repository.reference(name, commit, true, "set").expect("set");
    }

    #[test]
    fn tag_never_replaces_a_branch_of_its_name() {
        let directory = TestRepository::new();
        let first = directory.write("a.yaml", "1").commit();
        let second = directory.write("a.yaml", "2").commit();
        let repository = repository_of(&directory);
        let set = |name: &str, commit: &str| set_reference(&repository, name, commit);
        let found = |revision: &str| find_object(&repository, revision).map(|o| o.id().to_string());
        set("refs/remotes/origin/main", &first);
        set("refs/remotes/upstream/HEAD", &first);
        set("refs/tags/v1", &first);
        let names =
            ["origin/main", "upstream", "v1", "main~1", "main^", "HEAD~1", "tags/v1", &first];
        for revision in names {
            assert_eq!(found(revision).ok().as_ref(), Some(&first), "{revision}");
        }
        let short = first[..7].to_owned();
        assert_eq!(found(&short).ok().as_ref(), Some(&first), "{short}");
        set("refs/tags/origin/main", &second);
        set("refs/tags/upstream", &second);
        set("refs/tags/main", &first);
        set(&format!("refs/tags/{short}"), &second);
        for revision in ["origin/main", "upstream", "main", "main~1", &short] {
            let error = found(revision).expect_err(revision);
            assert!(matches!(error, GitErrorKind::AmbiguousRevision { .. }), "{error}");
        }
        for (revision, expected) in [
            ("refs/remotes/origin/main", &first),
            ("refs/heads/main", &second),
            ("refs/heads/main~1", &first),
            ("HEAD", &second),
            (&first, &first),
        ] {
            assert_eq!(found(revision).ok().as_ref(), Some(expected), "{revision}");
        }
    }

    #[test]
    fn missing_full_name_finds_no_tag() {
        let directory = TestRepository::new();
        directory.write("a.yaml", "1").commit();
        let second = directory.write("a.yaml", "2").commit();
        let repository = repository_of(&directory);
        let (branch, dangling) = ("refs/heads/gone", "refs/remotes/origin/HEAD");
        let id = "0123456789abcdef0123456789abcdef01234567";
        let target = "refs/remotes/origin/gone";
        repository.reference_symbolic(dangling, target, true, "set").expect("set");
        for name in [branch, dangling, id] {
            set_reference(&repository, &format!("refs/tags/{name}"), &second);
            for revision in [name.to_owned(), format!("{name}~1")] {
                let error = find_object(&repository, &revision).expect_err(&revision);
                assert!(matches!(error, GitErrorKind::UnknownRevision { .. }), "{error}");
            }
            let tag = find_object(&repository, &format!("refs/tags/{name}")).expect("the tag");
            assert_eq!(tag.id().to_string(), second, "{name}");
        }
    }

    #[test]
    fn missing_remote_branch_finds_no_tag() {
        let directory = TestRepository::new();
        let first = directory.write("a.yaml", "1").commit();
        let repository = repository_of(&directory);
        for name in ["origin/main", "heads/gone", "remotes/origin/main"] {
            set_reference(&repository, &format!("refs/tags/{name}"), &first);
        }
        for name in ["heads/gone", "remotes/origin/main"] {
            let error = find_object(&repository, name).expect_err(name);
            assert!(matches!(error, GitErrorKind::UnknownRevision { .. }), "{error}");
        }
        // Without such a remote, it is the name of a tag.
        find_object(&repository, "origin/main").expect("a tag");
        repository.remote("origin", "https://example.com/r.git").expect("a remote");
        let error = find_object(&repository, "origin/main").expect_err("the branch is missing");
        assert!(error.to_string().contains("refs/remotes/origin/main may be meant"), "{error}");
        set_reference(&repository, "refs/remotes/origin/next", &first);
        set_reference(&repository, "refs/tags/next", &first);
        let error = find_object(&repository, "next").expect_err("there is no local branch");
        assert!(error.to_string().contains("refs/remotes/origin/next may be meant"), "{error}");
        set_reference(&repository, "refs/remotes/origin/main", &first);
        find_object(&repository, "origin/main").expect("the branch");
    }

    #[test]
    fn only_an_abbreviated_commit_makes_a_name_ambiguous() {
        let directory = TestRepository::new();
        let first = directory.write("a.yaml", "1").commit();
        let second = directory.write("a.yaml", "2").commit();
        let repository = repository_of(&directory);
        let blob = Oid::hash_object(ObjectType::Blob, b"1").expect("an id").to_string();
        // A short word, such as a year, is the name of a reference, as in Git.
        for name in [&blob[..7], &first[..4]] {
            set_reference(&repository, &format!("refs/tags/{name}"), &second);
            let found = find_object(&repository, name).expect(name);
            assert_eq!(found.id().to_string(), second, "{name}");
        }
        let shared = "65ba8ca";
        for content in ["20738", "37901"] {
            let id = repository.blob(content.as_bytes()).expect("a blob").to_string();
            assert!(id.starts_with(shared), "{id}");
        }
        set_reference(&repository, &format!("refs/tags/{shared}"), &second);
        let error = find_object(&repository, shared).expect_err("it may be the commit");
        assert!(error.to_string().ends_with("several objects differ"), "{error}");
    }

    #[test]
    fn remote_branch_is_tried_before_a_tag() {
        let id = "0123456789abcdef0123456789abcdef01234567";
        for (revision, expected) in [
            ("main", &["refs/heads/main", "refs/tags/main", "refs/main"][..]),
            (
                "pull/1/head",
                &["refs/heads/pull/1/head", "refs/tags/pull/1/head", "refs/pull/1/head"],
            ),
            ("HEAD", &["HEAD"]),
            ("refs/pull/1/head", &["refs/pull/1/head"]),
            ("tags/v1", &["refs/tags/v1"]),
            (id, &[id]),
        ] {
            assert_eq!(remote_names(revision), expected, "{revision}");
        }
    }
}
