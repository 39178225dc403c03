//! The timer files as a start finds them, and as damage leaves them.

use std::time::Instant;

use saturnmq_storage::layout::Layout;
use saturnmq_storage::queue_table::Queue;
use saturnmq_storage::reader::StoreReader;
use saturnmq_storage::timer::{TimerError, TimerStore};

use super::super::topic::Messages;
use super::{DISPATCH, Direct, Open, Progress, TRIM};
use crate::broker::Broker;
use crate::core::now_ms;
use crate::services::ServiceContext;

impl Open {
    /// Opens the files; `clean` says whether the store was closed in order.
    pub(super) fn new(
        broker: &Broker,
        reader: &mut StoreReader,
        clean: bool,
    ) -> Result<Self, TimerError> {
        let layout = Layout::new(broker.config.root());
        let settings = broker.config.timers.settings;
        let now = now_ms();
        let queue = broker.timer_queue();
        let (min, max) = bounds(queue.as_deref());
        let mut topic = Messages::new(reader, queue, broker.store.min_log_offset());
        let (mut store, report) = TimerStore::open(&layout, settings, now, &mut topic)?;
        let read_ms = settings.round(store.check().read_ms);
        let noted_ms = store.check().version_ms;
        let said_ms = report.said_ms.max(read_ms).max(noted_ms);
        let clean = clean && !report.unchecked;
        let next = match report.lost {
            true => store.queue_offset().clamp(min, max),
            false => store.queue_offset().min(max),
        };
        tracing::info!(
            waiting = store.waiting(),
            next,
            read_ms,
            scanned = report.scanned_items,
            mended_slots = report.mended_slots,
            damaged_items = report.damaged_items,
            lost = report.lost,
            "timers opened"
        );
        let timers = &broker.timers;
        store.each_slot(read_ms, |slot| timers.set(slot, slot.count))?;
        let now = Instant::now();
        Ok(Self {
            store,
            next,
            // Slots that ended meanwhile take what was stored in time first.
            write_ms: read_ms,
            read_ms,
            doubtful_ms: match clean {
                true => said_ms,
                false => said_ms.max(broker.started_ms),
            },
            doubtful_until: max,
            ending: None,
            direct: Direct::default(),
            slot: None,
            mends: false,
            mended_tick: None,
            next_check: now,
            check_interval: broker.config.timers.flush_interval,
            idle_check: now,
            next_trim: now + TRIM,
            record: Vec::new(),
            properties: Vec::new(),
        })
    }

    /// Makes the timer files fit the timer topic: an item of the slot at hand is damaged. Waits
    /// until everything on its way is settled and can be found.
    pub(super) fn mend(
        &mut self,
        services: &mut ServiceContext,
        now: Instant,
    ) -> Result<Progress, TimerError> {
        self.mends = true;
        if !self.direct.is_empty() {
            return Ok(Progress::Waits);
        }
        let marks = services.broker.store.watermarks();
        if marks.dispatched() < marks.acknowledged() {
            return Ok(Progress::Until(now + DISPATCH));
        }
        let timers = &services.broker.timers;
        let queue = services.broker.timer_queue();
        let (min, max) = bounds(queue.as_deref());
        let min_log_offset = services.broker.store.min_log_offset();
        let mut topic = Messages::new(&mut services.reader, queue, min_log_offset);
        let report = self.store.mend(&mut topic, self.read_ms, self.next)?;
        self.store
            .each_slot(self.read_ms, |slot| timers.set(slot, slot.count))?;
        if report.lost {
            self.next = min;
            self.doubtful_until = self.doubtful_until.max(max);
        }
        let tick = self.slot.take().map(|delivery| delivery.slot().tick);
        self.mended_tick = tick;
        // Some of its messages are delivered.
        self.doubtful_ms = self.doubtful_ms.max(self.read_ms);
        self.mends = false;
        Ok(Progress::More)
    }
}

/// The first offset of a queue and the one behind its last.
fn bounds(queue: Option<&Queue>) -> (i64, i64) {
    queue.map_or((0, 0), |queue| {
        let (min, max) = (queue.min_offset(), queue.max_offset());
        (min.min(max), max)
    })
}
