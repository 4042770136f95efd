"""Below the routes: sockets, connections, one request and its response, limits and rates, what every answer carries."""
