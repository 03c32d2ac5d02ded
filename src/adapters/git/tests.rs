use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;

use git2::{
    IndexAddOption, IndexEntry, IndexEntryExtendedFlag, RepositoryInitOptions, Signature, Time,
};
use tempfile::TempDir;

use super::*;
use crate::manifest::ports::RepositoryFiles;
use crate::model::desired::TreeFile;

/// A directory with files, and optionally a repository.
pub(super) struct TestRepository {
    directory: TempDir,
}

impl TestRepository {
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

    /// Commits all files that are not ignored, and returns the commit hash.
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

    /// Moves the branch to a commit, as a force push does.
    pub(super) fn move_branch(&self, commit: &str) {
        let repository = Repository::open(self.directory.path()).expect("a repository");
        let commit = commit.parse().expect("an id");
        repository.reference("refs/heads/main", commit, true, "moved").expect("moved");
    }

    pub(super) fn tag(&self, name: &str, commit: &str) {
        let repository = Repository::open(self.directory.path()).expect("a repository");
        let commit = commit.parse().expect("an id");
        repository.reference(&format!("refs/tags/{name}"), commit, true, "tagged").expect("tagged");
    }

    /// Marks the files below `directory` as outside of a sparse checkout. They stay on disk.
    fn mark_sparse(&self, directory: &str) {
        let repository = Repository::open(self.directory.path()).expect("a repository");
        let mut index = repository.index().expect("an index");
        let is_below = |entry: &IndexEntry| entry.path.starts_with(directory.as_bytes());
        let entries: Vec<_> = index.iter().filter(is_below).collect();
        for mut entry in entries {
            entry.flags_extended |= IndexEntryExtendedFlag::SKIP_WORKTREE.bits();
            index.add(&entry).expect("marked");
        }
        index.write().expect("written");
    }

    /// Removes an object. A partial clone may lack it as well.
    fn remove_object(&self, name: &str) {
        let repository = Repository::open(self.directory.path()).expect("a repository");
        let id = repository.revparse_single(name).expect("an object").id().to_string();
        let (directory, file) = id.split_at(2);
        fs::remove_file(self.path(&format!(".git/objects/{directory}/{file}"))).expect("removed");
    }

    fn read(&self) -> RepositoryTree {
        read_tree(self.directory.path()).expect("a tree")
    }

    fn read_at(&self, revision: &str) -> RepositoryTree {
        read_revision(self.directory.path(), revision).expect("a tree")
    }

    fn error(&self, relative: &str) -> GitErrorKind {
        read_tree(&self.path(relative)).expect_err("an error").kind
    }
}

/// Returns one line per file: its path, and its content or the error.
fn lines(read: &RepositoryTree) -> Vec<String> {
    let content = |file: &TreeFile| match &file.content {
        Ok(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Err(reason) => format!("! {reason}"),
    };
    read.tree.files.iter().map(|file| format!("{} {}", file.path, content(file))).collect()
}

fn skipped_lines(read: &RepositoryTree) -> Vec<String> {
    read.skipped.iter().map(|skipped| format!("{} {}", skipped.origin, skipped.reason)).collect()
}

/// Commits a tree that Git itself would not write: a file with `name` in the directory `chart/x`.
fn commit_crafted_name(repository: &Repository, name: &str) -> git2::Oid {
    let store = repository.odb().expect("a store");
    let blob = repository.blob(b"kind: A").expect("a blob");
    let entry = |mode: &str, name: &str, id: git2::Oid| {
        [format!("{mode} {name}\0").as_bytes(), id.as_bytes()].concat()
    };
    let write = |bytes: Vec<u8>| store.write(git2::ObjectType::Tree, &bytes).expect("a tree");
    let inner = write(entry("100644", name, blob));
    let chart = write([entry("100644", "Chart.yaml", blob), entry("40000", "x", inner)].concat());
    let root = repository.find_tree(write(entry("40000", "chart", chart))).expect("a tree");
    let eve = git2::Signature::now("eve", "eve@example.com").expect("a name");
    repository.commit(None, &eve, &eve, "crafted", &root, &[]).expect("a commit")
}

#[test]
fn crafted_names_in_commits_are_refused() {
    let directory = TempDir::new().expect("a temporary directory");
    let repository = Repository::init(directory.path()).expect("a repository");
    for name in ["..", ".", "../../../../tmp/x.yaml", ".git", ".GIT", "/etc/x.yaml"] {
        let commit = commit_crafted_name(&repository, name).to_string();
        let error = read_revision(directory.path(), &commit).expect_err(name);
        assert!(matches!(error.kind, GitErrorKind::UnsafeName { .. }), "{name}: {error}");
        let error = read_text_files(directory.path(), None, Some(&commit), &[".yaml"]);
        let error = error.expect_err(name);
        assert!(matches!(error.kind, GitErrorKind::UnsafeName { .. }), "{name}: {error}");
    }
    let commit = commit_crafted_name(&repository, "a.yaml").to_string();
    assert!(read_revision(directory.path(), &commit).is_ok());
}

#[test]
fn links_among_text_files_are_refused() {
    let repo = TestRepository::new();
    repo.write("shared/b.rego", "x").write("policies/a.rego", "x");
    repo.link("policies/b.rego", "../shared/b.rego");
    repo.commit();
    for revision in [None, Some("HEAD")] {
        let read = read_text_files(&repo.path("policies"), None, revision, &[".rego"]);
        let error = read.expect_err("a link");
        assert!(matches!(error.kind, GitErrorKind::Link { .. }), "{error}");
    }
}

#[test]
fn only_manifests_are_read_sorted_by_path() {
    let repo = TestRepository::new();
    repo.write("b/z.yml", "3").write("a.yaml", "1").write("b/a.json", "2");
    repo.write("readme.md", "x").write("b/YAML", "x").write("c.yaml.tpl", "x");
    let read = repo.read();
    assert_eq!(lines(&read), ["a.yaml 1", "b/a.json 2", "b/z.yml 3"]);
    assert_eq!(read.base.commit, None);
    assert!(!read.base.dirty && read.skipped.is_empty());
}

#[test]
fn missing_input_errors_are_specific() {
    let repo = TestRepository::new();
    repo.write("file.yaml", "x").write("docs/readme.md", "x");
    fs::create_dir(repo.path("empty")).expect("mkdir");
    assert_eq!(repo.error("missing"), GitErrorKind::Missing);
    assert_eq!(repo.error("file.yaml"), GitErrorKind::NotADirectory);
    assert_eq!(repo.error("empty"), GitErrorKind::Empty);
    assert_eq!(repo.error("docs"), GitErrorKind::NoManifests { files: 1 });
    let revision = read_revision(&repo.path("docs"), "main").expect_err("no repository");
    assert_eq!(revision.kind, GitErrorKind::NoRepository { revision: "main".to_owned() });
    for kind in [GitErrorKind::Missing, GitErrorKind::Empty] {
        assert!(GitError { path: String::new(), kind }.hint().is_some());
    }
}

#[test]
fn work_tree_reports_commit_and_dirty_manifests() {
    let repo = TestRepository::new();
    repo.write("a/x.yaml", "1").write("b/y.yaml", "2");
    let commit = repo.commit();
    assert_eq!(repo.read().base.commit.as_deref(), Some(commit.as_str()));
    assert!(!repo.read().base.dirty, "nothing differs");
    repo.write("notes.md", "x");
    assert!(!repo.read().base.dirty, "other files do not count");
    repo.write("a/new.yaml", "3");
    assert!(repo.read().base.dirty, "an untracked manifest does");
    let below = |name| read_tree(&repo.path(name)).expect("a tree").base;
    assert!(below("a").dirty && !below("b").dirty, "only what is below the path counts");
    fs::remove_file(repo.path("a/new.yaml")).expect("rm");
    fs::remove_file(repo.path("a/x.yaml")).expect("rm");
    assert!(repo.read().base.dirty, "a deleted manifest counts");
}

#[test]
fn unborn_branch_has_no_commit_and_is_dirty() {
    let repo = TestRepository::new();
    repo.write("x.yaml", "1");
    Repository::init(repo.directory.path()).expect("init");
    assert_eq!(repo.read().base.commit, None);
    assert!(repo.read().base.dirty);
}

#[test]
fn digest_is_equal_from_disk_and_commit() {
    let repo = TestRepository::new();
    repo.write("k/a.yaml", "1").write("k/b.yaml", "2").link("k/c.yaml", "a.yaml");
    let commit = repo.commit();
    let (disk, objects) = (repo.read(), repo.read_at(&commit));
    assert_eq!(lines(&disk), ["k/a.yaml 1", "k/b.yaml 2", "k/c.yaml 1"]);
    assert_eq!(lines(&disk), lines(&objects));
    assert_eq!(disk.base, objects.base);
    assert!(disk.base.tree.starts_with("sha256:") && disk.base.tree.len() == 71);
    repo.write("k/a.yaml", "12").write("k/b.yaml", "");
    assert_ne!(repo.read().base.tree, disk.base.tree);
}

#[test]
fn revision_read_ignores_the_work_tree() {
    let repo = TestRepository::new();
    let first = repo.write("k/a.yaml", "old").commit();
    fs::remove_dir_all(repo.path("k")).expect("rm");
    repo.write("b.yaml", "new");
    repo.commit();
    repo.write("b.yaml", "newer");
    assert_eq!(lines(&repo.read_at(&first)), ["k/a.yaml old"]);
    assert_eq!(lines(&repo.read_at("main~1")), ["k/a.yaml old"]);
    assert_eq!(lines(&repo.read_at("HEAD")), ["b.yaml new"]);
    let gone = read_revision(&repo.path("k"), &first).expect("a directory that is gone");
    assert_eq!(lines(&gone), ["a.yaml old"]);
    assert_eq!(gone.base.commit.as_deref(), Some(first.as_str()));
    assert_eq!(lines(&repo.read()), ["b.yaml newer"], "the work tree is as it was");
    let errors = [("k", "HEAD", "has no such directory"), ("", "nope", "has no commit `nope`")];
    for (path, revision, expected) in errors {
        let error = read_revision(&repo.path(path), revision).expect_err("an error");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn unchanged_commit_is_not_read() {
    let repo = TestRepository::new();
    let path = repo.path("k");
    let read = || read_revision(&path, "main").expect("a tree").base;
    let changed = |known: &TreeBase| {
        let read = read_changed_revision(&path, "main", known).expect("a commit");
        read.map(|read| lines(&read).join(" "))
    };
    let first = repo.write("k/a.yaml", "1").commit();
    let before = read();
    assert_eq!(changed(&before), None);
    for known in [
        TreeBase { below: String::new(), ..before.clone() },
        TreeBase { repository: Some("https://example.com/o/r".to_owned()), ..before.clone() },
        TreeBase { dirty: true, ..before.clone() },
        TreeBase { commit: None, ..before.clone() },
    ] {
        assert_eq!(changed(&known).as_deref(), Some("a.yaml 1"), "{known:?}");
    }
    repo.write("k/a.yaml", "2").commit();
    assert_eq!(changed(&before).as_deref(), Some("a.yaml 2"));
    let after = read();
    repo.move_branch(&first);
    assert_eq!(changed(&after).as_deref(), Some("a.yaml 1"), "an older commit");
    repo.remove_object("main^{tree}");
    assert!(read_revision(&path, "main").is_err(), "the files of the commit are lost");
    assert_eq!(changed(&before), None);
}

#[test]
fn only_unread_objects_may_be_readable_later() {
    for name in ["main:b.yaml", "main:c.yaml"] {
        let repo = TestRepository::new();
        repo.write("a.yaml", "1").write("b.yaml", "2").link("c.yaml", "a.yaml");
        repo.write("large.yaml", "12345").link("gone.yaml", "nowhere.yaml").commit();
        let read = || {
            let limits = TreeLimits { file_bytes: 4, ..TreeLimits::DEFAULT };
            let read = revision::read(repo.directory.path(), "main", limits).expect("a tree");
            let unreadable = read.tree.files.iter().filter(|file| file.content.is_err());
            (unreadable.count(), read.has_unread_objects)
        };
        assert_eq!(read(), (2, false));
        repo.remove_object(name);
        assert_eq!(read(), (3, true), "{name}");
    }
}

#[test]
fn links_are_followed_only_inside_the_root() {
    let outside = TestRepository::new();
    outside.write("secret.yaml", "secret").write("d/x.yaml", "x");
    let absolute = outside.path("secret.yaml").display().to_string();
    let repo = TestRepository::new();
    repo.write("a/real.yaml", "1").write("top.yaml", "2");
    repo.link("in.yaml", "a/real.yaml").link("a/up.yaml", "../top.yaml").link("d", "a");
    repo.link("through.yaml", "d/real.yaml").link("chain.yaml", "in.yaml");
    repo.link("out.yaml", &absolute).link("up.yaml", "../../../../etc/passwd");
    repo.link("loop.yaml", "loop.yaml").link("gone.yaml", "nowhere.yaml");
    let commit = repo.commit();
    repo.link("git.yaml", ".git/config").link("e", outside.path("d").to_str().expect("UTF-8"));
    for read in [repo.read(), repo.read_at(&commit)] {
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
            assert!(
                ["link", "broken link", "circular link"]
                    .iter()
                    .any(|kind| of(name).starts_with(&format!("! it is a {kind}"))),
                "{name}: {}",
                of(name)
            );
        }
        assert!(!lines.iter().any(|line| line.contains("secret")), "{lines:?}");
        assert!(
            skipped_lines(&read).contains(&"d a link to a directory, which is not followed".into())
        );
    }
    let disk = lines(&repo.read());
    let git = "git.yaml ! it is a link to a file outside the directory that is read";
    assert!(disk.contains(&git.to_owned()), "Git's own files may hold credentials");
    let outside = UnreadDirectory { path: "e".to_owned(), reason: UnreadReason::Link };
    assert_eq!(repo.read().unread_directories, [outside]);
}

#[test]
fn signatures_read_linked_settings() {
    let repo = TestRepository::new();
    repo.write("a.yaml", "1").write("settings/real.yml", "signers: [ann]");
    repo.link("fleetwright.yaml", "settings/real.yml").commit();
    // The link stays the same; the list behind it does not.
    repo.write("settings/real.yml", "signers: [eve]").commit();
    let history = repo.read().signed_history.expect("a commit");
    let text = |settings: &Option<Arc<[u8]>>| {
        settings.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    let newest = &history.commits[0];
    assert_eq!(text(&newest.settings).as_deref(), Some("signers: [eve]"));
    let ParentCommit::Present(_, before) = &newest.parents[0] else { panic!("it is there") };
    assert_eq!(text(before).as_deref(), Some("signers: [ann]"));
    assert!(names_signers(before));
}

#[test]
fn unreadable_files_are_in_the_tree_with_reason() {
    let repo = TestRepository::new();
    repo.write("good.yaml", "1").link("dangling.yaml", "nothing");
    let odd = repo.directory.path().join(std::ffi::OsString::from_vec(b"bad\xff.yaml".to_vec()));
    fs::write(odd, "x").expect("write");
    repo.write("large.yaml", "12345");
    let _socket = std::os::unix::net::UnixListener::bind(repo.path("socket.yaml")).expect("bind");
    let limits = TreeLimits { file_bytes: 4, ..TreeLimits::DEFAULT };
    let read = read_tree_within(repo.directory.path(), limits).expect("a tree");
    assert_eq!(
        lines(&read),
        [
            "bad\u{fffd}.yaml ! its path is not UTF-8",
            "dangling.yaml ! it is a broken link: no such file",
            "good.yaml 1",
            "large.yaml ! it has 5 bytes, and at most 4 are read",
            "socket.yaml ! it is not a regular file",
        ]
    );
}

#[test]
fn exceeded_limits_are_errors() {
    let repo = TestRepository::new();
    repo.write("a.yaml", "123").write("b.yaml", "456");
    let commit = repo.commit();
    for (limits, what) in [
        (TreeLimits { files: 1, ..TreeLimits::DEFAULT }, "manifests"),
        (TreeLimits { entries: 1, ..TreeLimits::DEFAULT }, "files and directories"),
        (TreeLimits { total_bytes: 5, ..TreeLimits::DEFAULT }, "bytes of manifests"),
    ] {
        let root = repo.directory.path();
        let disk = read_tree_within(root, limits).expect_err("too much");
        let objects = revision::read(root, &commit, limits).expect_err("too much");
        assert_eq!(disk, objects);
        assert!(disk.to_string().ends_with(what), "{disk}");
    }
}

#[test]
fn ignored_files_are_read_only_if_committed_or_named() {
    let repo = TestRepository::new();
    repo.write("kept/forced.yaml", "1").commit();
    repo.write(".gitignore", "build/\nkept/\n*.local.yaml\n");
    repo.write("build/out.yaml", "2").write("a.local.yaml", "3").write("a.yaml", "4");
    repo.write("kept/other.yaml", "5");
    assert_eq!(lines(&repo.read()), ["a.yaml 4", "kept/forced.yaml 1"]);
    let named = read_tree(&repo.path("build")).expect("a tree");
    assert_eq!(lines(&named), ["out.yaml 2"]);
    assert!(named.base.dirty, "its files are in no commit");
}

#[test]
fn nested_repositories_are_skipped() {
    let repo = TestRepository::new();
    repo.write("a.yaml", "1").write("vendor/lib/x.yaml", "2");
    Repository::init(repo.path("vendor/lib")).expect("init");
    repo.write("worktree/.git", "gitdir: elsewhere").write("worktree/y.yaml", "3");
    let read = repo.read();
    assert_eq!(lines(&read), ["a.yaml 1"]);
    assert_eq!(
        skipped_lines(&read),
        ["vendor/lib a Git repository of its own", "worktree a Git repository of its own"]
    );
}

#[test]
fn missing_submodule_is_skipped() {
    let repo = TestRepository::new();
    let commit = repo.write("a.yaml", "1").commit();
    let repository = Repository::open(repo.directory.path()).expect("open");
    let mut index = repository.index().expect("index");
    let mut entry = index.get(0).expect("a.yaml");
    (entry.mode, entry.path) = (0o160_000, b"sub".to_vec());
    entry.id = commit.parse().expect("an id");
    index.add(&entry).expect("add");
    index.write().expect("write");
    fs::create_dir(repo.path("sub")).expect("mkdir");
    assert_eq!(skipped_lines(&repo.read()), ["sub a Git repository of its own"]);
}

#[test]
fn files_that_a_sparse_checkout_lacks_are_unreadable() {
    let repo = TestRepository::new();
    repo.write("a.yaml", "1").write("k/b.yaml", "2").write("k/c.yaml", "3");
    let commit = repo.write("k/chart/_names.tpl", "4").commit();
    repo.mark_sparse("k/");
    assert_eq!(lines(&repo.read()), ["a.yaml 1", "k/b.yaml 2", "k/c.yaml 3"], "all are on disk");
    fs::remove_file(repo.path("k/b.yaml")).expect("rm");
    fs::remove_dir_all(repo.path("k/chart")).expect("rm");
    let missing = "! a sparse checkout lacks it: run `git sparse-checkout disable`, or read the \
                   commit with `--ref HEAD`";
    let read = repo.read();
    assert_eq!(lines(&read), ["a.yaml 1", format!("k/b.yaml {missing}").as_str(), "k/c.yaml 3"]);
    let template = read.files.content("k/chart/_names.tpl").expect_err("a renderer needs it");
    assert_eq!(format!("! {template}"), missing);
    let below = read_tree(&repo.path("k")).expect("a tree");
    assert_eq!(lines(&below), [format!("b.yaml {missing}").as_str(), "c.yaml 3"]);
    assert_eq!(lines(&repo.read_at(&commit)), ["a.yaml 1", "k/b.yaml 2", "k/c.yaml 3"]);
    fs::remove_file(repo.path("a.yaml")).expect("rm");
    assert!(!lines(&repo.read()).concat().contains("a.yaml"), "a deleted file is a change");
}

#[test]
fn files_that_a_sparse_checkout_lacks_count_toward_no_limit() {
    let repo = TestRepository::new();
    repo.write("a.yaml", "1").write("k/b.yaml", "2").write("k/c.yaml", "3").commit();
    repo.mark_sparse("k/");
    let limits = TreeLimits { files: 1, ..TreeLimits::DEFAULT };
    let read = || read_tree_within(repo.directory.path(), limits);
    assert!(read().is_err(), "all are on disk");
    fs::remove_dir_all(repo.path("k")).expect("rm");
    let read = read().expect("a tree");
    let sparse: Vec<bool> = read.tree.files.iter().map(TreeFile::is_sparse).collect();
    assert_eq!(sparse, [false, true, true]);
}

#[test]
fn links_that_may_be_unread_directories_are_listed() {
    let repo = TestRepository::new();
    repo.write("a.yaml", "1").write("base/b.yaml", "1");
    repo.link("inside", "base").link("nowhere", "missing").link("outside", "../../elsewhere");
    repo.link("logo.png", "missing.png").link("file", "a.yaml").link("v1.2", "missing");
    let commit = repo.commit();
    for read in [repo.read(), repo.read_at(&commit)] {
        let unread = read.unread_directories.iter();
        let unread: Vec<_> = unread.map(|d| (d.path.as_str(), d.reason)).collect();
        let links = ["nowhere", "outside", "v1.2"].map(|path| (path, UnreadReason::Link));
        assert_eq!(unread, links);
        assert_eq!(skipped_lines(&read), ["inside a link to a directory, which is not followed"]);
    }
}

#[test]
fn origin_url_has_no_credentials() {
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
        assert_eq!(strip_credentials(url), shown, "{url}");
    }
    let repo = TestRepository::new();
    repo.write("a.yaml", "1").commit();
    let repository = Repository::open(repo.directory.path()).expect("open");
    assert_eq!(repo.read().base.repository, None);
    repository.remote("origin", "https://me:secret@example.com/o/r").expect("remote");
    assert_eq!(repo.read().base.repository.as_deref(), Some("https://example.com/o/r"));
}

#[test]
fn generated_files_are_neither_input_nor_change() {
    let repo = TestRepository::new();
    repo.write("a.yaml", "1").write("b.json", "{}").commit();
    let before = repo.read();
    let world = r#"{"format_version":"1.0","taken_at":"2026-01-01T00:00:00Z","sources":{}}"#;
    repo.write("world/world.json", world);
    repo.write("p.json", r#"{"format_version":"1.0","resource_changes":[],"capacity":{}}"#);
    let after = repo.read();
    assert_eq!(lines(&after), ["a.yaml 1", "b.json {}"]);
    assert_eq!(after.base, before.base, "neither digest nor dirty flag changes");
    assert_eq!(skipped_lines(&after), ["p.json plan or world", "world/world.json plan or world"]);
    let commit = repo.commit();
    assert_eq!(lines(&repo.read_at(&commit)), ["a.yaml 1", "b.json {}"]);
    repo.write("world/world.json", &world.replace("2026", "2027"));
    assert!(!repo.read().base.dirty, "a committed world that moved on is no change either");
}
