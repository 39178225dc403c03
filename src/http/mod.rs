//! HTTP on the control thread: health for now.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::broker::Broker;

/// Serves HTTP on `listener` for the life of the runtime.
pub async fn serve(broker: Arc<Broker>, listener: TcpListener) {
    let routes = Router::new()
        .route("/healthz", get(health))
        .with_state(broker);
    if let Err(error) = axum::serve(listener, routes).await {
        tracing::error!("HTTP ends: {error}");
    }
}

/// 200 while messages are taken and state files can be written; 503 and the reason otherwise.
async fn health(State(broker): State<Arc<Broker>>) -> (StatusCode, String) {
    let state = broker.store.state();
    if !state.is_writable() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the store takes no messages: {state:?}\n"),
        );
    }
    match broker.persist.failures().first() {
        Some(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        None => (StatusCode::OK, "ok\n".to_string()),
    }
}
