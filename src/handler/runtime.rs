//! What a broker says of itself: requests 28 and 907 (docs/behaviour.md, Runtime information).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use saturnmq_net::encode::VERSION;
use saturnmq_net::messages::broker::HaRuntimeInfo;
use saturnmq_net::messages::kv::KvTable;
use saturnmq_storage::retention::DiskSpace;

use crate::answer::{Answer, Request};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::handler::topic::json_reply;
use crate::names;
use crate::services::ServiceContext;

/// The version that clients and tools are told, by its name.
pub const VERSION_NAME: &str = "V5_3_3";

/// Bounds of the classes in `putMessageDistributeTime`, in milliseconds, with Apache's names.
const CLASSES: [(u64, &str); 13] = [
    (1, "<=0ms"),
    (10, "0~10ms"),
    (50, "10~50ms"),
    (100, "50~100ms"),
    (200, "100~200ms"),
    (500, "200~500ms"),
    (1000, "500ms~1s"),
    (2000, "1~2s"),
    (3000, "2~3s"),
    (4000, "3~4s"),
    (5000, "4~5s"),
    (10_000, "5~10s"),
    (u64::MAX, "10s~"),
];

/// 28: numbers and times by name, all of them texts.
pub fn info(_broker: &Broker, _request: &Request<'_>) -> Answer {
    Answer::Later(Box::new(|services| {
        let mut table = Table(BTreeMap::new());
        let earliest = earliest(services);
        table.set("earliestMessageTimeStamp", earliest.unwrap_or(-1));
        let broker = &services.broker;
        identity(broker, &mut table);
        traffic(broker, &mut table);
        latency(broker, &mut table);
        log(broker, &mut table);
        delays(broker, &mut table);
        queues(broker, &mut table);
        json_reply(&KvTable { table: table.0 })
    }))
}

/// 907: of replication, which there is none of: a master without replicas.
pub fn ha_status(broker: &Broker) -> Answer {
    let status = HaRuntimeInfo {
        master: true,
        master_commit_log_max_offset: broker.store.watermarks().appended(),
        ..HaRuntimeInfo::default()
    };
    json_reply(&status).into()
}

struct Table(BTreeMap<String, String>);

impl Table {
    fn set(&mut self, key: &str, value: impl ToString) {
        self.0.insert(key.to_owned(), value.to_string());
    }
}

/// Store time of the oldest message that is kept.
fn earliest(services: &mut ServiceContext) -> Option<i64> {
    let offset = services.broker.store.min_log_offset();
    let mut record = Vec::new();
    match services.reader.record(offset, &mut record) {
        Ok(true) => saturnmq_storage::format::record::Record::decode(&record)
            .ok()
            .map(|record| record.store_timestamp()),
        _ => None,
    }
}

fn identity(broker: &Broker, table: &mut Table) {
    let up = broker.started.elapsed().as_secs();
    let (days, hours) = (up / 86_400, up / 3600 % 24);
    let (minutes, seconds) = (up / 60 % 60, up % 60);
    table.set("brokerVersion", VERSION);
    table.set("brokerVersionDesc", VERSION_NAME);
    table.set("brokerActive", true);
    table.set("bootTimestamp", broker.started_ms);
    table.set(
        "runtime",
        format!("[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"),
    );
    table.set(
        "startAcceptSendRequestTimeStamp",
        broker.live.load().accept_sends_from_ms,
    );
}

fn rates(rates: [f64; 3]) -> String {
    let [ten, minute, ten_minutes] = rates;
    format!("{ten} {minute} {ten_minutes}")
}

fn traffic(broker: &Broker, table: &mut Table) {
    let (totals, now) = (broker.stats.totals(), broker.stats.rates());
    table.set("putTps", rates(now.put));
    table.set("getFoundTps", rates(now.found));
    table.set("getMissTps", rates(now.missed));
    table.set("getTotalTps", rates(now.total));
    table.set("getTransferredTps", rates(now.transferred));
    // The name has one r less in 4.9.
    table.set("getTransferedTps", rates(now.transferred));
    table.set("putMessageTimesTotal", totals.put_messages);
    table.set("putMessageFailedTimes", totals.put_failed);
    table.set("putMessageSizeTotal", totals.put_bytes);
    let average = totals.put_bytes as f64 / totals.put_messages.max(1) as f64;
    table.set("putMessageAverageSize", average);
    let (put, got) = broker.stats.days();
    table.set("msgPutTotalYesterdayMorning", put.yesterday_morning);
    table.set("msgPutTotalTodayMorning", put.today_morning);
    table.set("msgPutTotalTodayNow", put.today_now);
    table.set("msgGetTotalYesterdayMorning", got.yesterday_morning);
    table.set("msgGetTotalTodayMorning", got.today_morning);
    table.set("msgGetTotalTodayNow", got.today_now);
}

/// Times of writes to the log, which a synchronous send waits for.
fn latency(broker: &Broker, table: &mut Table) {
    let writes = broker.store.write_metrics().write_micros.snapshot();
    let mut text = String::new();
    let mut below = 0;
    for (bound_ms, name) in CLASSES {
        let upto = writes.count_below(bound_ms.saturating_mul(1000));
        // Writing into a String cannot fail.
        let _ = write!(text, "[{name}]:{} ", upto.saturating_sub(below));
        below = upto;
    }
    table.set("putMessageDistributeTime", text);
    let ms = |micros: u64| format!("{:.2}", micros as f64 / 1000.0);
    table.set("putLatency99", ms(writes.quantile(0.99)));
    table.set("putLatency999", ms(writes.quantile(0.999)));
    table.set("putMessageEntireTimeMax", writes.max / 1000);
    table.set("getMessageEntireTimeMax", 0);
    table.set("pageCacheLockTimeMills", 0);
}

fn log(broker: &Broker, table: &mut Table) {
    let store = &broker.store;
    let marks = store.watermarks();
    let appended = marks.appended();
    table.set("commitLogMinOffset", store.min_log_offset());
    table.set("commitLogMaxOffset", appended);
    let behind = appended.saturating_sub(marks.dispatched());
    table.set("dispatchBehindBytes", behind);
    table.set("dispatchMaxBuffer", 0);
    // Ours: what the load generator tells apart of the bytes that the process wrote.
    let written = store.write_metrics();
    for (key, bytes) in [
        ("saturnmqLogBytesWritten", &written.log_bytes),
        ("saturnmqLogBytesZeroed", &written.zero_bytes),
    ] {
        table.set(key, bytes.load(Ordering::Relaxed));
    }
    let unflushed = appended.saturating_sub(marks.durable());
    table.set("remainHowManyDataToFlush", bytes(unflushed));
    table.set("remainHowManyDataToCommit", bytes(0));
    table.set("remainTransientStoreBufferNumbs", i32::MAX);
    let path = store.config().commit_log_path();
    match DiskSpace::of(&path) {
        Ok(space) => {
            let ratio = format!("{:.2}", space.used_ratio());
            table.set(&format!("commitLogDiskRatio_{}", path.display()), &ratio);
            table.set("commitLogDiskRatio", &ratio);
            table.set("consumeQueueDiskRatio", &ratio);
            let (total, free) = (bytes(space.total), bytes(space.free));
            table.set(
                "commitLogDirCapacity",
                format!("Total : {total}, Free : {free}."),
            );
        }
        Err(_) => {
            table.set("commitLogDiskRatio", -1);
            table.set("consumeQueueDiskRatio", -1);
        }
    }
    let queues = &store.config().root;
    if let Ok(space) = DiskSpace::of(queues) {
        table.set(
            "consumeQueueDiskRatio",
            format!("{:.2}", space.used_ratio()),
        );
    }
}

fn delays(broker: &Broker, table: &mut Table) {
    for level in 1..=broker.config.delay_levels_ms.len() as i32 {
        let Some(offset) = broker.delay_offsets.get(level) else {
            continue;
        };
        let queue = broker.store.queue(names::SCHEDULE_TOPIC, level - 1);
        let max = queue.map_or(0, |queue| queue.max_offset());
        table.set(
            &format!("scheduleMessageOffset_{level}"),
            format!("{offset},{max}"),
        );
    }
    let timers = &broker.timers;
    let end = broker.timer_queue().map_or(0, |queue| queue.max_offset());
    let waiting = timers.waiting.load(Ordering::Relaxed).max(0);
    table.set("timerReadBehind", timers.behind_ms(now_ms()) / 1000);
    table.set("timerOffsetBehind", timers.not_entered(end));
    table.set("timerCongestNum", waiting);
    // The rates of the last seconds are not kept; /metrics has the counters.
    for key in ["timerEnqueueTps", "timerDequeueTps"] {
        table.set(key, "0.0");
    }
}

/// Requests are served by the threads that read them: nothing queues but what the services thread
/// has to do.
fn queues(broker: &Broker, table: &mut Table) {
    for (pool, size, capacity) in [
        ("send", 0, 10_000),
        ("pull", broker.services.waiting(), 100_000),
        ("litePull", 0, 100_000),
        ("query", broker.services.waiting(), 20_000),
        ("ack", 0, 100_000),
    ] {
        table.set(&format!("{pool}ThreadPoolQueueSize"), size);
        table.set(&format!("{pool}ThreadPoolQueueCapacity"), capacity);
        table.set(&format!("{pool}ThreadPoolQueueHeadWaitTimeMills"), 0);
    }
    table.set("EndTransactionQueueSize", 0);
    table.set("EndTransactionThreadPoolQueueCapacity", 100_000);
}

/// A size as Apache writes it: `1.5 GiB`.
fn bytes(size: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if size < 1024 {
        return format!("{size} B");
    }
    let mut value = size as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_the_recorded_brokers_write_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(252 << 30), "252.0 GiB");
    }
}
