//! `POST /v1/tickets`.

use serde::{Deserialize, Serialize};

/// A ticket for one WebSocket.
#[derive(Debug, Serialize)]
pub(crate) struct TicketObject {
    /// Always `ticket`.
    pub(crate) object: &'static str,
    pub(crate) ticket: String,
    /// Seconds.
    pub(crate) expires_in: u64,
}

/// The part of a WebSocket's query that carries a ticket.
#[derive(Debug, Deserialize)]
pub(crate) struct TicketQuery {
    pub(crate) ticket: Option<String>,
}
