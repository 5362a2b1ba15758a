"""The server on asyncio, and maintenance of journal files. Import the names from `quire`."""
