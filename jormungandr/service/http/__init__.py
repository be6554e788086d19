"""HTTP: routes as bare ASGI applications, and what stands before them."""
