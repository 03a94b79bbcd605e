//! Engines that others lend to a model that is composed of them.

use std::ops::Deref;

use futures::future::BoxFuture;
use izwi_types::Task;

use super::Engine;
use super::error::RemoteError;

/// An engine that stays loaded until this is dropped.
pub type Leased = Box<dyn Deref<Target = Engine> + Send + Sync>;

/// Where a model that is composed of others gets their engines.
pub trait Engines: Send + Sync {
    /// Leases the engine of a model with `task`; of the default model without a name.
    fn lease(&self, model: Option<&str>, task: Task) -> BoxFuture<'static, Result<Leased, RemoteError>>;
}
