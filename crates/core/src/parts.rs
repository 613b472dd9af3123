//! What protocols share, as plain values.

pub mod arcs;
pub mod ledger;
pub mod line;
pub mod routed;
pub mod semaphores;
pub mod site_set;

pub use arcs::Arcs;
pub use ledger::Ledger;
pub use line::Line;
pub use routed::Routed;
pub use semaphores::Semaphores;
pub use site_set::SiteSet;
