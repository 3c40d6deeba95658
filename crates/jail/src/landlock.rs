//! The Landlock ruleset of a workload.
