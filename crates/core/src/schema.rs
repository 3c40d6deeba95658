//! How values that are written as text are described in the HTTP interface.

use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::digest::Digest;
use crate::name::{Name, ToolRef, Version};

macro_rules! text {
    ($($name:ty),+) => {$(
        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                String::schema()
            }
        }

        impl ToSchema for $name {}
    )+};
}

text!(Digest, Name, Version, ToolRef);
