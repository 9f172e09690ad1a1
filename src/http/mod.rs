//! The only place with the HTTP client: builds a request of a row, sends it once, and says what was seen.
//!
//! Nothing is sent again that the outbox does not know of: the client's retries, redirects and the environment's proxies
//! are off. (Left on is only what cannot repeat anything: a request that was handed to an idle connection which turned out
//! closed before the first byte was written goes out on a new one.)

mod client;
mod credentials;
mod failure;
mod proxy;
mod questions;
mod request;
mod resolver;
mod sender;
mod signature;
mod token;

pub use credentials::{CredentialError, Credentials};
pub use questions::CheckRequest;
pub use request::{Body, RowRequest};
pub use resolver::{Lookup, SystemLookup};
pub use sender::{SendError, Sender, Sent};
