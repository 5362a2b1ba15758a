"""Dashboard: the newest price of each symbol, a few times a second, however fast prices arrive.

    python examples/dashboard.py

Conflation keeps the newest message of each symbol, and sends it once per interval.
"""

from __future__ import annotations

import random
import threading

import quire

SYMBOLS = ("IBM", "HPQ", "SAP")


def publish_prices(stop: threading.Event) -> None:
    draw = random.Random(1)
    with quire.Client("memory:market", name="feed") as client:
        while not stop.wait(0.001):
            client.publish("prices", {"symbol": draw.choice(SYMBOLS), "price": draw.randint(90, 110)})


def main() -> None:
    stop = threading.Event()
    with quire.Client("memory:market", name="dashboard") as client:
        prices = client.subscribe("prices", conflation="200ms", conflation_key="/symbol")
        feed = threading.Thread(target=publish_prices, args=(stop,))
        feed.start()
        shown: dict[str, int] = {}
        while len(shown) < len(SYMBOLS):
            price = prices.get(timeout=30).json()
            shown[price["symbol"]] = price["price"]
            print(" ".join(f"{symbol} {shown.get(symbol, '-')}" for symbol in SYMBOLS))
        stop.set()
        feed.join()


if __name__ == "__main__":
    main()
