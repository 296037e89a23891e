"""What is below ASGI: uvicorn's protocol with connection limits, and the fast paths."""
