//! Where the command line meets what is still being built beside it.
//!
//! The function has the signature it will keep; its body waits for the interplay of apply with the
//! embedded world.

use super::error::CliError;
use super::world::WorldChoice;
use super::{Console, Exit};
use crate::plan::Plan;

/// Carries an approved plan out in `world`, with progress on stderr and the receipt on stdout.
pub(super) fn apply(
    _plan: &Plan,
    _world: &WorldChoice,
    _console: &mut Console,
) -> Result<Exit, CliError> {
    Err(CliError::text("apply is not wired yet"))
}
