//! `POST /v1/tickets`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::schemas;

/// A ticket for one WebSocket.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicketObject {
    #[schema(schema_with = schemas::ticket_object)]
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

/// The part of a query that names the server which a client comes back to.
#[derive(Debug, Deserialize)]
pub(crate) struct InstanceQuery {
    pub(crate) instance: Option<String>,
}
