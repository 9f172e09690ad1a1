//! The custom resources as types: what a user writes and what the API server stores.
//!
//! Derive only: no behaviour, no validation beyond the schema and its CEL rules, no I/O. What a document means
//! is decided in [`crate::spec`], which turns these types into the validated ones of [`crate::domain`].

mod byte_quantity;
mod definition;
mod duration;
mod ordering;
mod policy;
mod questions;
mod reference;
mod relay;
mod request;
mod route;
mod status;

pub use byte_quantity::{ByteQuantity, ByteQuantityError};
pub use definition::definition;
pub use duration::{Duration, DurationError};
pub use ordering::{OnDead, Ordering, OrderingMode};
pub use policy::{
    BackoffKind, Classification, ClassifiedVerdict, Destination, DispatchPolicy, DispatchPolicySpec, DownstreamId,
    Egress, History, Hold, Idempotency, KeyFormat, Receiver, Response, Retry, RetryAfter, Timeouts,
};
pub use questions::{AnswerRule, BodyRule, HeaderRule, PreDispatch, PreDispatchHttp, QueryMethod, StatusQuery};
pub use reference::{PolicyRef, SecretKeyRef};
pub use relay::{
    Database, Migrations, OutboxRelay, OutboxRelaySpec, PodOverrides, Retention, ScaleDown, Scaling, ScalingMode,
    SslMode,
};
pub use request::{
    Authentication, Basic, Bearer, Method, OAuth2ClientCredentials, Request, SecretHeader, Signing, StandardWebhooks,
    Tls,
};
pub use route::{PolicyRoute, RouteMatch};
pub use status::{BacklogStatus, OutboxRelayStatus, ScalingStatus};

/// The API group of both kinds.
pub const GROUP: &str = "outbox-operator.dev";
/// The one version that is served and stored.
pub const VERSION: &str = "v1alpha1";
