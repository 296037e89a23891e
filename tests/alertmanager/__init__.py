"""Posts that Debian's Alertmanager 0.25 has sent, and the same sort of posts made up."""
