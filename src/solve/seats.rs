//! Where a packing has the pods of each group: it counts by class, and alike pods may be exchanged.

use std::collections::BTreeMap;

use super::layout::Layout;
use super::rehearse::{Placements, Settled, Stage};
use super::target::Place;

impl Stage<'_> {
    /// Takes the packing's word for where pods go.
    pub(super) fn as_packed(&self, layout: &Layout) -> Settled {
        let offers = self.choose_offers(layout);
        let unplaced = self.unplaced(layout, &self.staying(layout));
        let placements = self.places_of(layout, &unplaced);
        Settled { layout: layout.clone(), offers, placements, unplaced, packed: layout.price }
    }

    /// Returns where the packing has the pods, but for those that are left out.
    pub(super) fn places_of(&self, layout: &Layout, unplaced: &BTreeMap<usize, u32>) -> Placements {
        let mut free = self.seats(layout);
        let mut placements = Placements::new();
        for (class, seats) in self.ground.model.classes.iter().zip(&mut free) {
            let without = |group: &usize| unplaced.get(group).copied().unwrap_or(0);
            let wanted = |(group, n): &(usize, u32)| (*group, n.saturating_sub(without(group)));
            let mut wanted: Vec<(usize, u32)> = class.lots.iter().map(wanted).collect();
            // First where a group's pods run, then anywhere.
            for (group, wanted) in &mut wanted {
                let running = &self.groups[*group].running;
                let here = |place: &Place| match place {
                    Place::Node(name) => running.get(name).copied().unwrap_or(0),
                    Place::Launch(_) => 0,
                };
                if !running.is_empty() {
                    let places = placements.entry(*group).or_default();
                    for (place, room) in seats.iter_mut() {
                        sit(places, place, (wanted, room), here(place));
                    }
                }
            }
            let mut seats = seats.iter_mut().peekable();
            for (group, wanted) in &mut wanted {
                let places = placements.entry(*group).or_default();
                while let Some((place, room)) = seats.peek_mut().filter(|_| *wanted > 0) {
                    sit(places, place, (wanted, room), u32::MAX);
                    if *room == 0 {
                        seats.next();
                    }
                }
            }
        }
        placements
    }

    /// The places of each class, with how many of its pods they are for.
    fn seats(&self, layout: &Layout) -> Vec<Vec<(Place, u32)>> {
        let mut seats = vec![Vec::new(); self.ground.model.classes.len()];
        for (node, on) in self.ground.standing.iter().zip(&layout.on) {
            for (class, count) in on {
                seats[*class].push((Place::Node(node.name.clone()), *count));
            }
        }
        for (index, node) in layout.packing.opened.iter().enumerate() {
            for (class, count) in &node.pods {
                seats[*class].push((Place::Launch(index), *count));
            }
        }
        seats
    }
}

/// Puts as many pods on a place as are wanted, have room there, and may be.
fn sit(
    places: &mut BTreeMap<Place, u32>,
    place: &Place,
    (wanted, room): (&mut u32, &mut u32),
    most: u32,
) {
    let count = (*wanted).min(*room).min(most);
    if count > 0 {
        *places.entry(place.clone()).or_insert(0) += count;
        *room -= count;
        *wanted -= count;
    }
}
