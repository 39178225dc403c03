//! Listens to what is logged.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What a thread logged.
#[derive(Debug, Default)]
pub struct Heard {
    /// Warnings and errors: fields as `name=value`.
    pub warnings: Vec<String>,
}

#[derive(Default)]
struct Listener(Arc<Mutex<Heard>>);

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing into a String cannot fail.
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        self.0.lock().expect("heard").warnings.push(words.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// Runs `run` and returns what this thread logged meanwhile.
pub fn hear<T>(run: impl FnOnce() -> T) -> (T, Heard) {
    let listener = Listener::default();
    let heard = Arc::clone(&listener.0);
    let result = tracing::subscriber::with_default(listener, run);
    let heard = std::mem::take(&mut *heard.lock().expect("heard"));
    (result, heard)
}
