//! How much the registries of clients may hold (docs/behaviour.md, Client management).

/// Most groups one connection may register with.
pub(super) const MAX_GROUPS_PER_CHANNEL: usize = 4096;

/// Most bytes of subscriptions of all groups together.
pub(super) const SUBSCRIPTION_BYTES_MAX: usize = 256 << 20;
/// Most bytes of the producer groups that all connections are in.
pub(super) const PRODUCER_BYTES_MAX: usize = 128 << 20;
/// What one connection in a producer group counts for besides the group's name.
const PRODUCER_BYTES: usize = 256;

/// The registries take no more.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientsFull {
    /// Subscriptions: those of all groups would take so many bytes.
    #[error(
        "the subscriptions of all groups would take {0} bytes and may take {SUBSCRIPTION_BYTES_MAX}"
    )]
    Subscriptions(usize),
    /// Producer groups: those of all connections would take so many bytes.
    #[error(
        "the producer groups of all connections would take {0} bytes and may take \
         {PRODUCER_BYTES_MAX}"
    )]
    Producers(usize),
    /// Groups of one connection.
    #[error(
        "one connection may be in {MAX_GROUPS_PER_CHANNEL} groups, and this one would be in more"
    )]
    Connection,
}

/// What a connection in a producer group takes, roughly.
pub(super) fn producer_bytes(group: &str) -> usize {
    PRODUCER_BYTES + group.len()
}
