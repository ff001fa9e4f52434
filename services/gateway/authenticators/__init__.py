"""Ways to know who calls the HTTP API: tokens, OpenID Connect, client certificates, plugins."""
