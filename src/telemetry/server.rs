//! `/metrics`, `/healthz` and `/readyz` over HTTP.

use std::sync::Arc;

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::prometheus_text, registry::Registry};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

/// Whether the process is ready; the error says why not.
pub type Readiness = watch::Receiver<Result<(), String>>;

/// Serves until `stop`. `/healthz` answers 200 while the process runs: what ails the database is no reason to restart.
pub async fn serve(
    listener: TcpListener,
    registry: Arc<Registry>,
    readiness: Readiness,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/metrics", get(move || std::future::ready(metrics(&registry))))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || std::future::ready(ready(&readiness))));
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

fn metrics(registry: &Registry) -> Response {
    let mut text = String::new();
    match prometheus_text::encode(&mut text, registry) {
        Ok(()) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("encode metrics: {error}\n")).into_response(),
    }
}

fn ready(readiness: &Readiness) -> Response {
    let state = readiness.borrow().clone();
    match state {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}
