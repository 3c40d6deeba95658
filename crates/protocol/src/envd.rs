//! Message types of the agent's public surface (Connect with JSON, the public E2B `envd` names).
