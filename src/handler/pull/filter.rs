//! Which messages a pull wants.

use std::sync::Arc;

use crate::subscription::{Subscription, Wanted};

/// Which messages a pull wants.
#[derive(Clone)]
pub enum Filter {
    /// Those of a registered subscription.
    Shared(Arc<Subscription>),
    /// Those of the expression in the request.
    Own(Wanted),
}

impl Filter {
    /// The filter the store uses.
    pub fn get(&self) -> &Wanted {
        match self {
            // A pull with a subscription that cannot be compiled is refused before it gets here.
            Self::Shared(subscription) => subscription.filter.as_ref().unwrap_or(&Wanted::ALL),
            Self::Own(filter) => filter,
        }
    }

    /// What is kept for this pull alone, in bytes.
    pub(super) fn own_bytes(&self) -> usize {
        match self {
            Self::Shared(_) => 0,
            Self::Own(filter) => filter.bytes(),
        }
    }
}
