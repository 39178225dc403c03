//! Telling a core's ring that a socket was queued for it.

use std::io;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::driver::RingMessage;

/// A small ring that tells cores of queued sockets, for a thread that hands connections over.
pub struct Messenger {
    ring: IoUring,
}

impl Messenger {
    /// Makes the ring.
    ///
    /// # Errors
    /// The host refuses io_uring.
    pub fn new() -> io::Result<Messenger> {
        Ok(Messenger {
            ring: IoUring::new(8)?,
        })
    }

    /// Sends `message` to the ring of a core.
    ///
    /// # Errors
    /// The message could not be delivered (old kernel, core gone).
    pub fn send(&mut self, message: &RingMessage) -> io::Result<()> {
        let RingMessage {
            ring_fd,
            result,
            user_data,
        } = *message;
        let entry = opcode::MsgRingData::new(Fd(ring_fd), result, user_data, None).build();
        // SAFETY: the request refers to no memory.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(io::Error::other("the messenger's ring is full"));
        }
        self.ring.submit_and_wait(1)?;
        let outcome = self
            .ring
            .completion()
            .next()
            .map_or(0, |entry| entry.result());
        if outcome < 0 {
            Err(io::Error::from_raw_os_error(-outcome))
        } else {
            Ok(())
        }
    }
}
