//! Files that hold what a run is expected to write.

use std::fs;
use std::path::Path;

/// Set to write the expectations instead of holding the program to them.
const UPDATE: &str = "UPDATE_GOLDEN";

/// Holds `found` to the contents of `path`, a file below the root of the repository.
pub(crate) fn hold(path: &str, found: &str) -> Result<(), String> {
    let full = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os(UPDATE).is_some() {
        let directory = full.parent().expect("a path below the root has a directory");
        fs::create_dir_all(directory).map_err(|error| format!("cannot write {path}: {error}"))?;
        // Tests run at the same time: whoever reads the file sees the old one or the new one.
        let beside = full.with_extension(format!("{}.tmp", std::process::id()));
        let written = fs::write(&beside, found).and_then(|()| fs::rename(&beside, &full));
        return written.map_err(|error| format!("cannot write {path}: {error}"));
    }
    let expected = fs::read_to_string(&full)
        .map_err(|error| format!("cannot read {path}: {error}; {UPDATE}=1 writes it"))?;
    if expected == found {
        return Ok(());
    }
    let difference = similar::TextDiff::from_lines(expected.as_str(), found);
    let difference = difference.unified_diff().context_radius(2).header(path, "now").to_string();
    Err(format!("{path} is not what comes now; {UPDATE}=1 takes it over\n{difference}"))
}
