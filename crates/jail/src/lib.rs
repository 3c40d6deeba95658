//! jail
