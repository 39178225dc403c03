//! What the timer files are checked against: the messages of the timer topic.

use super::Waiting;

/// What the queue of the timer topic says of a place in the commit log.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Found {
    /// A message of the topic, at this queue offset.
    At(i64),
    /// The log begins behind it.
    Expired,
    /// No message of the topic, or one of another size.
    Nothing,
    /// Nobody can say now.
    Unreadable,
}

/// What the record at a place in the commit log says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Looked {
    /// What its message waits for.
    Message(Waiting),
    /// The log begins behind it.
    Expired,
    /// No sound record of a message that waits.
    Nothing,
    /// It cannot be read now.
    Unreadable,
}

/// The messages of the timer topic: the timer files are made again from them.
pub trait TimerTopic {
    /// Looks for the message of an item; asked in the order of the timer log.
    fn find(&mut self, log_offset: i64, size: i32) -> Found;

    /// Reads the record at a place in the commit log.
    fn look(&mut self, log_offset: i64) -> Looked;
}
