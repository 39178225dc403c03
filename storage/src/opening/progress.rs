//! What a long start tells the operator.

/// Says how far a long scan has come.
pub(super) struct Progress {
    from: u64,
    limit: u64,
    next: u64,
    started: std::time::Instant,
    said: std::time::Instant,
}

impl Progress {
    pub(super) fn new(from: u64, limit: u64) -> Progress {
        let now = std::time::Instant::now();
        Progress {
            from,
            limit,
            next: from,
            started: now,
            said: now,
        }
    }

    pub(super) fn at(&mut self, offset: u64) {
        if offset < self.next {
            return;
        }
        self.next = offset + (64 << 20);
        if self.said.elapsed().as_secs() >= 2 {
            self.said = std::time::Instant::now();
            let (done, all) = (offset - self.from, self.limit - self.from);
            let percent = done * 100 / all.max(1);
            let rate = done as f64 / 1e6 / self.started.elapsed().as_secs_f64();
            tracing::info!("looking at the log: {percent} % of {all} bytes, {rate:.0} MB/s");
        }
    }
}

impl Progress {
    /// Says how fast a long scan was.
    pub(super) fn done(&self, end: u64) {
        let seconds = self.started.elapsed().as_secs_f64();
        if seconds >= 2.0 {
            let megabytes = (end - self.from) as f64 / 1e6;
            let rate = megabytes / seconds;
            tracing::info!("looked at {megabytes:.0} MB of log in {seconds:.1} s, {rate:.0} MB/s");
        }
    }
}
