"""layoutopt schema"""

from __future__ import annotations

import click

from layoutopt.cli.output import write


@click.command("schema", short_help="The JSON Schemas of requests and answers.")
@click.argument("name", required=False)
def command(name: str | None) -> int:
    """Lists the published JSON Schemas, or prints the one called NAME."""
    from layoutopt.schema import schema_names, schema_text

    write(schema_text(name) if name else "\n".join(schema_names()))
    return 0
