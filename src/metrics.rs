//! What `/metrics` says, in the OpenMetrics text format (docs/operations.md, Metrics).
//!
//! Nothing is kept here: a scrape reads the counters that the threads keep anyway.

use std::borrow::Cow;
use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use saturnmq_storage::metrics::{CLASSES, HistogramSnapshot};
use saturnmq_storage::retention::DiskSpace;
use saturnmq_storage::store::StoreState;

use crate::broker::Broker;
use crate::core::now_ms;
use crate::light::{PREFIX, is_light};
use crate::topics::Topic;

/// Media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Classes of times, as powers of two of a microsecond: 16 us to 16 s.
const TIME_CLASSES: std::ops::RangeInclusive<usize> = 4..=24;
/// Classes of sizes, as powers of two of a byte: 256 B to 16 MiB.
const SIZE_CLASSES: std::ops::RangeInclusive<usize> = 8..=24;

/// The whole text. May take a while with many topics and waits for the file system: not for a
/// thread that serves others.
///
/// # Errors
/// None that a `String` can give; the type is that of formatting.
pub fn text(broker: &Arc<Broker>) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("saturnmq");
    registry.register_collector(Box::new(Scrape(Arc::clone(broker))));
    let mut out = String::new();
    encode(&mut out, &registry)?;
    Ok(out)
}

struct Scrape(Arc<Broker>);

impl std::fmt::Debug for Scrape {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut out = Families(encoder);
        process(&self.0, &mut out)?;
        transactions(&self.0, &mut out)?;
        timers(&self.0, &mut out)?;
        traffic(&self.0, &mut out)?;
        lags(&self.0, &mut out)?;
        writer(&self.0, &mut out)?;
        cores(&self.0, &mut out)?;
        store(&self.0, &mut out)
    }
}

/// Writes families of metrics.
struct Families<'a>(DescriptorEncoder<'a>);

type Label<'a> = (&'a str, &'a str);

impl Families<'_> {
    fn family<'s>(
        &'s mut self,
        kind: MetricType,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
    ) -> Result<MetricEncoder<'s>, Error> {
        self.0.encode_descriptor(name, help, unit, kind)
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: u64,
    ) -> Result<(), Error> {
        self.family(MetricType::Counter, name, help, unit)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        value: f64,
    ) -> Result<(), Error> {
        self.family(MetricType::Gauge, name, help, unit)?
            .encode_gauge(&value)
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: &Unit,
        values: &[(f64, u64)],
        sum: f64,
    ) -> Result<(), Error> {
        let count = values.iter().map(|(_, count)| count).sum();
        self.family(MetricType::Histogram, name, help, Some(unit))?
            .encode_histogram::<NoLabelSet>(sum, count, values, None)
    }
}

fn one_counter(
    family: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    value: u64,
) -> Result<(), Error> {
    family
        .encode_family(labels)?
        .encode_counter::<NoLabelSet, _, u64>(&value, None)
}

/// A name as a label's value can hold it: tools name groups as they like, and one line that is none
/// makes the whole text none.
fn escaped(name: &str) -> Cow<'_, str> {
    if !name.contains(['\\', '"', '\n']) {
        return name.into();
    }
    let escaped = name.replace('\\', "\\\\").replace('"', "\\\"");
    escaped.replace('\n', "\\n").into()
}

fn one_gauge(
    family: &mut MetricEncoder<'_>,
    labels: &impl EncodeLabelSet,
    value: f64,
) -> Result<(), Error> {
    family.encode_family(labels)?.encode_gauge(&value)
}

fn process(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let labels: [Label<'_>; 2] = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("log_writes", broker.store.writing()),
    ];
    let help = "What runs: always 1";
    let mut build = out.family(MetricType::Gauge, "build_info", help, None)?;
    one_gauge(&mut build, &labels, 1.0)?;
    out.gauge(
        "uptime",
        "Time since the start",
        Some(&Unit::Seconds),
        broker.started.elapsed().as_secs_f64(),
    )?;
    let topics = broker.topics.len() as f64;
    out.gauge("topics", "Configured topics", None, topics)?;
    let groups = broker.groups.len() as f64;
    out.gauge("groups", "Configured consumer groups", None, groups)?;
    let light = broker.store.light_queues() as f64;
    let help = "Queues that messages enter besides those of their topics";
    out.gauge("light_queues", help, None, light)?;
    out.gauge(
        "services_jobs_waiting",
        "Requests that wait for the services thread",
        None,
        broker.services.waiting() as f64,
    )?;
    out.gauge(
        "services_turn",
        "How long the services thread has been at the work it is at",
        Some(&Unit::Seconds),
        broker.services.turn_ms() as f64 / 1000.0,
    )?;
    out.gauge(
        "state_files_failing",
        "State files whose last write failed",
        None,
        broker.persist.failures().len() as f64,
    )
}

fn transactions(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let counters = &broker.transactions.counters;
    let kind = MetricType::Counter;
    let help = "Transactions that came to an end";
    let mut family = out.family(kind, "transactions", help, None)?;
    for (result, counter) in [
        ("committed", &counters.committed),
        ("rolled_back", &counters.rolled_back),
        ("given_up", &counters.given_up),
    ] {
        let labels: [Label<'_>; 1] = [("result", result)];
        one_counter(&mut family, &labels, counter.load(Ordering::Relaxed))?;
    }
    out.counter(
        "transaction_checks",
        "Questions to producers about transactions",
        None,
        counters.checks.load(Ordering::Relaxed),
    )
}

fn timers(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let counters = &broker.timers.counters;
    let kind = MetricType::Counter;
    let help = "Messages for a time, by what became of them";
    let mut family = out.family(kind, "timer_messages", help, None)?;
    for (result, counter) in [
        ("entered", &counters.entered),
        ("delivered", &counters.delivered),
        ("rolled", &counters.rolled),
        ("deleted", &counters.deleted),
        ("dropped", &counters.dropped),
    ] {
        let labels: [Label<'_>; 1] = [("result", result)];
        one_counter(&mut family, &labels, counter.load(Ordering::Relaxed))?;
    }
    out.gauge(
        "timer_waiting_messages",
        "Messages that wait for their time",
        None,
        broker.timers.waiting.load(Ordering::Relaxed).max(0) as f64,
    )?;
    out.gauge(
        "timers_standing_still",
        "Whether messages for a time are not delivered: their files cannot be written",
        None,
        f64::from(u8::from(broker.timers.standstill.load().is_some())),
    )?;
    out.gauge(
        "timer_behind",
        "Age of the oldest slot that is not done with",
        Some(&Unit::Seconds),
        broker.timers.behind_ms(now_ms()) as f64 / 1000.0,
    )
}

/// Topics through which something went, by name.
fn active_topics(broker: &Broker) -> Vec<Arc<Topic>> {
    let mut topics = Vec::new();
    broker.topics.each(|topic| {
        if topic.traffic.put_messages() > 0 || topic.traffic.got_messages() > 0 {
            topics.push(Arc::clone(topic));
        }
    });
    topics.sort_by(|a, b| a.config.name.cmp(&b.config.name));
    topics
}

fn traffic(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let topics = active_topics(broker);
    let kind = MetricType::Counter;
    let help = "Messages stored and acknowledged";
    let mut family = out.family(kind, "messages_in", help, None)?;
    for topic in &topics {
        let labels: [Label<'_>; 1] = [("topic", &topic.config.name)];
        one_counter(&mut family, &labels, topic.traffic.put_messages())?;
    }
    let help = "Bytes of their records";
    let mut family = out.family(kind, "messages_in", help, Some(&Unit::Bytes))?;
    for topic in &topics {
        let labels: [Label<'_>; 1] = [("topic", &topic.config.name)];
        one_counter(&mut family, &labels, topic.traffic.put_bytes())?;
    }
    let help = "Messages handed to consumers";
    let mut family = out.family(kind, "messages_out", help, None)?;
    for_groups(&topics, |labels, group| {
        one_counter(&mut family, labels, group.messages())
    })?;
    let help = "Bytes of their records";
    let mut family = out.family(kind, "messages_out", help, Some(&Unit::Bytes))?;
    for_groups(&topics, |labels, group| {
        one_counter(&mut family, labels, group.bytes())
    })?;
    let totals = broker.stats.totals();
    let help = "Sends refused or failed in the store";
    out.counter("sends_failed", help, None, totals.put_failed)?;
    let help = "Looks of pulls at their queue, by what they found";
    let mut family = out.family(kind, "pulls", help, None)?;
    one_counter(&mut family, &[("result", "found")], totals.found)?;
    one_counter(&mut family, &[("result", "empty")], totals.missed)
}

fn for_groups(
    topics: &[Arc<Topic>],
    mut each: impl FnMut(&[Label<'_>; 2], &crate::traffic::GroupTraffic) -> Result<(), Error>,
) -> Result<(), Error> {
    for topic in topics {
        let mut groups = topic.traffic.groups();
        groups.sort_by(|a, b| a.0.cmp(&b.0));
        for (name, group) in groups {
            let name = escaped(&name);
            each(&[("topic", &topic.config.name), ("group", &name)], &group)?;
        }
    }
    Ok(())
}

fn lags(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let marks = broker.store.watermarks();
    // Read before the one they are compared with: it only grows.
    let (dispatched, durable) = (marks.dispatched(), marks.durable());
    let appended = marks.appended();
    out.gauge(
        "dispatch_lag",
        "Bytes of the log that are not in the consume queues yet",
        Some(&Unit::Bytes),
        appended.saturating_sub(dispatched) as f64,
    )?;
    out.gauge(
        "flush_lag",
        "Bytes of the log that are not durable yet",
        Some(&Unit::Bytes),
        appended.saturating_sub(durable) as f64,
    )?;
    let help = "Messages between a group's progress and the end of the queue";
    let mut family = out.family(MetricType::Gauge, "consumer_lag_messages", help, None)?;
    let mut light_lag = None;
    for (topic, group, queues) in broker.offsets.snapshot() {
        let light = broker.config.light.enabled && (is_light(&topic) || is_light(&group));
        for (queue_id, committed) in queues {
            let Some(queue) = broker.store.queue(&topic, queue_id) else {
                continue;
            };
            // A client may store any number: before the first message there is nothing to lag by.
            let lag = queue.max_offset().saturating_sub(committed.max(0)).max(0);
            if light {
                let sum = light_lag.get_or_insert(0_i64);
                *sum = sum.saturating_add(lag);
                continue;
            }
            let (id, group) = (queue_id.to_string(), escaped(&group));
            let labels: [Label<'_>; 3] = [("group", &group), ("topic", &topic), ("queue", &id)];
            one_gauge(&mut family, &labels, lag as f64)?;
        }
    }
    if let Some(lag) = light_lag {
        let labels: [Label<'_>; 3] = [("group", PREFIX), ("topic", PREFIX), ("queue", "0")];
        one_gauge(&mut family, &labels, lag as f64)?;
    }
    Ok(())
}

/// The classes that matter, each with its upper bound times `scale`; smaller values count in the
/// first one, larger ones in one without bound.
fn classes(
    values: &HistogramSnapshot,
    wanted: std::ops::RangeInclusive<usize>,
    scale: f64,
) -> Vec<(f64, u64)> {
    let (first, last) = (*wanted.start(), *wanted.end());
    let mut buckets = Vec::with_capacity(last - first + 2);
    let below: u64 = values.counts[..=first].iter().sum();
    buckets.push((HistogramSnapshot::bound(first) as f64 * scale, below));
    for class in first + 1..=last {
        let bound = HistogramSnapshot::bound(class) as f64 * scale;
        buckets.push((bound, values.counts[class]));
    }
    let above = values.counts[last + 1..CLASSES].iter().sum();
    buckets.push((f64::MAX, above));
    buckets
}

fn writer(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let metrics = broker.store.write_metrics();
    for (name, help, values) in [
        (
            "log_write_duration",
            "Time of a write to the log; synchronous flush makes it durable with the write",
            metrics.write_micros.snapshot(),
        ),
        (
            "log_sync_duration",
            "Time of a sync of the log under asynchronous flush",
            metrics.sync_micros.snapshot(),
        ),
    ] {
        let buckets = classes(&values, TIME_CLASSES, 1e-6);
        out.histogram(
            name,
            help,
            &Unit::Seconds,
            &buckets,
            values.sum as f64 * 1e-6,
        )?;
    }
    let values = metrics.batch_bytes.snapshot();
    let buckets = classes(&values, SIZE_CLASSES, 1.0);
    let help = "Size of what is written to the log at once";
    out.histogram("log_batch", help, &Unit::Bytes, &buckets, values.sum as f64)?;
    let records = metrics.records.load(Ordering::Relaxed);
    out.counter("log_records", "Records appended to the log", None, records)?;
    for (name, help, counter) in [
        (
            "log_written",
            "Bytes written to the log for records, in whole blocks",
            &metrics.log_bytes,
        ),
        (
            "log_zeroed",
            "Bytes of zeros given to files of the log ahead of the records",
            &metrics.zero_bytes,
        ),
    ] {
        let value = counter.load(Ordering::Relaxed);
        out.counter(name, help, Some(&Unit::Bytes), value)?;
    }
    Ok(())
}

fn cores(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let mut each = |name: &str, help: &str, value: &dyn Fn(usize) -> f64| {
        let mut family = out.family(MetricType::Gauge, name, help, None)?;
        for core in 0..broker.cores.len() {
            one_gauge(&mut family, &[("core", core.to_string())], value(core))?;
        }
        Ok::<(), Error>(())
    };
    each("connections", "Open client connections", &|core| {
        let handle = broker.cores.handle(core);
        handle.map_or(0.0, |handle| handle.connections() as f64)
    })?;
    each("pulls_parked", "Pulls that wait for a message", &|core| {
        broker.stats.thread(core).parked() as f64
    })?;
    each(
        "appends_in_flight",
        "Sends whose messages are on their way to the disk",
        &|core| broker.stats.thread(core).in_flight() as f64,
    )
}

/// The reason why no message is taken, as a label value: one of a few.
fn reason(state: &StoreState) -> &'static str {
    match state {
        StoreState::Writable => "none",
        StoreState::DiskFull => "disk_full",
        StoreState::NoNextFile(_) => "no_next_file",
        StoreState::DispatchFault(_) => "dispatch_fault",
        StoreState::ReadOnly(_) => "log_write_failed",
        StoreState::Closed => "closed",
    }
}

fn store(broker: &Broker, out: &mut Families<'_>) -> Result<(), Error> {
    let now = reason(&broker.store.state());
    let help = "1 while no message is taken, by the reason";
    let mut family = out.family(MetricType::Gauge, "store_read_only", help, None)?;
    for state in [
        "disk_full",
        "no_next_file",
        "dispatch_fault",
        "log_write_failed",
        "closed",
    ] {
        let holds = if state == now { 1.0 } else { 0.0 };
        one_gauge(&mut family, &[("reason", state)], holds)?;
    }
    let help = "Damaged records that were not served";
    out.counter("damaged_reads", help, None, broker.store.damaged_reads())?;
    let help = "Wrong queue entries that were made again from the log when they were read.";
    out.counter("mended_entries", help, None, broker.store.mended_entries())?;
    let help = "Records whose queue entry does not stand at their queue offset";
    let misplaced = broker.store.misplaced_entries();
    out.counter("misplaced_entries", help, None, misplaced)?;
    let help = "Lines of the log that were lost: stderr did not take them in time, or not at all";
    out.counter("log_lines_lost", help, None, crate::log::lost())?;
    let (start, end) = (
        broker.store.min_log_offset() as f64,
        broker.store.watermarks().appended() as f64,
    );
    let bytes = Some(&Unit::Bytes);
    let help = "Log offset of the first byte that is kept";
    out.gauge("log_start", help, bytes, start)?;
    let help = "Log offset after the last record";
    out.gauge("log_end", help, bytes, end)?;
    let Ok(space) = DiskSpace::of(&broker.store.config().commit_log_path()) else {
        return Ok(());
    };
    let help = "Used part of the log's file system";
    out.gauge("disk_used_ratio", help, None, space.used_ratio())?;
    let help = "Free space of the log's file system";
    out.gauge("disk_free", help, bytes, space.free as f64)
}

#[cfg(test)]
mod tests {
    use saturnmq_storage::metrics::Histogram;

    use super::*;

    #[test]
    fn no_value_is_lost_between_classes() {
        let histogram = Histogram::default();
        for value in [0, 3, 15, 16, 1000, 1 << 26, u64::MAX / 4] {
            histogram.add(value);
        }
        let buckets = classes(&histogram.snapshot(), TIME_CLASSES, 1e-6);
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 7);
        assert_eq!(buckets.first().map(|b| b.1), Some(3), "below 16 us");
        assert_eq!(buckets.last().copied(), Some((f64::MAX, 2)));
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
