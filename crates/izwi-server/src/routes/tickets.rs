//! `POST /v1/tickets`: a ticket that opens one WebSocket without the key in a header.

use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, header};

use crate::access::TICKET_LIFETIME;
use crate::dto::ticket::TicketObject;
use crate::error::ApiError;
use crate::state::AppState;

type NoStore = [(HeaderName, &'static str); 1];

/// Ticket for a WebSocket
///
/// A secret that opens one WebSocket, as `?ticket=` in its URL, in place of the key: for browsers, which cannot send the key in
/// a header.
#[utoipa::path(
    post,
    path = "/v1/tickets",
    tag = "speech",
    responses((status = 200, description = "The ticket.", body = TicketObject)),
)]
pub(super) async fn create(State(state): State<AppState>) -> Result<(NoStore, Json<TicketObject>), ApiError> {
    let ticket = state.tickets().issue(Instant::now());
    let ticket =
        ticket.ok_or_else(|| ApiError::overloaded("too many tickets are unused; try again later"))?;
    let ticket = TicketObject { object: "ticket", ticket, expires_in: TICKET_LIFETIME.as_secs() };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(ticket)))
}
