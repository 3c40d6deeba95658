//! The routes of version 1. One file for each noun.

mod evidence;
mod files;
mod fleet;
mod policies;
mod runs;
mod stream;
mod tenants;
mod tools;
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
        .routes(routes!(tools::publish, tools::list))
        .routes(routes!(tools::versions))
        .routes(routes!(tools::read))
        .routes(routes!(tools::set_state))
        .routes(routes!(tenants::create, tenants::list))
        .routes(routes!(tenants::read))
        .routes(routes!(tenants::suspend))
        .routes(routes!(tenants::create_key, tenants::keys))
        .routes(routes!(tenants::revoke_key))
        .routes(routes!(policies::list, policies::publish))
        .routes(routes!(policies::effective))
        .routes(routes!(fleet::workers))
        .routes(routes!(fleet::log))
}
