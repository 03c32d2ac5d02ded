use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;

use git2::{IndexAddOption, RepositoryInitOptions, Signature, Time};
use tempfile::TempDir;

use super::*;

/// A directory with files, and a repository around it where a test asks for one.
pub(super) struct Place {
    directory: TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        Self { directory: TempDir::new().expect("a temporary directory") }
    }

    pub(super) fn path(&self, relative: &str) -> PathBuf {
        self.directory.path().join(relative)
    }

    pub(super) fn write(&self, relative: &str, content: &str) -> &Self {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("a file has a parent")).expect("mkdir");
        fs::write(path, content).expect("write");
        self
    }

    fn link(&self, relative: &str, target: &str) -> &Self {
        let path = self.path(relative);
        fs::create_dir_all(path.parent().expect("a link has a parent")).expect("mkdir");
        symlink(target, path).expect("symlink");
        self
    }

    /// Commits everything that is not ignored, and returns the commit.
    pub(super) fn commit(&self) -> String {
        let root = self.directory.path();
        let options = &mut RepositoryInitOptions::new();
        let repository = Repository::open(root)
            .or_else(|_| Repository::init_opts(root, options.initial_head("main")))
            .expect("a repository");
        let mut index = repository.index().expect("an index");
        index.add_all(["*"], IndexAddOption::DEFAULT, None).expect("add");
        index.update_all(["*"], None).expect("update");
        index.write().expect("write the index");
        let tree = repository.find_tree(index.write_tree().expect("tree")).expect("tree");
        let author = Signature::new("a", "a@example.com", &Time::new(0, 0)).expect("signature");
        let parents: Vec<_> =
            repository.head().ok().and_then(|h| h.peel_to_commit().ok()).into_iter().collect();
        let parents: Vec<_> = parents.iter().collect();
        let id = repository.commit(Some("HEAD"), &author, &author, "m", &tree, &parents);
        id.expect("commit").to_string()
    }

    fn read(&self) -> TreeRead {
        read_tree(self.directory.path()).expect("a tree")
    }

    fn read_at(&self, revision: &str) -> TreeRead {
        read_revision(self.directory.path(), revision).expect("a tree")
    }

    fn error(&self, relative: &str) -> GitErrorKind {
        read_tree(&self.path(relative)).expect_err("an error").kind
    }
}

/// One line for each file: its path, and its content or why there is none.
fn lines(read: &TreeRead) -> Vec<String> {
    let content = |file: &crate::manifest::TreeFile| match &file.content {
        Ok(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Err(reason) => format!("! {reason}"),
    };
    read.tree.files.iter().map(|file| format!("{} {}", file.path, content(file))).collect()
}

fn left_out(read: &TreeRead) -> Vec<String> {
    read.skipped.iter().map(|skipped| format!("{} {}", skipped.origin, skipped.reason)).collect()
}

#[test]
fn manifests_are_read_in_the_order_of_their_paths_and_nothing_else_is() {
    let place = Place::new();
    place.write("b/z.yml", "3").write("a.yaml", "1").write("b/a.json", "2");
    place.write("readme.md", "x").write("b/YAML", "x").write("c.yaml.tpl", "x");
    let read = place.read();
    assert_eq!(lines(&read), ["a.yaml 1", "b/a.json 2", "b/z.yml 3"]);
    assert_eq!(read.base.commit, None);
    assert!(!read.base.dirty && read.skipped.is_empty());
}

#[test]
fn each_kind_of_nothing_to_read_has_an_answer_of_its_own() {
    let place = Place::new();
    place.write("file.yaml", "x").write("docs/readme.md", "x");
    fs::create_dir(place.path("empty")).expect("mkdir");
    assert_eq!(place.error("missing"), GitErrorKind::Missing);
    assert_eq!(place.error("file.yaml"), GitErrorKind::NotADirectory);
    assert_eq!(place.error("empty"), GitErrorKind::Empty);
    assert_eq!(place.error("docs"), GitErrorKind::NoManifests { files: 1 });
    let revision = read_revision(&place.path("docs"), "main").expect_err("no repository");
    assert_eq!(revision.kind, GitErrorKind::NoRepository { revision: "main".to_owned() });
    for kind in [GitErrorKind::Missing, GitErrorKind::Empty] {
        assert!(GitError { path: String::new(), kind }.hint().is_some());
    }
}

#[test]
fn a_work_tree_has_a_commit_and_says_whether_manifests_differ_from_it() {
    let place = Place::new();
    place.write("a/x.yaml", "1").write("b/y.yaml", "2");
    let commit = place.commit();
    assert_eq!(place.read().base.commit.as_deref(), Some(commit.as_str()));
    assert!(!place.read().base.dirty, "nothing differs");
    place.write("notes.md", "x");
    assert!(!place.read().base.dirty, "what is no manifest does not count");
    place.write("a/new.yaml", "3");
    assert!(place.read().base.dirty, "an untracked manifest does");
    let below = |name| read_tree(&place.path(name)).expect("a tree").base;
    assert!(below("a").dirty && !below("b").dirty, "only what is below the path counts");
    fs::remove_file(place.path("a/new.yaml")).expect("rm");
    fs::remove_file(place.path("a/x.yaml")).expect("rm");
    assert!(place.read().base.dirty, "a deleted manifest counts");
}

#[test]
fn before_the_first_commit_there_is_none_and_everything_differs() {
    let place = Place::new();
    place.write("x.yaml", "1");
    Repository::init(place.directory.path()).expect("init");
    assert_eq!(place.read().base.commit, None);
    assert!(place.read().base.dirty);
}

#[test]
fn the_same_content_has_the_same_digest_from_disk_and_from_a_commit() {
    let place = Place::new();
    place.write("k/a.yaml", "1").write("k/b.yaml", "2").link("k/c.yaml", "a.yaml");
    let commit = place.commit();
    let (disk, objects) = (place.read(), place.read_at(&commit));
    assert_eq!(lines(&disk), ["k/a.yaml 1", "k/b.yaml 2", "k/c.yaml 1"]);
    assert_eq!(lines(&disk), lines(&objects));
    assert_eq!(disk.base, objects.base);
    assert!(disk.base.tree.starts_with("sha256:") && disk.base.tree.len() == 71);
    place.write("k/a.yaml", "12").write("k/b.yaml", "");
    assert_ne!(place.read().base.tree, disk.base.tree);
}

#[test]
fn a_revision_is_read_without_the_work_tree_being_read_or_changed() {
    let place = Place::new();
    let first = place.write("k/a.yaml", "old").commit();
    fs::remove_dir_all(place.path("k")).expect("rm");
    place.write("b.yaml", "new");
    place.commit();
    place.write("b.yaml", "newer");
    assert_eq!(lines(&place.read_at(&first)), ["k/a.yaml old"]);
    assert_eq!(lines(&place.read_at("main~1")), ["k/a.yaml old"]);
    assert_eq!(lines(&place.read_at("HEAD")), ["b.yaml new"]);
    let gone = read_revision(&place.path("k"), &first).expect("a directory that is gone");
    assert_eq!(lines(&gone), ["a.yaml old"]);
    assert_eq!(gone.base.commit.as_deref(), Some(first.as_str()));
    assert_eq!(lines(&place.read()), ["b.yaml newer"], "the work tree is as it was");
    let errors = [("k", "HEAD", "has no such directory"), ("", "nope", "has no commit `nope`")];
    for (path, revision, expected) in errors {
        let error = read_revision(&place.path(path), revision).expect_err("an error");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn links_are_followed_inside_the_root_and_reported_outside_it() {
    let outside = Place::new();
    outside.write("secret.yaml", "secret").write("d/x.yaml", "x");
    let absolute = outside.path("secret.yaml").display().to_string();
    let place = Place::new();
    place.write("a/real.yaml", "1").write("top.yaml", "2");
    place.link("in.yaml", "a/real.yaml").link("a/up.yaml", "../top.yaml").link("d", "a");
    place.link("through.yaml", "d/real.yaml").link("chain.yaml", "in.yaml");
    place.link("out.yaml", &absolute).link("up.yaml", "../../../../etc/passwd");
    place.link("loop.yaml", "loop.yaml").link("gone.yaml", "nowhere.yaml");
    let commit = place.commit();
    place.link("git.yaml", ".git/config").link("e", outside.path("d").to_str().expect("UTF-8"));
    for read in [place.read(), place.read_at(&commit)] {
        let lines = lines(&read);
        let of = |name: &str| {
            let found = lines.iter().find_map(|line| line.strip_prefix(&format!("{name} ")));
            found.unwrap_or("(absent)").to_owned()
        };
        for (name, content) in
            [("in.yaml", "1"), ("a/up.yaml", "2"), ("through.yaml", "1"), ("chain.yaml", "1")]
        {
            assert_eq!(of(name), content, "{name}");
        }
        for name in ["out.yaml", "up.yaml", "loop.yaml", "gone.yaml"] {
            assert!(of(name).starts_with("! it is a link"), "{name}: {}", of(name));
        }
        assert!(!lines.iter().any(|line| line.contains("secret")), "{lines:?}");
        assert!(left_out(&read).contains(&"d a link to a directory, which is not followed".into()));
    }
    let disk = lines(&place.read());
    let git = "git.yaml ! it is a link to a file outside the directory that is read";
    assert!(disk.contains(&git.to_owned()), "Git's own files may hold credentials");
    assert!(left_out(&place.read()).iter().any(|line| line.starts_with("e a link")));
}

#[test]
fn what_cannot_be_read_is_in_the_tree_with_its_reason() {
    let place = Place::new();
    place.write("good.yaml", "1").link("dangling.yaml", "nothing");
    let odd = place.directory.path().join(std::ffi::OsString::from_vec(b"bad\xff.yaml".to_vec()));
    fs::write(odd, "x").expect("write");
    place.write("large.yaml", "12345");
    let _socket = std::os::unix::net::UnixListener::bind(place.path("socket.yaml")).expect("bind");
    let limits = Limits { file_bytes: 4, ..Limits::DEFAULT };
    let read = read_tree_within(place.directory.path(), limits).expect("a tree");
    assert_eq!(
        lines(&read),
        [
            "bad\u{fffd}.yaml ! its path is not UTF-8",
            "dangling.yaml ! it is a link that leads nowhere: no such file",
            "good.yaml 1",
            "large.yaml ! it has 5 bytes, and at most 4 are read",
            "socket.yaml ! it is not a regular file",
        ]
    );
}

#[test]
fn more_than_the_limits_is_an_error_and_not_a_part() {
    let place = Place::new();
    place.write("a.yaml", "123").write("b.yaml", "456");
    let commit = place.commit();
    for (limits, what) in [
        (Limits { files: 1, ..Limits::DEFAULT }, "manifests"),
        (Limits { entries: 1, ..Limits::DEFAULT }, "files and directories"),
        (Limits { total_bytes: 5, ..Limits::DEFAULT }, "bytes of manifests"),
    ] {
        let root = place.directory.path();
        let disk = read_tree_within(root, limits).expect_err("too much");
        let objects = revision::read(root, &commit, limits).expect_err("too much");
        assert_eq!(disk, objects);
        assert!(disk.to_string().ends_with(what), "{disk}");
    }
}

#[test]
fn what_git_ignores_is_not_read_unless_it_is_committed_or_named() {
    let place = Place::new();
    place.write("kept/forced.yaml", "1").commit();
    place.write(".gitignore", "build/\nkept/\n*.local.yaml\n");
    place.write("build/out.yaml", "2").write("a.local.yaml", "3").write("a.yaml", "4");
    place.write("kept/other.yaml", "5");
    assert_eq!(lines(&place.read()), ["a.yaml 4", "kept/forced.yaml 1"]);
    let named = read_tree(&place.path("build")).expect("a tree");
    assert_eq!(lines(&named), ["out.yaml 2"]);
    assert!(named.base.dirty, "its files are in no commit");
}

#[test]
fn repositories_inside_the_repository_are_left_out_and_named() {
    let place = Place::new();
    place.write("a.yaml", "1").write("vendor/lib/x.yaml", "2");
    Repository::init(place.path("vendor/lib")).expect("init");
    place.write("worktree/.git", "gitdir: elsewhere").write("worktree/y.yaml", "3");
    let read = place.read();
    assert_eq!(lines(&read), ["a.yaml 1"]);
    assert_eq!(
        left_out(&read),
        ["vendor/lib a Git repository of its own", "worktree a Git repository of its own"]
    );
}

#[test]
fn a_submodule_that_is_not_checked_out_is_named_too() {
    let place = Place::new();
    let commit = place.write("a.yaml", "1").commit();
    let repository = Repository::open(place.directory.path()).expect("open");
    let mut index = repository.index().expect("index");
    let mut entry = index.get(0).expect("a.yaml");
    (entry.mode, entry.path) = (0o160_000, b"sub".to_vec());
    entry.id = commit.parse().expect("an id");
    index.add(&entry).expect("add");
    index.write().expect("write");
    fs::create_dir(place.path("sub")).expect("mkdir");
    assert_eq!(left_out(&place.read()), ["sub a Git repository of its own"]);
}

#[test]
fn the_url_of_origin_is_recorded_without_credentials() {
    for (url, shown) in [
        ("https://github.com/o/r.git", "https://github.com/o/r.git"),
        ("https://user:p%40ss@github.com/o/r", "https://github.com/o/r"),
        ("https://x-access-token:ghs_abc@github.com:443/o/r", "https://github.com:443/o/r"),
        ("https://a@b@github.com/o/r?token=abc#x", "https://github.com/o/r"),
        ("ssh://git@host:22/o/r", "ssh://host:22/o/r"),
        ("git@github.com:o/r.git", "github.com:o/r.git"),
        ("user:secret@host:o/r", "host:o/r"),
        ("/srv/git/a@b.git", "/srv/git/a@b.git"),
        ("../elsewhere", "../elsewhere"),
    ] {
        assert_eq!(without_credentials(url), shown, "{url}");
    }
    let place = Place::new();
    place.write("a.yaml", "1").commit();
    let repository = Repository::open(place.directory.path()).expect("open");
    assert_eq!(place.read().base.repository, None);
    repository.remote("origin", "https://me:secret@example.com/o/r").expect("remote");
    assert_eq!(place.read().base.repository.as_deref(), Some("https://example.com/o/r"));
}

#[test]
fn what_this_program_wrote_is_no_input_and_no_change() {
    let place = Place::new();
    place.write("a.yaml", "1").write("b.json", "{}").commit();
    let before = place.read();
    let world = r#"{"format_version":"1.0","taken_at":"2026-01-01T00:00:00Z","sources":{}}"#;
    place.write("world/world.json", world);
    place.write("p.json", r#"{"format_version":"1.0","resource_changes":[],"capacity":{}}"#);
    let after = place.read();
    assert_eq!(lines(&after), ["a.yaml 1", "b.json {}"]);
    assert_eq!(after.base, before.base, "neither digest nor dirty flag changes");
    assert_eq!(
        left_out(&after),
        [
            "p.json a plan or world that fleetwright wrote",
            "world/world.json a plan or world that fleetwright wrote"
        ]
    );
    let commit = place.commit();
    assert_eq!(lines(&place.read_at(&commit)), ["a.yaml 1", "b.json {}"]);
    place.write("world/world.json", &world.replace("2026", "2027"));
    assert!(!place.read().base.dirty, "a committed world that moved on is no change either");
}
