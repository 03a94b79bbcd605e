//! Leases of loaded models.

use std::ops::Deref;

use izwi_core::engine::Engine;

use super::Registry;

/// An engine that stays loaded until this is dropped: by a request after its last byte, by a session at its end.
#[derive(Debug)]
pub struct Lease {
    registry: Registry,
    id: String,
    engine: Engine,
}

impl Lease {
    pub(super) fn new(registry: Registry, id: String, engine: Engine) -> Self {
        Self { registry, id, engine }
    }
}

impl Deref for Lease {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.registry.release(&self.id);
    }
}
