//! Many small looks at the disk at once: one after the other, a start with cold caches would wait
//! for each in turn.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Looks under way at a time.
const THREADS: usize = 8;
/// Items from which threads are worth starting.
const WORTH: usize = 64;

/// What `look` says of each item, in the order of the items. It must not change anything: who
/// goes first is not told.
pub(crate) fn map<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    if items.len() < WORTH {
        return items.iter().map(look).collect();
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::with_capacity(items.len() / THREADS);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else {
                return done;
            };
            done.push((at, look(item)));
        }
    };
    let all = Mutex::new(Vec::with_capacity(items.len()));
    let hand_in = |mut done: Vec<(usize, R)>| {
        let mut all = all
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        all.append(&mut done);
    };
    thread::scope(|scope| {
        for _ in 1..THREADS {
            let looking = thread::Builder::new().name("opening".into());
            // Fewer threads take longer, and this one takes part.
            let _ = looking.spawn_scoped(scope, || hand_in(work()));
        }
        hand_in(work());
    });
    let mut all = all
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    all.sort_unstable_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_the_items() {
        for count in [0, 3, 1000] {
            let items: Vec<usize> = (0..count).collect();
            let doubled: Vec<usize> = items.iter().map(|item| item * 2).collect();
            assert_eq!(map(&items, |item| item * 2), doubled);
        }
    }

    #[test]
    fn looks_wait_for_the_disk_together() {
        // Each waits for the others: one after the other they would never end.
        let together = std::sync::Barrier::new(THREADS);
        let items = [(); THREADS * 8];
        map(&items, |()| together.wait());
    }
}
