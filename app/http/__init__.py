"""What stands below ASGI: uvicorn's protocol with connection limits, cached reads, the lifespan, TLS, systemd."""
