//! Making a sandbox from outside: clone, mounts, identities.
