//! What a principal may do: its role first, then whose thing it is. Another tenant's thing and one that
//! is not there look the same.

use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::name::Name;
use leasehold_core::tenant::{Operation, Principal, Role};

/// Checks that the role allows it.
///
/// # Errors
/// `forbidden`, naming the role.
pub fn allowed(principal: &Principal, operation: Operation) -> Result<(), PublicError> {
    if principal.role.allows(operation) {
        return Ok(());
    }
    let words: Vec<&str> = Role::ALL
        .into_iter()
        .filter(|role| role.allows(operation))
        .map(Role::word)
        .collect();
    Err(PublicError::new(
        ErrorKind::Forbidden,
        format!(
            "a key of the role `{}` may not do this",
            principal.role.word()
        ),
    )
    .hint(format!("it needs one of the roles {}", words.join(", "))))
}

/// The tenant an operation is about: the principal's own, or for an operator the one that was named.
///
/// # Errors
/// `not_found` when somebody else names another tenant.
pub fn tenant(principal: &Principal, named: Option<&Name>) -> Result<Name, PublicError> {
    match named {
        Some(named) if *named != principal.tenant && principal.role != Role::Operator => {
            Err(PublicError::new(ErrorKind::NotFound, "no such tenant"))
        }
        Some(named) => Ok(named.clone()),
        None => Ok(principal.tenant.clone()),
    }
}
