//! Deletes unused launch templates and instance profiles while this replica leads and may act.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::adapters::aws::Aws;
use crate::apply::ports::Cloud;

/// Time between two sweeps, and before the first.
const SWEEP_INTERVAL: Duration = Duration::from_hours(1);

/// The minimum age of a deleted resource: no launch takes as long.
const AGE_MIN: Duration = Duration::from_hours(24);

/// Sweeps at each interval while `may_act` is set, for as long as it is polled.
pub(super) async fn sweep_launch_resources(aws: &Aws, account: &impl Cloud, may_act: &Cell<bool>) {
    let mut left = BTreeMap::new();
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        if !may_act.get() {
            continue;
        }
        let swept = match account.inventory().await {
            Ok(inventory) => {
                let tags = inventory.instances.iter().map(|instance| &instance.tags);
                aws.delete_unused_templates(AGE_MIN, &left, tags).await
            }
            Err(error) => Err(error),
        };
        match swept {
            Ok(swept) => {
                if swept.deleted > 0 {
                    let swept = swept.deleted;
                    tracing::info!(swept, "unused launch templates deleted");
                }
                for (template, error) in &swept.failed {
                    tracing::warn!(template, error, "cannot delete launch template");
                }
                left = swept.failed;
            }
            // Nothing depends on this sweep, and the next one follows.
            Err(error) => tracing::warn!(%error, "cannot sweep launch templates"),
        }
        match aws.delete_unused_profiles(AGE_MIN).await {
            Ok(swept) => {
                if swept.deleted > 0 {
                    let swept = swept.deleted;
                    tracing::info!(swept, "unused instance profiles deleted");
                }
                for (profile, error) in &swept.failed {
                    tracing::warn!(profile, error, "cannot delete instance profile");
                }
            }
            Err(error) => tracing::warn!(%error, "cannot sweep instance profiles"),
        }
    }
}
