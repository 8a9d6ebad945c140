"""From an address to files on disk: what to fetch, fetching it, unpacking it."""
