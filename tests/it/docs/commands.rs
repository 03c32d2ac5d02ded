//! Runs the commands that README and book show, and compares the outputs that they show.
//!
//! A block marked `sh` holds commands. Each `text` block after it is output of these commands: its
//! lines must follow each other in the output, and a line `…` stands for any lines. A block marked
//! `console` holds commands after `$ `, each followed by its whole output. Comments before a block
//! direct the test: see [`super::page::Note`].
//!
//! Each page has a directory of its own, with a copy of the repository; the pages of the tutorial
//! share one. A path below `/tmp` is below the directory of the test. Random names, ports and the
//! hashes of commits are not compared.
//!
//! `UPDATE_GOLDEN=1` also writes the outputs into the pages. Lines that a page elides stay elided.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::thread;

use super::page::{Block, blocks};
use super::session::{Replacement, Session, Tally};
use super::{SUMMARY, links, read, root};

/// Returns the pages of each session: the tutorial in the order of the summary, then each page.
fn sessions() -> Vec<Vec<String>> {
    let summary = read(SUMMARY);
    let pages = links(&summary).into_iter().map(|link| format!("docs/src/{link}"));
    let (tutorial, mut other): (Vec<String>, Vec<String>) =
        pages.partition(|page| page.starts_with("docs/src/tutorial/"));
    other.push("README.md".to_owned());
    let mut sessions = vec![tutorial];
    sessions.extend(other.into_iter().map(|page| vec![page]));
    sessions
}

#[test]
fn commands_run_as_shown() {
    let sessions = sessions();
    let queue = Mutex::new(sessions.iter());
    let ended: Mutex<Vec<Session>> = Mutex::new(Vec::new());
    let next = || queue.lock().expect("no page runs under the lock").next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZeroUsize::get) {
            scope.spawn(|| {
                while let Some(pages) = next() {
                    let session = run_pages(pages);
                    ended.lock().expect("no page runs under the lock").extend(session);
                }
            });
        }
    });
    let mut tally = Tally::default();
    let (mut problems, mut differences, mut replacements) = (Vec::new(), Vec::new(), Vec::new());
    for session in ended.into_inner().expect("no page runs under the lock") {
        tally.add(session.tally);
        problems.extend(session.problems);
        differences.extend(session.differences);
        replacements.extend(session.replacements);
    }
    println!("{} commands ran, {} outputs were compared", tally.ran, tally.compared);
    for (why, count) in &tally.not_run {
        println!("not run ({why}): {count}");
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        write_outputs(replacements);
    } else {
        problems.extend(differences);
    }
    let count = problems.len();
    assert!(problems.is_empty(), "{}\n{count} problems", problems.join("\n\n"));
    assert!(tally.ran > 40 && tally.compared > 20, "{} ran", tally.ran);
}

/// Runs the commands of pages, unless there is nothing to run.
fn run_pages(pages: &[String]) -> Option<Session> {
    let pages: Vec<(&String, Vec<Block>)> =
        pages.iter().map(|page| (page, blocks(&read(page)))).collect();
    let matters = |block: &Block| ["sh", "console", "text"].contains(&block.language.as_str());
    pages.iter().flat_map(|(_, blocks)| blocks).find(|block| matters(block))?;
    let mut session = Session::new();
    for (page, blocks) in pages {
        session.visit(page, &blocks);
    }
    Some(session)
}

/// Writes the outputs into the pages, from the last block to the first.
fn write_outputs(mut replacements: Vec<Replacement>) {
    replacements.sort_by_key(|replacement| std::cmp::Reverse(replacement.line));
    for Replacement { page, line, old, new } in replacements {
        let text = read(&page);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let start = line - 1;
        // The fence has the indent of the block.
        let fence = &lines[start - 1];
        let indent = " ".repeat(fence.len() - fence.trim_start().len());
        let indented = |line: &str| format!("{indent}{line}").trim_end().to_owned();
        let new: Vec<String> = new.lines().map(indented).collect();
        lines.splice(start..start + old.lines().count(), new);
        fs::write(root().join(&page), lines.join("\n") + "\n").expect("written");
    }
}
