//! Work in turns: what takes long goes on after the other jobs that wait
//! (docs/design.md, Bounds).

use std::time::{Duration, Instant};

use super::early::Due;
use super::{Job, ServiceContext, Services, Work};
use crate::answer::{Reply, ReplySlot, WorkJob};

/// How long a job works before the others that wait get their turn.
pub(crate) const STEP: Duration = Duration::from_millis(5);
/// Jobs in turns that are under way at a time: each keeps what it has gathered.
const GOING_ON_MAX: usize = 16;
/// Jobs in turns that wait for that; more are refused as overload. They keep their requests, which
/// count as held.
const WAITING_MAX: usize = 1024;
/// Jobs of a kind run between two looks at results and deliveries.
const JOBS_PER_ROUND: usize = 32;
/// After that time no more are begun before the next look: some take a few milliseconds each.
const ROUND: Duration = Duration::from_millis(10);

impl ServiceContext {
    /// Goes on with `job` when those that wait have had their turn. What is held for the request
    /// stays so.
    pub(crate) fn go_on_later(&mut self, slot: ReplySlot, job: WorkJob) {
        let job = Job {
            held: self.held.take(),
            ..Job::of_any_time(slot, Work::Open(job))
        };
        self.going_on.push_back(job);
    }
}

impl Services {
    /// Runs a few jobs of each kind; true if there may be more.
    pub(super) fn jobs(&mut self) -> bool {
        let began = Instant::now();
        let late = self.early_jobs(began);
        let more = self.new_jobs(began);
        self.go_on(began);
        late || more || !self.context.going_on.is_empty() || !self.waiting.is_empty()
    }

    /// Jobs for which the dispatcher has come far enough, or too late.
    fn early_jobs(&mut self, began: Instant) -> bool {
        let dispatched = self.context.broker.store.watermarks().dispatched();
        for _ in 0..JOBS_PER_ROUND {
            match self.early.next(dispatched, began) {
                Some(Due::Readable(job)) => self.begin(job),
                Some(Due::Late(job)) if job.needs_newest => {
                    self.context.reply(job.slot, Reply::overload());
                }
                Some(Due::Late(job)) => self.begin(job),
                None => return false,
            }
            if began.elapsed() >= ROUND {
                break;
            }
        }
        true
    }

    fn new_jobs(&mut self, began: Instant) -> bool {
        let dispatched = self.context.broker.store.watermarks().dispatched();
        for _ in 0..JOBS_PER_ROUND {
            if self.early.is_full() {
                return false;
            }
            let Ok(job) = self.inbox.jobs.try_recv() else {
                return false;
            };
            if job.readable_from <= dispatched {
                self.begin(job);
            } else {
                self.early.push(job.readable_from, began, job);
            }
            if began.elapsed() >= ROUND {
                break;
            }
        }
        true
    }

    /// Runs a job, or its first turn if there may be one more in turns.
    fn begin(&mut self, job: Job) {
        let in_turns = matches!(job.work, Work::Turns(_));
        if !in_turns || (self.may_begin() && self.waiting.is_empty()) {
            self.job(job);
        } else if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(job);
        } else {
            self.context.reply(job.slot, Reply::overload());
        }
    }

    fn may_begin(&self) -> bool {
        self.context.going_on.len() < GOING_ON_MAX
    }

    /// Those that go on, each at most once, and those that waited for their first turn; one of each
    /// at least, however much time the others took.
    fn go_on(&mut self, began: Instant) {
        while self.may_begin()
            && let Some(job) = self.waiting.pop_front()
        {
            self.job(job);
            if began.elapsed() >= ROUND {
                break;
            }
        }
        for _ in 0..self.context.going_on.len().min(JOBS_PER_ROUND) {
            let Some(job) = self.context.going_on.pop_front() else {
                return;
            };
            self.job(job);
            if began.elapsed() >= ROUND {
                return;
            }
        }
    }

    fn job(&mut self, job: Job) {
        let Job {
            slot, work, held, ..
        } = job;
        self.context.held = held;
        match work {
            Work::Later(work) => {
                let reply = work(&mut self.context);
                self.context.reply(slot, reply);
            }
            Work::Open(work) | Work::Turns(work) => work(&mut self.context, slot),
            Work::Pull(pull) => self.context.pull(slot, pull),
        }
        // Unless it goes on with the job.
        self.context.held = None;
    }
}
