//! Sessions that a new connection may continue: their secrets, and the way to hand a connection over.
//!
//! Knows connections and no frame. A session is in the table while its driver runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use izwi_core::engine::RequestId;
use subtle::ConstantTimeEq;
use tokio::sync::{mpsc, oneshot};

use super::connection::Connection;
use crate::dto::session::Resume;
use crate::error::ApiError;

/// A connection for a session, from the sample on that the client expects next.
pub(super) struct Handover {
    pub(super) connection: Box<Connection>,
    pub(super) next_sample: u64,
    /// Takes the connection back if the session cannot continue there. Dropped once it continues.
    pub(super) refuse: oneshot::Sender<Refused>,
}

/// A connection that was not taken, and why.
pub(super) type Refused = (Box<Connection>, ApiError);

/// The running sessions by their ids.
#[derive(Default)]
pub(super) struct ResumeTable {
    sessions: Mutex<HashMap<RequestId, Entry>>,
}

struct Entry {
    token: String,
    /// Protocol of the session.
    kind: &'static str,
    handovers: mpsc::Sender<Handover>,
}

impl std::fmt::Debug for ResumeTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResumeTable").finish_non_exhaustive()
    }
}

impl ResumeTable {
    fn sessions(&self) -> MutexGuard<'_, HashMap<RequestId, Entry>> {
        // The map is changed by single calls, so that a panic leaves it whole.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session; the registration removes it.
    pub(super) fn register(
        self: &Arc<Self>,
        id: &RequestId,
        kind: &'static str,
    ) -> (Registration, mpsc::Receiver<Handover>) {
        let token = format!("{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let (handovers, receiver) = mpsc::channel(1);
        self.sessions().insert(id.clone(), Entry { token: token.clone(), kind, handovers });
        (Registration { table: Arc::clone(self), id: id.clone(), token }, receiver)
    }

    /// Hands a connection over to the session that the client names.
    ///
    /// # Errors
    /// There is no such session with this token, or it cannot continue at this sample. The connection comes back.
    pub(super) async fn hand_over(
        &self,
        kind: &'static str,
        resume: Resume,
        connection: Box<Connection>,
    ) -> Result<(), Refused> {
        let Some(handovers) = self.find(kind, &resume) else {
            return Err((connection, ApiError::ResumeRefused));
        };
        let (refuse, refused) = oneshot::channel();
        let handover = Handover { connection, next_sample: resume.next_sample, refuse };
        if let Err(mpsc::error::SendError(handover)) = handovers.send(handover).await {
            return Err((handover.connection, ApiError::ResumeRefused));
        }
        refused.await.map_or(Ok(()), Err)
    }

    /// The session with this id, kind and token. The token is compared in constant time.
    fn find(&self, kind: &'static str, resume: &Resume) -> Option<mpsc::Sender<Handover>> {
        let sessions = self.sessions();
        let entry = sessions.get(&RequestId::from(resume.session_id.as_str()))?;
        let is_own = bool::from(entry.token.as_bytes().ct_eq(resume.resume_token.as_bytes()));
        (is_own && entry.kind == kind).then(|| entry.handovers.clone())
    }
}

/// A session's place in the table.
pub(super) struct Registration {
    table: Arc<ResumeTable>,
    pub(super) id: RequestId,
    /// The secret that continues the session.
    pub(super) token: String,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.table.sessions().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_id_with_its_own_token_and_kind_finds_a_session() {
        let table = Arc::new(ResumeTable::default());
        let (first, _one) = table.register(&RequestId::from("a"), "speech");
        let (second, _two) = table.register(&RequestId::from("b"), "speech");
        assert!(first.token.len() == 64 && first.token != second.token);
        let resume = |id: &str, token: &str| Resume {
            session_id: id.to_owned(),
            resume_token: token.to_owned(),
            next_sample: 0,
        };
        assert!(table.find("speech", &resume("a", &first.token)).is_some());
        assert!(table.find("chat", &resume("a", &first.token)).is_none());
        assert!(table.find("speech", &resume("b", &first.token)).is_none());
        assert!(table.find("speech", &resume("a", "")).is_none());
        assert!(table.find("speech", &resume("c", &first.token)).is_none());
        let token = first.token.clone();
        drop(first);
        assert!(table.find("speech", &resume("a", &token)).is_none());
    }
}
