//! The stories of `scripts/`, one test each.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Makes a test of each story, and the list that the directory is held to.
macro_rules! stories {
    ($($name:ident = $file:literal;)*) => {
        const STORIES: &[&str] = &[$($file),*];
        $(
            #[test]
            fn $name() {
                crate::script::tell($file);
            }
        )*
    };
}

stories! {
    the_workshop_is_walked_up_and_down = "eks-workshop.txt";
    the_provisioner_is_walked_down = "provisioner.txt";
    teams_get_nodes_of_their_own = "teams.txt";
    the_quickstart_runs_to_its_end = "quickstart.txt";
}

#[test]
fn every_story_is_told() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts");
    let files = fs::read_dir(directory)
        .expect("listed")
        .map(|entry| entry.expect("listed").file_name().into_string().expect("names are text"));
    let told: BTreeSet<String> = STORIES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(files.collect::<BTreeSet<_>>(), told);
}
