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
    groups_grow_by_number_and_shrink_by_name = "nodegroups.txt";
    what_fargate_takes_needs_no_node = "fargate.txt";
    teams_get_nodes_of_their_own = "teams.txt";
    the_quickstart_runs_to_its_end = "quickstart.txt";
    the_loop_keeps_a_fleet_together_with_its_repository = "run.txt";
    an_unknown_instance_type_is_named = "unknown-instance-type.txt";
    a_bad_quantity_makes_the_plan_errored = "bad-quantity.txt";
    a_pod_that_fits_nothing_is_explained = "pod-that-fits-nothing.txt";
    a_limit_is_held = "limit-reached.txt";
    a_missing_reference_is_an_error = "missing-references.txt";
    circles_end = "circles.txt";
    an_object_is_defined_once = "defined-twice.txt";
    nothing_to_plan_from_is_no_empty_plan = "no-manifests.txt";
    an_unreadable_file_removes_nothing = "unreadable-file.txt";
    directories_work_trees_and_commits_are_planned = "revisions.txt";
    a_world_is_empty_a_file_or_embedded = "worlds.txt";
    the_repository_may_name_its_world = "world-of-the-repository.txt";
    what_must_not_be_applied_is_refused = "apply-refused.txt";
    an_overtaken_plan_is_stale = "overtaken-plan.txt";
    a_plan_is_made_again_before_it_is_applied = "pinned-plan.txt";
    every_end_has_its_exit_code = "exit-codes.txt";
    an_apply_is_a_stream_of_messages = "apply-json.txt";
    usage_errors_end_with_1 = "usage.txt";
    hostile_names_are_shown_and_not_obeyed = "hostile-names.txt";
    a_plan_is_shown_and_saved = "plan-options.txt";
    demand_is_chosen = "demand.txt";
    the_clock_is_foreseen = "forecast.txt";
    a_plan_may_cover_a_part = "scope.txt";
    a_plan_is_applied_once_approved = "approval.txt";
    the_catalogue_is_listed_and_explained = "catalog.txt";
    what_nodes_offer_is_told_and_what_pods_may_ask = "resources.txt";
    pods_and_nodes_are_explained = "explain.txt";
    placed_pods_are_explained_by_their_rules = "explain-rules.txt";
    a_stateful_set_keeps_its_zones = "stateful-set-keeps-its-zones.txt";
    shells_complete = "completions.txt";
    a_static_pool_keeps_its_number = "static-pool.txt";
    budgets_are_kept_plan_after_plan = "budgets.txt";
    what_one_node_holds_is_limited = "failure-domains.txt";
    a_reservation_is_used_up_first = "reservations.txt";
    an_overlay_changes_price_and_capacity = "overlay.txt";
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

#[test]
fn the_story_of_exit_codes_tells_every_one_that_the_readme_lists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = fs::read_to_string(root.join("README.md")).expect("readable");
    let story = root.join("tests/it/scripts/exit-codes.txt");
    let story = fs::read_to_string(story).expect("readable");
    let table = readme.lines().skip_while(|line| !line.starts_with("| exit code |")).skip(2);
    let codes: Vec<&str> =
        table.map_while(|line| line.strip_prefix("| ")?.split(' ').next()).collect();
    assert_eq!(codes.first().zip(codes.last()), Some((&"0", &"130")), "{codes:?}");
    for code in codes {
        let told = story.lines().any(|line| match line.strip_prefix("run ") {
            Some(run) if code == "0" => !run.contains(" -> "),
            Some(run) => run.ends_with(&format!(" -> {code}")),
            None => false,
        });
        // Nothing waits in an embedded world, whose clock jumps: `binary` interrupts a program.
        assert_eq!(told, code != "130", "{code}");
    }
}
