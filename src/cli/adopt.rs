//! `adopt`: take over nodes that run already, without replacing them.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;

use super::error::CliError;
use super::repository::Repository;
use super::settings::{AdoptSettings, Format};
use super::world::{self, WorldChoice};
use super::{Console, Exit, embedded, planning};
use crate::adopt::{AdoptRow, Adoption, adopted, adoption};
use crate::catalog::Catalog;
use crate::engine::{self, Inputs, Scope};
use crate::fleet::Observed;
use crate::manifest::Desired;
use crate::plan::{Plan, breakdown, canonical};
use crate::port::{PortError, Tagger};
use crate::render::web::summary;
use crate::render::{Verbosity, escape, text};

const QUESTION: &str = "Take these nodes over? Only `yes` does: ";

/// Most nodes that are listed one by one, and left ones.
const LISTED_MAX: usize = 200;

pub(super) fn run(settings: &AdoptSettings, console: &mut Console) -> Result<Exit, CliError> {
    let repository = Repository::read(&planning::read(&settings.source)?);
    let choice = planning::choice(settings.world.as_ref(), &settings.source, &repository)?;
    let observed = world::observe(&choice, &repository, None, console)?;
    let adoption = seen(&repository.desired, &observed)?;
    if settings.format == Format::Json {
        let contested = adoption.is_contested();
        let listed = Listed { digest: adoption.digest(), contested, adoption: &adoption };
        console.print(&canonical::pretty(&listed).map_err(CliError::new)?)?;
        return Ok(Exit::Done);
    }
    let after = adopted(&observed, &adoption.rows);
    let plan = planned(settings, (&repository, &choice), &after)?;
    console.print(&shown(&adoption, &plan))?;
    if adoption.rows.is_empty() {
        return Ok(Exit::Done);
    }
    if adoption.is_contested() {
        return Err(contested(&adoption));
    }
    approve(&adoption, settings, console)?;
    let done = carry_out(&choice, &repository, &adoption, console)?;
    console.print(&format!("\nAdopt complete! Nodes: {done} taken over.\n"))?;
    let now = world::observe(&choice, &repository, None, console)?;
    let first = planned(settings, (&repository, &choice), &now)?;
    let style = crate::render::TextStyle {
        verbosity: Verbosity::Summary,
        ..console.style(Verbosity::Summary)
    };
    console.print(&format!("\nThe plan from now on:\n\n{}", text(&first, &style)))?;
    Ok(Exit::Done)
}

/// What `--format json` prints.
#[derive(Serialize)]
struct Listed<'a> {
    /// What `--approved-digest` takes.
    digest: String,
    /// Whether it is refused because the controller of the nodes runs still.
    contested: bool,
    #[serde(flatten)]
    adoption: &'a Adoption,
}

/// Returns what would be taken over of what was read, if all was.
fn seen(desired: &Desired, observed: &Observed) -> Result<Adoption, CliError> {
    if observed.is_complete() {
        return Ok(adoption(desired, observed));
    }
    Err(CliError::text("not everything that runs could be read, so nothing is taken over")
        .hint("`fleetwright observe --differences` says what could not"))
}

/// Checks by a look under the lock that what was approved is what would be taken over still, and that
/// nobody came to fight for it.
///
/// # Errors
/// When it is not (exit code 3), when it is fought for (5), or when the look is not complete.
pub(super) fn still(
    approved: &Adoption,
    desired: &Desired,
    observed: &Observed,
) -> Result<(), CliError> {
    let now = seen(desired, observed)?;
    if now.is_contested() {
        return Err(contested(&now));
    }
    same(&approved.digest(), &now)
}

fn same(approved: &str, now: &Adoption) -> Result<(), CliError> {
    let digest = now.digest();
    if approved == digest {
        return Ok(());
    }
    let why = format!("what would be taken over now is {digest}, not {approved}");
    Err(CliError::text(why).kind(Exit::Stale))
}

fn planned(
    settings: &AdoptSettings,
    (repository, choice): (&Repository, &WorldChoice),
    observed: &Observed,
) -> Result<Plan, CliError> {
    let fleet = &repository.fleet;
    let region = if fleet.is_declared { fleet.region.clone() } else { observed.region() };
    let catalog = Catalog::load(&region, &fleet.zones)?;
    let mut plan = engine::plan(&Inputs {
        desired: &repository.desired,
        observed,
        catalog: &catalog,
        base: planning::base_of(&settings.source, repository, choice, observed, fleet.demand),
        at: observed.taken_at,
        demand: fleet.demand,
        is_forecast: false,
        scope: Scope::default(),
        settings: fleet.solve,
    });
    plan.capacity.cost.breakdown = breakdown(&plan, &fleet.commitments);
    Ok(plan)
}

/// Returns what is taken over and what not, as `plan` words it.
fn shown(adoption: &Adoption, plan: &Plan) -> String {
    let Adoption { rows, left, rivals } = adoption;
    let mut out = String::new();
    for rival in rivals {
        let (workload, running) = (escape(&rival.workload), rival.running);
        // Writing to a string cannot fail.
        let _ = writeln!(out, "! {} runs: {workload}, {running} replicas", rival.kind);
    }
    for AdoptRow { address, node, instance, .. } in rows.iter().take(LISTED_MAX) {
        let (address, node) = (escape(address.as_str()), escape(node.as_str()));
        let _ = writeln!(out, "  ~ {address}  {node}  {}", escape(instance.as_str()));
    }
    beyond(&mut out, rows.len());
    for row in left.iter().take(LISTED_MAX) {
        let _ = writeln!(out, "  = {}  is left: {}", escape(row.node.as_str()), escape(&row.why));
    }
    beyond(&mut out, left.len());
    if rows.is_empty() {
        out.push_str("\nNo changes. There is no node to take over.\n");
        return out;
    }
    let _ = writeln!(
        out,
        "\nTags are added, and nothing else changes. Then the plan is: {}.",
        summary(plan)
    );
    let _ = writeln!(
        out,
        "\nPlan: 0 to add, {} to change, 0 to destroy.  {}",
        rows.len(),
        adoption.digest()
    );
    out
}

fn beyond(out: &mut String, rows: usize) {
    if rows > LISTED_MAX {
        let _ = writeln!(out, "    and {} more: --format json has all of them", rows - LISTED_MAX);
    }
}

fn contested(adoption: &Adoption) -> CliError {
    let rivals = adoption.rivals.iter().filter(|rival| rival.kind == crate::rival::KARPENTER);
    let names: Vec<String> = rivals.map(|rival| rival.workload.clone()).collect();
    let scale = names.first().and_then(|name| name.split_once('/')).map(|(namespace, name)| {
        format!("kubectl --namespace {namespace} scale deployment {name} --replicas=0")
    });
    let error = CliError::text(format!(
        "Karpenter runs ({}) and would fight for the nodes: nothing was taken over",
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
        return same(approved.as_str(), adoption);
    }
    if settings.auto_approve {
        return Ok(());
    }
    match console.ask(QUESTION) {
        Some(answer) if answer == "yes" => Ok(()),
        Some(_) => Err(CliError::text("not approved; nothing was changed").kind(Exit::NotApproved)),
        None => Err(CliError::text("nobody approved it, and there is no terminal to ask at")
            .kind(Exit::NotApproved)
            .hint(format!("pass --approved-digest {}", adoption.digest()))
            .hint("or --auto-approve, which approves whatever is taken over")),
    }
}

fn carry_out(
    choice: &WorldChoice,
    repository: &Repository,
    adoption: &Adoption,
    console: &mut Console,
) -> Result<usize, CliError> {
    match choice {
        WorldChoice::Sim(directory) => in_world((choice, directory), repository, adoption, console),
        #[cfg(feature = "cluster")]
        WorldChoice::Live => super::live::tag(repository, adoption, console),
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live => {
            Err(CliError::text("this program was built without what a live world needs")
                .hint("build it with the feature `cluster`"))
        }
        WorldChoice::Empty | WorldChoice::File(_) => {
            Err(CliError::text(format!("nothing can be taken over in world `{choice}`"))
                .kind(Exit::NotApproved)
                .hint("run against a world that can change: --world live, or sim:DIRECTORY"))
        }
    }
}

fn in_world(
    (choice, directory): (&WorldChoice, &Path),
    repository: &Repository,
    adoption: &Adoption,
    console: &mut Console,
) -> Result<usize, CliError> {
    let _lock = super::lock::Lock::take(directory, std::time::Duration::ZERO, console)?;
    let now = world::observe(choice, repository, None, console)?;
    still(adoption, &repository.desired, &now)?;
    let world = embedded::world_in(directory, repository, now.taken_at)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(CliError::new)?;
    runtime.block_on(tag_all(&world, &adoption.rows)).map_err(CliError::new)?;
    world.save().map_err(CliError::new)?;
    Ok(adoption.rows.len())
}

/// Tags every instance; whoever runs it again finds those that were tagged to be ours.
pub(super) async fn tag_all(tagger: &impl Tagger, rows: &[AdoptRow]) -> Result<(), PortError> {
    for row in rows {
        tagger.tag(&row.instance, &row.tags).await?;
        tracing::info!(instance_id = %row.instance, node = %row.node, "taken over");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Completeness, LiveWorkload};
    use crate::ids::{WorkloadId, WorkloadKind};
    use crate::rival::rivals;
    use crate::story::Story;

    type Change<'a> = &'a dyn Fn(&mut Observed);

    /// Returns a cluster with nodes that nobody has tagged.
    fn untagged() -> Story {
        let mut story = Story::new(&["m5.large"], 1500, 512);
        let _ = story.step(2);
        for instance in story.observed.instances.values_mut() {
            instance.tags.clear();
        }
        story
    }

    #[test]
    fn what_is_found_under_the_lock_must_be_what_was_approved() {
        let karpenter = |observed: &mut Observed| {
            observed.workloads.push(LiveWorkload {
                id: WorkloadId {
                    namespace: "kube-system".into(),
                    kind: WorkloadKind::Deployment,
                    name: "karpenter".into(),
                },
                replicas: 2,
                first_ordinal: 0,
                delivered: false,
                template: None,
            });
            assert_eq!(rivals(observed, None).len(), 1);
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
        let cases: [(&str, Change, Option<Exit>); 5] = [
            ("nothing", &nothing, None),
            ("one less", &one_less, Some(Exit::Stale)),
            ("made again", &made_again, Some(Exit::Stale)),
            ("Karpenter is back", &karpenter, Some(Exit::NotApproved)),
            ("not all is read", &unread, Some(Exit::Failed)),
        ];
        for (name, change, expected) in cases {
            let mut story = untagged();
            let approved = adoption(&story.desired, &story.observed);
            assert_eq!(approved.rows.len(), 2);
            change(&mut story.observed);
            let found = still(&approved, &story.desired, &story.observed);
            assert_eq!(found.err().map(|error| error.kind), expected, "{name}");
        }
    }

    #[test]
    fn a_node_of_auto_mode_is_left_and_says_why() {
        let mut story = untagged();
        let node = story.observed.nodes.values_mut().next().expect("a node");
        node.labels.insert("eks.amazonaws.com/compute-type".into(), "auto".into());
        let found = adoption(&story.desired, &story.observed);
        let [left] = &found.left[..] else { panic!("{found:?}") };
        assert!(left.why.contains("EKS Auto Mode"), "{}", left.why);
        assert_eq!(found.rows.len(), 1);
    }

    #[test]
    fn an_instance_that_is_ours_with_other_values_is_disputed() {
        let story = untagged();
        let rows = adoption(&story.desired, &story.observed).rows;
        let instance = &story.observed.instances[&rows[0].instance];
        for (tags, expected) in [
            (vec![], None),
            (vec![("fleetwright.dev/key", "0"), ("other", "x")], None),
            (vec![("fleetwright.dev/key", "7")], Some(("fleetwright.dev/key", "7"))),
            (vec![("fleetwright.dev/pool", "x")], Some(("fleetwright.dev/pool", "x"))),
        ] {
            let mut instance = instance.clone();
            instance.tags.extend(tags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
            assert_eq!(instance.disputed(&rows[0].tags), expected, "{tags:?}");
        }
    }
}
