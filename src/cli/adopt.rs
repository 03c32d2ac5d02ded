//! `adopt`: take over running nodes without replacing them.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::error::CliError;
use super::repository::Repository;
use super::settings::{AdoptSettings, Format};
use super::world;
use super::world_choice::WorldChoice;
use super::{Console, Exit, cluster_pools, embedded, output, planning, source_tree};
use crate::apply::adoption::{AdoptRow, Adoption, adoption, with_adopted_nodes};
use crate::apply::ports::{PortError, Tagger};
use crate::model::desired::Desired;
use crate::model::observed::Observed;
use crate::model::plural::count;
use crate::plan::{Plan, breakdown};
use crate::planner;
use crate::render::html_fragments::summary;
use crate::render::{Verbosity, escape, text};

/// Instances that are tagged between two renewals of the lease.
#[cfg(feature = "cluster")]
const TAG_BATCH: usize = 20;

const QUESTION: &str = "Adopt these nodes? Only \"yes\" is accepted.";

/// Most adopted nodes, and most skipped nodes, that are listed one by one.
const LISTED_MAX: usize = 200;

pub(super) fn run(settings: &AdoptSettings, console: &mut Console) -> Result<Exit, CliError> {
    let tree = source_tree::read(&settings.source)?;
    let (repository, choice) =
        cluster_pools::read_over(&tree, settings.world.as_ref(), &settings.source)?;
    choice.require_cluster("adopt")?;
    let observed = world::observe(&choice, &repository, None, console)?;
    let adoption = find_adoption(&repository.desired, &observed)?;
    if let Format::Document(format) = settings.format {
        let contested = adoption.is_contested();
        let listed = AdoptionReport { digest: adoption.digest(), contested, adoption: &adoption };
        console.print(&output::document(&listed, format)?)?;
        return Ok(Exit::Done);
    }
    let after = with_adopted_nodes(&observed, &adoption.rows);
    let plan = make_plan(settings, &repository, &choice, &after)?;
    console.print(&adoption_text(&adoption, &plan))?;
    if adoption.rows.is_empty() {
        return Ok(Exit::Done);
    }
    if adoption.is_contested() {
        return Err(contested_error(&adoption));
    }
    approve(&adoption, settings, console)?;
    let done = carry_out(&choice, &repository, &adoption, console)?;
    console.print(&format!("\nAdopt complete! Nodes: {done} adopted.\n"))?;
    let now = world::observe(&choice, &repository, None, console)?;
    let first = make_plan(settings, &repository, &choice, &now)?;
    let style = crate::render::TextStyle {
        verbosity: Verbosity::Summary,
        ..console.style(Verbosity::Summary)
    };
    console.print(&format!("\nThe plan from now on:\n\n{}", text(&first, &style)))?;
    Ok(Exit::Done)
}

/// The output of `--format json`.
#[derive(Serialize)]
struct AdoptionReport<'a> {
    /// The value for `--approved-digest`.
    digest: String,
    /// True if adoption is refused because Karpenter still runs.
    contested: bool,
    #[serde(flatten)]
    adoption: &'a Adoption,
}

/// Returns the possible adoption of a complete observation.
fn find_adoption(desired: &Desired, observed: &Observed) -> Result<Adoption, CliError> {
    if observed.is_complete() {
        return Ok(adoption(desired, observed));
    }
    Err(CliError::text("the observation is incomplete, so no node is adopted")
        .hint("`fleetwright observe --differences` lists the incomplete sources"))
}

/// Checks under the lock that the approved adoption is unchanged and not contested.
///
/// # Errors
/// Fails if it has changed (exit code 3), when Karpenter runs (5), or when the observation is
/// incomplete.
pub(super) fn check_still_current(
    approved: &Adoption,
    desired: &Desired,
    observed: &Observed,
) -> Result<(), CliError> {
    let now = find_adoption(desired, observed)?;
    if now.is_contested() {
        return Err(contested_error(&now));
    }
    check_digest(&approved.digest(), &now)
}

fn check_digest(approved: &str, now: &Adoption) -> Result<(), CliError> {
    let digest = now.digest();
    if approved == digest {
        return Ok(());
    }
    let why = format!("the adoption now has digest {digest}, not {approved}");
    Err(CliError::text(why).kind(Exit::Stale))
}

fn make_plan(
    settings: &AdoptSettings,
    repository: &Repository,
    choice: &WorldChoice,
    observed: &Observed,
) -> Result<Plan, CliError> {
    let fleet = &repository.fleet;
    let region = fleet.region_of(observed);
    let catalog = fleet.catalog(&region)?;
    let inputs = planning::inputs(&settings.source, repository, choice, observed, &catalog);
    let mut plan = planner::plan(&inputs);
    plan.capacity.cost.breakdown = breakdown(&plan, &fleet.commitments);
    Ok(plan)
}

/// Returns the adopted and skipped nodes in the words of `plan`.
fn adoption_text(adoption: &Adoption, plan: &Plan) -> String {
    let Adoption { rows, skipped: left, competing_autoscalers } = adoption;
    let mut out = String::new();
    for autoscaler in competing_autoscalers {
        let (workload, running) =
            (escape(&autoscaler.workload), count(autoscaler.running, "replica"));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "! {} runs: {workload}, {running}", autoscaler.kind);
    }
    for AdoptRow { address, node, instance, .. } in rows.iter().take(LISTED_MAX) {
        let (address, node) = (escape(address.as_str()), escape(node.as_str()));
        let _ = writeln!(out, "  ~ {address}  {node}  {}", escape(instance.as_str()));
    }
    write_truncated(&mut out, rows.len());
    for row in left.iter().take(LISTED_MAX) {
        let _ =
            writeln!(out, "  = {}  is skipped: {}", escape(row.node.as_str()), escape(&row.why));
    }
    write_truncated(&mut out, left.len());
    if rows.is_empty() {
        out.push_str("\nNo changes. There is no node to adopt.\n");
        return out;
    }
    let _ = writeln!(out, "\nOnly tags are added. The plan after that: {}.", summary(plan));
    let _ = writeln!(
        out,
        "\nPlan: 0 to add, {} to change, 0 to destroy.  {}",
        rows.len(),
        adoption.digest()
    );
    out
}

fn write_truncated(out: &mut String, rows: usize) {
    if rows > LISTED_MAX {
        let _ = writeln!(out, "    and {} more: --format json has all of them", rows - LISTED_MAX);
    }
}

fn contested_error(adoption: &Adoption) -> CliError {
    let autoscalers = adoption
        .competing_autoscalers
        .iter()
        .filter(|found| found.kind == crate::model::competing_autoscaler::KARPENTER);
    let names: Vec<String> = autoscalers.map(|found| found.workload.clone()).collect();
    let scale = names.first().and_then(|name| name.split_once('/')).map(|(namespace, name)| {
        format!("kubectl --namespace {namespace} scale deployment {name} --replicas=0")
    });
    let error = CliError::text(format!(
        "Karpenter runs ({}) and would compete for the nodes: nothing was adopted",
        names.join(", ")
    ))
    .kind(Exit::NotApproved);
    match scale {
        Some(scale) => error.hint(format!("stop it first: {scale}")),
        None => error,
    }
}

fn approve(
    adoption: &Adoption,
    settings: &AdoptSettings,
    console: &mut Console,
) -> Result<(), CliError> {
    if let Some(approved) = &settings.approved_digest {
        return check_digest(approved.as_str(), adoption);
    }
    if settings.auto_approve {
        return Ok(());
    }
    match console.ask(QUESTION) {
        Some(answer) if answer == "yes" => Ok(()),
        Some(_) => Err(CliError::text("not approved; nothing was changed").kind(Exit::NotApproved)),
        None => {
            Err(CliError::text("the adoption is not approved, and there is no terminal to ask at")
                .kind(Exit::NotApproved)
                .hint(format!("pass --approved-digest {}", adoption.digest()))
                .hint("or --auto-approve, which approves any adoption"))
        }
    }
}

fn carry_out(
    choice: &WorldChoice,
    repository: &Repository,
    adoption: &Adoption,
    console: &mut Console,
) -> Result<usize, CliError> {
    match choice {
        WorldChoice::Sim(directory) => {
            adopt_embedded(choice, directory, repository, adoption, console)
        }
        #[cfg(feature = "cluster")]
        WorldChoice::Live => tag_live(repository, adoption, console),
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live => {
            Err(CliError::text("this program was built without support for the live world")
                .hint("build it with the feature `cluster`"))
        }
        WorldChoice::Empty | WorldChoice::File(_) => {
            Err(CliError::text(format!("cannot adopt nodes in world `{choice}`"))
                .kind(Exit::NotApproved)
                .hint("run against a world that can change: --world live, or sim:DIRECTORY"))
        }
    }
}

fn adopt_embedded(
    choice: &WorldChoice,
    directory: &Path,
    repository: &Repository,
    adoption: &Adoption,
    console: &mut Console,
) -> Result<usize, CliError> {
    let _lock = super::lock::WorldLock::acquire(directory, std::time::Duration::ZERO, console)?;
    let now = world::observe(choice, repository, None, console)?;
    check_still_current(adoption, &repository.desired, &now)?;
    let world = embedded::open_in(directory, repository, now.taken_at)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(CliError::new)?;
    runtime.block_on(tag_all(&world, &adoption.rows)).map_err(CliError::new)?;
    world.save().map_err(CliError::new)?;
    Ok(adoption.rows.len())
}

/// Tags the instances of an approved adoption under the lease of applies, unless it has changed.
/// Returns the number of instances.
#[cfg(feature = "cluster")]
fn tag_live(
    repository: &Repository,
    adoption: &Adoption,
    console: &mut Console,
) -> Result<usize, CliError> {
    use super::live::{block_on, connect};
    use crate::adapters::kube::{LEASE_NAME, LEASE_NAMESPACE, LeaseClient, LeaseError};
    use crate::adapters::system_clock::SystemClock;
    use crate::apply::ports::Clock as _;

    block_on(async {
        let live = connect(repository).await?;
        let holder = format!("adopt/{}/{}", std::process::id(), SystemClock.now().as_millisecond());
        let lease = LeaseClient::new(&live.kubernetes, LEASE_NAMESPACE, LEASE_NAME, holder);
        let locked = |error: LeaseError| CliError::new(error).kind(Exit::Locked);
        let mut held =
            super::lease::acquire_lease(&lease, std::time::Duration::ZERO, console).await?;
        let mut done = check_still_current(adoption, &repository.desired, &live.observe().await);
        // One batch is tagged long before the lease expires.
        for rows in adoption.rows.chunks(TAG_BATCH) {
            if done.is_err() {
                break;
            }
            held = lease.renew(&held, SystemClock.now()).await.map_err(locked)?;
            done = tag_all(&live.aws, rows).await.map_err(CliError::new);
        }
        // A lease that is not released expires.
        drop(lease.release(&held, SystemClock.now()).await);
        done.map(|()| adoption.rows.len())
    })
}

/// Tags every instance. A repeated run recognizes tagged instances as managed.
pub(super) async fn tag_all(tagger: &impl Tagger, rows: &[AdoptRow]) -> Result<(), PortError> {
    for row in rows {
        tagger.tag(&row.instance, &row.tags).await?;
        tracing::info!(instance_id = %row.instance, node = %row.node, "adopted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::competing_autoscaler::competing_autoscalers;
    use crate::model::observed::Completeness;
    use crate::testing::Scenario;
    use crate::testing::pods::deployment;
    use crate::testing::world::live_workload;

    type Mutation<'a> = &'a dyn Fn(&mut Observed);

    /// Returns a cluster whose instances have no tags.
    fn untagged() -> Scenario {
        let mut scenario = Scenario::new(&["m5.large"], 1500, 512);
        let _ = scenario.step(2);
        for instance in scenario.observed.instances.values_mut() {
            instance.tags.clear();
        }
        scenario
    }

    #[test]
    fn adoption_must_be_unchanged_under_the_lock() {
        let karpenter = |observed: &mut Observed| {
            let id = deployment("kube-system", "karpenter");
            observed.workloads.push(live_workload(&id, 2));
            assert_eq!(competing_autoscalers(observed, None).len(), 1);
        };
        let one_less = |observed: &mut Observed| drop(observed.nodes.pop_last());
        let made_again = |observed: &mut Observed| {
            observed.nodes.values_mut().for_each(|node| node.uid = "other".into());
        };
        let unread = |observed: &mut Observed| {
            let lost = Completeness::Partial { reason: "lost".to_owned() };
            observed.sources.insert("kubernetes".to_owned(), lost);
        };
        let nothing = |_: &mut Observed| {};
        let cases: [(&str, Mutation, Option<Exit>); 5] = [
            ("nothing", &nothing, None),
            ("one less", &one_less, Some(Exit::Stale)),
            ("made again", &made_again, Some(Exit::Stale)),
            ("Karpenter is back", &karpenter, Some(Exit::NotApproved)),
            ("not all is read", &unread, Some(Exit::Failed)),
        ];
        for (name, change, expected) in cases {
            let mut scenario = untagged();
            let approved = adoption(&scenario.desired, &scenario.observed);
            assert_eq!(approved.rows.len(), 2);
            change(&mut scenario.observed);
            let found = check_still_current(&approved, &scenario.desired, &scenario.observed);
            assert_eq!(found.err().map(|error| error.kind), expected, "{name}");
        }
    }

    #[test]
    fn auto_mode_node_is_skipped_with_its_reason() {
        let mut scenario = untagged();
        let node = scenario.node();
        node.labels.insert("eks.amazonaws.com/compute-type".into(), "auto".into());
        let found = adoption(&scenario.desired, &scenario.observed);
        let [left] = &found.skipped[..] else { panic!("{found:?}") };
        assert!(left.why.contains("EKS Auto Mode"), "{}", left.why);
        assert_eq!(found.rows.len(), 1);
    }

    #[test]
    fn managed_instance_with_other_tag_values_is_disputed() {
        let scenario = untagged();
        let rows = adoption(&scenario.desired, &scenario.observed).rows;
        let instance = &scenario.observed.instances[&rows[0].instance];
        for (tags, expected) in [
            (vec![], None),
            (vec![("fleetwright.dev/key", "0"), ("other", "x")], None),
            (vec![("fleetwright.dev/key", "7")], Some(("fleetwright.dev/key", "7"))),
            (vec![("fleetwright.dev/pool", "x")], Some(("fleetwright.dev/pool", "x"))),
        ] {
            let mut instance = instance.clone();
            instance.tags.extend(tags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
            assert_eq!(instance.conflicting_tag(&rows[0].tags), expected, "{tags:?}");
        }
    }
}
