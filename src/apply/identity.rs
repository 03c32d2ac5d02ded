//! The identity of a change, and the client tokens of its launches.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::ids::{Address, ChangeId, PlanId};

/// Most characters of a client token that are used; EC2 accepts 64.
const TOKEN_LENGTH: usize = 60;

/// Returns the identity of the change at `address`.
pub(super) fn change_id(plan_id: &PlanId, address: &Address) -> ChangeId {
    hash(&format!("{plan_id}\n{address}")).into()
}

/// Returns the client token of the `attempt`-th launch of a change.
pub(super) fn client_token(change_id: &ChangeId, attempt: u32) -> String {
    let mut token = hash(&format!("{change_id}\n{attempt}"));
    token.truncate(TOKEN_LENGTH);
    token
}

fn hash(text: &str) -> String {
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
