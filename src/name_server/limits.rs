//! What the route tables may hold: everything in them is what somebody sent.

/// Longest cluster name, broker name, address or topic, in bytes.
pub const NAME_MAX: usize = 1024;

/// How much a registry may hold (docs/behaviour.md, "Name server").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// `nameServerMaxTopics`: topics.
    pub topics: usize,
    /// `nameServerMaxBrokers`: broker addresses. Names and clusters are never more than those.
    pub brokers: usize,
    /// `nameServerMaxRoutes`: topics of each broker, added up.
    pub routes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            topics: 100_000,
            brokers: 10_000,
            routes: 1_000_000,
        }
    }
}

/// Why the tables do not take something.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LimitReached {
    /// A name is too long.
    #[error("{field} has {bytes} bytes and may have {NAME_MAX}")]
    LongName {
        /// Field of the request.
        field: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A table would become too large.
    #[error(
        "the name server would hold {wanted} {what} and may hold {limit}: remove those that \
         nobody uses, or raise {key}"
    )]
    Full {
        /// What there is too much of.
        what: &'static str,
        /// How many there would be.
        wanted: usize,
        /// How many there may be.
        limit: usize,
        /// The configuration key of the limit.
        key: &'static str,
    },
}

impl Limits {
    /// Whether there may be so many topics and so many topics of each broker.
    ///
    /// # Errors
    /// [`LimitReached::Full`].
    pub fn check_topics(&self, topics: usize, routes: usize) -> Result<(), LimitReached> {
        check("topics", topics, self.topics, "nameServerMaxTopics")?;
        let what = "routes (topics of each broker)";
        check(what, routes, self.routes, "nameServerMaxRoutes")
    }

    /// Whether there may be so many broker addresses.
    ///
    /// # Errors
    /// [`LimitReached::Full`].
    pub fn check_brokers(&self, brokers: usize) -> Result<(), LimitReached> {
        check(
            "broker addresses",
            brokers,
            self.brokers,
            "nameServerMaxBrokers",
        )
    }
}

fn check(
    what: &'static str,
    wanted: usize,
    limit: usize,
    key: &'static str,
) -> Result<(), LimitReached> {
    if wanted <= limit {
        return Ok(());
    }
    Err(LimitReached::Full {
        what,
        wanted,
        limit,
        key,
    })
}

/// Whether the value of `field` may be a name in the tables.
///
/// # Errors
/// [`LimitReached::LongName`].
pub fn check_name(field: &'static str, name: &str) -> Result<(), LimitReached> {
    let bytes = name.len();
    if bytes <= NAME_MAX {
        return Ok(());
    }
    Err(LimitReached::LongName { field, bytes })
}
