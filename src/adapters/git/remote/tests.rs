use std::fs;

use super::super::tests::TestRepository;
use super::*;

fn cache_in(folder: &std::path::Path) -> CloneCache {
    CloneCache { path: folder.join("clones"), _temporary: None }
}

#[test]
fn git_output_is_redacted_before_truncation() {
    let token = "ghp_0123456789".repeat(40);
    for (url, secret) in [
        (format!("https://me:{token}@h/o/r"), token.as_str()),
        (format!("https://{token}@h/o/r"), token.as_str()),
        (format!("https://h/o/r?access={token}"), token.as_str()),
    ] {
        let message = format!("fatal: unable to access '{url}/': {secret} is refused");
        let display = truncate(&redact(&message, &url));
        assert!(!display.contains("ghp_") && display.contains("https://h/o/r"), "{display}");
    }
    let message = "fatal: unable to access 'https://ECRET@h/o/r/'";
    let display = redact(message, "https://me:ghs_S@ECRET@h/o/r");
    assert!(!display.contains("ECRET"), "{display}");
    let message = "git@h: Permission denied (publickey)";
    assert_eq!(redact(message, "git@h:o/r"), message, "a name is no secret");
}

#[test]
fn clone_cache_must_be_private_and_ignores_credentials() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache_in(folder.path());
    assert_eq!(cache.prepare(), Ok(()));
    fs::set_permissions(&cache.path, fs::Permissions::from_mode(0o777)).expect("opened");
    assert!(cache.prepare().expect_err("open to all").contains("other users can write"));
    fs::remove_dir(&cache.path).expect("removed");
    std::os::unix::fs::symlink(folder.path(), &cache.path).expect("linked");
    assert!(cache.prepare().expect_err("a link").contains("other users can write"));
    let remote = |url: &str| RemoteRepository::parse(url).expect("a URL").clone_path(&cache);
    assert_eq!(remote("https://a:b@h/o/r"), remote("https://h/o/r"));
    assert_ne!(remote("https://h/o/r"), remote("https://h/o/s"));
}

#[test]
fn remote_urls_are_parsed_with_directory() {
    let remote = |url: &str, directory: &str| {
        Some(RemoteRepository { url: url.to_owned(), directory: directory.to_owned() })
    };
    for (text, expected) in [
        ("https://h/o/r", remote("https://h/o/r", "")),
        ("https://h/o/r.git//clusters/prod/", remote("https://h/o/r.git", "clusters/prod")),
        ("git@h:o/r.git//apps", remote("git@h:o/r.git", "apps")),
        ("ssh://git@h:22/o/r", remote("ssh://git@h:22/o/r", "")),
        ("file:///srv/r//apps", remote("file:///srv/r", "apps")),
        ("ext::sh -c x", None),
        ("clusters/prod", None),
        ("c:/x", None),
        (".", None),
    ] {
        assert_eq!(RemoteRepository::parse(text), expected, "{text}");
    }
    let secret = RemoteRepository::parse("https://me:token@h/o/r//x").expect("a URL");
    assert_eq!(secret.display_url(), "https://h/o/r//x");
}

#[test]
fn remote_is_fetched_shallow_without_checkout() {
    let repo = TestRepository::new();
    repo.write("apps/a.yaml", "1").write("b.yaml", "2").commit();
    repo.write("apps/a.yaml", "3");
    let last = repo.commit();
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache_in(folder.path());
    let url = format!("file://{}//apps", repo.path("").display());
    let url = url.replace("///apps", "//apps");
    let remote = RemoteRepository::parse(&url).expect("a URL");
    let tree = remote.read(None, &cache).expect("read");
    assert_eq!(tree.tree.files.len(), 1);
    assert_eq!(tree.tree.files[0].content.as_deref(), Ok(&b"3"[..]));
    assert_eq!(tree.base.commit.as_deref(), Some(last.as_str()));
    let clone = remote.clone_path(&cache);
    assert!(clone.join("shallow").is_file() && !clone.join("apps").exists());
    repo.write("apps/a.yaml", "4").commit();
    // A killed fetch leaves its lock.
    let lock = fs::File::create(clone.join("shallow.lock")).expect("a lock");
    assert!(remote.read(None, &cache).is_err(), "the lock may have an owner");
    let long_ago = std::time::SystemTime::now() - FETCH_LIMITS.time * 2;
    lock.set_modified(long_ago).expect("an older one");
    let tree = remote.read(None, &cache).expect("read again");
    assert_eq!(tree.tree.files[0].content.as_deref(), Ok(&b"4"[..]), "what is there now");
    for none in ["nowhere", "1111111111111111111111111111111111111111"] {
        let error = remote.read(Some(none), &cache).expect_err("there is none");
        let certain = matches!(error.kind, GitErrorKind::UnknownRevision { .. });
        assert!(certain && error.to_string().contains(none), "{error}");
    }
}

#[test]
fn pushed_tag_does_not_replace_the_branch() {
    let repo = TestRepository::new();
    let main = repo.write("a.yaml", "1").commit();
    let evil = repo.write("a.yaml", "2").commit();
    repo.move_branch(&main);
    repo.tag("main", &evil);
    repo.tag("v1", &evil);
    let repository = git2::Repository::open(repo.path("")).expect("a repository");
    let commit = evil.parse().expect("an id");
    repository.reference("refs/pull/1/head", commit, true, "pushed").expect("a pull request");
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache_in(folder.path());
    let url = format!("file://{}", repo.path("").display());
    let remote = RemoteRepository::parse(url.trim_end_matches('/')).expect("a URL");
    for (revision, expected) in [
        ("main", &main),
        ("refs/heads/main", &main),
        ("refs/tags/main", &evil),
        ("v1", &evil),
        ("pull/1/head", &evil),
        (evil.as_str(), &evil),
    ] {
        let found = remote.read(Some(revision), &cache).expect(revision).base.commit;
        assert_eq!(found.as_ref(), Some(expected), "{revision}");
    }
}

#[test]
fn unchanged_remote_is_fetched_and_not_read() {
    let repo = TestRepository::new();
    let first = repo.write("apps/a.yaml", "1").commit();
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache_in(folder.path());
    let url = format!("file://{}", repo.path("").display());
    let url = url.trim_end_matches('/').to_owned();
    let remote = RemoteRepository { url, directory: "apps".to_owned() };
    let changed = |remote: &RemoteRepository, known: &TreeBase| {
        let read = remote.read_changed(None, &cache, known).expect("fetched");
        read.and_then(|tree| tree.base.commit)
    };
    let known = remote.read(None, &cache).expect("read").base;
    // Only a read would find that the files have another digest.
    let known = TreeBase { tree: "sha256:0".to_owned(), ..known };
    assert_eq!(changed(&remote, &known), None);
    let root = RemoteRepository { directory: String::new(), ..remote.clone() };
    assert_eq!(changed(&root, &known).as_ref(), Some(&first), "another directory");
    let second = repo.write("b.yaml", "2").commit();
    assert_eq!(changed(&remote, &known).as_ref(), Some(&second));
    let later = TreeBase { commit: Some(second), ..known.clone() };
    assert_eq!(changed(&remote, &later), None);
    repo.move_branch(&first);
    assert_eq!(changed(&remote, &later), Some(first), "an older commit");
    assert_eq!(changed(&remote, &known), None);
}

#[test]
fn grown_clone_is_replaced_by_one_of_the_newest_commits() {
    let repo = TestRepository::new();
    repo.write("apps/a.yaml", "1").commit();
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache_in(folder.path());
    let remote = format!("file://{}", repo.path("").display());
    let remote = RemoteRepository::parse(remote.trim_end_matches('/')).expect("a URL");
    remote.read_with_history(None, &cache).expect("read");
    let clone = remote.clone_path(&cache);
    // A sparse file stands for the packs of many commits.
    let junk = clone.join("objects/pack/pack-junk.pack");
    fs::File::create(&junk).and_then(|file| file.set_len(1 << 30)).expect("written");
    let interrupted = cache.path.join("renewal-x");
    fs::create_dir(&interrupted).expect("made");
    repo.write("apps/a.yaml", "2").commit();
    let tree = remote.read(None, &cache).expect("read");
    assert_eq!(tree.tree.files[0].content.as_deref(), Ok(&b"2"[..]));
    assert!(!junk.exists(), "the old clone is removed");
    assert!(interrupted.exists(), "another process may renew its clone now");
    assert_eq!(fs::read_dir(&cache.path).expect("listed").count(), 2);
    let history = remote.read_with_history(None, &cache).expect("read").signed_history;
    assert!(history.is_some_and(|history| !history.is_truncated()));
}

#[test]
fn fetch_is_bounded_in_bytes() {
    assert!(is_too_large("error: index-pack died of signal 25 fatal: fetch-pack: invalid"));
    assert!(!is_too_large("fatal: could not read from remote repository"));
    assert!(FETCH_LIMITS.file_bytes.is_some());
}

#[test]
fn unsafe_remotes_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = cache_in(folder.path());
    for (url, revision, expected) in [
        ("http://127.0.0.1:1/x", None, "scheme `http` is not fetched from"),
        ("ext://sh/x", None, "scheme `ext` is not fetched from"),
        ("git://127.0.0.1/x", None, "scheme `git` is not fetched from"),
        ("file:///nowhere", Some("--upload-pack=x"), "has no commit `--upload-pack=x`"),
        ("file:///nowhere", Some("a:b"), "has no commit `a:b`"),
        ("file:///nowhere", None, "it cannot be fetched: "),
        ("https://me:secret@127.0.0.1:1/x", None, "it cannot be fetched: "),
    ] {
        let remote = RemoteRepository::parse(url).expect("a URL");
        let error = remote.read(revision, &cache).expect_err("refused").to_string();
        assert!(error.contains(expected) && !error.contains("secret"), "{error}");
    }
    assert!(fs::read_dir(&cache.path).expect("listed").count() <= 2);
}
