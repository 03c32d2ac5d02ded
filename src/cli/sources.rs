//! `sources update`: downloads the external sources of a repository, and pins them in the lock file.
//!
//! It is the only command that downloads sources. Plans read the cache alone.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::error::CliError;
use super::repository::read_guarding_fleet;
use super::settings::{SourceSettings, SourcesUpdateSettings};
use super::{Console, Exit, files, source_tree};
use crate::adapters::external_sources::{MountedFiles, SourceCache, SourceDownloader};
use crate::adapters::git::{RemoteRepository, RepositoryTree};
use crate::adapters::renderers::Renderers;
use crate::manifest::{read_fleet, read_source_lock, render_rounds, source_requests};
use crate::model::desired::{
    ExternalSource, Fleet, LockedSource, RepositoryLocation, SOURCE_LOCK_FILE, Severity,
    SourceLock, SourceRequests,
};
use crate::plan::canonical;
use crate::render::escape;

/// Maximum number of rounds: the content of a source may request further sources.
const ROUNDS_MAX: usize = 8;

/// Maximum number of sources of a repository.
const SOURCES_MAX: usize = 2_000;

pub(super) fn update(
    settings: &SourcesUpdateSettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let SourcesUpdateSettings { path, check, guard_ref } = settings;
    let (tree, fleet) = read_local(path, source_tree::read)?;
    let (old, problem) = read_source_lock(&tree.tree);
    if let Some(problem) = problem {
        return Err(CliError::from_problem(&problem));
    }
    let cache = SourceCache::from_environment().ok_or_else(|| {
        CliError::text("there is no directory for the cache").hint("set HOME or XDG_CACHE_HOME")
    })?;
    let downloader = downloader(path, guard_ref.as_deref(), &fleet)?;
    let mut update = Update {
        tree: &tree,
        fleet: &fleet,
        old: old.into_iter().map(|locked| (locked.source(), locked)).collect(),
        cache: &cache,
        downloader: &downloader,
        is_check: *check,
        locked: BTreeMap::new(),
        failures: BTreeMap::new(),
    };
    let requested = update.resolve_all(console)?;
    update.finish(&requested, path, console)
}

/// Returns the downloader of a directory. `guard_ref` decides which hosts it may reach, so that a
/// change cannot open hosts for its own downloads. Otherwise the files decide.
pub(super) fn downloader(
    path: &Path,
    guard_ref: Option<&str>,
    own: &Fleet,
) -> Result<SourceDownloader, CliError> {
    let Some(revision) = guard_ref else { return Ok(SourceDownloader::new(&own.delivery)) };
    let guarding = SourceSettings { path: path.to_owned(), revision: Some(revision.to_owned()) };
    let fleet = read_guarding_fleet(&source_tree::read_alone(&guarding)?)?;
    Ok(SourceDownloader::new(&fleet.delivery))
}

/// Reads a directory in which a command writes a file, and its settings.
pub(super) fn read_local(
    path: &Path,
    read: fn(&SourceSettings) -> Result<RepositoryTree, CliError>,
) -> Result<(RepositoryTree, Fleet), CliError> {
    if path.to_str().and_then(RemoteRepository::parse).is_some() {
        return Err(CliError::text("files of a remote repository cannot be written")
            .hint("clone the repository, and name its directory"));
    }
    let tree = read(&SourceSettings { path: path.to_owned(), revision: None })?;
    let (fleet, problems) = read_fleet(&tree.tree);
    if let Some(problem) = problems.iter().find(|problem| problem.severity == Severity::Error) {
        let message = format!("{}: {}: {}", problem.origin, problem.object, problem.message);
        return Err(CliError::text(message).hint("run `fleetwright validate`"));
    }
    Ok((tree, fleet))
}

/// The state of one run.
struct Update<'a> {
    tree: &'a RepositoryTree,
    fleet: &'a Fleet,
    /// Entries of the lock file.
    old: BTreeMap<ExternalSource, LockedSource>,
    cache: &'a SourceCache,
    downloader: &'a SourceDownloader,
    is_check: bool,
    /// Sources whose content is in the cache.
    locked: BTreeMap<ExternalSource, LockedSource>,
    /// Sources that could not be downloaded, with the reason.
    failures: BTreeMap<ExternalSource, String>,
}

impl Update<'_> {
    /// Resolves sources until the repository requests no further ones. Returns all requested
    /// sources.
    fn resolve_all(&mut self, console: &mut Console) -> Result<SourceRequests, CliError> {
        let renderers = Renderers::from_environment();
        for _ in 0..ROUNDS_MAX {
            let requested = self.requested(&renderers);
            if requested.len() > SOURCES_MAX {
                return Err(CliError::text(format!(
                    "the repository requests more than {SOURCES_MAX} external sources"
                )));
            }
            let is_known = |source: &&ExternalSource| {
                self.locked.contains_key(*source) || self.failures.contains_key(*source)
            };
            let new: Vec<ExternalSource> =
                requested.iter().filter(|source| !is_known(source)).cloned().collect();
            if new.is_empty() {
                return Ok(requested);
            }
            for source in new {
                match self.resolve(&source, console) {
                    Ok(locked) => drop(self.locked.insert(source, locked)),
                    Err(why) => drop(self.failures.insert(source, why)),
                }
            }
        }
        Err(CliError::text(format!(
            "sources request further sources more than {ROUNDS_MAX} times in a row"
        )))
    }

    /// Returns the sources that the repository requests, as far as its content is known.
    fn requested(&self, renderers: &Renderers) -> SourceRequests {
        let locked: Vec<LockedSource> = self.locked.values().cloned().collect();
        let files = MountedFiles::new(&*self.tree.files, &locked, Some(self.cache));
        let tree = files.extend_tree(&self.tree.tree);
        let base = &self.tree.base;
        let home = RepositoryLocation {
            repository: base.repository.clone(),
            path: self.tree.root_in_repository().to_owned(),
        };
        let external = files.sources().clone();
        let (_, renderings) =
            render_rounds::read(&tree, self.fleet, home, external, None, &files, renderers);
        let mut requested = source_requests(&tree, self.fleet, &renderings);
        requested.extend(files.requested());
        requested
    }

    /// Returns the entry of a source, with its content in the cache.
    fn resolve(
        &self,
        source: &ExternalSource,
        console: &mut Console,
    ) -> Result<LockedSource, String> {
        let old = self.old.get(source);
        if !self.is_check {
            console.report(&format!("downloading {}", escape(&source.to_string())));
            let found = self.downloader.newest(source)?;
            let digest = self.store(&found.content)?;
            return Ok(LockedSource::new(source.clone(), found.version, digest));
        }
        let old = old.ok_or_else(|| format!("{source} is not in {SOURCE_LOCK_FILE}"))?;
        if self.cache.get(&old.digest).is_ok() {
            return Ok(old.clone());
        }
        console.report(&format!("downloading {}", escape(&source.to_string())));
        let found = self.downloader.locked(old)?;
        let digest = self.store(&found.content)?;
        if digest == old.digest {
            return Ok(old.clone());
        }
        Err(format!(
            "{source} is refused: its content is not that of the lock file; if the change is \
             expected, run `fleetwright sources update`"
        ))
    }

    fn store(&self, content: &[u8]) -> Result<String, String> {
        self.cache.put(content).map_err(|error| format!("the cache cannot be written: {error}"))
    }

    /// Writes the lock file, or compares it; prints the differences.
    fn finish(
        mut self,
        requested: &SourceRequests,
        path: &Path,
        console: &mut Console,
    ) -> Result<Exit, CliError> {
        for source in self.failures.keys() {
            // A source that failed keeps its entry: a failed download removes nothing.
            if let Some(old) = self.old.get(source).filter(|_| !self.is_check) {
                self.locked.insert(source.clone(), old.clone());
            }
        }
        let mut out = String::new();
        let removed: Vec<&ExternalSource> =
            self.old.keys().filter(|source| !requested.contains(*source)).collect();
        for (source, locked) in &self.locked {
            let version = &locked.version;
            let line = match self.old.get(source) {
                None => format!("+ {source} at {version}"),
                Some(old) if old != locked => {
                    format!("~ {source} from {} to {version}", old.version)
                }
                Some(_) => continue,
            };
            let _ = writeln!(out, "{}", escape(line.trim_end_matches(" at ")));
        }
        for source in &removed {
            let _ = writeln!(out, "- {}", escape(&source.to_string()));
        }
        for why in self.failures.values() {
            let _ = writeln!(out, "! {}", escape(why));
        }
        let (used, failed) = (self.locked.len(), self.failures.len());
        let is_same = out.is_empty();
        if self.is_check {
            let is_complete = removed.is_empty() && failed == 0;
            let _ = if is_complete {
                writeln!(out, "{SOURCE_LOCK_FILE} is complete: {}.", sources(used))
            } else {
                writeln!(
                    out,
                    "{SOURCE_LOCK_FILE} is not complete: {failed} failed, {} not used. Run \
                     `fleetwright sources update`.",
                    removed.len()
                )
            };
            console.print(&out)?;
            return Ok(if is_complete { Exit::Done } else { Exit::Failed });
        }
        let digests: Vec<&str> = self.locked.values().map(|locked| &*locked.digest).collect();
        self.cache.prune(&digests);
        if !is_same && (used > 0 || !self.old.is_empty()) {
            let lock = SourceLock::new(self.locked.values().cloned().collect());
            let text = canonical::pretty(&lock).map_err(CliError::new)?;
            files::write(&path.join(SOURCE_LOCK_FILE), &text)?;
        }
        if used == 0 && self.old.is_empty() && failed == 0 {
            console.print("The repository uses no external sources.\n")?;
            return Ok(Exit::Done);
        }
        let _ = match failed {
            0 => writeln!(out, "{SOURCE_LOCK_FILE}: {}.", sources(used)),
            _ => writeln!(out, "{SOURCE_LOCK_FILE}: {}, {failed} failed.", sources(used)),
        };
        console.print(&out)?;
        Ok(if failed == 0 { Exit::Done } else { Exit::Failed })
    }
}

fn sources(count: usize) -> String {
    if count == 1 { "1 source".to_owned() } else { format!("{count} sources") }
}
