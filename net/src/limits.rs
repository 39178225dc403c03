//! What one network core and one connection may use, in one place.
//!
//! Every buffer and queue of the driver is bounded by a field of [`Limits`]; the relations between
//! them are checked once, before a core starts.

use std::time::Duration;

/// Bounds of one network core. `Default` is what the broker runs with.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest frame accepted, in bytes, counting its own length word.
    pub max_frame: usize,
    /// Connections one core serves; further ones are refused at hand-over.
    pub max_connections: usize,
    /// Sockets waiting to be adopted by the core.
    pub inbox: usize,
    /// Bytes answered to a connection and not sent yet; over it the connection is not read.
    pub unsent_bytes: usize,
    /// Bytes answered and not sent by all connections of the core together; over it each may have
    /// only [`Limits::unsent_when_short`] of them.
    pub unsent_total_bytes: usize,
    /// What a connection may have unsent while the core is over its total.
    pub unsent_when_short: usize,
    /// Bytes unsent over which a connection is closed: what other connections push to it is not
    /// stopped by not reading it.
    pub unsent_most: usize,
    /// How long a peer may take to read what is being sent to it while the core is over its total;
    /// slower ones are closed then, the slowest first.
    pub unread: Duration,
    /// Requests of a connection started and not finished; over it the connection is not read.
    pub requests_in_flight: u32,
    /// Received bytes a core keeps for frames that are not complete or not taken yet. When they are
    /// used up, each connection may still have its equal share of as many.
    pub reassembly_bytes: usize,
    /// How long a connection may take to complete a frame larger than its share while others are
    /// not read because that memory is used up: slower ones are closed, the oldest first.
    pub turn: Duration,
    /// How long one connection's requests may be handled in one pass; the rest waits for the next,
    /// so that one peer's dear requests do not hold up the others.
    pub slice: Duration,
    /// Bytes a stalled connection may hold before it is not read any more.
    pub stalled_bytes: usize,
    /// A connection without reads and writes for this long is closed.
    pub idle: Duration,
    /// How long a graceful stop waits for answers and sends.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_frame: 16 * 1024 * 1024,
            max_connections: 65_536,
            inbox: 1024,
            unsent_bytes: 4 * 1024 * 1024,
            unsent_total_bytes: 256 * 1024 * 1024,
            unsent_when_short: 64 * 1024,
            unsent_most: 64 * 1024 * 1024,
            unread: Duration::from_secs(20),
            requests_in_flight: 4096,
            reassembly_bytes: 64 * 1024 * 1024,
            turn: Duration::from_secs(5),
            slice: Duration::from_millis(1),
            stalled_bytes: 128 * 1024,
            idle: Duration::from_secs(120),
            stop: Duration::from_secs(10),
        }
    }
}

/// Limits that contradict each other.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LimitsError {
    /// One frame must fit into the memory for incomplete frames.
    #[error("a frame of {max_frame} bytes does not fit into {reassembly_bytes} reassembly bytes")]
    FrameOverReassembly {
        /// The largest frame, in bytes.
        max_frame: usize,
        /// The memory for incomplete frames, in bytes.
        reassembly_bytes: usize,
    },
    /// A limit that must not be zero.
    #[error("{name} is 0, but must be at least 1")]
    Zero {
        /// The field of [`Limits`].
        name: &'static str,
    },
    /// Connection indices have 24 bits.
    #[error("{0} connections a core, but at most 16777215 are possible")]
    TooManyConnections(usize),
}

impl Limits {
    /// Checks the relations between the limits.
    ///
    /// # Errors
    /// Names the first relation that does not hold.
    pub fn check(&self) -> Result<(), LimitsError> {
        let nonzero = [
            (self.max_connections, "max_connections"),
            (self.inbox, "inbox"),
            (self.unsent_bytes, "unsent_bytes"),
            (self.unsent_when_short, "unsent_when_short"),
            (self.requests_in_flight as usize, "requests_in_flight"),
            (self.stalled_bytes, "stalled_bytes"),
            (self.idle.as_millis() as usize, "idle"),
        ];
        for (value, name) in nonzero {
            if value == 0 {
                return Err(LimitsError::Zero { name });
            }
        }
        if self.max_frame > self.reassembly_bytes {
            return Err(LimitsError::FrameOverReassembly {
                max_frame: self.max_frame,
                reassembly_bytes: self.reassembly_bytes,
            });
        }
        if self.max_connections >= 1 << 24 {
            return Err(LimitsError::TooManyConnections(self.max_connections));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_agree_with_each_other() {
        assert_eq!(Limits::default().check(), Ok(()));
    }

    #[test]
    fn a_frame_larger_than_the_reassembly_memory_is_refused() {
        let limits = Limits {
            reassembly_bytes: 1024,
            ..Limits::default()
        };
        let error = limits.check().unwrap_err();
        assert!(
            error.to_string().contains("1024 reassembly bytes"),
            "{error}"
        );
    }
}
