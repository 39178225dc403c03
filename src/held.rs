//! Bytes of requests that a core keeps while another thread works for them
//! (docs/design.md, Network cores).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most bytes held for the requests of one core.
const MOST: usize = 64 << 20;
/// Requests up to this size are bounded by their number, and never wait for the large ones.
const SMALL: usize = 4 << 10;

/// What is held for one core.
#[derive(Clone, Debug, Default)]
pub struct HeldBytes(Arc<AtomicUsize>);

/// Counts as held until it is dropped.
#[derive(Debug)]
pub struct Held {
    of: HeldBytes,
    bytes: usize,
}

impl HeldBytes {
    /// Whether a request of so many bytes may be held now.
    pub fn has_room(&self, bytes: usize) -> bool {
        bytes <= SMALL || self.0.load(Ordering::Relaxed) < MOST
    }

    /// Counts `bytes` as held.
    pub fn hold(&self, bytes: usize) -> Held {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Held {
            of: self.clone(),
            bytes,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_find_no_room_until_others_are_let_go_and_small_ones_always_do() {
        let held = HeldBytes::default();
        let first = held.hold(MOST - 1);
        assert!(held.has_room(16 << 20), "one may go over it");
        let second = held.hold(1);
        assert!(!held.has_room(SMALL + 1) && held.has_room(SMALL));
        drop(second);
        assert!(held.has_room(SMALL + 1));
        drop(first);
        assert!(held.has_room(usize::MAX));
    }
}
