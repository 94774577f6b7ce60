"""The commands `lampwork keygen`, `sign` and `verify`."""

from __future__ import annotations

import argparse
from typing import Any

from lampwork.artifacts.trust import generate_key, sign, verify


def add_commands(commands: Any) -> None:
    """Add them to the subcommands of an argument parser."""
    made = commands.add_parser(
        "keygen",
        help="make a pair of keys to sign artifacts with",
        description="Make an Ed25519 key, and beside it its public half, NAME.pub.pem, which checks what it signs.",
    )
    made.add_argument("key", metavar="NAME.pem", help="where the private key is written, for its owner alone")
    made.set_defaults(run=_keygen)

    signed = commands.add_parser(
        "sign",
        help="sign an artifact",
        description="Sign all bytes of a .lamp file: weights, code and what it says of itself.",
    )
    signed.add_argument("file", metavar="FILE.lamp")
    signed.add_argument("--key", metavar="KEY.pem", required=True, help="the private key")
    signed.add_argument("-o", "--output", metavar="OUT", help="write it there (default: in its place)")
    signed.set_defaults(run=_sign)

    verified = commands.add_parser(
        "verify",
        help="check the signature of an artifact",
        description="Check that a .lamp file is signed by one of these keys, and is as it was then. If not, the exit "
        "status is 1.",
    )
    verified.add_argument("file", metavar="FILE.lamp")
    verified.add_argument(
        "--key", metavar="KEY.pub.pem", required=True, action="append", help="a public key; may come again"
    )
    verified.set_defaults(run=_verify)


def _keygen(given: argparse.Namespace) -> int:
    private, public, name = generate_key(given.key)
    print(f"key {name}: {private} signs, {public} verifies")
    return 0


def _sign(given: argparse.Namespace) -> int:
    name = sign(given.file, given.key, given.output)
    print(f"{given.output or given.file}: signed by {name}")
    return 0


def _verify(given: argparse.Namespace) -> int:
    print(f"{given.file}: signed by {verify(given.file, given.key)}, unchanged since")
    return 0
