//! The light queues that a message names (docs/behaviour.md, Light queues).

use saturnmq_storage::append_queue::LightQueues;
use saturnmq_storage::format::light::enters_light_queues;
use saturnmq_storage::format::properties::names;

use crate::answer::{Answer, SYSTEM_ERROR};
use crate::broker::Broker;
use crate::handler::properties::PropertyScan;
use crate::handler::{MESSAGE_ILLEGAL, send_checks};
use crate::light::{self, LightError};

/// Finds the light queues that a message of `topic` enters now. One that comes later to the topic
/// it is meant for is checked, for it will be too late then. `len`: bytes of its properties.
///
/// # Errors
/// The refusal of names that are none, and of too many queues.
pub fn find(
    broker: &Broker,
    (scan, text, topic, len): (&PropertyScan, &str, &str, usize),
    light: &mut LightQueues,
) -> Result<(), Answer> {
    light.clear();
    let config = broker.config.light;
    if !scan.has_inner() || !config.dispatch {
        return Ok(());
    }
    let list = scan.get(text, names::INNER_MULTI_DISPATCH);
    let Some(list) = list.filter(|list| !list.trim().is_empty()) else {
        return Ok(());
    };
    let found = match enters_light_queues(topic) {
        true => light::enter(&broker.store, list, config.most, light),
        false => light::check_names(list).and_then(|()| light::check_room(list, len)),
    };
    found.map_err(|error| {
        let code = match error {
            LightError::Full => SYSTEM_ERROR,
            LightError::Name(_) | LightError::TooLong(..) => MESSAGE_ILLEGAL,
        };
        send_checks::refused(broker, code, error.to_string())
    })
}
