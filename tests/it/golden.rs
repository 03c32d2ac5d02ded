//! Golden files: the expected output of runs.

use std::fs;
use std::path::Path;

/// Environment variable that updates the golden files instead of checking them.
const UPDATE: &str = "UPDATE_GOLDEN";

/// Checks that `found` equals the file `path`, relative to the root of the repository.
pub(crate) fn hold(path: &str, found: &str) -> Result<(), String> {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os(UPDATE).is_some() {
        let directory = full.parent().expect("a path below the root has a directory");
        fs::create_dir_all(directory).map_err(|error| format!("cannot write {path}: {error}"))?;
        // Tests run concurrently. The rename is atomic, so a reader gets either the old or the new
        // file.
        let temporary = full.with_extension(format!("{}.tmp", std::process::id()));
        let written = fs::write(&temporary, found).and_then(|()| fs::rename(&temporary, &full));
        return written.map_err(|error| format!("cannot write {path}: {error}"));
    }
    let expected = fs::read_to_string(&full)
        .map_err(|error| format!("cannot read {path}: {error}; {UPDATE}=1 writes it"))?;
    if expected == found {
        return Ok(());
    }
    let difference = similar::TextDiff::from_lines(expected.as_str(), found);
    let difference = difference.unified_diff().context_radius(2).header(path, "now").to_string();
    Err(format!("{path} differs from the output; {UPDATE}=1 updates it\n{difference}"))
}
