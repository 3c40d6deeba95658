//! HTTP over the control plane. Routes parse into calls of `control`; nothing is decided here.
//!
//! Start with [`router`]. [`error`] is the one place where a failure becomes a status; every route but
//! health takes a `Caller`, which is what its one `Authorization` header proves. The description in
//! OpenAPI is generated from the routes and committed.

mod body;
mod caller;
mod directory;
pub mod error;
mod followers;
mod health;
mod page;
mod v1;

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use leasehold_control::control::Control;
use leasehold_core::error::{ErrorKind, PublicError};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{OpenApi, SecurityRequirement};
use utoipa::{Modify, OpenApi as _};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use crate::directory::{Directories, TICKET_HEADER};
use crate::error::Refusal;
use crate::followers::Followers;

/// What every route has at hand.
#[derive(Clone)]
pub(crate) struct Api {
    control: Control,
    directories: Directories,
    followers: Followers,
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Leasehold",
        description = "A sandbox is a lease on a bounded computer.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    modifiers(&Keys),
)]
struct Description;

struct Keys;

impl Modify for Keys {
    fn modify(&self, openapi: &mut OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(bearer));
        openapi.security = Some(vec![SecurityRequirement::new(
            "key",
            std::iter::empty::<String>(),
        )]);
    }
}

fn parts() -> (Router<Api>, OpenApi) {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .merge(v1::routes())
        .split_for_parts()
}

/// The description of every route.
#[must_use]
pub fn openapi() -> OpenApi {
    parts().1
}

/// The HTTP interface of a daemon. Requests may name directories that were passed beside them.
pub fn router(control: Control, directories: Directories) -> Router {
    let (router, _) = parts();
    router
        .fallback(|| async { body::not_found() })
        .method_not_allowed_fallback(|| async {
            let refusal = Refusal::from(PublicError::new(
                ErrorKind::Invalid,
                "this path does not take this method",
            ));
            (StatusCode::METHOD_NOT_ALLOWED, refusal).into_response()
        })
        .with_state(Api {
            control,
            directories,
            followers: Followers::default(),
        })
}
