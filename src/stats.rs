//! Rates and sums over time: what request 315 and the runtime information answer, in the windows
//! that Apache's BrokerStatsManager has (docs/behaviour.md, Statistics).
//!
//! Network threads only add to counters of their own. The control thread samples the counters once
//! per second ([`Stats::tick`]); everything else is computed from the samples when it is asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{Local, NaiveDate, TimeZone};
use saturnmq_net::messages::broker::{BrokerStatsData, BrokerStatsItem};

use crate::core::{now_ms, steady_ms};
use crate::traffic::Traffic;

mod items;

/// Time between two ticks.
pub const TICK: Duration = Duration::from_secs(1);

/// Milliseconds between two samples, and how many are kept, for the minute, hour and day windows.
const WINDOWS: [(i64, usize); 3] = [(10_000, 7), (600_000, 7), (3_600_000, 25)];
/// Samples of the whole broker's traffic, one per tick: ten minutes and one more.
const STORE_SAMPLES: usize = 601;
/// Windows of `putTps` and its like, in milliseconds.
const STORE_WINDOWS: [i64; 3] = [10_000, 60_000, 600_000];

/// What one thread counts, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    put_messages: AtomicU64,
    put_bytes: AtomicU64,
    put_failed: AtomicU64,
    found: AtomicU64,
    missed: AtomicU64,
    got_messages: AtomicU64,
    got_bytes: AtomicU64,
    /// Gauges, set once per pass.
    parked: AtomicUsize,
    in_flight: AtomicUsize,
}

impl Counters {
    /// Tells how many pulls wait, and how many sends are on their way to the disk.
    pub fn set_waiting(&self, parked: usize, in_flight: usize) {
        self.parked.store(parked, Ordering::Relaxed);
        self.in_flight.store(in_flight, Ordering::Relaxed);
    }

    /// Pulls that wait for a message.
    pub fn parked(&self) -> usize {
        self.parked.load(Ordering::Relaxed)
    }

    /// Sends on their way to the disk.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Counts acknowledged messages and the bytes of their records.
    pub fn put(&self, messages: u64, bytes: u64) {
        self.put_messages.fetch_add(messages, Ordering::Relaxed);
        self.put_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a send that was refused or failed.
    pub fn put_failed(&self) {
        self.put_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a pull that found messages, and the bytes of their records.
    pub fn found(&self, messages: u64, bytes: u64) {
        self.found.fetch_add(1, Ordering::Relaxed);
        self.got_messages.fetch_add(messages, Ordering::Relaxed);
        self.got_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a pull that found none.
    pub fn missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Totals of the whole broker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages stored.
    pub put_messages: u64,
    /// Their records' bytes.
    pub put_bytes: u64,
    /// Sends refused or failed.
    pub put_failed: u64,
    /// Pulls with messages.
    pub found: u64,
    /// Pulls without.
    pub missed: u64,
    /// Messages handed out.
    pub got_messages: u64,
    /// Their records' bytes.
    pub got_bytes: u64,
}

/// Rates over ten seconds, one minute and ten minutes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rates {
    /// Messages stored per second.
    pub put: [f64; 3],
    /// Pulls with messages per second.
    pub found: [f64; 3],
    /// Pulls without messages per second.
    pub missed: [f64; 3],
    /// Pulls per second.
    pub total: [f64; 3],
    /// Messages handed out per second.
    pub transferred: [f64; 3],
}

/// A moment on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// On the one that nobody sets, ms: how long things take.
    pub steady_ms: i64,
    /// On the wall, ms since the epoch: which day it is.
    pub wall_ms: i64,
}

impl Moment {
    /// The present one.
    pub fn now() -> Self {
        Self {
            steady_ms: steady_ms(),
            wall_ms: now_ms(),
        }
    }
}

/// Messages at the last two midnights and now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Days {
    /// At the midnight before the last.
    pub yesterday_morning: u64,
    /// At the last midnight.
    pub today_morning: u64,
    /// Now.
    pub today_now: u64,
}

/// A running total at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    at_ms: i64,
    messages: u64,
    bytes: u64,
    times: u64,
}

/// Which number of an item is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Messages,
    Bytes,
}

/// The samples of one item in three windows.
#[derive(Debug, Default)]
struct Series([VecDeque<Sample>; 3]);

impl Series {
    /// A series whose item began to count after `since_ms`.
    fn begin(since_ms: i64) -> Self {
        let zero = Sample {
            at_ms: since_ms,
            ..Sample::default()
        };
        Self(std::array::from_fn(|_| VecDeque::from([zero])))
    }

    fn add(&mut self, sample: Sample) {
        for (samples, (period_ms, most)) in self.0.iter_mut().zip(WINDOWS) {
            let due = samples
                .back()
                .is_none_or(|last| sample.at_ms - last.at_ms >= period_ms - period_ms / 20);
            if due {
                samples.push_back(sample);
                if samples.len() > most {
                    samples.pop_front();
                }
            }
        }
    }

    fn data(&self, value: Value) -> BrokerStatsData {
        let [minute, hour, day] = &self.0;
        BrokerStatsData {
            stats_day: item(day, value),
            stats_hour: item(hour, value),
            stats_minute: item(minute, value),
        }
    }
}

fn item(samples: &VecDeque<Sample>, value: Value) -> BrokerStatsItem {
    let (Some(first), Some(last)) = (samples.front(), samples.back()) else {
        return BrokerStatsItem::default();
    };
    let sum = match value {
        Value::Messages => last.messages.saturating_sub(first.messages),
        Value::Bytes => last.bytes.saturating_sub(first.bytes),
    };
    let times = last.times.saturating_sub(first.times);
    BrokerStatsItem {
        sum: i64::try_from(sum).unwrap_or(i64::MAX),
        tps: per_second(sum, last.at_ms - first.at_ms),
        avgpt: if times > 0 {
            sum as f64 / times as f64
        } else {
            0.0
        },
    }
}

fn per_second(count: u64, elapsed_ms: i64) -> f64 {
    if elapsed_ms > 0 {
        count as f64 * 1000.0 / elapsed_ms as f64
    } else {
        0.0
    }
}

/// The series of a topic and of the groups that pull from it.
#[derive(Debug)]
struct TopicSeries {
    puts: Series,
    gets: HashMap<String, Series>,
    backs: HashMap<String, Series>,
    /// Milliseconds of slow reads, by `QUEUE@GROUP`.
    waits: HashMap<String, Series>,
    /// Last round of samples in which the topic was there.
    round: u64,
}

#[derive(Debug)]
struct Sampled {
    topics: HashMap<String, TopicSeries>,
    broker_puts: Series,
    broker_gets: Series,
    store: VecDeque<(i64, Totals)>,
    day: Option<NaiveDate>,
    put_days: Days,
    got_days: Days,
    last_items_ms: i64,
    round: u64,
}

/// The counters of all threads and their samples.
#[derive(Debug)]
pub struct Stats {
    threads: Box<[Counters]>,
    sampled: Mutex<Sampled>,
}

impl Stats {
    /// Counters for `threads` threads, from `now` on.
    pub fn new(threads: usize, now: Moment) -> Self {
        let now_ms = now.steady_ms;
        Self {
            threads: (0..threads.max(1)).map(|_| Counters::default()).collect(),
            sampled: Mutex::new(Sampled {
                topics: HashMap::new(),
                broker_puts: Series::begin(now_ms),
                broker_gets: Series::begin(now_ms),
                store: VecDeque::from([(now_ms, Totals::default())]),
                day: local_day(now.wall_ms),
                put_days: Days::default(),
                got_days: Days::default(),
                last_items_ms: now_ms,
                round: 0,
            }),
        }
    }

    /// The counters of a thread: a network core by its index, the services thread behind them.
    pub fn thread(&self, index: usize) -> &Counters {
        &self.threads[index.min(self.threads.len() - 1)]
    }

    /// Totals since the start.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for counters in &self.threads {
            totals.put_messages += load(&counters.put_messages);
            totals.put_bytes += load(&counters.put_bytes);
            totals.put_failed += load(&counters.put_failed);
            totals.found += load(&counters.found);
            totals.missed += load(&counters.missed);
            totals.got_messages += load(&counters.got_messages);
            totals.got_bytes += load(&counters.got_bytes);
        }
        totals
    }

    fn lock(&self) -> MutexGuard<'_, Sampled> {
        self.sampled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples the counters. `each` calls back with every topic; it is used every ten seconds.
    pub fn tick(&self, now: Moment, each: impl FnOnce(&mut dyn FnMut(&str, &Traffic))) {
        let now_ms = now.steady_ms;
        let totals = self.totals();
        let mut sampled = self.lock();
        sampled.store.push_back((now_ms, totals));
        if sampled.store.len() > STORE_SAMPLES {
            sampled.store.pop_front();
        }
        sampled.turn_day(now.wall_ms, &totals);
        // A tick that comes a little early still counts as the tenth second.
        if now_ms - sampled.last_items_ms < WINDOWS[0].0 - 500 {
            return;
        }
        sampled.sample_broker(now_ms, &totals);
        let since_ms = sampled.last_items_ms;
        sampled.round += 1;
        each(&mut |name, traffic| sampled.sample_topic(now_ms, since_ms, name, traffic));
        let round = sampled.round;
        sampled.topics.retain(|_, topic| topic.round == round);
        sampled.last_items_ms = now_ms;
    }

    /// The rates of the runtime information.
    pub fn rates(&self) -> Rates {
        let sampled = self.lock();
        let Some(&(now_ms, now)) = sampled.store.back() else {
            return Rates::default();
        };
        let mut rates = Rates::default();
        for (slot, window_ms) in STORE_WINDOWS.into_iter().enumerate() {
            let from = now_ms - window_ms;
            let before = sampled.store.iter().find(|(at_ms, _)| *at_ms >= from);
            let Some(&(then_ms, then)) = before else {
                continue;
            };
            let rate = |new: u64, old: u64| per_second(new.saturating_sub(old), now_ms - then_ms);
            rates.put[slot] = rate(now.put_messages, then.put_messages);
            rates.found[slot] = rate(now.found, then.found);
            rates.missed[slot] = rate(now.missed, then.missed);
            rates.total[slot] = rate(now.found + now.missed, then.found + then.missed);
            rates.transferred[slot] = rate(now.got_messages, then.got_messages);
        }
        rates
    }

    /// Messages stored and handed out at the last midnights and now.
    pub fn days(&self) -> (Days, Days) {
        let totals = self.totals();
        let sampled = self.lock();
        let mut days = (sampled.put_days, sampled.got_days);
        days.0.today_now = totals.put_messages;
        days.1.today_now = totals.got_messages;
        days
    }

    /// Messages per second that a group got of a topic within the last minute.
    pub fn group_tps(&self, topic: &str, group: &str) -> f64 {
        let sampled = self.lock();
        let series = sampled.topics.get(topic).and_then(|t| t.gets.get(group));
        series.map_or(0.0, |s| s.data(Value::Messages).stats_minute.tps)
    }

    /// Messages per second that a topic got within the last minute.
    pub fn topic_tps(&self, topic: &str) -> f64 {
        let sampled = self.lock();
        let topic = sampled.topics.get(topic);
        topic.map_or(0.0, |t| t.puts.data(Value::Messages).stats_minute.tps)
    }
}

impl Sampled {
    fn turn_day(&mut self, wall_ms: i64, totals: &Totals) {
        let today = local_day(wall_ms);
        let is_new = today > self.day;
        self.day = today;
        // A clock that was put back ends no day.
        if !is_new {
            return;
        }
        for (days, now) in [
            (&mut self.put_days, totals.put_messages),
            (&mut self.got_days, totals.got_messages),
        ] {
            days.yesterday_morning = days.today_morning;
            days.today_morning = now;
        }
    }

    fn sample_broker(&mut self, at_ms: i64, totals: &Totals) {
        self.broker_puts.add(Sample {
            at_ms,
            messages: totals.put_messages,
            bytes: totals.put_bytes,
            times: totals.put_messages,
        });
        self.broker_gets.add(Sample {
            at_ms,
            messages: totals.got_messages,
            bytes: totals.got_bytes,
            times: totals.found,
        });
    }

    fn sample_topic(&mut self, at_ms: i64, since_ms: i64, name: &str, traffic: &Traffic) {
        let groups = traffic.groups();
        if traffic.put_messages() == 0 && groups.is_empty() {
            return;
        }
        if !self.topics.contains_key(name) {
            let series = TopicSeries {
                puts: Series::begin(since_ms),
                gets: HashMap::new(),
                backs: HashMap::new(),
                waits: HashMap::new(),
                round: self.round,
            };
            self.topics.insert(name.to_owned(), series);
        }
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        topic.round = self.round;
        topic.puts.add(Sample {
            at_ms,
            messages: traffic.put_messages(),
            bytes: traffic.put_bytes(),
            times: traffic.put_messages(),
        });
        let is_there = |name: &String| groups.iter().any(|(group, _)| **group == **name);
        topic.gets.retain(|group, _| is_there(group));
        topic.backs.retain(|group, _| is_there(group));
        topic.waits.retain(|key, _| {
            key.split_once('@')
                .is_some_and(|(_, group)| groups.iter().any(|(name, _)| **name == *group))
        });
        for (group, counted) in &groups {
            let got = Sample {
                at_ms,
                messages: counted.messages(),
                bytes: counted.bytes(),
                times: counted.pulls(),
            };
            add(&mut topic.gets, group, since_ms, got);
            if counted.sent_back() > 0 {
                let back = Sample {
                    at_ms,
                    messages: counted.sent_back(),
                    bytes: 0,
                    times: counted.sent_back(),
                };
                add(&mut topic.backs, group, since_ms, back);
            }
            for (queue, slow) in counted.slow_reads() {
                let wait = Sample {
                    at_ms,
                    messages: slow.ms,
                    bytes: 0,
                    times: slow.reads,
                };
                add(
                    &mut topic.waits,
                    &format!("{queue}@{group}"),
                    since_ms,
                    wait,
                );
            }
        }
    }
}

/// Adds a sample to the series of a group.
fn add(all: &mut HashMap<String, Series>, group: &str, since_ms: i64, sample: Sample) {
    if !all.contains_key(group) {
        all.insert(group.to_owned(), Series::begin(since_ms));
    }
    if let Some(series) = all.get_mut(group) {
        series.add(sample);
    }
}

fn local_day(now_ms: i64) -> Option<NaiveDate> {
    let local = Local.timestamp_millis_opt(now_ms).earliest()?;
    Some(local.date_naive())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const START: i64 = 1_700_000_000_000;

    fn tick(stats: &Stats, seconds: i64, traffic: &Traffic) {
        stats.tick(at(seconds), |each| each("T", traffic));
    }

    fn at(seconds: i64) -> Moment {
        Moment {
            steady_ms: 1 + seconds * 1000,
            wall_ms: START + seconds * 1000,
        }
    }

    #[test]
    fn a_clock_that_is_put_back_or_forward_spoils_no_rate_and_ends_no_day() {
        let stats = Stats::new(1, at(0));
        let traffic = Traffic::default();
        let jumps = [0, 100 * 86_400_000, -3_600_000, -200 * 86_400_000];
        for second in 1..=120 {
            stats.thread(0).put(100, 1);
            traffic.put(100, 1);
            let mut moment = at(second);
            // Not to another day but where the clock jumps.
            moment.wall_ms = START + jumps[second as usize / 31];
            stats.tick(moment, |each| each("T", &traffic));
        }
        let put = stats.rates().put;
        assert_eq!((put[0], put[1]), (100.0, 100.0));
        assert_eq!(stats.topic_tps("T"), 100.0);
        assert_eq!(stats.days().0.today_morning, 3100, "one day ended");
    }

    #[test]
    fn a_minute_is_six_samples_and_lags_by_at_most_one() {
        let stats = Stats::new(2, at(0));
        let traffic = Arc::new(Traffic::default());
        let item = |name: &str, key: &str| {
            stats.item(name, key, "C", |topic| {
                (topic == "T").then(|| Arc::clone(&traffic))
            })
        };
        assert_eq!(item("TOPIC_PUT_NUMS", "T"), None, "nothing was put");
        for second in 1..=60 {
            traffic.put(10, 1000);
            tick(&stats, second, &traffic);
        }
        let minute = item("TOPIC_PUT_NUMS", "T").expect("an item").stats_minute;
        assert_eq!((minute.sum, minute.tps, minute.avgpt), (600, 10.0, 1.0));
        let bytes = item("TOPIC_PUT_SIZE", "T").expect("an item").stats_minute;
        assert_eq!((bytes.sum, bytes.avgpt), (60_000, 100.0));
        for second in 61..=130 {
            tick(&stats, second, &traffic);
        }
        let minute = item("TOPIC_PUT_NUMS", "T").expect("an item").stats_minute;
        assert_eq!(minute.sum, 0, "nothing within the last minute");
        assert_eq!(item("TOPIC_PUT_NUMS", "other"), None);
        assert_eq!(item("NOPE", "T"), None);
    }

    #[test]
    fn a_group_has_its_own_item_and_the_broker_its_sum() {
        let stats = Stats::new(1, at(0));
        let traffic = Arc::new(Traffic::default());
        let group = traffic.group("g");
        traffic.get(&group, 30, 3000);
        stats.thread(0).found(30, 3000);
        tick(&stats, 10, &traffic);
        let find = |_: &str| Some(Arc::clone(&traffic));
        let item = stats.item("GROUP_GET_NUMS", "T@g", "C", find);
        let minute = item.expect("an item").stats_minute;
        assert_eq!((minute.sum, minute.tps, minute.avgpt), (30, 3.0, 30.0));
        assert_eq!(stats.item("GROUP_GET_NUMS", "T@x", "C", find), None);
        let broker = stats.item("BROKER_GET_NUMS", "C", "C", find);
        assert_eq!(broker.expect("an item").stats_minute.sum, 30);
        assert_eq!(
            (stats.group_tps("T", "g"), stats.topic_tps("T")),
            (3.0, 0.0)
        );
        assert_eq!(stats.item("SNDBCK_PUT_NUMS", "T@g", "C", find), None);
        group.send_back();
        tick(&stats, 20, &traffic);
        let back = stats.item("SNDBCK_PUT_NUMS", "T@g", "C", find);
        assert_eq!(back.expect("an item").stats_minute.sum, 1);
    }

    #[test]
    fn items_go_with_their_topic() {
        let stats = Stats::new(1, at(0));
        let traffic = Traffic::default();
        traffic.put(1, 1);
        tick(&stats, 10, &traffic);
        assert_eq!(stats.lock().topics.len(), 1);
        stats.tick(at(20), |_| {});
        assert!(stats.lock().topics.is_empty());
    }

    #[test]
    fn rates_cover_ten_seconds_a_minute_and_ten_minutes() {
        let stats = Stats::new(1, at(0));
        let traffic = Traffic::default();
        for second in 1..=600 {
            if second > 540 {
                stats.thread(0).put(100, 1);
            }
            tick(&stats, second, &traffic);
        }
        assert_eq!(stats.rates().put, [100.0, 100.0, 10.0]);
        assert_eq!(stats.lock().store.len(), STORE_SAMPLES);
    }

    #[test]
    fn a_new_day_begins_with_what_was_there_at_midnight() {
        let stats = Stats::new(1, at(0));
        let traffic = Traffic::default();
        stats.thread(0).put(7, 1);
        tick(&stats, 86_400, &traffic);
        stats.thread(0).put(5, 1);
        tick(&stats, 2 * 86_400, &traffic);
        stats.thread(0).put(1, 1);
        let (put, _) = stats.days();
        let expected = Days {
            yesterday_morning: 7,
            today_morning: 12,
            today_now: 13,
        };
        assert_eq!(put, expected);
    }
}
