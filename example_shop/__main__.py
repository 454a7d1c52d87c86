"""Serve the shop: `python -m example_shop`."""

import argparse
import os
from pathlib import Path

import uvicorn

from example_shop.app import create_app


def main() -> None:
    """Read the options, then serve until told to stop."""
    setting = os.environ.get
    parser = argparse.ArgumentParser(prog="python -m example_shop")
    parser.add_argument("--host", default=setting("SHOP_HOST", "127.0.0.1"))
    parser.add_argument("--port", type=int, default=int(setting("SHOP_PORT", "8000")))
    parser.add_argument("--database", type=Path, default=Path(setting("SHOP_DATABASE", "shop.db")))
    options = parser.parse_args()
    uvicorn.run(create_app(options.database), host=options.host, port=options.port)


if __name__ == "__main__":
    main()
