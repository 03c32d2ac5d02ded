//! Single placements, in every sequence.

use std::collections::BTreeSet;

use super::stage::{Scene, Stage};

impl Stage {
    /// No running pod is moved off a node that stays, and the others can be placed one by one.
    pub(super) fn is_reached_by_single_steps(&self) -> Result<(), String> {
        for seat in &self.seats {
            for (group, staying) in self.demand.groups.iter().zip(&seat.staying) {
                let ran = group.running.get(&seat.node.name).copied().unwrap_or(0);
                if *staying != ran {
                    let (name, node) = (&group.workload, &seat.node.name);
                    return Err(self.story(&format!("{name} is moved off {node}, which stays")));
                }
            }
        }
        let mut scene = self.planned(0, None);
        let coming: Vec<Vec<u32>> = self.seats.iter().map(|seat| seat.coming.clone()).collect();
        if reaches(&mut scene, &coming) {
            return Ok(());
        }
        Err(self.story("no sequence of single placements leads where the plan has the pods"))
    }
}

/// Returns whether some sequence of single placements, each of which the scheduler's filters allow,
/// ends with `coming` pods of each group on each node.
fn reaches(scene: &mut Scene, coming: &[Vec<u32>]) -> bool {
    fn step(
        scene: &mut Scene,
        left: &mut Vec<Vec<u32>>,
        seen: &mut BTreeSet<Vec<Vec<u32>>>,
    ) -> bool {
        if left.iter().flatten().all(|count| *count == 0) {
            return true;
        }
        if !seen.insert(left.clone()) {
            return false;
        }
        for node in 0..left.len() {
            for group in 0..left[node].len() {
                let (class, index) = (scene.classes[group], scene.nodes[node]);
                if left[node][group] == 0 || scene.scheduler.fits(class, index).is_err() {
                    continue;
                }
                scene.scheduler.bind(class, index);
                left[node][group] -= 1;
                if step(scene, left, seen) {
                    return true;
                }
                left[node][group] += 1;
                scene.scheduler.unbind(class, index);
            }
        }
        false
    }
    step(scene, &mut coming.to_vec(), &mut BTreeSet::new())
}
