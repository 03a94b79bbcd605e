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

pub(super) async fn create(State(state): State<AppState>) -> Result<(NoStore, Json<TicketObject>), ApiError> {
    let ticket = state.tickets().issue(Instant::now());
    let ticket =
        ticket.ok_or_else(|| ApiError::overloaded("too many tickets are unused; try again later"))?;
    let ticket = TicketObject { object: "ticket", ticket, expires_in: TICKET_LIFETIME.as_secs() };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(ticket)))
}
