//! `observe`: save what runs as a world file.

use super::error::CliError;
use super::settings::ObserveSettings;
use super::world::{self, WorldChoice};
use super::{Console, Exit, files, planning, wire};

pub(super) fn run(settings: &ObserveSettings, console: &mut Console) -> Result<Exit, CliError> {
    let ObserveSettings { source, world, out } = settings;
    let repository = wire::read_repository(&planning::read(source)?)?;
    let world = match world {
        Some(world) => world.clone(),
        None => WorldChoice::parse(&repository.fleet.world)?,
    };
    let observed = world::observe(&world, &repository, None, console)?;
    let json = wire::world_json(&observed)?;
    match out {
        None => console.print(&json)?,
        Some(out) => {
            files::write(out, &json)?;
            let (nodes, pods) = (observed.nodes.len(), observed.pods.len());
            let out = out.display();
            console.say(&format!("Saved {nodes} nodes and {pods} pods as {out}."));
        }
    }
    Ok(Exit::Done)
}
