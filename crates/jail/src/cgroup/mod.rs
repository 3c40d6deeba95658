//! Control groups of a sandbox: limits asked, enforced, read back.
