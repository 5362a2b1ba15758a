"""Asyncio service: answers requests from a queue, and stops cleanly on SIGTERM.

    python examples/asyncio_service.py [URL]

An answer has the correlation id of its request, so the asker knows what it is the answer to.
"""

from __future__ import annotations

import asyncio
import sys

import quire

CONFIG = quire.Config(queue=[{"name": "quotes", "message_type": "json", "underlying_topic": "requests"}])


async def serve(url: str) -> None:
    async with quire.AsyncClient(url, name="quotes-1", config=CONFIG) as client:

        async def answer(message: quire.Message) -> None:
            request = message.json()
            quote = {"symbol": request["symbol"], "price": 10 * len(request["symbol"])}
            await client.publish("answers", quote, correlation_id=message.correlation_id)
            await client.flush()  # the answer is persisted before the request is acknowledged

        print(await client.process("quotes", answer, concurrency=8))


async def ask(url: str, symbol: str) -> int:
    """Publishes a request and waits for its answer."""
    async with quire.AsyncClient(url, name=f"asker-{symbol}", config=CONFIG) as client:
        answers = await client.subscribe("answers")
        await client.publish("requests", {"symbol": symbol}, correlation_id=symbol)
        while True:
            message = await answers.get(timeout=30)
            if message.correlation_id == symbol:
                return int(message.json()["price"])


async def main(url: str) -> None:
    service = asyncio.create_task(serve(url))
    prices = await asyncio.gather(*(ask(url, symbol) for symbol in ("IBM", "HP", "X")))
    print(prices)
    service.cancel()  # a service in production gets SIGTERM instead
    await asyncio.gather(service, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory:quotes"))
