//! `observe`: save what runs as a world file.

use super::error::CliError;
use super::repository::Repository;
use super::settings::ObserveSettings;
use super::world::{self, WorldChoice};
use super::{Console, Exit, files, planning};
use crate::fleet::write_world;

pub(super) fn run(settings: &ObserveSettings, console: &mut Console) -> Result<Exit, CliError> {
    let ObserveSettings { source, world, out } = settings;
    let repository = Repository::read(&planning::read(source)?);
    let world = match world {
        Some(world) => world.clone(),
        None => WorldChoice::parse(&repository.fleet.world)?,
    };
    let observed = world::observe(&world, &repository, None, console)?;
    let json = String::from_utf8(write_world(&observed)).map_err(CliError::new)?;
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
