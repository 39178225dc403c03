//! HTTP on the control thread: health and metrics (docs/operations.md, Health and metrics).

mod connections;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use saturnmq_storage::store::StoreState;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::broker::Broker;
use crate::metrics;
use connections::Limits;

/// Longest turn of the services thread that counts as work, ms.
const SERVICES_STUCK_MS: i64 = 10_000;

const HOME: &str = "\
SaturnMQ
/healthz  the process serves
/readyz   messages are taken and delivered, state files can be written
/metrics  OpenMetrics
";

#[derive(Clone)]
struct Pages {
    broker: Arc<Broker>,
    /// One scrape at a time: each reads everything.
    scrapes: Arc<Semaphore>,
}

/// Serves HTTP on `listener` for the life of the runtime.
pub async fn serve(broker: Arc<Broker>, listener: TcpListener) {
    let routes = Router::new()
        .route("/", get(async || HOME))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(scrape))
        .with_state(Pages {
            broker,
            scrapes: Arc::new(Semaphore::new(1)),
        });
    connections::serve(listener, routes, Limits::default()).await;
}

/// 200 while messages are taken, delivered in time and state files can be written; 503 and the
/// reason otherwise.
async fn ready(State(pages): State<Pages>) -> (StatusCode, String) {
    match not_ready(&pages.broker) {
        None => (StatusCode::OK, "ok\n".to_string()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

fn not_ready(broker: &Broker) -> Option<String> {
    let reason = match broker.store.state() {
        StoreState::Writable => return behind_the_log(broker),
        StoreState::DiskFull => "the disk is full".to_owned(),
        StoreState::NoNextFile(why) => why,
        StoreState::DispatchFault(why) => format!("consume queues cannot be written: {why}"),
        StoreState::ReadOnly(why) => format!("the log cannot be written until a restart: {why}"),
        StoreState::Closed => "the store is closed".to_owned(),
    };
    Some(format!("no messages are taken: {reason}"))
}

/// What does not work although the log takes messages.
fn behind_the_log(broker: &Broker) -> Option<String> {
    if let Some(failure) = broker.persist.failures().first() {
        return Some(failure.to_string());
    }
    if let Some(standstill) = &*broker.timers.standstill.load() {
        let why = &standstill.why;
        return Some(format!("messages for a time are not delivered: {why}"));
    }
    let turn_ms = broker.services.turn_ms();
    (turn_ms >= SERVICES_STUCK_MS).then(|| {
        format!(
            "delayed messages, transactions and reads of old messages wait: the services thread \
             has been at one piece of work for {} s",
            turn_ms / 1000
        )
    })
}

async fn scrape(State(pages): State<Pages>) -> Response {
    let Ok(one) = pages.scrapes.acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    // With many topics this takes a while; the control thread goes on meanwhile. The work is not
    // given up with its connection, so its turn goes on as long as it does.
    let broker = pages.broker;
    let work = move || {
        let text = metrics::text(&broker);
        drop(one);
        text
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
