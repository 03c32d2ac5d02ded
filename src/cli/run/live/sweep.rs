//! Sweeps what launches leave behind, while this replica leads and acts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::aws::Aws;
use crate::port::Cloud;

/// Between two sweeps; the first comes after as long.
const SWEEP_EVERY: Duration = Duration::from_hours(1);

/// How old a launch template is that is swept: no launch takes as long.
const AGE_MIN: Duration = Duration::from_hours(24);

/// Sweeps for as long as it is polled, whenever `acts` says so then.
pub(super) async fn sweep(aws: &Aws, account: &impl Cloud, acts: &Cell<bool>) {
    let mut left = BTreeMap::new();
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        if !acts.get() {
            continue;
        }
        let swept = match account.holdings().await {
            Ok(holdings) => {
                let tags = holdings.instances.iter().map(|instance| &instance.tags);
                aws.sweep_templates(AGE_MIN, &left, tags).await
            }
            Err(error) => Err(error),
        };
        match swept {
            Ok(swept) => {
                if swept.gone > 0 {
                    let swept = swept.gone;
                    tracing::info!(swept, "launch templates that nobody needs were deleted");
                }
                for (template, error) in &swept.left {
                    tracing::warn!(template, error, "a launch template was not deleted");
                }
                left = swept.left;
            }
            // Nothing depends on it, and the next sweep comes.
            Err(error) => tracing::warn!(%error, "launch templates were not swept"),
        }
    }
}
