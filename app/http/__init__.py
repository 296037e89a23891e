"""What is below ASGI: uvicorn's protocol with connection limits and fast paths, the lifespan, TLS, the process."""
