//! `adopt`: take over nodes that run already, without replacing them.

use std::fmt::Write as _;
use std::path::Path;

use super::error::CliError;
use super::repository::Repository;
use super::settings::{AdoptSettings, Format};
use super::world::{self, WorldChoice};
use super::{Console, Exit, embedded, planning};
use crate::adopt::{AdoptRow, Adoption, adopted, adoption};
use crate::catalog::Catalog;
use crate::engine::{self, Inputs, Scope};
use crate::fleet::Observed;
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
    if !observed.is_complete() {
        return Err(CliError::text(
            "not everything that runs could be read, so nothing is taken over",
        )
        .hint("`fleetwright observe --differences` says what could not"));
    }
    let adoption = adoption(&repository.desired, &observed);
    if settings.format == Format::Json {
        console.print(&canonical::pretty(&adoption).map_err(CliError::new)?)?;
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
    let done = carry_out(&choice, &repository, (&observed, &adoption.rows), console)?;
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
    let rivals = adoption.rivals.iter().filter(|rival| rival.kind == "karpenter");
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
    let digest = adoption.digest();
    if let Some(approved) = &settings.approved_digest {
        if approved.as_str() == digest {
            return Ok(());
        }
        return Err(CliError::text(format!(
            "what would be taken over now is {digest}, not {approved}"
        ))
        .kind(Exit::Stale));
    }
    if settings.auto_approve {
        return Ok(());
    }
    match console.ask(QUESTION) {
        Some(answer) if answer == "yes" => Ok(()),
        Some(_) => Err(CliError::text("not approved; nothing was changed").kind(Exit::NotApproved)),
        None => Err(CliError::text("nobody approved it, and there is no terminal to ask at")
            .kind(Exit::NotApproved)
            .hint(format!("pass --approved-digest {digest}"))
            .hint("or --auto-approve, which approves whatever is taken over")),
    }
}

fn carry_out(
    choice: &WorldChoice,
    repository: &Repository,
    (observed, rows): (&Observed, &[AdoptRow]),
    console: &mut Console,
) -> Result<usize, CliError> {
    match choice {
        WorldChoice::Sim(directory) => in_world(directory, repository, (observed, rows), console),
        #[cfg(feature = "cluster")]
        WorldChoice::Live => super::live::tag(repository, rows),
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
    directory: &Path,
    repository: &Repository,
    (observed, rows): (&Observed, &[AdoptRow]),
    console: &mut Console,
) -> Result<usize, CliError> {
    let _lock = super::lock::Lock::take(directory, std::time::Duration::ZERO, console)?;
    let world = embedded::world_in(directory, repository, observed.taken_at)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(CliError::new)?;
    runtime.block_on(tag_all(&world, rows)).map_err(CliError::new)?;
    world.save().map_err(CliError::new)?;
    Ok(rows.len())
}

/// Tags every instance; whoever runs it again finds those that were tagged to be ours.
pub(super) async fn tag_all(tagger: &impl Tagger, rows: &[AdoptRow]) -> Result<(), PortError> {
    for row in rows {
        tagger.tag(&row.instance, &row.tags).await?;
        tracing::info!(instance_id = %row.instance, node = %row.node, "taken over");
    }
    Ok(())
}
