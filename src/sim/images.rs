//! Images: what the words of node classes mean, and what is released behind them.
//!
//! One image is released at a time for all hardware. Words that nobody launched from yet mean nothing.

use super::state::State;
use crate::fleet::{Hardware, ImageChoice};
use crate::ids::ImageId;

impl State {
    /// Returns the image that a machine is launched from; the first of its words is released by that.
    pub(super) fn image_of(&mut self, words: &str, hardware: Hardware) -> Option<ImageId> {
        if words.is_empty() {
            return None;
        }
        if !self.resolved.images.contains_key(words) {
            self.release_image(words);
        }
        self.resolved.image(words, hardware).cloned()
    }

    /// Releases a new image behind `words`.
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

/// What the ids of simulated images begin with: EC2's have 17 digits.
pub(super) const IMAGE_PREFIX: &str = "ami-00000";
