//! Queue locks for ordered consumption (docs/behaviour.md, Queue locks): which client of a group
//! may consume a queue right now. In memory only; a lock not renewed for [`LOCK_LIFE_MS`] is free.
//!
//! Times are those of [`crate::core::steady_ms`]: a clock that is set neither frees a queue that is
//! consumed nor keeps that of a consumer that died.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use papaya::HashMap as LockFreeMap;
use saturnmq_net::messages::lock::MessageQueue;

/// Life of a lock since it was last renewed, in milliseconds.
pub const LOCK_LIFE_MS: i64 = 60_000;

/// Most queues one group may hold locks for; more are not granted.
const MAX_LOCKS_PER_GROUP: usize = 100_000;
/// Most locks of all groups together; more are not granted.
const MAX_LOCKS: usize = 500_000;
/// Longest name of a topic or broker that is locked; longer ones are not granted.
const NAME_MAX: usize = 255;

#[derive(Debug)]
struct Lock {
    client: Arc<str>,
    renewed_ms: i64,
}

impl Lock {
    fn is_expired(&self, steady_ms: i64) -> bool {
        steady_ms - self.renewed_ms > LOCK_LIFE_MS
    }
}

#[derive(Debug, Default)]
struct GroupLocks {
    locks: Mutex<HashMap<MessageQueue, Lock>>,
    /// When the last lock of the group runs out; 0 when none is held.
    held_until_ms: AtomicI64,
}

impl GroupLocks {
    /// Changes the table, and `held` by as many locks as come and go.
    fn change<T>(
        &self,
        held: &AtomicUsize,
        change: impl FnOnce(&mut HashMap<MessageQueue, Lock>) -> T,
    ) -> T {
        // A panic of another holder leaves the table whole: every change is one map operation.
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        let before = locks.len();
        let result = change(&mut locks);
        held.fetch_add(locks.len(), Ordering::Relaxed);
        held.fetch_sub(before, Ordering::Relaxed);
        if locks.len() < before {
            let until = locks
                .values()
                .map(|lock| lock.renewed_ms + LOCK_LIFE_MS)
                .max();
            self.held_until_ms
                .store(until.unwrap_or(0), Ordering::Release);
        }
        result
    }

    /// Locks were taken or renewed; the mutex of the table is held.
    fn renewed(&self, steady_ms: i64) {
        self.held_until_ms
            .fetch_max(steady_ms + LOCK_LIFE_MS, Ordering::AcqRel);
    }
}

/// The queue locks of all groups.
#[derive(Debug, Default)]
pub struct QueueLocks {
    groups: LockFreeMap<Arc<str>, Arc<GroupLocks>>,
    /// Locks of all groups, those that ran out and are not swept yet included.
    held: AtomicUsize,
}

impl QueueLocks {
    /// Takes or renews `queues` for `client`; gives back those that it holds now.
    pub fn lock(
        &self,
        group: &str,
        client: &str,
        queues: Vec<MessageQueue>,
        steady_ms: i64,
    ) -> Vec<MessageQueue> {
        if queues.is_empty() {
            return queues;
        }
        let client: Arc<str> = Arc::from(client);
        let mut held = queues;
        loop {
            let locks = self.group(group);
            // A group without locks leaves the map under its mutex: start again then.
            let kept = locks.change(&self.held, |table| {
                let kept = self.keeps(group, &locks);
                if kept {
                    take(table, self.room(table.len()), &client, &mut held, steady_ms);
                    if !held.is_empty() {
                        locks.renewed(steady_ms);
                    }
                }
                kept
            });
            if kept {
                return held;
            }
        }
    }

    /// Frees those of `queues` that `client` holds.
    pub fn unlock(&self, group: &str, client: &str, queues: &[MessageQueue]) {
        let Some(group) = self.groups.pin().get(group).cloned() else {
            return;
        };
        group.change(&self.held, |locks| {
            for queue in queues {
                if locks.get(queue).is_some_and(|lock| &*lock.client == client) {
                    locks.remove(queue);
                }
            }
        });
    }

    /// Whether any lock of the group is still good.
    pub fn holds_any(&self, group: &str, steady_ms: i64) -> bool {
        self.groups
            .pin()
            .get(group)
            .is_some_and(|group| group.held_until_ms.load(Ordering::Acquire) >= steady_ms)
    }

    /// Forgets expired locks and groups without any; called now and then.
    pub fn sweep(&self, steady_ms: i64) {
        let groups = self.groups.pin();
        for (name, group) in &groups {
            group.change(&self.held, |locks| {
                locks.retain(|_, lock| !lock.is_expired(steady_ms));
                if locks.is_empty() {
                    groups.remove(name);
                }
            });
        }
    }

    /// How many more locks a group may have that has `own`.
    fn room(&self, own: usize) -> usize {
        let all = self.held.load(Ordering::Relaxed);
        let rest = MAX_LOCKS_PER_GROUP.saturating_sub(own);
        rest.min(MAX_LOCKS.saturating_sub(all))
    }

    fn keeps(&self, name: &str, group: &Arc<GroupLocks>) -> bool {
        let groups = self.groups.pin();
        groups
            .get(name)
            .is_some_and(|held| Arc::ptr_eq(held, group))
    }

    fn group(&self, name: &str) -> Arc<GroupLocks> {
        let groups = self.groups.pin();
        if let Some(group) = groups.get(name) {
            return Arc::clone(group);
        }
        Arc::clone(groups.get_or_insert_with(Arc::from(name), Arc::default))
    }
}

/// Takes or renews locks, at most `room` new ones, and leaves in `queues` those that `client` holds
/// then.
fn take(
    locks: &mut HashMap<MessageQueue, Lock>,
    mut room: usize,
    client: &Arc<str>,
    queues: &mut Vec<MessageQueue>,
    steady_ms: i64,
) {
    queues.retain(|queue| match locks.get_mut(queue) {
        Some(lock) if lock.client == *client || lock.is_expired(steady_ms) => {
            lock.client = Arc::clone(client);
            lock.renewed_ms = steady_ms;
            true
        }
        Some(_) => false,
        None if room == 0 => false,
        None if queue.topic.len().max(queue.broker_name.len()) > NAME_MAX => false,
        None => {
            room -= 1;
            let lock = Lock {
                client: Arc::clone(client),
                renewed_ms: steady_ms,
            };
            locks.insert(queue.clone(), lock);
            true
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(ids: &[i32]) -> Vec<MessageQueue> {
        ids.iter()
            .map(|&queue_id| MessageQueue {
                topic: "T".into(),
                broker_name: "b".into(),
                queue_id,
            })
            .collect()
    }

    fn ids(queues: &[MessageQueue]) -> Vec<i32> {
        queues.iter().map(|queue| queue.queue_id).collect()
    }

    #[test]
    fn a_lock_belongs_to_one_client_until_it_expires() {
        let locks = QueueLocks::default();
        assert_eq!(ids(&locks.lock("g", "a", queues(&[0, 1]), 1000)), [0, 1]);
        assert_eq!(ids(&locks.lock("g", "b", queues(&[1, 2]), 1000)), [2]);
        assert_eq!(ids(&locks.lock("g", "a", queues(&[0]), 50_000)), [0]);
        let late = 1001 + LOCK_LIFE_MS;
        assert_eq!(
            ids(&locks.lock("g", "b", queues(&[0, 1]), late)),
            [1],
            "0 was renewed"
        );
    }

    #[test]
    fn only_the_holder_unlocks() {
        let locks = QueueLocks::default();
        locks.lock("g", "a", queues(&[0]), 0);
        locks.unlock("g", "b", &queues(&[0]));
        assert!(locks.lock("g", "b", queues(&[0]), 1).is_empty());
        locks.unlock("g", "a", &queues(&[0]));
        assert_eq!(ids(&locks.lock("g", "b", queues(&[0]), 1)), [0]);
    }

    #[test]
    fn a_group_holds_locks_until_the_last_one_expires() {
        let locks = QueueLocks::default();
        assert!(!locks.holds_any("g", 0));
        locks.lock("g", "a", queues(&[0]), 1000);
        assert!(locks.holds_any("g", 1000 + LOCK_LIFE_MS));
        assert!(!locks.holds_any("g", 1001 + LOCK_LIFE_MS));
        locks.unlock("g", "a", &queues(&[0]));
        assert!(!locks.holds_any("g", 1000));
    }

    #[test]
    fn locks_of_many_groups_cannot_fill_the_memory() {
        let locks = QueueLocks::default();
        let all: Vec<i32> = (0..60_000).collect();
        let granted: usize = (0..10)
            .map(|n| locks.lock(&format!("g{n}"), "a", queues(&all), 0).len())
            .sum();
        assert_eq!(granted, MAX_LOCKS);
        assert_eq!(locks.lock("g0", "a", queues(&[0]), 1).len(), 1, "renewed");
        locks.unlock("g0", "a", &queues(&[0]));
        assert_eq!(locks.lock("late", "a", queues(&[0, 1]), 1).len(), 1);
        locks.sweep(2 + LOCK_LIFE_MS);
        assert_eq!(locks.held.load(Ordering::Relaxed), 0);
        let mut long = queues(&[0]);
        long[0].topic = "t".repeat(256);
        assert!(locks.lock("g", "a", long, 0).is_empty());
    }

    #[test]
    fn groups_whose_locks_expired_are_forgotten() {
        let locks = QueueLocks::default();
        for number in 0..100 {
            locks.lock(&format!("g{number}"), "a", queues(&[0]), 1000);
        }
        locks.lock("late", "a", queues(&[0]), 50_000);
        locks.sweep(1001 + LOCK_LIFE_MS);
        assert_eq!(locks.groups.len(), 1);
        assert_eq!(
            ids(&locks.lock("g0", "b", queues(&[0]), 70_000)),
            [0],
            "a forgotten group can be locked again"
        );
    }
}
