"""Authentication: tokens, JWTs and sessions, and the role that each gives."""
