//! The routes of version 1. One file for each noun.

mod evidence;
mod files;
mod runs;
mod stream;
mod view;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Api;

/// Every route below `/v1`.
pub(crate) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(runs::start, runs::list))
        .routes(routes!(runs::read))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::contract))
        .routes(routes!(runs::audit))
        .routes(routes!(stream::events))
        .routes(routes!(files::log))
        .routes(routes!(files::artifacts))
        .routes(routes!(files::artifact))
        .routes(routes!(files::upload))
        .routes(routes!(evidence::evidence))
        .routes(routes!(evidence::explain))
}
