//! `preflight`: checks the prerequisites of planning and applying live.

use std::fmt::Write as _;

use super::cluster_pools;
use super::error::CliError;
use super::settings::SourceSettings;
use super::world_choice::WorldChoice;
use super::{Console, Exit, live, source_tree};
use crate::apply::ports::{Prerequisite, PrerequisiteState};
use crate::render::escape;

pub(super) fn run(source: &SourceSettings, console: &mut Console) -> Result<Exit, CliError> {
    let repository = cluster_pools::read_leniently(&source_tree::read(source)?, &WorldChoice::Live);
    let prerequisites = live::preflight(&repository)?;
    console.print(&text(&prerequisites))?;
    let met = |r: &Prerequisite| matches!(r.state, PrerequisiteState::Met { .. });
    Ok(if prerequisites.iter().all(met) { Exit::Done } else { Exit::NotApproved })
}

/// Returns a line for each requirement, followed by its remedy if it is missing.
fn text(prerequisites: &[Prerequisite]) -> String {
    let longest = prerequisites.iter().map(|r| r.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    let (mut missing, mut unknown) = (0_usize, 0_usize);
    for Prerequisite { name, state } in prerequisites {
        let (mark, detail, remedy) = match state {
            PrerequisiteState::Met { detail } => ("ok     ", detail, None),
            PrerequisiteState::Missing { why, remedy } => {
                missing += 1;
                ("MISSING", why, Some(remedy))
            }
            PrerequisiteState::Unknown { why } => {
                unknown += 1;
                ("unknown", why, None)
            }
        };
        let (name, detail) = (escape(name), escape(detail));
        let _ = writeln!(out, "{mark}  {name:longest$}  {detail}");
        if let Some(remedy) = remedy {
            let _ = writeln!(out, "         {:longest$}  -> {}", "", escape(remedy));
        }
    }
    let all = prerequisites.len();
    let _ = match (missing, unknown) {
        (0, 0) => writeln!(out, "\nEverything is in place."),
        (0, unknown) => writeln!(out, "\nOf {all} checks, {unknown} could not be made."),
        (missing, 0) => writeln!(out, "\nOf {all} checks, {missing} failed."),
        (missing, unknown) => {
            writeln!(out, "\nOf {all} checks, {missing} failed and {unknown} could not be made.")
        }
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_requirement_has_a_remedy() {
        let unknown = PrerequisiteState::Unknown { why: "no cluster".to_owned() };
        let prerequisites = [
            Prerequisite::from_result("identity", Ok("account 1".to_owned()), "log in"),
            Prerequisite::from_result("subnets", Err("none".to_owned()), "tag them"),
            Prerequisite { name: "image".to_owned(), state: unknown },
        ];
        assert_eq!(
            text(&prerequisites),
            "ok       identity  account 1\n\
             MISSING  subnets   none\n                   -> tag them\n\
             unknown  image     no cluster\n\nOf 3 checks, 1 failed and 1 could not be made.\n"
        );
    }
}
