//! HTTP over the control plane. Routes parse into calls of `control`; nothing is decided here.
