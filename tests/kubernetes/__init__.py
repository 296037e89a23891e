"""Tests on a real Kubernetes control plane on loopback: `make test-kubernetes`. It is built once, from Go modules."""
