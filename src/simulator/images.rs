//! Images: the images that node class selectors resolve to, and their releases.
//!
//! A release contains an image for all hardware. A selector without launches resolves to nothing.

use super::state::{IMAGE_PREFIX, WorldState};
use crate::model::ids::ImageId;
use crate::model::observed::{Hardware, ImageChoice};

impl WorldState {
    /// Returns the image for a launch. The first use of a selector releases its first image.
    pub(super) fn image_for(&mut self, words: &str, hardware: Hardware) -> Option<ImageId> {
        if words.is_empty() {
            return None;
        }
        if !self.resolved.images.contains_key(words) {
            self.release_image(words);
        }
        self.resolved.image(words, hardware).cloned()
    }

    /// Releases a new image for the selector `words`.
    pub(super) fn release_image(&mut self, words: &str) {
        let mut choice = |hardware: &Hardware| {
            self.counters.images += 1;
            let id = format!("{IMAGE_PREFIX}{:012x}", self.counters.images);
            ImageChoice { id: id.into(), hardware: *hardware }
        };
        let choices = Hardware::ALL.iter().map(&mut choice).collect();
        self.resolved.images.insert(words.to_owned(), choices);
    }
}
