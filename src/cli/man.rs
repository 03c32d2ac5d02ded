//! `man`: prints or writes man pages.

use std::path::Path;

use super::error::CliError;
use super::{Console, Exit, help};

pub(super) fn run(directory: Option<&Path>, console: &mut Console) -> Result<Exit, CliError> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        clap_mangen::Man::new(help::command()).render(&mut page).map_err(CliError::new)?;
        console.print(&String::from_utf8_lossy(&page))?;
        return Ok(Exit::Done);
    };
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(help::command(), directory))
        .map_err(|error| {
            CliError::new(error)
                .context(format!("cannot write man pages to `{}`", directory.display()))
        })?;
    console.report(&format!("Wrote man pages to {}.", directory.display()));
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use crate::cli::Exit;
    use crate::cli::tests::run_command;

    #[test]
    fn each_command_has_a_man_page() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("man1");
        let ran = run_command(&["man", path.to_str().expect("UTF-8")]);
        assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        for name in ["fleetwright.1", "fleetwright-plan.1", "fleetwright-catalog-list.1"] {
            let page = std::fs::read_to_string(path.join(name)).expect("a page");
            assert!(page.contains(".SH NAME"), "{page}");
        }
        assert!(run_command(&["man"]).out.contains(".SH NAME"));
    }
}
