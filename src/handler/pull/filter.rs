//! Which messages a pull wants.

use std::sync::Arc;

use saturnmq_storage::format::extension_unit::Unit;
use saturnmq_storage::format::record::Record;
use saturnmq_storage::reader::PullFilter;

use crate::filter::marks::Hint;
use crate::subscription::{Subscription, Wanted};

/// Which messages a pull wants.
#[derive(Clone)]
pub enum Filter {
    /// Those of a registered subscription.
    Shared(Arc<Subscription>),
    /// Those of a registered SQL92 subscription, of which extension units tell.
    Hinted(Arc<Subscription>, Arc<Hint>),
    /// Those of the expression in the request.
    Own(Wanted),
}

impl Filter {
    /// What is kept for this pull alone, in bytes.
    pub(super) fn own_bytes(&self) -> usize {
        match self {
            Self::Shared(_) | Self::Hinted(..) => 0,
            Self::Own(filter) => filter.bytes(),
        }
    }

    /// Whether it is one that `enablePropertyFilter` allows.
    pub(in crate::handler) fn is_selector(&self) -> bool {
        match self {
            Self::Shared(subscription) | Self::Hinted(subscription, _) => !subscription.is_tag(),
            Self::Own(filter) => !matches!(filter, Wanted::Tags(_)),
        }
    }

    /// The registered subscription it takes its messages by.
    pub(in crate::handler) fn subscription(&self) -> Option<&Arc<Subscription>> {
        match self {
            Self::Shared(subscription) | Self::Hinted(subscription, _) => Some(subscription),
            Self::Own(_) => None,
        }
    }

    /// Its own filter, or that of its subscription.
    fn wanted(&self) -> &Wanted {
        match self {
            // A pull with a subscription that cannot be compiled is refused before it gets here.
            Self::Shared(subscription) | Self::Hinted(subscription, _) => {
                subscription.filter.as_ref().unwrap_or(&Wanted::ALL)
            }
            Self::Own(filter) => filter,
        }
    }
}

impl PullFilter for Filter {
    fn matches_code(&self, tags_code: i64) -> bool {
        self.wanted().matches_code(tags_code)
    }

    fn needs_unit(&self) -> bool {
        matches!(self, Self::Hinted(..)) || self.wanted().needs_unit()
    }

    fn matches_unit(&self, unit: &Unit<'_>) -> bool {
        match self {
            Self::Hinted(_, hint) => hint.may_match(unit),
            Self::Shared(_) | Self::Own(_) => self.matches_code(unit.tags_code),
        }
    }

    fn needs_record(&self) -> bool {
        self.wanted().needs_record()
    }

    fn matches_record(&self, record: &Record<'_>, work: &mut usize) -> bool {
        self.wanted().matches_record(record, work)
    }
}
