"""`python -m tests.support.asgi_program serve --port N --data-dir DIR`: the ASGI application under
plain uvicorn.

As another server would run it: nothing of app/server answers, all goes through FastAPI's routes.
"""

import argparse
from pathlib import Path

import uvicorn

from app.main import create_app
from app.observability.logs import configure_logging
from app.settings import load


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    given = parser.parse_args()
    settings = load(port=given.port, data_dir=given.data_dir)
    configure_logging(level=settings.log_level, readable=False)
    uvicorn.run(
        create_app(settings), port=settings.port, access_log=False, log_config=None, loop="uvloop"
    )


if __name__ == "__main__":
    main()
